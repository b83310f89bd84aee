"""A deployment made, changed and taken away, each step looked for before it is done."""

import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio
from google.api_core.exceptions import from_grpc_status
from google.cloud.run_v2 import Service, ServiceScaling
from google.longrunning.operations_pb2 import GetOperationRequest, Operation

from backends.base import Leaving
from backends.cloud_run import status, storage
from backends.cloud_run.build import (
    cancel_build,
    ensure_image,
    latest_build,
    list_images,
    planned_blueprint,
    remove_images,
)
from backends.cloud_run.service import (
    Blueprint,
    blueprint,
    find_revision,
    find_service,
    get_service,
    in_beta_if_need_be,
    is_open,
    is_ours,
    newest_revision,
    read_spec,
    service_of,
    service_path,
    target_of,
)
from backends.cloud_run.site import REPOSITORY, SPEC_ANNOTATION, Site
from backends.cloud_run.status import TRY_LABEL, is_stopped
from backends.google import iam, images, secrets
from backends.google.clients import EXPIRES_LABEL, HF_SECRET, SPEC_LABEL, TARGET_LABEL, key_secret
from backends.google.errors import UNSURE, error_of, reading, strictly, writing
from backends.lifecycle import advance
from core.errors import (
    ApiDisabled,
    CloudError,
    CloudRefused,
    ConcurrentChange,
    NotOurs,
    OpsError,
    PermissionDenied,
    WaitedTooLong,
)
from core.records import BY_PURGE, Deleted, DeploymentSpec, Plan, Remainder
from core.reply import note
from core.waiting import wait_until

if TYPE_CHECKING:
    Edit = Callable[[Service], None]

    Holds = Callable[[Service], bool]


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
    now = await refuse_foreign_service(site, spec.name)
    if now is None or not await _is_up_to_date(site, now, spec):
        drawn = blueprint(site, spec, plan.model, hf_token=await _hub_token(site, spec))
        if spec.engine == "ollama" and not await ensure_image(site, spec, drawn):
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
    service = await find_service(site, name)
    if service is not None:
        return await _try_again(site, service)
    build = await latest_build(site, name)
    drawn = planned_blueprint(build) if build and build.status.name == "SUCCESS" else None
    if drawn and drawn.labels.get(TARGET_LABEL) == site.target.name:
        spec = DeploymentSpec.model_validate_json(drawn.annotations[SPEC_ANNOTATION])
        await _carry_out(site, drawn, spec, None)
        await _let_account_call(site, spec)
    return None


async def _try_again(site: Site, service: "Service") -> None:
    """Make another revision of the same template where a grant has had its time to spread."""
    revision = await find_revision(site, newest_revision(service))
    wait = status.seconds_to_next_try(service, revision, datetime.now(UTC))
    if revision is None or wait is None or wait > 0:
        return
    name, tried = service.name.rsplit("/", 1)[-1], status.tries(revision) + 1
    service.template.labels = {**service.template.labels, TRY_LABEL: str(tried)}
    with suppress(ConcurrentChange):  # another server was first
        await write_service(site, service, f"try {name} again")


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
        if made and await find_service(site, spec.name) is None:
            await secrets.take_back(site, key_secret(spec.name))
        raise


async def _is_up_to_date(site: Site, now: "Service", spec: DeploymentSpec) -> bool:
    """Whether the service is what is wanted, or could be made so without a new revision."""
    if status.progress(now) == "failed":
        return False
    if spec.access == "public" and is_open(now):
        note(
            f"{spec.name} had nothing before its engine, which computes for everybody at paths that"
            " its key does not protect: a new revision with a proxy takes its place."
        )
        return False
    if now.labels.get(SPEC_LABEL) == spec.fingerprint:
        if is_stopped(now):
            await start(site, spec.name)
        return True
    said, count = read_spec(now), {"min_replicas", "max_replicas"}
    if said is None or said.model_dump(exclude=count) != spec.model_dump(exclude=count):
        return False
    await scale(site, spec.name, spec.min_replicas, spec.max_replicas)
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
        there = await find_service(site, spec.name)
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
    operation = await edit_service(site, name, what, edit, holds)
    await _begun(site, name, operation, what, now.latest_created_revision)


