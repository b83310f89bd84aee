"""A plan made true: key, grant and service, each looked for before it is made."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from backends.cloud_run import building, changing, conditions, looking
from backends.cloud_run.blueprint import Blueprint, blueprint
from backends.cloud_run.conditions import TRY_LABEL
from backends.cloud_run.names import SPEC_ANNOTATION
from backends.cloud_run.service import in_beta_if_need_be, is_open, service_of
from backends.cloud_run.site import Site
from backends.cloud_run.telling import is_stopped
from backends.cloud_run.waiting import refusal
from backends.google import grants, images, secrets
from backends.google.names import HF_SECRET, SPEC_LABEL, TARGET_LABEL, key_secret
from backends.google.waiting import UNSURE, reading, strictly, writing
from core.cloud_errors import CloudRefused, ConcurrentChange, NotOurs, PermissionDenied
from core.errors import OpsError
from core.plans import Plan
from core.records import DeploymentSpec
from core.reply import note

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service
    from google.iam.v1.policy_pb2 import Policy

_INVOKER: Final = "roles/run.invoker"
_ATTEMPT_LABEL: Final = "vllm-devops-attempt"
"""Of a revision: the same template again makes none, and one that failed stays failed."""


async def apply(site: Site, plan: Plan) -> None:
    """Make it so, as far as can be done at once; the boot is not waited for.

    What stands already is left as it is, what is under way goes on, what failed is tried anew.

    Raises:
        NotOurs: Something else has that name; it is left alone.
        CloudError: Google refused. What this call made for a service that there is not, is
            removed again.
    """
    spec = plan.spec
    now = await refuse_others(site, spec.name)
    if now is None or not await _stands(site, now, spec):
        drawn = blueprint(site, spec, plan.model, hf_token=await _hub_token(site, spec))
        if spec.engine == "ollama" and not await building.built(site, spec, drawn):
            return
        await _carry_out(site, drawn, spec, now)
    await _let_account_call(site, spec)


async def go_on(site: Site, name: str) -> None:
    """Take the next step of a deployment whose time has come; else nothing is done.

    A service is made of an image that has been built by now. One whose account may not read its
    key yet gets another revision.

    Raises:
        CloudError: Google refused.
    """
    if site.settings.read_only:
        return None
    service = await looking.service_there(site, name)
    if service is not None:
        return await _try_again(site, service)
    build = await building.newest(site, name)
    drawn = building.planned(build) if build and build.status.name == "SUCCESS" else None
    if drawn and drawn.labels.get(TARGET_LABEL) == site.target.name:
        spec = DeploymentSpec.model_validate_json(drawn.annotations[SPEC_ANNOTATION])
        await _carry_out(site, drawn, spec, None)
        await _let_account_call(site, spec)
    return None


async def _try_again(site: Site, service: "Service") -> None:
    """Make another revision of the same template where a grant has had its time to spread."""
    revision = await looking.revision_named(site, looking.newest_of(service))
    wait = conditions.seconds_to_next_try(service, revision, datetime.now(UTC))
    if revision is None or wait is None or wait > 0:
        return
    name, tried = service.name.rsplit("/", 1)[-1], conditions.tries(revision) + 1
    service.template.labels = {**service.template.labels, TRY_LABEL: str(tried)}
    with suppress(ConcurrentChange):  # another server was first
        await changing.write(site, service, f"try {name} again")


async def _carry_out(
    site: Site, drawn: Blueprint, spec: DeploymentSpec, now: "Service | None"
) -> None:
    """Make the service of a blueprint, or replace the one that there is."""
    image = await images.pinned(site, drawn.container.image)
    if image is None:
        note(f"{drawn.container.image} is not pinned: its registry cannot be asked.")
    container = drawn.container.model_copy(update={"image": image or drawn.container.image})
    proxy = drawn.guard
    if proxy:
        pinned = await images.pinned(site, proxy.image)
        proxy = proxy.model_copy(update={"image": pinned or proxy.image})
    expires_at = int(time.time()) + spec.ttl_minutes * 60 if spec.ttl_minutes else None
    exact = drawn.model_copy(update={"container": container, "guard": proxy})
    wanted = service_of(exact, expires_at=expires_at)
    keyed = key_secret(spec.name) in container.secrets.values()
    made = keyed and await secrets.keep_key(site, spec.name)
    try:
        await in_beta_if_need_be(
            wanted,
            lambda: _create(site, wanted, spec) if now is None else _replace(site, wanted, now),
        )
    except OpsError:
        if made and await looking.service_there(site, spec.name) is None:
            await secrets.take_back(site, key_secret(spec.name))
        raise


async def _stands(site: Site, now: "Service", spec: DeploymentSpec) -> bool:
    """Whether the service is what is wanted, or could be made so without a new revision."""
    if conditions.progress(now) == "failed":
        return False
    if spec.access == "public" and is_open(now):
        note(
            f"{spec.name} had nothing before its engine, which computes for everybody at paths that"
            " its key does not protect: a new revision with a proxy takes its place."
        )
        return False
    if now.labels.get(SPEC_LABEL) == spec.fingerprint:
        if is_stopped(now):
            await changing.start(site, spec.name)
        return True
    said, count = looking.spec_in(now), {"min_replicas", "max_replicas"}
    if said is None or said.model_dump(exclude=count) != spec.model_dump(exclude=count):
        return False
    await changing.scale(site, spec.name, spec.min_replicas, spec.max_replicas)
    return True


async def _create(site: Site, wanted: "Service", spec: DeploymentSpec) -> None:
    client, what = await site.clients.run(), f"create the service {spec.name}"
    operation = ""
    try:
        with strictly(what):
            under_way = await client.create_service(
                parent=site.clients.parent, service=wanted, service_id=spec.name, **writing()
            )
            operation = str(under_way.operation.name)
    except (ConcurrentChange, *UNSURE):
        there = await looking.service_there(site, spec.name)
        if there is None or there.labels.get(SPEC_LABEL) != spec.fingerprint:
            raise
    await _begun(site, spec.name, operation, what, "")


async def _replace(site: Site, wanted: "Service", now: "Service") -> None:
    name = now.name.rsplit("/", 1)[-1]
    fingerprint = wanted.labels[SPEC_LABEL]
    if now.labels.get(SPEC_LABEL) == fingerprint:
        wanted.template.labels[_ATTEMPT_LABEL] = str(int(time.time()))

    def edit(service: "Service") -> None:
        others = {key: text for key, text in service.labels.items() if not _is_ours(key)}
        service.labels = {**others, **wanted.labels}
        service.annotations = {**service.annotations, **wanted.annotations}
        service.scaling, service.template = wanted.scaling, wanted.template
        service.client, service.ingress = wanted.client, wanted.ingress
        service.launch_stage = wanted.launch_stage
        service.invoker_iam_disabled = wanted.invoker_iam_disabled
        service.traffic = []

    def holds(service: "Service") -> bool:
        return bool(service.template.labels == wanted.template.labels)

    what = f"replace the service {name}"
    operation = await changing.edited(site, name, what, edit, holds)
    await _begun(site, name, operation, what, now.latest_created_revision)


async def _begun(site: Site, name: str, operation: str, what: str, former: str) -> None:
    """Wait for a refusal; a service that there is tells by itself why it does not run."""

    async def begun() -> bool:
        service = await looking.service_there(site, name)
        return service is not None and service.latest_created_revision not in {"", former}

    try:
        await refusal(site, operation, what, begun)
    except OpsError:
        if await looking.service_there(site, name) is None:
            raise


async def _hub_token(site: Site, spec: DeploymentSpec) -> bool:
    """Whether the Hub's token is kept; one of the settings is kept now."""
    if spec.engine != "vllm" or (spec.weights or "hub") != "hub":
        return False
    if await secrets.exists(site, HF_SECRET):
        return True
    if site.settings.hf_token is None:
        return False
    await secrets.keep(site, HF_SECRET, site.settings.hf_token)
    return True


