"""What every part of the backend is handed: chips, names, clients, planes and the target."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast

import anyio
from google.cloud.tpu_v2 import TpuAsyncClient

from backends.container import Container
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    MANAGED_BY,
    TARGET_LABEL,
    GoogleClients,
    GoogleSite,
)
from backends.tpu import compute_client
from core.errors import OpsError
from core.records import DeploymentSpec, Record, Target
from planner.places import Place as Offered
from planner.places import places

if TYPE_CHECKING:
    from google.cloud.compute_v1 import (
        FirewallsClient,
        GlobalOperationsClient,
        InstancesClient,
        MachineTypesClient,
        NetworksClient,
        ZoneOperationsClient,
    )


SPEC_METADATA: Final = "vllm-devops-spec"
"""The VM's metadata that holds what was asked for, as JSON."""
ACCOUNT_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
"""With less the VM could not read its secrets."""
LOG: Final = "vllm-devops"
"""The log that the startup script writes to, and the container's output with it."""
SERIAL_PORT: Final = 1


def vm_id(name: str) -> str:
    """Name queued resource, node or instance, network tag and firewall rule of a deployment.

    >>> vm_id("gemma")
    'vllm-devops-gemma'
    """
    return f"vllm-devops-{name}"


def key_secret(name: str) -> str:
    """Name the secret with a deployment's key: Cloud Run may serve another of that name."""
    return f"vllm-devops-tpu-{name}-api-key"


def region_of(zone: str) -> str:
    """Give a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]


SEARCHING: Final = "waiting for a chip"
RETURNING: Final = "giving a request back"
REPLACING: Final = "deleting the former"
REMOVING: Final = "deleting"
WAITS_IN: Final = frozenset({SEARCHING, RETURNING, REPLACING, REMOVING})
"""In these nothing goes on by itself: a call takes the next step."""
MAKING: Final = "making the VM"
STOPPING: Final = "waiting for its VM to stop"
GOING: Final = "waiting for its VM to be gone"

CERTIFICATE: Final = "certificate"
"""An entry of the script's whose message is a certificate, not words."""
READY: Final = "ready"
ENDED: Final = "ended"
FAILED: Final = "failed"
ENGINE: Final = "starting engine"
"""From here on the engine's own lines say how far it is."""
BOOTING: Final = "booting"
SCRIPT: Final[Mapping[str, str]] = {
    BOOTING: BOOTING,
    "installing docker": "installing docker",
    CERTIFICATE: BOOTING,
    "pulling image": "pulling image",
    "reading secrets": "reading secrets",
    ENGINE: "starting",
}
"""What the startup script calls what it does, and what it is as a phase of a boot."""


PlaneKind = Literal["queued", "compute"]
Provisioning = Literal["on-demand", "spot", "flex-start"]


class Place(NamedTuple):
    """Where a chip is asked for, and of whom."""

    zone: str
    plane: PlaneKind

    def __str__(self) -> str:
        """As a person says it."""
        return f"{self.zone} ({SAID[self.plane]})"


SAID: Final[Mapping[PlaneKind, str]] = {"queued": "queued resource", "compute": "Compute Engine"}


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


