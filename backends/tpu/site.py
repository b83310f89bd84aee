"""One target of TPUs, opened: its places, chips, searches, clients, and what a plane promises."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import anyio
from google.cloud.tpu_v2 import TpuAsyncClient

from backends.common.concurrency import side_by_side
from backends.container import Container
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    MANAGED_BY,
    TARGET_LABEL,
    GoogleClients,
    GoogleSite,
    client_of,
)
from backends.google.errors import find, strictly
from backends.lease import Keeper
from backends.lifecycle import Pending, PendingStore
from core import errors
from core.records import DeploymentSpec, Record, Target
from core.reply import note
from logs.failures import meaning as wording_for
from planner.places import Place as Offered
from planner.places import places

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
        return self in {self.SUSPENDED, self.FAILED}

    @property
    def alive(self) -> bool:
        """Whether it has its chips, or may still get them."""
        return self in {self.WAITING, self.PROVISIONING, self.RUNNING}


class Chip(Record):
    """One queued resource with its node, or one instance of a TPU machine type."""

    place: Place
    id: str
    """Of the queued resource or the instance."""
    path: str = ""
    """As Google names it, whole."""
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
    provisioning: Provisioning | None
    """None where the plane does not tell: v2 of the queue has no word for flex-start."""
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
        return self.labels.get("managed-by") == MANAGED_BY

    @property
    def deployment(self) -> str:
        """The deployment that it serves; empty if it was not made here."""
        return self.labels.get(DEPLOYMENT_LABEL, "") if self.ours else ""

    @property
    def target(self) -> str:
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


async def offered(what: str, call: Awaitable[Any]) -> Offer:
    """Return what a zone's answer to a question for its hardware says."""
    try:
        found = await find(what, call)
    except errors.OpsError as exc:
        if meaning(exc.cause) != errors.ZoneRefused.code:
            raise
        return Offer(hardware=False, detail=exc.cause)
    return Offer(hardware=True) if found else Offer(hardware=False, detail="The zone has none.")


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
    store: str = ""
    """Where what it compiles is carried to the next VM; empty where nothing is."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""
    reason: str = ""
    """Earlier versions wrote it."""


class Request(NamedTuple):
    """A VM that is to be made: what differs from zone to zone and from boot to boot."""

    made: Blueprint
    zone: str
    script: str
    """The startup script."""
    labels: Mapping[str, str]
    """Those of the blueprint, with the time at which it is to end."""

    @property
    def metadata(self) -> dict[str, str]:
        """What the VM finds; holds no secret: whoever is on it can read it."""
        spec = self.made.spec.model_dump_json(exclude_defaults=True)
        return {"startup-script": self.script, SPEC_METADATA: spec}


class Outcome(NamedTuple):
    """How far an operation is."""

    done: bool
    error: errors.OpsError | None = None


class ControlPlane(Protocol):
    """Queued resources, or instances of Compute Engine."""

    async def create(self, request: Request) -> str:
        """Ask for a chip, once; gives the operation's name.

        Raises:
            ConcurrentChange: There is one of that id already, whosever it is.
            QuotaExceeded, NoCapacity, ZoneRefused: The zone does not give one.
            CloudError: Google refused, or did not answer: then it may come into being.
        """

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Return what `create` sends as JSON; pure."""

    def address(self, request: Request) -> str:
        """Return the URL that a person sends it to; pure."""

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


def unreachable(places: Iterable[str], what: str) -> None:
    """Note zones that Google itself could not ask."""
    for place in places:
        zone = place.rpartition("/")[2]
        note(f"{what} in {zone} could not be looked at: Google cannot reach it.")


