"""What a project must have and what a plan needs of Google: set-up, quotas and preflight."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from google.cloud.artifactregistry_v1 import Repository

from backends.base import Quota
from backends.cloud_run import access, container, storage
from backends.cloud_run.service import (
    blueprint,
    find_service,
    refuse_foreign,
    service_of,
    service_path,
    write_service,
)
from backends.cloud_run.site import Site
from backends.common.concurrency import side_by_side
from backends.common.keeper import answer_of
from backends.common.models import folders, judge_whole
from backends.common.preflight import Answer, Question
from backends.google import buckets, lease, schedule, setup
from backends.google.clients import (
    BUILDER_ID,
    REPOSITORY,
    RUNTIME_ID,
    account_of,
    pairs,
)
from backends.google.errors import (
    CPU_QUOTA,
    MEMORY_QUOTA,
    NO_GPU_QUOTA,
    UNITS,
    find,
    reading,
    strictly,
    translated,
    why_unread,
    writing,
)
from backends.google.iam import binding
from backends.google.setup import limit_in
from backends.lifecycle import Resource
from core import errors
from core.records import DeploymentSpec, Plan, Preflight

_KINDS: Final = {
    "nvidia-l4": ("NvidiaL4Gpu", 1),
    "nvidia-rtx-pro-6000": ("NvidiaRtxPro6000Gpu", 1000),
}
"""The stem of both quotas' ids, and what one GPU is in their unit.