class Blueprint(Record):
    """One VM."""

    spec: DeploymentSpec
    """With every flag as it is passed on."""
    id: str
    """Of queued resource, node, instance, network tag and firewall rule."""
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
    """Its name."""
    subnetwork: str
    """Its name; empty is the zone's region's of the same name."""
    external_ip: bool
    opened: bool
    """Whether port 8000 is let in by a firewall rule at all."""
    anybody: bool
    """Whether it is let in from everywhere, not from the callers' addresses alone."""
    tls: bool
    service_account: str
    container: Container
    boot_seconds: float
    """The slowest boot that is foreseen, from the VM to the first answer."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""


TPU_API: Final = "https://tpu.googleapis.com"


class Clients(GoogleClients):
    """One project; its zones are chosen one by one."""

    def _region(self, target: Target) -> str:
        return self.settings.google_cloud_zone or target.region or "us-east5-b"

    async def tpu(self) -> TpuAsyncClient:
        """Nodes and queued resources."""
        return await self.client(TpuAsyncClient)

    async def instances(self) -> "InstancesClient":
        """Instances of Compute Engine."""
        return cast("InstancesClient", await self._compute("instances", "Instances"))

    async def zone_operations(self) -> "ZoneOperationsClient":
        """What goes on in a zone of Compute Engine, and what went on."""
        return cast(
            "ZoneOperationsClient", await self._compute("zone_operations", "ZoneOperations")
        )

    async def global_operations(self) -> "GlobalOperationsClient":
        """What goes on that belongs to no zone, such as changes of firewall rules."""
        return cast(
            "GlobalOperationsClient", await self._compute("global_operations", "GlobalOperations")
        )

    async def firewalls(self) -> "FirewallsClient":
        """Firewall rules."""
        return cast("FirewallsClient", await self._compute("firewalls", "Firewalls"))

    async def machine_types(self) -> "MachineTypesClient":
        """Which machines a zone has."""
        return cast("MachineTypesClient", await self._compute("machine_types", "MachineTypes"))

    async def networks(self) -> "NetworksClient":
        """Networks of the project."""
        return cast("NetworksClient", await self._compute("networks", "Networks"))

    async def _compute(self, service: str, name: str) -> Any:
        if name not in self._open:
            plane, credentials = await self.plane(), await self.credentials()
            host = plane.http if plane else ""
            made = await anyio.to_thread.run_sync(
                compute_client.client, service, name, credentials, host
            )
            self._open.setdefault(name, made)
        return self._open[name]


class Offer(NamedTuple):
    """What a zone has, as far as can be seen without asking for a chip."""

    hardware: bool | None
    """None is not known."""
    detail: str = ""


class Request(NamedTuple):
    """A VM that is to be made: what differs from zone to zone and from boot to boot."""

    made: Blueprint
    zone: str
    script: str
    """The startup script."""
    labels: Mapping[str, str]
    """Those of the blueprint, with the time at which it is to end."""


class ControlPlane(Protocol):
    """Queued resources, or instances of Compute Engine."""

    @property
    def kind(self) -> PlaneKind:
        """Which it is."""

    @property
    def stops(self) -> bool:
        """Whether a VM of it can be stopped and started again."""

    async def create(self, request: Request) -> str:
        """Ask for a chip; once, with an id that makes a second call find the first.

        Gives the operation's name. That there is one of that id already is no error where it
        carries our labels.

        Raises:
            NotOurs: Something else has that id.
            QuotaExceeded, NoCapacity, ZoneRefused: The zone does not give one.
            CloudError: Google refused, or did not answer.
        """

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Give what `create` sends as JSON, for a plan; pure."""

    async def refusal(self, zone: str, operation: str) -> OpsError | None:
        """Say why a request failed that Google had taken; None if it did not (yet)."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at one; None if there is none."""

    async def list(self, zones: Sequence[str]) -> Sequence[Chip]:
        """Give every TPU there, ours and others'; a zone that cannot be asked is noted."""

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete one with all that is its own, by force; missing already is no error.

        Once Google has taken it this returns: look with `get` until it is gone.
        """

    async def stop(self, zone: str, chip_id: str) -> None:
        """Ask to stop it."""

    async def start(self, zone: str, chip_id: str) -> None:
        """Ask to start it again."""

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why one is gone that was there after `since`; None where nothing tells."""

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the hardware."""

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Give the newest lines of its serial port; none where the plane has none."""


_FRESH_SECONDS: Final = 1.0
"""Nine targets that are listed together look once."""

Look = Callable[[], Awaitable[Sequence[Chip]]]


class Inventory:
    """What was seen last, and when."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._seen: Sequence[Chip] = ()
        self._at: float | None = None

    async def read(self, look: Look) -> Sequence[Chip]:
        """Give what was seen within the last second, or look. Raises what `look` does."""
        async with self._lock:
            now = anyio.current_time()
            if self._at is None or now - self._at > _FRESH_SECONDS:
                self._seen = await look()
                self._at = anyio.current_time()
            return self._seen

    def forget(self) -> None:
        """Something was changed: look anew."""
        self._at = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    planes: Mapping[PlaneKind, ControlPlane]
    folder: Path
    """What this machine remembers of the target's deployments."""
    shared: Path
    """What it remembers of zones, for every TPU target."""
    inventory: Inventory
    """What there is in every zone, shared by every TPU target."""
    certificates: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Those of VMs, with the moment at which they were read: a project has 60 reads a minute."""
    answered: set[str] = field(default_factory=set)
    """Addresses whose model has answered."""

    @property
    def home(self) -> str:
        """Say of every zone the same: a deployment is in whichever has a chip."""
        return "tpu"

    def key_secret(self, name: str) -> str:
        """Name the secret with a deployment's key."""
        return key_secret(name)

    @property
    def offered(self) -> Offered:
        """What is known of the target as data."""
        return places()[self.target.name]

    @property
    def accelerator(self) -> str:
        """Such as v6e-4."""
        return f"{self.offered.accelerator}-{self.offered.count}"

    @property
    def provisioning(self) -> Provisioning:
        """How its chips are given."""
        return self.offered.provisioning