async def _begun(site: Site, name: str, operation: str, what: str, former: str) -> None:
    """Wait for a refusal; a service that there is tells by itself why it does not run."""

    async def begun() -> bool:
        service = await find_service(site, name)
        return service is not None and service.latest_created_revision not in {"", former}

    try:
        await wait_for_refusal(site, operation, what, begun)
    except OpsError:
        if await find_service(site, name) is None:
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
    made = iam.binding(
        site.clients.run,
        service_path(site, spec.name),
        (_INVOKER,),
        account,
        what=f"let {account} call {spec.name}",
        name="invoker",
        title="",
    )
    try:
        await advance((made,), seconds=5.0)
    except (CloudRefused, PermissionDenied) as exc:
        note(f"{account} may not be able to call {spec.name}: {exc.cause}")


def _is_ours(label: str) -> bool:
    return label.startswith("vllm-devops-")


async def refuse_foreign_service(site: Site, name: str) -> "Service | None":
    """Return the service of that name, None if there is none.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        ConcurrentChange: It is being deleted.
        CloudError: Cloud Run cannot be asked.
    """
    service = await find_service(site, name)
    if service is None:
        return None
    target, where = target_of(service), f"{name} in {site.clients.region}"
    if not is_ours(service):
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


_REFUSAL_SECONDS: Final = 3.0
"""What instances are ended or started for is not waited for."""
_TRIES: Final = 2
"""Once more where somebody else was first."""


async def scale(site: Site, name: str, minimum: int, maximum: int) -> None:
    """Let Google run that many instances; none at most is a stop.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        QuotaExceeded: The project may not use that many accelerators.
        ConcurrentChange: Somebody else changed it twice at the same time.
        CloudError: Google refused.
    """
    if maximum < 1:
        return await stop(site, name)
    await change_service(
        site,
        name,
        f"let {name} have {minimum} to {maximum} instances",
        lambda service: _let_scale(service, minimum, maximum),
        lambda service: _scales(service, minimum, maximum),
    )
    return None


async def stop(site: Site, name: str) -> None:
    """Set it to no instance by hand: no request starts one then. Raises as `scale` does."""
    await change_service(site, name, f"stop {name}", _end_instances, is_stopped)


async def start(site: Site, name: str) -> None:
    """Let it scale by itself again, as its spec says. Raises as `scale` does."""

    def edit(service: "Service") -> None:
        if is_stopped(service):
            said, made_for = read_spec(service), service.template.scaling.max_instance_count
            count = (said.min_replicas, said.max_replicas) if said else (0, made_for)
            _automatic(service, *count)
            _renew(service, said)

    await change_service(site, name, f"start {name}", edit, lambda service: not is_stopped(service))


async def change_service(site: Site, name: str, what: str, edit: "Edit", holds: "Holds") -> None:
    """Edit a service and write it back; read again, it holds."""
    operation = await edit_service(site, name, what, edit, holds)
    await wait_for_refusal(site, operation, what, _never, seconds=_REFUSAL_SECONDS)
    if not holds(await get_service(site, name)):
        raise ConcurrentChange(
            f"Google took it, and somebody else has undone it: {what}.",
            fix="Look with status_vllm, then call again.",
        )


async def edit_service(site: Site, name: str, what: str, edit: "Edit", holds: "Holds") -> str:
    """Edit a service and write it back; the operation's name, none where it is over."""
    for left in reversed(range(_TRIES)):
        service = await get_service(site, name)
        edit(service)
        try:
            return await write_service(site, service, what)
        except ConcurrentChange:
            if not left:
                raise
        except UNSURE:
            if not holds(await get_service(site, name)):
                raise
            return ""
    raise AssertionError


async def _never() -> bool:
    return False


async def write_service(site: Site, service: "Service", what: str) -> str:
    """Write a whole service that was read; its etag refuses to undo another's change."""
    client = await site.clients.run()
    try:
        with strictly(what):
            under_way = await client.update_service(service=service, **writing())
    except CloudRefused:
        await get_service(site, service.name.rsplit("/", 1)[-1])  # or it is gone
        raise
    return str(under_way.operation.name)


def _end_instances(service: "Service") -> None:

    service.scaling = ServiceScaling(
        scaling_mode=ServiceScaling.ScalingMode.MANUAL,
        manual_instance_count=0,
        max_instance_count=service.scaling.max_instance_count,
    )


def _automatic(service: "Service", minimum: int, maximum: int) -> None:

    service.scaling = ServiceScaling(
        scaling_mode=ServiceScaling.ScalingMode.AUTOMATIC,
        min_instance_count=minimum,
        max_instance_count=maximum,
    )


