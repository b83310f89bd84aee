"""A service brought to what is wanted: created, replaced, scaled, stopped or started."""

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import anyio
from google.api_core.exceptions import from_grpc_status
from google.cloud.run_v2 import Service, ServiceScaling
from google.longrunning.operations_pb2 import GetOperationRequest, Operation

from backends.cloud_run.service import (
    Blueprint,
    find_service,
    get_service,
    is_stopped,
    may_be_beta,
    read_spec,
    service_of,
)
from backends.cloud_run.site import SPEC_ANNOTATION, Site
from backends.google import images
from backends.google.clients import EXPIRES_LABEL, SPEC_LABEL
from backends.google.errors import UNSURE, error_of, reading, strictly, writing
from backends.lifecycle import Status
from core.errors import CloudError, CloudRefused, ConcurrentChange
from core.records import DeploymentSpec
from core.reply import note

_ATTEMPT_LABEL: Final = "vllm-devops-attempt"
"""Of a revision: the same template again makes none, and one that failed stays failed."""
_REFUSAL_SECONDS: Final = 3.0
"""What instances are ended or started for is not waited for."""
_LOOK_SECONDS: Final = 0.3
_TRIES: Final = 2
"""Once more where somebody else was first."""


class Change(NamedTuple):
    """A change of a service that there is."""

    what: str
    edit: Callable[[Service], None]
    holds: Callable[[Service], bool]
    """Whether it is so by now."""


def scaled(name: str, minimum: int, maximum: int) -> Change:
    """Return what lets Google run that many instances, also of one that is stopped."""

    def edit(service: Service) -> None:
        spec, revision = read_spec(service), service.template.scaling
        if is_stopped(service):
            _renew(service, spec)
        _scale_by_itself(service, minimum, maximum)
        if 0 < revision.max_instance_count < maximum:
            note("A new revision boots: the one that runs was made for fewer instances.")
            revision.max_instance_count = maximum
        if spec:
            said = spec.model_copy(update={"min_replicas": minimum, "max_replicas": maximum})
            service.annotations[SPEC_ANNOTATION] = said.model_dump_json(exclude_defaults=True)
            service.labels[SPEC_LABEL] = said.fingerprint

    def holds(service: Service) -> bool:
        count = (service.scaling.min_instance_count, service.scaling.max_instance_count)
        return not is_stopped(service) and count == (minimum, maximum)

    return Change(f"let {name} have {minimum} to {maximum} instances", edit, holds)


def stopped(name: str) -> Change:
    """Return what sets it to no instance by hand: no request starts one then."""

    def edit(service: Service) -> None:
        service.scaling = ServiceScaling(
            scaling_mode=ServiceScaling.ScalingMode.MANUAL,
            manual_instance_count=0,
            max_instance_count=service.scaling.max_instance_count,
        )

    return Change(f"stop {name}", edit, is_stopped)


def started(name: str) -> Change:
    """Return what lets it scale by itself again, as its spec says."""

    def edit(service: Service) -> None:
        if is_stopped(service):
            spec, made_for = read_spec(service), service.template.scaling.max_instance_count
            count = (spec.min_replicas, spec.max_replicas) if spec else (0, made_for)
            _scale_by_itself(service, *count)
            _renew(service, spec)

    return Change(f"start {name}", edit, lambda service: not is_stopped(service))


def _scale_by_itself(service: Service, minimum: int, maximum: int) -> None:
    service.scaling = ServiceScaling(
        scaling_mode=ServiceScaling.ScalingMode.AUTOMATIC,
        min_instance_count=minimum,
        max_instance_count=maximum,
    )


def _renew(service: Service, spec: DeploymentSpec | None) -> None:
    """Let its time begin anew: one that ended while it was stopped would never be over again."""
    if spec and spec.ttl_minutes:
        service.labels[EXPIRES_LABEL] = str(int(time.time()) + spec.ttl_minutes * 60)


def replaced(name: str, wanted: Service, former: Service) -> Change:
    """Return what puts another template in the place of one; labels of others stay."""
    if former.labels.get(SPEC_LABEL) == wanted.labels[SPEC_LABEL]:
        wanted.template.labels[_ATTEMPT_LABEL] = str(int(time.time()))

    def edit(service: Service) -> None:
        labels: Mapping[str, str] = service.labels
        others = {key: text for key, text in labels.items() if not key.startswith("vllm-devops-")}
        service.labels = {**others, **wanted.labels}
        service.annotations = {**service.annotations, **wanted.annotations}
        for field in _REPLACED:
            setattr(service, field, getattr(wanted, field))
        service.traffic = []

    def holds(service: Service) -> bool:
        return bool(service.template.labels == wanted.template.labels)

    return Change(f"replace the service {name}", edit, holds)


_REPLACED: Final = (
    "scaling", "template", "client", "ingress", "launch_stage", "invoker_iam_disabled",
)  # fmt: skip


