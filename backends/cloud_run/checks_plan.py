"""Whether Google would take the plan itself: region, quota, image, name, and all of it at once."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from backends.cloud_run import looking, quotas, rules
from backends.cloud_run.blueprint import blueprint
from backends.cloud_run.service import in_beta_if_need_be, service_of
from backends.cloud_run.site import Site
from backends.common.looked import Answer, Question
from backends.google import images
from backends.google.failing import CPU_QUOTA, MEMORY_QUOTA, NO_GPU_QUOTA
from backends.google.seen import token_kept
from backends.google.waiting import strictly, writing
from core.cloud_errors import CloudRefused, PermissionDenied, QuotaExceeded
from core.plans import Check, Plan

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_WHOLE: Final = "Google would take this service"
_EXACT: Final = (
    "That is exactly enough, and the service is there: a rollout takes up to three times as much"
    " for a moment, so changing it may be refused."
)
"""Source: a field note of 2026 on GPU services."""
_ROOM: Final = "Delete the service first (destroy_vllm), or raise the quota:"


def questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the plan names; the whole of it comes last."""
    gpu, region = site.target.accelerator or "", site.clients.region
    yield Question(f"{region} has {gpu}", partial(_region, site))
    yield Question(
        f"The quota allows {plan.spec.max_replicas} at once", partial(_quota, site, plan)
    )
    yield Question("The project may use that many vCPU", partial(_vcpu, site, plan))
    yield Question("The project may use that much memory", partial(_memory, site, plan))
    yield Question("The container image is there", partial(_image, site, plan))
    yield Question(f"The name {plan.spec.name} is free or yours", partial(_name, site, plan))
    yield Question(_WHOLE, partial(_taken, site, plan))


def without_echo(rows: Sequence[Check]) -> Iterator[Check]:
    """Leave a refusal of the whole unknown where a part of it is known to be wrong."""
    wrong = [row.what for row in rows if row.outcome == "fail" and row.what != _WHOLE]
    for row in rows:
        if row.what == _WHOLE and row.outcome == "fail" and wrong:
            why = f"It says no, which may be for what is wrong above. {row.detail}"
            yield Check(what=row.what, outcome="unknown", detail=why, fix="Put that right first.")
        else:
            yield row


async def _region(site: Site) -> Answer:
    doubt = rules.region_doubt(site.target, site.clients.region)
    if doubt:
        return Answer(passed=None, detail=doubt)
    return Answer(passed=True, detail="By Google's list of regions.")


async def _vcpu(site: Site, plan: Plan) -> Answer:
    size = blueprint(site, plan.spec, plan.model).instance
    return await _size(site, plan, CPU_QUOTA, size.vcpu)


async def _memory(site: Site, plan: Plan) -> Answer:
    size = blueprint(site, plan.spec, plan.model).instance
    return await _size(site, plan, MEMORY_QUOTA, size.ram_gib)


async def _size(site: Site, plan: Plan, quota: str, each: float) -> Answer:
    read = await quotas.allowed(site, quota)
    if read.limit is None:
        return Answer(passed=None, detail=f"{quota}: {read.detail}")
    total = plan.spec.max_replicas * each
    said = (
        f"{quota} is {read.limit:g} {read.unit} in {site.clients.region}; {total:g} {read.unit}"
        f" asked for, {each:g} for each instance."
    )
    return await _judged(site, plan, read.limit, each, said)


async def _quota(site: Site, plan: Plan) -> Answer:
    rows = await quotas.read(site)
    if not rows:
        return Answer(passed=None, detail=f"No quota of {site.target.accelerator} is known here.")
    ours = rows[0]
    if ours.limit is None:
        return Answer(passed=None, detail=f"{ours.quota}: {ours.detail}")
    said = f"{ours.quota} is {ours.limit:g} in {ours.region}; {plan.spec.max_replicas} asked for."
    if ours.in_use:
        said += f" Services that are there may take {ours.in_use:g} of it."
    return await _judged(site, plan, ours.limit, 1, said)


async def _judged(site: Site, plan: Plan, limit: float, each: float, said: str) -> Answer:
    """Compare a limit with what the most instances take, and with what changing them takes."""
    total = plan.spec.max_replicas * each
    more = (
        "https://console.cloud.google.com/iam-admin/quotas"
        f"?project={site.clients.project}&service=run.googleapis.com"
    )
    if limit < total:
        most = int(limit // each)
        smaller = f"Give max_replicas {most} or less. " if most else ""
        return Answer(passed=False, detail=said, fix=f"{smaller}Ask for more: {more}")
    if limit == total and await looking.service_there(site, plan.spec.name):
        return Answer(passed=None, detail=f"{said} {_EXACT}", fix=f"{_ROOM} {more}")
    return Answer(passed=True, detail=said)


async def _image(site: Site, plan: Plan) -> Answer:
    image = blueprint(site, plan.spec, plan.model).container.image
    try:
        pinned = await images.pinned(site, image)
    except CloudRefused as exc:
        if plan.spec.engine == "ollama" and not plan.spec.image:
            return Answer(passed=True, detail="Cloud Build makes it when this is deployed.")
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}", fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _name(site: Site, plan: Plan) -> Answer:
    found = await looking.service_there(site, plan.spec.name)
    if found is None:
        return Answer(passed=True, detail="Nothing of that name is there.")
    if not looking.is_ours(found):
        return Answer(
            passed=False,
            detail=f"A service {plan.spec.name} is there that was not made here.",
            fix="Choose another name: it is left alone.",
        )
    owner = looking.target_of(found)
    if owner != site.target.name:
        return Answer(
            passed=False,
            detail=f"It is a deployment of {owner}.",
            fix=f"Choose another name, or destroy it on {owner} first.",
        )
    return Answer(passed=True, detail="It is this deployment, which would be changed.")


async def _taken(site: Site, plan: Plan) -> Answer:
    """Let Google judge the service as it would be sent, without making it."""
    kept = await token_kept(site)
    wanted = service_of(blueprint(site, plan.spec, plan.model, hf_token=kept))
    try:
        there = await looking.service_there(site, plan.spec.name)
        await in_beta_if_need_be(
            wanted, lambda: _validated(site, wanted, plan.spec.name, there=there is not None)
        )
    except QuotaExceeded as exc:
        granted = any(row.first_grant for row in await quotas.read(site))
        if granted and NO_GPU_QUOTA in exc.cause:
            why = f"It was not made, so nothing was granted for it yet: {exc.cause}"
            return Answer(passed=None, detail=why)
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}", fix=exc.fix)
    except (CloudRefused, PermissionDenied) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}", fix=exc.fix)
    return Answer(passed=True, detail="It was validated and not made.")


async def _validated(site: Site, wanted: "Service", name: str, *, there: bool) -> None:
    client = await site.clients.run()
    with strictly("validate the service"):
        if there:
            wanted.name = f"{site.clients.parent}/services/{name}"
            await client.update_service({"service": wanted, "validate_only": True}, **writing())
        else:
            request = {
                "parent": site.clients.parent,
                "service": wanted,
                "service_id": name,
                "validate_only": True,
            }
            await client.create_service(request, **writing())