Source: answers of the Cloud Quotas API in public projects' notes, read 2026-11; the RTX PRO 6000's
are in thousandths of a GPU."""
_WITHOUT, _WITH = "AllocNoZonalRedundancyPerProjectRegion", "AllocPerProjectRegion"
FIRST_GRANT: Final = 3
_UNUSED: Final = (
    f"Not used in this region yet: Google grants a project {FIRST_GRANT} (zonal redundancy off)"
    " with its first deployment there."
)
"""Source: Google, "Projects using Cloud Run nvidia-l4 GPUs in a region for the first time are
automatically granted 3 GPU quota (zonal redundancy off) when the first deployment is created", and
the same of the RTX PRO 6000 (docs.cloud.google.com/run/docs/configuring/services/gpu, as quoted in
public notes, 2026-11-23). What the API says before that nobody has published: no such quota, no
entry of the region and a 0 are taken alike."""
_EXACT: Final = (
    "That is exactly enough, and the service is there: a rollout takes up to three times as much"
    " for a moment, so changing it may be refused."
)
"""Source: a field note of 2026 on GPU services."""
_WHOLE: Final = "Google would take this service"
_READER: Final = "roles/storage.objectViewer"


def needs_of(spec: DeploymentSpec, caller: str | None) -> set[str]:
    """Return which needs a deployment has; `caller` is the account that is to ask its model."""
    found: set[str] = {"every", "ollama" if spec.engine == "ollama" else "keyed"}
    if (spec.weights or "").startswith("gs://"):
        found.add("bucket")
    if spec.access != "public":
        found.add("granting" if caller else "asking")
    if spec.lease == "cloud" or spec.schedule:
        found.add("lease")
    if spec.schedule:
        found.add("schedule")
    return found


async def read_quotas(site: Site) -> tuple[Quota, ...]:
    """Return the quota without zonal redundancy, which deployments made here need, and the other.

    What cannot be read has no limit and says why.
    """
    accelerator = site.target.accelerator or ""
    if not site.clients.project or accelerator not in _KINDS:
        return ()
    stem, unit = _KINDS[accelerator]

    async def look(ending: str) -> Quota:
        limit, why = await read_limit(site, f"{stem}{ending}", unit)
        if limit and unit != 1:
            why = f"Read as {limit * unit:.0f} thousandths."
        return Quota(
            quota=f"{stem}{ending}",
            region=site.clients.region,
            accelerator=accelerator,
            limit=limit,
            detail=why,
        )

    looks: list[Any] = [partial(look, _WITHOUT), partial(look, _WITH), partial(_in_use, site)]
    ours, other, (in_use, how) = await side_by_side(looks)
    if ours.limit == 0 and not in_use and not await _asked_for(site, ours.quota):
        new = {"limit": None, "first_grant": FIRST_GRANT, "detail": _UNUSED}
        ours = ours.model_copy(update=new)
    detail = " ".join(part for part in (ours.detail, how) if part)
    return (ours.model_copy(update={"in_use": in_use, "detail": detail}), other)


async def refuse_without_quota(site: Site) -> None:
    """Refuse a service where no instance of it may have a GPU.

    Raises:
        QuotaExceeded: Google has said of this region that it may have none.
    """
    for ours in (await read_quotas(site))[:1]:
        if ours.limit == 0 and await read_limit(site, ours.quota, 1) == (0, ""):
            target = site.target.name
            raise errors.QuotaExceeded(
                f"No GPU of {target} may run in {ours.region}: its quota is 0.",
                cause=f"{ours.quota} is 0. {ours.detail}".strip(),
                fix="Ask for more in the Google Cloud console, IAM and admin, Quotas. Or set"
                " GOOGLE_CLOUD_LOCATION to a region that has some, or take another target.",
                next_steps=(errors.NextStep("check_gpu_quotas", {"target": target}),),
            )


async def read_limit(site: Site, quota: str, size: int) -> tuple[float | None, str]:
    """Return a quota in units of so much, None where it cannot be read, and why it is not told."""
    found, region = await setup.read_quota(site, "run.googleapis.com", quota), site.clients.region
    if isinstance(found, str):
        return None, found
    if found is None:
        return 0, "The project has no such quota."
    limit = limit_in(found, region)
    return (0, f"The quota says nothing of {region}.") if limit is None else (limit / size, "")


async def _asked_for(site: Site, quota: str) -> bool:
    """Whether Google has decided on this quota; where it cannot be asked, it has not."""
    parent, region = f"projects/{site.clients.project}/locations/global", site.clients.region
    client = await site.clients.quotas()
    with suppress(errors.CloudError), translated(f"read what was asked for of {quota}"):
        pager = await client.list_quota_preferences(parent=parent, **reading())
        rows = [row async for row in pager if row.quota_id == quota]
        return any(row.dimensions.get("region", region) == region for row in rows)
    return False


async def _in_use(site: Site) -> tuple[float | None, str]:
    """Add up the most instances that services of the region may have on this accelerator."""
    most: list[int] = []
    try:
        run = await site.clients.run()
        with strictly("list the region's services"):
            pager = await run.list_services(parent=site.clients.parent, **reading())
            async for service in pager:
                template, own = service.template, service.scaling.max_instance_count
                same = template.node_selector.accelerator == site.target.accelerator
                if same and template.gpu_zonal_redundancy_disabled:
                    most.append(own or template.scaling.max_instance_count)
    except errors.CloudError as exc:
        return None, f"What is in use is not known: {why_unread(exc)}"
    how = f"In use: the most instances that {len(most)} service(s) may have." if most else ""
    return sum(most), how


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything; a refusal of the whole is unknown where a part of it is known to be wrong."""
    found = await setup.preflight(site, partial(_questions, site, plan))
    whole = found.checks[-1]
    if whole not in found.failed or len(found.failed) == 1:
        return found
    why = f"It says no, which may be for what is wrong above. {whole.detail}"
    unsure = {"outcome": "unknown", "detail": why, "fix": "Put that right first."}
    return Preflight(checks=(*found.checks[:-1], whole.model_copy(update=unsure)))


