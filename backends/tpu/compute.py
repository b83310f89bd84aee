"""Compute Engine: instances of TPU machine types, which Google itself ends after their time."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar

import anyio
from google.api_core.exceptions import NotFound
from google.auth.exceptions import TransportError
from requests.exceptions import RequestException, Timeout

from backends.google.clients import as_sent
from backends.google.errors import (
    READ_SECONDS,
    WRITE_SECONDS,
    patient_in_threads,
    strictly,
    translated,
    words_of,
)
from backends.tpu import compute_client
from backends.tpu.planes import (
    ACCOUNT_SCOPE,
    SPEC_METADATA,
    Chip,
    ChipState,
    Ended,
    Offer,
    Outcome,
    Place,
    PlaneKind,
    Provisioning,
    Request,
    meaning,
    refusal_error,
    translated_refusal,
    unreachable,
)
from backends.tpu.queued_resources import metadata_of
from backends.tpu.site import Clients, region_of
from core.errors import CloudTimeout, CloudUnavailable, OpsError

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import (
        Instance,
        InstanceAggregatedList,
        Operation,
    )


T = TypeVar("T")

_LOOK = "Look with status_vllm whether it happened; the same call again is harmless."


async def read_call(what: str, call: Callable[..., T], **arguments: Any) -> T:
    """Make a call that only looks: it may be made again."""
    retry = patient_in_threads()
    return await _called(what, READ_SECONDS, call, timeout=READ_SECONDS, retry=retry, **arguments)


async def write_call(what: str, call: Callable[..., T], **arguments: Any) -> T:
    """Make a call that changes something, once. Raises what `looking` does."""
    return await _called(what, WRITE_SECONDS, call, timeout=WRITE_SECONDS, retry=None, **arguments)


async def _called(what: str, seconds: float, call: Callable[..., T], **arguments: Any) -> T:
    """Let nothing that hangs hold its caller: the thread is left to the client's own limit."""

    def work() -> T:
        with _reached(what):
            return call(**arguments)

    try:
        with anyio.fail_after(seconds + 1):
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except TimeoutError as exc:
        raise _late(what) from exc


@contextmanager
def _reached(what: str) -> Iterator[None]:
    """Turn failures of the connection itself, which the clients pass on as they are, into ours."""
    try:
        yield
    except Timeout as exc:
        raise _late(what) from exc
    except (RequestException, TransportError) as exc:
        raise CloudUnavailable(
            f"Google is not to be reached: {what}.",
            cause=str(exc),
            fix="Call the same tool again in a minute.",
        ) from exc


def _late(what: str) -> CloudTimeout:
    return CloudTimeout(f"Google did not answer in time: {what}.", fix=_LOOK)


FLEX_WAIT_SECONDS: Final = (90, 2 * 60 * 60)
"""The shortest and the longest that flex-start waits; public reports of 2026-08."""
_ONE_THREAD_CHIPS: Final = 8
"""Only the machine with so many chips must have one thread per core; public scripts of 2026."""
_MODELS: Final = {"on-demand": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}