async def change_service(
    site: Site, name: str, change: Change, *, seconds: float = _REFUSAL_SECONDS
) -> None:
    """Edit a service and write it back; read again, it holds."""
    operation, until = await _edit(site, name, change), anyio.current_time() + seconds
    # No cancel scope of anyio: grpc.aio loses the mark by which it knows its own cancellation.
    while operation and anyio.current_time() < until:
        now = await _look(site, operation, change.what)
        if now is None or now.done:
            _raise_error(now, change.what)
            break
        await anyio.sleep(_LOOK_SECONDS)
    if not change.holds(await get_service(site, name)):
        raise ConcurrentChange(
            f"Google took it, and somebody else has undone it: {change.what}.",
            fix="Look with status_vllm, then call again.",
        )


async def _edit(site: Site, name: str, change: Change) -> str:
    """Edit a service and write it back; the operation's name, none where it is over."""
    for left in reversed(range(_TRIES)):
        service = await get_service(site, name)
        change.edit(service)
        try:
            return await write_service(site, service, change.what)
        except ConcurrentChange:
            if not left:
                raise
        except UNSURE:
            if not change.holds(await get_service(site, name)):
                raise
            return ""
    raise AssertionError


async def write_service(site: Site, service: Service, what: str) -> str:
    """Write a whole service that was read; its etag refuses to undo another's change."""
    client = await site.clients.run()
    while True:
        try:
            with strictly(what):
                under_way = await client.update_service(service=service, **writing())
            return str(under_way.operation.name)
        except CloudRefused as exc:
            await get_service(site, service.name.rsplit("/", 1)[-1])  # or it is gone
            if not may_be_beta(service, exc):
                raise


async def _look(site: Site, operation: str, what: str) -> Operation | None:
    """Read a change that Google has taken; where it cannot be read, what is true is read later."""
    client = await site.clients.run()
    try:
        with strictly(what):
            return await client.get_operation(GetOperationRequest(name=operation), **reading())
    except CloudError as exc:
        note(f"Google took it, and does not say how it went: {what}. {exc.cause}".strip())
        return None


def _raise_error(operation: Operation | None, what: str) -> None:
    if operation is not None and operation.HasField("error"):
        words = operation.error
        raise error_of(from_grpc_status(words.code, words.message, errors=(words,)), what)


class Rollout:
    """The service of one deployment, brought to what is wanted by one course of steps.

    It is created where there is none `now`, changed where a `change` is enough, and else replaced
    or, where it is `done`, left as it is.
    """

    def __init__(
        self,
        site: Site,
        drawn: Blueprint,
        *,
        now: Service | None = None,
        change: Change | None = None,
        done: bool = False,
    ) -> None:
        self._site, self._drawn = site, drawn
        self._now, self._change, self._done = now, change, done
        self._put, self._operation = False, ""

    @property
    def _what(self) -> str:
        return f"{'replace' if self._now else 'create'} the service {self._drawn.name}"

    async def get(self) -> Service | None:
        """Return the service; where there is none, why it was refused is raised.

        One that there is tells by itself why it does not run.
        """
        service, refusal = await find_service(self._site, self._drawn.name), None
        if self._operation:
            now = await _look(self._site, self._operation, self._what)
            if now is None or now.done:
                self._operation, refusal = "", now
        if service is None:
            _raise_error(refusal, self._what)
        return service

    def status(self, found: Service) -> Status:
        """Return how far it is: a boot is not waited for, only that it has begun."""
        if not self._put:
            return Status.READY if self._done else Status.STALE
        if found.labels.get(SPEC_LABEL) != self._drawn.labels[SPEC_LABEL]:
            return Status.STALE
        former = self._now.latest_created_revision if self._now else ""
        begun = found.latest_created_revision not in {"", former}
        return Status.READY if begun or not self._operation else Status.PENDING

    async def put(self) -> None:
        """Create it, or change what there is."""
        site, name, self._put = self._site, self._drawn.name, True
        if self._change:
            await change_service(site, name, self._change)
            return
        wanted = await self._wanted()
        if self._now is not None:
            self._operation = await _edit(site, name, replaced(name, wanted, self._now))
            return
        client = await site.clients.run()
        while not self._operation:
            try:
                with strictly(self._what):
                    under_way = await client.create_service(
                        parent=self._drawn.parent, service=wanted, service_id=name, **writing()
                    )
                self._operation = str(under_way.operation.name)
            except CloudRefused as exc:
                if not may_be_beta(wanted, exc):
                    raise

    async def _wanted(self) -> Service:
        """Return it as it is sent: with images by their digests, and the end of its time."""
        drawn = self._drawn
        image = await images.pinned(self._site, drawn.container.image)
        if image is None:
            note(f"{drawn.container.image} is not pinned: its registry cannot be asked.")
        container = drawn.container.model_copy(update={"image": image or drawn.container.image})
        guard = drawn.guard
        if guard:
            pinned = await images.pinned(self._site, guard.image)
            guard = guard.model_copy(update={"image": pinned or guard.image})
        ttl = DeploymentSpec.model_validate_json(drawn.annotations[SPEC_ANNOTATION]).ttl_minutes
        return service_of(
            drawn.model_copy(update={"container": container, "guard": guard}),
            expires_at=int(time.time()) + ttl * 60 if ttl else None,
        )
