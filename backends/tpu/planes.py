"""A control plane of chips: what is asked of it, what it tells, and what its refusals mean."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from backends.container import Container
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, TARGET_LABEL
from backends.google.errors import UNSURE, strictly
from core.errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    NoCapacity,
    NotOurs,
    OpsError,
    QuotaExceeded,
    WaitedTooLong,
    ZoneRefused,
)
from core.records import DeploymentSpec, Record
from core.reply import note
from core.waiting import wait_until
from logs.failures import meaning as wording_for

SPEC_METADATA: Final = "vllm-devops-spec"
"""The VM's metadata that holds what was asked for, as JSON."""
ACCOUNT_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
"""With less the VM could not read its secrets."""
PlaneKind = Literal["queued", "compute"]
Provisioning = Literal["on-demand", "spot", "flex-start"]
SAID: Final[Mapping[PlaneKind, str]] = {"queued": "queued resource", "compute": "Compute Engine"}


class Place(NamedTuple):
    """Where a chip is asked for, and of whom."""

    zone: str
    plane: PlaneKind

    def __str__(self) -> str:
        """As a person says it."""
        return f"{self.zone} ({SAID[self.plane]})"


class ChipState(StrEnum):
    """What a request for a chip, or its VM, does; either plane's words are `Chip.said`."""

    WAITING = "waiting"
    """In the queue: no chip yet, nothing bills."""
    PROVISIONING = "provisioning"
    """A chip was given; its VM is being made."""
    RUNNING = "running"
    """The VM is up, which says nothing of vLLM; it bills."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    """The chip was taken back: a leftover, which holds quota, or bills a disk, until deleted."""
    FAILED = "failed"
    """The request failed: a leftover as well."""
    DELETING = "deleting"
    UNKNOWN = "unknown"

    @property
    def leftover(self) -> bool:
        """Whether it will never have a chip again, and yet holds quota."""
        return self in {ChipState.SUSPENDED, ChipState.FAILED}

    @property
    def alive(self) -> bool:
        """Whether it has its chips, or may still get them."""
        return self in {
            ChipState.WAITING,
            ChipState.PROVISIONING,
            ChipState.RUNNING,
            ChipState.STOPPED,
        }


class Chip(Record):
    """One queued resource with its node, or one instance of a TPU machine type."""

    place: Place
    id: str
    """Of the queued resource or the instance."""
    state: ChipState
    said: str
    """The plane's own word, such as WAITING_FOR_RESOURCES or RUNNING."""
    node: str = ""
    """The node's id, or the instance's."""
    node_said: str = ""
    """The node's own state, such as READY or PREEMPTED; empty where there is none."""
    health: str = ""
    """The node's, in the plane's own word."""
    node_number: str = ""
    """Google's own number of it, by which some of its logs name it; empty where there is none."""
    accelerator: str
    """Such as v6e-4."""
    chips: int
    provisioning: Provisioning
    labels: Mapping[str, str] = {}
    spec_json: str = ""
    """What was asked for, if it was made here."""
    external_ip: str = ""
    internal_ip: str = ""
    created_at: datetime
    """When it was asked for."""
    given_at: datetime | None = None
    """When its VM began to bill, as far as is known."""
    ends_at: datetime | None = None
    """When the cloud itself ends it."""
    why: str = ""
    """Google's words on why it failed or was suspended."""
    taken_by: Literal["", "user", "service"] = ""
    """Who suspended it."""

    @property
    def ours(self) -> bool:
        """Whether it was made here."""
        return self.labels.get("managed-by") == MANAGED_BY

    @property
    def deployment(self) -> str:
        """The deployment that it serves; empty if it was not made here."""
        return self.labels.get(DEPLOYMENT_LABEL, "") if self.ours else ""

    @property
    def target(self) -> str:
        """The target that it was made for."""
        return self.labels.get(TARGET_LABEL, "") if self.ours else ""


class Ended(NamedTuple):
    """Why a VM is there no more."""

    code: Literal["PREEMPTED", "EXPIRED", "DELETED_ELSEWHERE", "NOT_KNOWN"]
    at: datetime | None
    words: str
    """Google's own, as far as there are any."""


class Offer(NamedTuple):
    """What a zone has, as far as can be seen without asking for a chip."""

    hardware: bool | None
    """None is not known."""
    detail: str = ""


class Blueprint(Record):
    """One VM, every value decided."""

    spec: DeploymentSpec
    """With every flag as it is passed on."""
    id: str
    """Of queued resource, node, instance and network tag."""
    project: str
    labels: Mapping[str, str]
    accelerator: str
    """Such as v6e-4."""
    machine_type: str
    """Such as ct6e-standard-4t."""
    chips: int
    provisioning: Provisioning
    places: tuple[Place, ...]
    """Where to ask, in this order."""
    reason: str
    """Why these planes in this order, in one sentence."""
    wait_seconds: int
    """For each place."""
    run_seconds: int | None
    """After which it is to end; None is never."""
    runtime_version: str
    """Of a node's VM image."""
    image: str
    """Of an instance's boot disk: projects/PROJECT/global/images/family/FAMILY."""
    disk_gb: int
    disk_type: str
    network: str
    subnetwork: str
    """Empty is the zone's region's of the same name."""
    external_ip: bool
    opened: bool
    """Whether its port is let in at all, by TLS; else it speaks HTTP inside a tunnel."""
    anybody: bool
    """Whether it is let in from everywhere, not from the callers' addresses alone."""
    service_account: str
    container: Container
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""


