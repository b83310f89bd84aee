"""A service that exists, changed as a whole: read, edited, written back, read again."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from backends.cloud_run import looking
from backends.cloud_run.names import SPEC_ANNOTATION
from backends.cloud_run.site import Site
from backends.cloud_run.telling import is_stopped
from backends.cloud_run.waiting import refusal
from backends.google.names import EXPIRES_LABEL, SPEC_LABEL
from backends.google.waiting import UNSURE, strictly, writing
from core.cloud_errors import CloudRefused, ConcurrentChange
from core.records import DeploymentSpec
from core.reply import note

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

    Edit = Callable[[Service], None]
    Holds = Callable[[Service], bool]

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
    await change(
        site,
        name,
        f"let {name} have {minimum} to {maximum} instances",
        lambda service: _let_scale(service, minimum, maximum),
        lambda service: _scales(service, minimum, maximum),
    )
    return None


async def stop(site: Site, name: str) -> None:
    """Set it to no instance by hand: no request starts one then. Raises as `scale` does."""
    await change(site, name, f"stop {name}", _end_instances, is_stopped)


async def start(site: Site, name: str) -> None:
    """Let it scale by itself again, as its spec says. Raises as `scale` does."""

    def edit(service: "Service") -> None:
        if is_stopped(service):
            said, made_for = looking.spec_in(service), service.template.scaling.max_instance_count
            count = (said.min_replicas, said.max_replicas) if said else (0, made_for)
            _automatic(service, *count)
            _renew(service, said)

    await change(site, name, f"start {name}", edit, lambda service: not is_stopped(service))


async def change(site: Site, name: str, what: str, edit: "Edit", holds: "Holds") -> None:
    """Edit a service and write it back; read again, it holds."""
    operation = await edited(site, name, what, edit, holds)
    await refusal(site, operation, what, _never, seconds=_REFUSAL_SECONDS)
    if not holds(await looking.service_named(site, name)):
        raise ConcurrentChange(
            f"Google took it, and somebody else has undone it: {what}.",
            fix="Look with status_vllm, then call again.",
        )


async def edited(site: Site, name: str, what: str, edit: "Edit", holds: "Holds") -> str:
    """Edit a service and write it back; the operation's name, none where it is over."""
    for left in reversed(range(_TRIES)):
        service = await looking.service_named(site, name)
        edit(service)
        try:
            return await write(site, service, what)
        except ConcurrentChange:
            if not left:
                raise
        except UNSURE:
            if not holds(await looking.service_named(site, name)):
                raise
            return ""
    raise AssertionError


async def _never() -> bool:
    return False


async def write(site: Site, service: "Service", what: str) -> str:
    """Write a whole service that was read; its etag refuses to undo another's change."""
    client = await site.clients.run()
    try:
        with strictly(what):
            under_way = await client.update_service(service=service, **writing())
    except CloudRefused:
        await looking.service_named(site, service.name.rsplit("/", 1)[-1])  # or it is gone
        raise
    return str(under_way.operation.name)


def _end_instances(service: "Service") -> None:
    from google.cloud.run_v2 import ServiceScaling

    service.scaling = ServiceScaling(
        scaling_mode=ServiceScaling.ScalingMode.MANUAL,
        manual_instance_count=0,
        max_instance_count=service.scaling.max_instance_count,
    )


def _automatic(service: "Service", minimum: int, maximum: int) -> None:
    from google.cloud.run_v2 import ServiceScaling

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
        _renew(service, looking.spec_in(service))
    _automatic(service, minimum, maximum)
    revision = service.template.scaling
    if 0 < revision.max_instance_count < maximum:
        note("A new revision boots: the one that runs was made for fewer instances.")
        revision.max_instance_count = maximum
    spec = looking.spec_in(service)
    if spec:
        said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
        service.annotations[SPEC_ANNOTATION] = said.model_dump_json(exclude_defaults=True)
        service.labels[SPEC_LABEL] = said.fingerprint


def _scales(service: "Service", minimum: int, maximum: int) -> bool:
    now = service.scaling
    count = (now.min_instance_count, now.max_instance_count)
    return not is_stopped(service) and count == (minimum, maximum)