def _renew(service: "Service", spec: DeploymentSpec | None) -> None:
    """Let its time begin anew: one that ended while it was stopped would never be over again."""
    if spec and spec.ttl_minutes:
        service.labels[EXPIRES_LABEL] = str(int(time.time()) + spec.ttl_minutes * 60)


def _let_scale(service: "Service", minimum: int, maximum: int) -> None:
    if is_stopped(service):
        _renew(service, read_spec(service))
    _automatic(service, minimum, maximum)
    revision = service.template.scaling
    if 0 < revision.max_instance_count < maximum:
        note("A new revision boots: the one that runs was made for fewer instances.")
        revision.max_instance_count = maximum
    spec = read_spec(service)
    if spec:
        said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
        service.annotations[SPEC_ANNOTATION] = said.model_dump_json(exclude_defaults=True)
        service.labels[SPEC_LABEL] = said.fingerprint


def _scales(service: "Service", minimum: int, maximum: int) -> bool:
    now = service.scaling
    count = (now.min_instance_count, now.max_instance_count)
    return not is_stopped(service) and count == (minimum, maximum)


_GONE_SECONDS: Final = 20.0
_DELETE_LOOK_SECONDS: Final = 0.5
_SIZE_SECONDS: Final = 8.0
_IMAGE_GB_USD: Final = 0.10
"""Each month, beyond the first half GB; the usual price, not looked up [R] (2026-11-21)."""
_BUCKET_GB_USD: Final = 0.02
"""Each month, standard class in us-central1; the usual price, not looked up [R] (2026-11-21)."""


async def delete(site: Site, name: str) -> Deleted:
    """Delete service and key; already gone is no error, and a key left over goes as well.

    Raises:
        NotOurs: The service was not made here; nothing is touched.
        CloudError: Google refused; what is gone by then is said in `fix`.
    """
    service = await find_service(site, name)
    if service is not None and not is_ours(service):
        raise NotOurs(
            f"The service {name} in {site.clients.region} was not made here; it is left alone.",
            fix="Delete it where it was made.",
        )
    if service is not None and target_of(service) != site.target.name:
        return Deleted(name=name, target=site.target.name, gone=True)
    removed = ["its service with every revision"] if service is not None else []
    if service is not None and not await _gone(site, name):
        return Deleted(name=name, target=site.target.name, gone=False)
    removed += [what async for what in _leavings(site, name, service)]
    return Deleted(
        name=name,
        target=site.target.name,
        gone=True,
        removed=tuple(removed),
        stays=await _stays(site, service),
    )


def leaving(site: Site, name: str) -> Leaving:
    """Name what `delete` takes, what a purge takes as well, and what stays; nobody is asked."""
    return Leaving(
        deletes=(
            f"the service {name} in {site.clients.region} with every revision",
            f"its key (secret {key_secret(name)})",
        ),
        purged=(f"the image {REPOSITORY}/{name}, where one was built for it",),
        stays=(f"the secret {HF_SECRET}", "weights in buckets"),
    )


async def purge(site: Site, name: str) -> tuple[str, ...]:
    """Delete the image that was built for a deployment; while its service runs, nothing.

    Raises:
        CloudError: Google refused.
    """
    if await find_service(site, name) is not None:
        note(f"{name} is still there: its image is kept.")
        return ()
    try:
        return ("its image",) if await remove_images(site, name) else ()
    except (ApiDisabled, PermissionDenied):  # then nothing can have been built from here
        return ()