def _questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what every deployment needs, then for what the plan names; the whole comes last."""
    spec, region, baked = plan.spec, site.clients.region, False
    of_it = needs_of(spec, site.settings.google_service_account)
    yield from setup.questions_of_every(site, "cloud_run", of_it, spec)
    if spec.engine == "ollama" and not spec.image:
        baked = True
        yield from setup.check_account(site, BUILDER_ID, "build")
        may_push = (
            _pusher(site),
            setup.roles(site, BUILDER_ID, setup.needs("cloud_run").builder_roles),
        )
        yield setup.is_there("It may push what it builds and write its log", *may_push)
    if spec.access != "public":
        refusals = (errors.NotAuthenticated, errors.PermissionDenied, errors.ApiDisabled)
        yield Question("You can call what you deploy", partial(access.mintable, site), refusals)
    if spec.weights and spec.weights.startswith("gs://"):
        bucket, folder = storage.parse_bucket(site, spec.weights)
        whole = partial(_whole, site, bucket, folder)
        yield Question(f"{spec.weights} holds a whole model", whole, (errors.CloudRefused,))
        grant = reader(site, bucket)
        fix = f"Set BUCKET_NAME={bucket} and call setup_target, or: {grant.command}"
        yield setup.is_there(f"Instances may read {bucket}", grant, fix=fix)
    yield Question(f"{region} has {site.target.accelerator or ''}", partial(_region, site))
    yield Question(f"The quota allows {spec.max_replicas} at once", partial(_quota, site, plan))
    yield Question("The project may use that many vCPU", partial(_size, site, plan, CPU_QUOTA))
    yield Question("The project may use that much memory", partial(_size, site, plan, MEMORY_QUOTA))
    if (spec.ttl_minutes or spec.max_usd) and spec.lease != "server":
        yield Question("Google ends it when its time is over", partial(_lease, site, spec))
    if spec.schedule:
        yield Question("Google keeps its schedule", partial(_schedule, site, spec))
    image = partial(_image, site, plan, baked=baked)
    yield Question("The container image is there", image, (errors.CloudRefused,))
    yield Question(
        f"The name {spec.name} is free or yours", partial(_name, site, plan), (errors.NotOurs,)
    )
    judged = (errors.CloudRefused, errors.PermissionDenied, errors.QuotaExceeded)
    yield Question(_WHOLE, partial(_dry_run, site, plan), judged)


async def _lease(site: Site, spec: DeploymentSpec) -> Answer | str:
    well = "A job may be made, and may end this service alone."
    return answer_of(spec, await lease.means(site, spec.name), well)


async def _schedule(site: Site, spec: DeploymentSpec) -> Answer | str:
    lacking = await lease.missing(site, spec.name, schedule.LIST)
    if not lacking:
        return "Its jobs may be made."
    return Answer(passed=False, detail=f"Missing: {'; '.join(lacking)}.", fix=setup.SET_UP)


async def _region(site: Site) -> Answer:
    doubt = container.region_doubt(site.target, site.clients.region)
    return Answer(passed=None if doubt else True, detail=doubt or "By Google's list of regions.")


async def _size(site: Site, plan: Plan, quota: str) -> Answer | str:
    """Compare vCPU or memory with what the project may have of it in the region."""
    size, unit = blueprint(site, plan.spec, plan.model).instance, UNITS[quota]
    limit, why = await read_limit(site, quota, unit.size)
    if limit is None or why:
        return Answer(passed=None, detail=f"{quota}: {why}")
    each = size.vcpu if quota == CPU_QUOTA else size.ram_gib
    said = (
        f"{quota} is {limit:g} {unit.name} in {site.clients.region};"
        f" {plan.spec.max_replicas * each:g} {unit.name} asked for, {each:g} for each instance."
    )
    return await _judged(site, plan, limit, each, said)


async def _quota(site: Site, plan: Plan) -> Answer | str:
    rows = await read_quotas(site)
    if not rows:
        return Answer(passed=None, detail=f"No quota of {site.target.accelerator} is known here.")
    ours = rows[0]
    if ours.limit is None:
        return Answer(passed=None, detail=f"{ours.quota}: {ours.detail}")
    said = f"{ours.quota} is {ours.limit:g} in {ours.region}; {plan.spec.max_replicas} asked for."
    if ours.in_use:
        said += f" Services that are there may take {ours.in_use:g} of it."
    return await _judged(site, plan, ours.limit, 1, said)


async def _judged(site: Site, plan: Plan, limit: float, each: float, said: str) -> Answer | str:
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
    if limit == total and await find_service(site, plan.spec.name):
        fix = f"Delete the service first (destroy_vllm), or raise the quota: {more}"
        return Answer(passed=None, detail=f"{said} {_EXACT}", fix=fix)
    return said


async def _image(site: Site, plan: Plan, *, baked: bool) -> str:
    try:
        return await setup.image_there(site, blueprint(site, plan.spec, plan.model).container.image)
    except errors.CloudRefused:
        if baked:
            return "Cloud Build makes it when this is deployed."
        raise


async def _name(site: Site, plan: Plan) -> str:
    found = await refuse_foreign(site, plan.spec.name)
    ours = "It is this deployment, which would be changed."
    return ours if found else "Nothing of that name is there."


async def _dry_run(site: Site, plan: Plan) -> Answer | str:
    """Let Google judge the service as it would be sent, without making it."""
    kept, name = await setup.token_kept(site), plan.spec.name
    wanted, new = service_of(blueprint(site, plan.spec, plan.model, hf_token=kept)), name
    try:
        if await find_service(site, name) is not None:
            wanted.name, new = service_path(site, name), ""
        await write_service(site, wanted, "validate the service", name=new, dry=True)
    except errors.QuotaExceeded as exc:
        granted = any(row.first_grant for row in await read_quotas(site))
        if granted and NO_GPU_QUOTA in exc.cause:
            why = f"It was not made, so nothing was granted for it yet: {exc.cause}"
            return Answer(passed=None, detail=why)
        raise
    return "It was validated and not made."


async def _whole(site: Site, bucket: str, folder: str) -> Answer:
    with buckets.looking_into(bucket, f"look into gs://{bucket}/{folder}"):
        found = await storage.list_objects(site, bucket, folder)
        verdict = await judge_whole(folders(found).get(folder, {}))
    copy = "Copy what is missing once more: gcloud storage rsync FOLDER gs://BUCKET/FOLDER."
    fix = copy if verdict.complete is False else ""
    return Answer(passed=verdict.complete, detail=verdict.detail, fix=fix)


def shared(site: Site) -> tuple[Resource, ...]:
    """Return what a project needs once, in the order in which it can be made."""
    wanted = setup.needs("cloud_run")
    return (
        setup.apis(site, wanted.apis),
        # Both before any role: IAM takes a moment to know a new account everywhere.
        setup.account(site),
        setup.account(site, BUILDER_ID, "vLLM images", "images are built"),
        setup.roles(site, RUNTIME_ID, wanted.roles),
        setup.roles(site, BUILDER_ID, wanted.builder_roles),
        _repository(site),
        _pusher(site),
        *lease.shared(site),
        *([reader(site, bucket)] if (bucket := site.settings.bucket_name) else []),
        *setup.tokens(site),
    )


def _repository(site: Site) -> Resource:
    parent, project = site.clients.parent, site.clients.project
    wanted = Repository(format_=Repository.Format.DOCKER, labels=setup.LABELS)

    async def get() -> Repository | None:
        client, name = await site.clients.repositories(), f"{parent}/repositories/{REPOSITORY}"
        looked = client.get_repository(name=name, **reading())
        return await find("look for the repository of images", looked)

    async def put() -> None:
        client = await site.clients.repositories()
        with strictly("make the repository of images"):
            operation = await client.create_repository(
                parent=parent, repository=wanted, repository_id=REPOSITORY, **writing()
            )
            await setup.wait_for_operation(operation, "the repository")

    return Resource(
        name="repository",
        title=f"the repository {REPOSITORY} for images, in {site.clients.region}",
        get=get,
        put=setup.known_everywhere(put),
        scope="shared",
        command=f"gcloud artifacts repositories create {REPOSITORY} --repository-format=docker"
        f" --location={site.clients.region} --project={project} --labels={pairs()}",
    )


def _pusher(site: Site) -> Resource:
    roles = setup.needs("cloud_run").repository_roles
    account = account_of(site.clients.project, BUILDER_ID)
    made = binding(
        site.clients.repositories,
        f"{site.clients.parent}/repositories/{REPOSITORY}",
        [role.name for role in roles],
        account,
        what=f"grant {account} its roles on the repository",
        name="pusher",
        title=f"roles of {BUILDER_ID} on that repository:"
        f" {' and '.join(role.why for role in roles)}",
        after=(BUILDER_ID, "repository"),
        scope="shared",
        command=" && ".join(
            f"gcloud artifacts repositories add-iam-policy-binding {REPOSITORY}"
            f" --location={site.clients.region} --project={site.clients.project}"
            f" --member=serviceAccount:{account} --role={role.name}"
            for role in roles
        ),
    )
    return replace(made, put=setup.known_everywhere(made.put))


def reader(site: Site, bucket: str) -> Resource:
    """Return the runtime account's right to read a bucket; one that is missing has no reader."""
    return buckets.binding(
        site,
        bucket,
        _READER,
        "let the runtime account read the bucket",
        name="reader",
        title=f"role of {RUNTIME_ID} on the bucket {bucket}: read objects",
        scope="shared",
        after=(RUNTIME_ID,),
    )