def instance(request: Request) -> "Instance":
    """Say all of it; guest accelerators are left out, the machine type brings its own."""
    compute_client.prepare()
    from google.cloud.compute_v1.types import Instance

    made, zone, labels = request.made, f"zones/{request.zone}", dict(request.labels)
    # A TPU cannot be moved to another host, nor started again: what ends is deleted.
    scheduling: dict[str, Any] = {
        "provisioning_model": _MODELS[made.provisioning],
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
    }
    if made.run_seconds:
        scheduling["max_run_duration"] = {"seconds": made.run_seconds}
    if made.run_seconds or made.provisioning != "on-demand":
        scheduling["instance_termination_action"] = "DELETE"
    interface: dict[str, Any] = {"network": f"global/networks/{made.network}"}
    if made.subnetwork:
        region = region_of(request.zone)
        interface["subnetwork"] = f"regions/{region}/subnetworks/{made.subnetwork}"
    if made.external_ip:  # by REST there is an external address only where it is asked for
        interface["access_configs"] = [{"type_": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    # The default of 10 GB holds no image; disks of the kind pd-* are refused with v6e.
    disk = {
        "source_image": made.image,
        "disk_size_gb": made.disk_gb,
        "disk_type": f"{zone}/diskTypes/{made.disk_type}",
        "labels": labels,
    }
    body: dict[str, Any] = {
        "name": made.id,
        "machine_type": f"{zone}/machineTypes/{made.machine_type}",
        "labels": labels,
        "tags": {"items": [made.id]},
        "metadata": {
            "items": [{"key": key, "value": said} for key, said in metadata_of(request).items()]
        },
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "network_interfaces": [interface],
        "service_accounts": [{"email": made.service_account, "scopes": [ACCOUNT_SCOPE]}],
        "scheduling": scheduling,
    }
    if made.provisioning == "flex-start":
        shortest, longest = FLEX_WAIT_SECONDS
        wait = min(max(made.wait_seconds, shortest), longest)
        body["params"] = {"request_valid_for_duration": {"seconds": wait}}
        body["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
    if made.chips == _ONE_THREAD_CHIPS:
        body["advanced_machine_features"] = {"threads_per_core": 1}
    return Instance(body)


_GENERATIONS: Final = {"ct6e": "v6e"}
"""The chip in a family of machine types."""
_STATES: Final[Mapping[str, ChipState]] = {
    "PENDING": ChipState.WAITING,
    "PROVISIONING": ChipState.PROVISIONING,
    "STAGING": ChipState.PROVISIONING,
    "RUNNING": ChipState.RUNNING,
    "PENDING_STOP": ChipState.STOPPING,
    "STOPPING": ChipState.STOPPING,
    "SUSPENDING": ChipState.STOPPING,
    "DEPROVISIONING": ChipState.DELETING,
    "TERMINATED": ChipState.SUSPENDED,
    "STOPPED": ChipState.SUSPENDED,
    "SUSPENDED": ChipState.SUSPENDED,
}
_NEVER_AGAIN: Final = (
    "An instance with a TPU that was stopped cannot be started again; its disk bills until it is"
    " deleted."
)
"""Source: docs.cloud.google.com/compute/docs/instances/stop-start-instance (2026-11-21)."""
_GIVEN: Final = frozenset({ChipState.RUNNING, ChipState.STOPPING, ChipState.SUSPENDED})
_WHY_IT_ENDED: Final[
    Sequence[tuple[str, Literal["PREEMPTED", "EXPIRED", "DELETED_ELSEWHERE", "NOT_KNOWN"]]]
] = (
    ("compute.instances.preempted", "PREEMPTED"),
    ("compute.instances.deferredDelete", "EXPIRED"),
    ("compute.instances.deferredStop", "EXPIRED"),
    ("compute.instances.hostError", "NOT_KNOWN"),
    ("compute.instances.guestTerminate", "NOT_KNOWN"),
    ("delete", "DELETED_ELSEWHERE"),
    ("stop", "DELETED_ELSEWHERE"),
)
"""Operations that end an instance, the one that tells most first; public reports of 2026."""
_HARMLESS: Final = frozenset({"", "NO_RESULTS_ON_PAGE"})
FAMILY: Final = "ct6e"


def machine_type(accelerator: str) -> str:
    """Name the machine with an accelerator.

    >>> machine_type("v6e-4")
    'ct6e-standard-4t'
    """
    return f"{FAMILY}-standard-{accelerator.rpartition('-')[2]}t"


def moment(said: str) -> datetime | None:
    """Read a time as Compute Engine writes it; None where there is none.

    >>> moment("2026-08-11T02:08:12.345-07:00")
    datetime.datetime(2026, 8, 11, 9, 8, 12, 345000, tzinfo=datetime.timezone.utc)
    """
    return datetime.fromisoformat(said).astimezone(UTC) if said else None


def chip_of(instance: "Instance", zone: str) -> Chip:
    """Put together what an instance tells."""
    said = str(instance.status)
    state = _STATES.get(said, ChipState.UNKNOWN)
    accelerator, chips = _accelerator(instance)
    created = moment(instance.creation_timestamp) or datetime.fromtimestamp(0, UTC)
    given = moment(instance.last_start_timestamp) or (created if state in _GIVEN else None)
    interface = next(iter(instance.network_interfaces), None)
    outer = next(iter(interface.access_configs), None) if interface else None
    items = {item.key: item.value for item in instance.metadata.items}
    return Chip(
        place=Place(zone, "compute"),
        id=str(instance.name),
        state=state,
        said=said,
        node=str(instance.name),
        accelerator=accelerator,
        chips=chips,
        provisioning=_provisioning(instance),
        labels=dict(instance.labels),
        spec_json=items.get(SPEC_METADATA, ""),
        external_ip=str(outer.nat_i_p) if outer else "",
        internal_ip=str(interface.network_i_p) if interface else "",
        created_at=created,
        given_at=None if state == ChipState.WAITING else given,
        ends_at=_end(instance, given),
        why=str(instance.status_message) or (_NEVER_AGAIN if state.leftover else ""),
    )


def unread(page: "InstanceAggregatedList") -> Sequence[str]:
    """Return the zones that Compute Engine itself could not read; most are merely empty."""
    # The SDK's stubs take its Warning for Python's own.
    warnings: dict[str, Any] = {scope: found.warning for scope, found in page.items.items()}
    warned = [scope for scope, warning in warnings.items() if warning.code not in _HARMLESS]
    return (*page.unreachables, *warned)


def why_ended(operations: Iterable["Operation"]) -> Ended | None:
    """Say what ended an instance; None where no operation tells."""
    by_type = {str(one.operation_type): one for one in operations}
    for kind, code in _WHY_IT_ENDED:
        if kind in by_type:
            one = by_type[kind]
            words = one.status_message or one.description or f"{kind} by {one.user or 'nobody'}"
            return Ended(code, moment(one.end_time or one.insert_time), str(words))
    return None


def failure_of(operation: "Operation") -> str:
    """Return what an operation failed with; empty if it did not.

    Its status alone tells nothing: `error` may be there without one, or the other way round.
    """
    errors = [f"{one.code}: {one.message}" for one in operation.error.errors]
    if errors:
        return "; ".join(errors)
    status = int(operation.http_error_status_code or 0)
    return f"{status} {operation.http_error_message}".strip() if status >= 400 else ""


def _accelerator(instance: "Instance") -> tuple[str, int]:
    """Read it from the machine type: ct6e-standard-4t, or its twin ct6e-standard-4t-tpu."""
    family, _, rest = _last(instance.machine_type).partition("-")
    size = next((part for part in rest.split("-") if part[:-1].isdecimal()), "0t")
    return f"{_GENERATIONS.get(family, family)}-{size[:-1]}", int(size[:-1])


def _provisioning(instance: "Instance") -> Provisioning:
    said = instance.scheduling.provisioning_model
    if said == "FLEX_START":
        return "flex-start"
    return "spot" if said == "SPOT" or instance.scheduling.preemptible else "on-demand"


def _end(instance: "Instance", given: datetime | None) -> datetime | None:
    planned = moment(instance.resource_status.scheduling.termination_timestamp)
    most = instance.scheduling.max_run_duration.seconds
    return planned or (given + timedelta(seconds=most) if given and most else None)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


SERIAL_PORT: Final = 1
_SERIAL_LINES: Final = 2000
_GOING: Final = frozenset({ChipState.STOPPING, ChipState.DELETING})


class ComputePlane:
    """Compute Engine, of one project."""

    kind: ClassVar[PlaneKind] = "compute"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, request: Request) -> str:
        """Ask for a chip, once; see `ControlPlane`."""
        client, made = await self._clients.compute("Instances"), request.made
        what = f"ask for {made.accelerator} in {request.zone}"
        wanted = self._at(
            request.zone, instance_resource=instance(request), request_id=str(uuid.uuid4())
        )
        with translated_refusal(what, request.zone):
            under_way = await write_call(what, client.insert_unary, request=wanted)
        return str(under_way.name)

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Return what `create` sends as JSON."""
        return as_sent(instance(request))

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is; one that Google has forgotten is over."""
        client = await self._clients.compute("ZoneOperations")
        what, request = "see what became of the request", self._at(zone, operation=operation)
        try:
            with translated(what):
                seen = await read_call(what, client.get, request=request)
        except NotFound:
            return Outcome(done=True)
        failure = failure_of(seen)
        over = seen.status.name == "DONE"
        return Outcome(over, refusal_error(failure, zone) if failure else None)

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at an instance; None if there is none."""
        client, what = await self._clients.compute("Instances"), f"look at the instance {chip_id}"
        try:
            with translated(what):
                found = await read_call(what, client.get, request=self._at(zone, instance=chip_id))
        except NotFound:
            return None
        return chip_of(found, zone)

    async def list(self) -> Sequence[Chip]:
        """Return every instance with a TPU."""
        client, what = await self._clients.compute("Instances"), "list instances"
        request = {"project": self._clients.project}
        with strictly(what):
            pages = await read_call(
                what, lambda **limits: list(client.aggregated_list(request=request, **limits).pages)
            )
        for page in pages:
            unreachable(unread(page), "Instances")
        scopes = [scoped for page in pages for scoped in page.items.values()]
        found = [one for scoped in scopes for one in scoped.instances]
        chips = [one for one in found if _last(one.machine_type).startswith(f"{FAMILY}-")]
        return [chip_of(one, _last(one.zone)) for one in chips]

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete an instance with its disk."""
        client, what = await self._clients.compute("Instances"), f"delete the instance {chip_id}"
        try:
            with translated(what):
                await write_call(
                    what, client.delete_unary, request=self._at(zone, instance=chip_id)
                )
        except NotFound:
            return
        except OpsError:
            there = await self.get(zone, chip_id)
            if there is not None and there.state not in _GOING:
                raise

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why an instance is gone, by the zone's operations on it: nothing else remains."""
        client, what = await self._clients.compute("ZoneOperations"), f"see what ended {chip_id}"
        wanted = self._at(zone, filter=f'targetLink eq ".*/instances/{chip_id}"')
        with strictly(what):
            # A pager asks for the next page by itself, in the same thread.
            found = await read_call(
                what, lambda **limits: list(client.list(request=wanted, **limits))
            )
        return why_ended(one for one in found if (moment(one.insert_time) or since) >= since)

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the machine type."""
        client, kind = await self._clients.compute("MachineTypes"), machine_type(accelerator)
        what = f"see whether {zone} has {kind}"
        try:
            with translated(what):
                await read_call(what, client.get, request=self._at(zone, machine_type=kind))
        except NotFound as exc:
            return Offer(hardware=False, detail=words_of(exc))
        except OpsError as exc:
            if meaning(exc.cause) != "ZONE_REFUSED":
                raise
            return Offer(hardware=False, detail=exc.cause)
        return Offer(hardware=True)

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Return the newest lines of its serial port; none once it is gone."""
        client, what = (
            await self._clients.compute("Instances"),
            f"read the serial port of {chip_id}",
        )
        wanted = self._at(zone, instance=chip_id, port=SERIAL_PORT)
        try:
            with translated(what):
                shown = await read_call(what, client.get_serial_port_output, request=wanted)
        except NotFound:
            return ()
        lines: list[str] = shown.contents.splitlines()
        return lines[-_SERIAL_LINES:]

    def _at(self, zone: str, **more: Any) -> dict[str, Any]:
        return {"project": self._clients.project, "zone": zone, **more}