_ERRORS: Final[Mapping[str, tuple[type[errors.CloudError], str, str]]] = {
    "ZONE_REFUSED": (
        errors.ZoneRefused,
        "{zone} does not give this accelerator in this way.",
        "Another zone may: call get_zones_with_available_quota.",
    ),
    "NO_CAPACITY": (
        errors.NoCapacity,
        "{zone} has no chip free.",
        "Ask in another zone or again later; flex-start waits in a queue of its own.",
    ),
    "QUOTA_EXCEEDED": (
        errors.QuotaExceeded,
        "The project's quota does not allow so many chips in {zone}.",
        (
            "Call check_gpu_quotas for what is allowed and how to ask for more; other zones, the"
            " other control_plane, -spot and -flex have quotas of their own. Call"
            " list_queued_resources: failed requests hold quota as well."
        ),
    ),
    "NOT_OURS": (
        errors.NotOurs,
        "{zone} has a TPU of that name which was not made here; it is left alone.",
        "Choose another name.",
    ),
    "PROVISIONING_MODEL_CONFLICT": (
        errors.ZoneRefused,
        "The queue of {zone} does not take spot in the way it is said.",
        "Take control_plane=compute: Compute Engine gives spot as well.",
    ),
    "CLOUD_UNAVAILABLE": (
        errors.CloudUnavailable,
        "Google takes no more calls of the project just now.",
        "Call the same tool again in a minute.",
    ),
    "CONCURRENT_CHANGE": (
        errors.ConcurrentChange,
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


def refusal_error(words: str, zone: str) -> errors.OpsError:
    """Make an error of Google's words on a request that it had taken."""
    code = meaning(words)
    if code is None:
        return errors.CloudRefused(
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
    except errors.CloudError as exc:
        if meaning(exc.cause) is None:
            raise
        raise refusal_error(exc.cause, zone) from exc


GIVEN: Final = "GIVEN"
"""The outcome of a request that gave a chip."""
TIMED_OUT: Final = "TIMED_OUT"
NEVER_AGAIN: Final = frozenset(
    {errors.ApiDisabled.code, errors.NotConfigured.code, errors.PermissionDenied.code}
)
"""What stands against every place of a control plane."""


class Attempt(Record):
    """One request for a chip at one place."""

    place: Place
    since: datetime
    asked: datetime | None = None
    """When it was asked for, as long as no answer has come: it may come into being late."""
    taken: bool = False
    """Google has taken it, or it was seen to be there."""
    operation: str = ""
    """Its name at Google."""
    outcome: str = ""
    """How it ended: an error's code, `TIMED_OUT`, or `GIVEN`; empty while it goes on."""
    detail: str = ""
    """Google's words on it."""
    fix: str = ""
    """What could be done about it, where something can."""
    returned: bool = True
    """Seen to be given back: nothing of it is left in the zone."""


class Search(Pending):
    """One deployment, also once it has its chip: only here is known what a VM that is gone was."""

    blueprint: Blueprint
    again: bool = False
    """There was a VM of that name, whose key its callers know: it outlives a search for another."""
    grounded: bool = False
    """What every place needs is there."""
    keeper: Keeper | None = None
    """Who ends what the queue gives, where nothing else does; None is a server, as in earlier
    versions."""
    lease_ends: int | None = None
    """When a job of the cloud's ends it, in seconds since 1970; None where there is none yet."""
    attempts: tuple[Attempt, ...] = ()
    """Oldest first; the last one may be under way."""
    placed: Place | None = None
    """Where it was given a chip."""
    replacing: tuple[Place, ...] = ()
    """Where what ran under this name before is still being deleted."""
    late: datetime | None = None
    """When something of that was asked for without an answer: it may come into being late."""

    @property
    def current(self) -> Attempt | None:
        last = self.attempts[-1] if self.attempts else None
        return last if last and not last.outcome else None

    @property
    def stands(self) -> Place | None:
        """Where its chip is, or the request that may become one."""
        return self.placed or (self.current.place if self.current else None)

    @property
    def left(self) -> Mapping[Place, datetime | None]:
        """Where something of it may still be, with when it was asked for without an answer."""
        open_ones = {one.place: one.asked for one in self.attempts if not one.returned}
        placed = (self.placed,) if self.placed else ()
        return {**dict.fromkeys(placed), **dict.fromkeys(self.replacing, self.late), **open_ones}

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing left to be done, whatever came of it."""
        if self.failure:
            return True
        busy = self.replacing or any(not one.outcome or not one.returned for one in self.attempts)
        return self.grounded and not busy and (self.placed is not None or self.next_place is None)

    @property
    def next_place(self) -> Place | None:
        """The place to ask next; a plane that refuses altogether is not asked again."""
        asked = {one.place for one in self.attempts}
        barred = {one.place.plane for one in self.attempts if one.outcome in NEVER_AGAIN}
        left = (one for one in self.blueprint.places if one not in asked)
        return next((one for one in left if one.plane not in barred), None)


def vm_id(name: str) -> str:
    return f"vllm-devops-{name}"


def key_secret(name: str) -> str:
    return f"vllm-devops-tpu-{name}-api-key"


def region_of(zone: str) -> str:
    """Return a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]


class Clients(GoogleClients):
    """One project; its zones are chosen one by one."""

    tpu = client_of(TpuAsyncClient)

    def _region(self, target: Target) -> str:
        return self.settings.google_cloud_zone or target.region or "us-east5-b"


_FRESH_SECONDS: Final = 1.0


class Inventory:
    """What was seen lately of a project: nine targets that are asked together look once."""

    def __init__(self) -> None:
        self._locks: defaultdict[Hashable, anyio.Lock] = defaultdict(anyio.Lock)
        self._seen: dict[Hashable, tuple[float, Any]] = {}

    async def read(self, what: Hashable, seconds: float, look: Callable[[], Awaitable[Any]]) -> Any:
        """Return what was seen within so many seconds, or look. Raises what `look` does."""
        async with self._locks[what]:
            at, seen = self._seen.get(what, (-inf, None))
            if anyio.current_time() - at > seconds:
                seen = await look()
                self._seen[what] = (anyio.current_time(), seen)
            return seen

    def forget(self, what: Hashable = "chips") -> None:
        self._seen.pop(what, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    planes: Mapping[PlaneKind, ControlPlane]
    records: PendingStore[Search]
    """What this machine remembers of the target's deployments."""
    folder: Path
    """Where it remembers that."""
    shared: Path
    """What it remembers of zones, and its locks: for every TPU target."""
    inventory: Inventory
    """What there is in every zone, shared by every TPU target."""
    certificates: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Those of VMs, with the moment at which they were read: a project has 60 reads a minute."""
    answered: dict[str, datetime | None] = field(default_factory=dict)
    """By VM, which start of its engine has answered."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def home(self) -> str:
        """Say of every zone the same: a deployment is in whichever has a chip."""
        return "tpu"

    def key_secret(self, name: str) -> str:
        return key_secret(name)

    @property
    def offered(self) -> Offered:
        return places()[self.target.name]

    @property
    def accelerator(self) -> str:
        return f"{self.offered.accelerator}-{self.offered.count}"

    @property
    def provisioning(self) -> Provisioning:
        return self.offered.provisioning

    async def chips(self) -> Sequence[Chip]:
        """Return every TPU of the project, of both control planes, ours and others'.

        A control plane that is off, or that the caller may not ask, is noted.

        Raises:
            CloudError: None of them can be asked.
        """
        found: Sequence[Chip] = await self.inventory.read("chips", _FRESH_SECONDS, self._look)
        return found

    async def _look(self) -> Sequence[Chip]:
        refused = list[errors.CloudError]()

        async def ask(plane: ControlPlane) -> Sequence[Chip]:
            try:
                return await plane.list()
            except (errors.ApiDisabled, errors.PermissionDenied) as exc:
                refused.append(exc)
                return ()

        found = await side_by_side([partial(ask, plane) for plane in self.planes.values()])
        if len(refused) == len(self.planes):
            raise refused[0]
        for exc in refused:
            note(f"{exc.summary} {exc.cause}".strip())
        return tuple(chip for row in found for chip in row)