async def _let_account_call(site: Site, spec: DeploymentSpec) -> None:
    """Let the account that ID tokens are minted for call the service; nobody else is let in."""
    account = site.settings.google_service_account
    if account is None or spec.access == "public":
        return
    client, resource = await site.clients.run(), looking.service_path(site, spec.name)

    async def look() -> "Policy":
        request = {"resource": resource, "options": {"requested_policy_version": grants.VERSION}}
        return await client.get_iam_policy(request=request, **reading())

    async def write(policy: "Policy") -> object:
        request = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    what = f"let {account} call {spec.name}"
    try:
        with strictly(what):
            await grants.grant(look, write, (_INVOKER,), f"serviceAccount:{account}", what)
    except (CloudRefused, PermissionDenied) as exc:
        note(f"{account} may not be able to call {spec.name}: {exc.cause}")


def _is_ours(label: str) -> bool:
    return label.startswith("vllm-devops-")


async def refuse_others(site: Site, name: str) -> "Service | None":
    """Return the service of that name, None if there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
        CloudError: Cloud Run cannot be asked.
    """
    service = await looking.service_there(site, name)
    if service is None:
        return None
    target, where = looking.target_of(service), f"{name} in {site.clients.region}"
    if not looking.is_ours(service):
        raise NotOurs(
            f"A service {where} exists that was not made here; it is left alone.",
            fix="Deploy under another name.",
        )
    if target != site.target.name:
        raise NotOurs(
            f"The service {where} belongs to the target {target}.",
            fix=f"Deploy under another name, or to {target}.",
        )
    if service.delete_time:
        raise ConcurrentChange(
            f"The service {where} is being deleted.", fix="Call the tool again in a minute."
        )
    return service
