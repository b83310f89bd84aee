"""An instance of Compute Engine, read into the words of both control planes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from backends.tpu.chip import Chip, ChipState, Ended, Place, Provisioning
from backends.tpu.names import SPEC_METADATA

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import Instance, InstanceAggregatedList, Operation

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


def has_tpu(instance: "Instance") -> bool:
    """Whether its machine has a TPU of ours."""
    return _last(instance.machine_type).startswith(f"{FAMILY}-")


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
    """Give the zones that Compute Engine itself could not read; most are merely empty."""
    # The SDK's stubs take its Warning for Python's own.
    warnings: dict[str, Any] = {scope: found.warning for scope, found in page.items.items()}
    warned = [scope for scope, warning in warnings.items() if warning.code not in _HARMLESS]
    return (*page.unreachables, *warned)


def ended(operations: Iterable["Operation"]) -> Ended | None:
    """Say what ended an instance; None where no operation tells."""
    by_type = {str(one.operation_type): one for one in operations}
    for kind, code in _WHY_IT_ENDED:
        if kind in by_type:
            one = by_type[kind]
            words = one.status_message or one.description or f"{kind} by {one.user or 'nobody'}"
            return Ended(code, moment(one.end_time or one.insert_time), str(words))
    return None


def failure_of(operation: "Operation") -> str:
    """Give what an operation failed with; empty if it did not.

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