async def _gone(site: Site, name: str) -> bool:
    client, what = await site.clients.run(), f"delete the service {name}"
    try:
        with strictly(what):
            await client.delete_service(name=service_path(site, name), **writing())
    except (CloudRefused, *UNSURE):  # it may be gone, or going, all the same
        there = await find_service(site, name)
        if there is not None and not there.delete_time:
            raise
    try:
        await wait_until(
            lambda: find_service(site, name),
            lambda service: service is None,
            waiting_for=f"{name} to be gone",
            every=_DELETE_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    return True


async def _leavings(site: Site, name: str, service: "Service | None") -> AsyncIterator[str]:
    """Remove what served this deployment alone, and name it."""
    try:
        if await secrets.remove(site, key_secret(name)):
            yield f"its key (secret {key_secret(name)})"
        if _may_be_built(service) and await _cancelled(site, name):
            yield "its build"
    except OpsError as exc:
        exc.fix = f"The service {name} is gone; call destroy_vllm again for the rest. {exc.fix}"
        raise


async def _cancelled(site: Site, name: str) -> bool:
    try:
        return await cancel_build(site, name)
    except (ApiDisabled, PermissionDenied):  # then nothing can have been built from here
        return False


def _may_be_built(service: "Service | None") -> bool:
    spec = read_spec(service) if service is not None else None
    return spec is None or spec.engine == "ollama"


async def _stays(site: Site, service: "Service | None") -> tuple[Remainder, ...]:
    spec = read_spec(service) if service is not None else None
    if spec is None:
        return ()
    if spec.engine == "ollama":
        return await _image(site, spec)
    if (spec.weights or "").startswith("gs://"):
        return await _folder(site, str(spec.weights))
    return await _token(site)


async def _image(site: Site, spec: DeploymentSpec) -> tuple[Remainder, ...]:
    try:
        found = await list_images(site, spec.name)
    except OpsError as exc:
        note(f"Whether an image of {spec.name} is left is not known: {exc.summary}")
        return ()
    size = sum(image.image_size_bytes for image in found) / 1e9
    remainder = Remainder(
        what=f"the image {REPOSITORY}/{spec.name} ({size:.1f} GB)",
        usd_per_month=round(size * _IMAGE_GB_USD, 2),
        how_to_remove=BY_PURGE,
    )
    return (remainder,) if found else ()


async def _folder(site: Site, weights: str) -> tuple[Remainder, ...]:
    size = None
    bucket, under = storage.parse_bucket(site, weights)
    try:
        with (
            anyio.move_on_after(_SIZE_SECONDS),
            storage.translated_refusal(bucket, "add up its files"),
        ):
            files = await storage.list_objects(site, bucket, under)
            size = sum(file.size_bytes for file in files.values()) / 1e9
    except OpsError as exc:
        note(f"How large {weights} is, is not known: {exc.summary}")
    known = "its size is not known" if size is None else f"{size:.1f} GB"
    remainder = Remainder(
        what=f"the weights in {weights} ({known})",
        usd_per_month=round((size or 0) * _BUCKET_GB_USD, 2),
        how_to_remove=f"gcloud storage rm --recursive {shlex.quote(weights)}",
    )
    return (remainder,)


async def _token(site: Site) -> tuple[Remainder, ...]:
    try:
        if not await secrets.exists(site, HF_SECRET):
            return ()
    except OpsError as exc:
        note(f"Whether the secret {HF_SECRET} is left is not known: {exc.summary}")
        return ()
    remainder = Remainder(
        what=f"the secret {HF_SECRET}, which other deployments may read",
        usd_per_month=secrets.SECRET_USD,
        how_to_remove=f"gcloud secrets delete {HF_SECRET} --project={site.clients.project}",
    )
    return (remainder,)


REFUSAL_SECONDS: Final = 10.0
"""Google refuses at once what it refuses at all; what is still under way then goes on."""
_WAITING_LOOK_SECONDS: Final = 0.3


async def wait_for_refusal(
    site: Site,
    operation: str,
    what: str,
    begun: Callable[[], Awaitable[bool]],
    *,
    seconds: float = REFUSAL_SECONDS,
) -> None:
    """Watch a change until it is over or has begun, for so many seconds at most.

    Raises:
        CloudError: It failed, as Google's own status inside the operation says.
    """
    # No cancel scope of anyio: grpc.aio loses the mark by which it knows its own cancellation.
    deadline = anyio.current_time() + seconds
    while operation and anyio.current_time() < deadline:
        now = await _look(site, operation, what)
        if now is None:
            return None
        if now.done:
            return _raise_error(now, what)
        if await begun():
            return None
        await anyio.sleep(_WAITING_LOOK_SECONDS)
    return None


async def _look(site: Site, operation: str, what: str) -> "Operation | None":
    """Read a change that Google has taken; where it cannot be read, what is true is read later."""
    client = await site.clients.run()
    try:
        with strictly(what):
            return await client.get_operation(GetOperationRequest(name=operation), **reading())
    except CloudError as exc:
        note(f"Google took it, and does not say how it went: {what}. {exc.cause}".strip())
        return None


def _raise_error(operation: "Operation", what: str) -> None:

    if operation.HasField("error"):
        words = operation.error
        raise error_of(from_grpc_status(words.code, words.message, errors=(words,)), what)