class Request(NamedTuple):
    """A VM that is to be made: what differs from zone to zone and from boot to boot."""

    made: Blueprint
    zone: str
    script: str
    """The startup script."""
    labels: Mapping[str, str]
    """Those of the blueprint, with the time at which it is to end."""


class Outcome(NamedTuple):
    """How far an operation is."""

    done: bool
    error: OpsError | None = None


class ControlPlane(Protocol):
    """Queued resources, or instances of Compute Engine."""

    @property
    def kind(self) -> PlaneKind:
        """Which it is."""

    async def create(self, request: Request) -> str:
        """Ask for a chip, once; gives the operation's name.

        Raises:
            ConcurrentChange: There is one of that id already, whosever it is.
            QuotaExceeded, NoCapacity, ZoneRefused: The zone does not give one.
            CloudError: Google refused, or did not answer: then it may come into being.
        """

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Return what `create` sends as JSON; pure."""

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Return how far an operation is; one that Google has forgotten is over."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Return one; None if there is none."""

    async def list(self) -> Sequence[Chip]:
        """Return every TPU, ours and others'; a zone that Google cannot reach is noted."""

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete one with all that is its own, by force; missing already is no error."""

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Return why one is gone that was there after `since`; None where nothing tells."""

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Return whether the zone has the hardware."""

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Return the newest lines of its serial port; none where the plane has none."""


@runtime_checkable
class Stops(Protocol):
    """A control plane whose VMs can be stopped and started again."""

    async def stop(self, zone: str, chip_id: str) -> None:
        """Ask to stop one."""

    async def start(self, zone: str, chip_id: str) -> None:
        """Ask to start it again."""


def unreachable(places: Iterable[str], what: str) -> None:
    """Note zones that Google itself could not ask."""
    for place in places:
        zone = place.rpartition("/")[2]
        note(f"{what} in {zone} could not be looked at: Google cannot reach it.")


_ERRORS: Final[Mapping[str, tuple[type[CloudError], str, str]]] = {
    "ZONE_REFUSED": (
        ZoneRefused,
        "{zone} does not give this accelerator in this way.",
        "Another zone may: call get_zones_with_available_quota.",
    ),
    "NO_CAPACITY": (
        NoCapacity,
        "{zone} has no chip free.",
        "Ask in another zone or again later; flex-start waits in a queue of its own.",
    ),
    "QUOTA_EXCEEDED": (
        QuotaExceeded,
        "The project's quota does not allow so many chips in {zone}.",
        "Call check_gpu_quotas and list_queued_resources: failed requests hold quota as well.",
    ),
    "NOT_OURS": (
        NotOurs,
        "{zone} has a TPU of that name which was not made here; it is left alone.",
        "Choose another name.",
    ),
    "PROVISIONING_MODEL_CONFLICT": (
        ZoneRefused,
        "The queue of {zone} does not take spot in the way it is said.",
        "Take control_plane=compute: Compute Engine gives spot as well.",
    ),
    "CLOUD_UNAVAILABLE": (
        CloudUnavailable,
        "Google takes no more calls of the project just now.",
        "Call the same tool again in a minute.",
    ),
    "CONCURRENT_CHANGE": (
        ConcurrentChange,
        "What was there of that name in {zone} is not through yet.",
        "Call the same tool again in a minute.",
    ),
}


def meaning(words: str) -> str | None:
    """Return the code of what words of Google's mean; None where no wording fits.

    >>> meaning('There is no more capacity in the zone "us-east5-b"; you can try in another zone')
    'NO_CAPACITY'
    """
    wording = wording_for("tpu", words)
    return wording.code if wording and wording.code in _ERRORS else None


def refusal_error(words: str, zone: str) -> OpsError:
    """Make an error of Google's words on a request that it had taken."""
    code = meaning(words)
    if code is None:
        return CloudRefused(
            f"The request for a chip in {zone} failed.",
            cause=words,
            fix="Change what the cause names.",
        )
    kind, summary, fix = _ERRORS[code]
    return kind(summary.format(zone=zone), cause=words, fix=fix)


@contextmanager
def translated_refusal(what: str, zone: str) -> Iterator[None]:
    """Translate what Google raises while a zone is asked for something.

    Raises:
        ZoneRefused, NoCapacity, QuotaExceeded: The zone does not give it.
        CloudError: Google refused for another reason, or did not answer.
    """
    try:
        with strictly(what):
            yield
    except CloudError as exc:
        if meaning(exc.cause) is None:
            raise
        raise refusal_error(exc.cause, zone) from exc


LOOK_SECONDS: Final = 1.5
"""What Google refuses at once is known by then; whoever waits for a chip asks again later."""
_EVERY_SECONDS: Final = 0.3
Progress = Callable[[str, str], Awaitable[Outcome]]
"""A control plane's `outcome`."""


async def early_refusal(outcome: Progress, zone: str, operation: str) -> OpsError | None:
    """Return what an operation failed with, if that is known in a moment."""
    with contextlib.suppress(WaitedTooLong, *UNSURE):
        seen = await wait_until(
            lambda: outcome(zone, operation),
            lambda seen: seen.done,
            waiting_for="the request to be taken",
            every=_EVERY_SECONDS,
            timeout=LOOK_SECONDS,
        )
        return seen.error
    return None
