"""What every place that can run a model promises, in sentences."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from core.plans import MemoryPlan, Plan, Preflight
from core.records import Access, Deleted, Deployment, DeploymentSpec, ModelShape, Record, Target
from core.rehearsal import AzurePlane, GooglePlane
from core.settings import Settings
from logs.lines import Line
from planner.accelerators import Accelerator
from planner.flags import Flags


class World(NamedTuple):
    """What a backend is given to work with."""

    settings: Settings
    folder: Path
    """Of this stage, below which a backend may keep what it must remember."""
    simulated_engine: tuple[str, ...]
    """The command that is used where there is no vLLM."""
    google: Callable[[], Awaitable[GooglePlane]] | None = None
    """Gives the simulated Google Cloud, started if need be; None in the real world."""
    azure: Callable[[], Awaitable[AzurePlane]] | None = None
    """The same of Azure."""
    simulated_memory_gib: tuple[float, float] | None = None
    """Total and free memory of the simulated engine's machine; None where it simulates none."""


class Backend(Protocol):
    """One target. Nothing here waits for a boot; `describe` tells how far it is."""

    def __init__(self, target: Target, world: World) -> None:
        """Open it, without any I/O."""

    @property
    def target(self) -> Target:
        """Where this is."""

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say what applying the spec would do. Pure: no I/O, the same answer every time.

        Raises:
            InvalidArgument: The platform or the model cannot take the spec.
        """

    async def check(self, plan: Plan) -> Preflight:
        """Look, without changing anything, at what the plan needs."""

    async def apply(self, plan: Plan) -> Deployment:
        """Make it so, as far as can be done at once. Twice is harmless; a second call goes on.

        What runs under the same name with another spec is replaced.

        Raises:
            HostError: The platform lacks something; nothing half-made is left running.
        """

    async def describe(self, name: str) -> Deployment:
        """Say what exists now. Never wakes what is asleep.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
        """

    async def list(self) -> Sequence[Deployment]:
        """Give everything that this project made here, found by its label."""

    async def delete(self, name: str) -> Deleted:
        """Take it away; `gone` only when seen to be gone. Already gone is not an error."""

    async def access(self, name: str) -> Access:
        """Say where it answers and with which credential.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
            NotReady: It has no address yet.
        """


class LogLines(Record):
    """The newest lines of an engine's log, newest last."""

    lines: tuple[str, ...]
    total: int
    """Lines that there are: all of the log, or those that contain the text."""


class LogQuery(Record):
    """Which lines of a deployment's log are wanted."""

    since: datetime | None = None
    """None is since the deployment was made, as far as its platform keeps lines."""
    until: datetime | None = None
    contains: tuple[str, ...] = ()
    """Only lines with at least one of these texts, whatever their case; none is every line."""
    platform: bool = True
    """Also what the platform says; False is the container's own output alone."""


class EngineFacts(Record):
    """What the platform knows of an engine beyond its HTTP API; None is not known."""

    version: str | None = None
    weights_dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    flags: str = ""
    """That differ from vLLM's defaults, as it was started."""
    sampling: dict[str, float] = {}
    """What the model's generation_config.json sets in place of vLLM's own defaults."""
    memory: dict[str, float | int | None] = {}
    """By component, from its log."""


class Hardware(Record):
    """What a replica runs on."""

    accelerator: str
    vcpu: int | None = None
    ram_gib: float | None = None
    disk: str | None = None
    network: str | None = None


class DeploymentConfig(Record):
    """One deployment, as a person would make it by hand."""

    command: str
    """For a shell."""
    docker_run: str
    yaml: str
    """The same as a file: for docker compose here, for its own cloud elsewhere."""
    notes: tuple[str, ...] = ()


@runtime_checkable
class Scales(Protocol):
    """Can run another number of replicas without being made anew."""

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Change the number of replicas; what comes back was read back.

        Raises:
            InvalidArgument: The platform cannot run that many.
        """


@runtime_checkable
class Stops(Protocol):
    """Can stop billing without forgetting the deployment."""

    async def stop(self, name: str) -> Deployment:
        """End every replica; seen to be ended."""

    async def start(self, name: str) -> Deployment:
        """Start it again as it was asked for; running already is not an error."""


@runtime_checkable
class HasLogs(Protocol):
    """Keeps what the engine writes."""

    async def logs(self, name: str, *, lines: int, contains: str | None = None) -> LogLines:
        """Give the newest lines, only those that contain a text if one is given."""


@runtime_checkable
class StreamsLogs(Protocol):
    """Gives any number of lines of what the engine writes, page by page."""

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Give every line that is asked for, the newest page first, each page oldest line first.

        Whoever has enough stops asking; no page is longer than a few thousand lines.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
        """


@runtime_checkable
class KnowsEngine(Protocol):
    """Can say more of an engine than its HTTP API does."""

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what log and configuration tell."""

    async def hardware(self, name: str, /) -> Hardware:
        """Give what a replica of a deployment runs on."""


@runtime_checkable
class RemembersSpec(Protocol):
    """Knows what was asked for when a deployment was made."""

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give it, None where it cannot be read any more."""


@runtime_checkable
class NamesEngine(Protocol):
    """Knows which engine would serve, before anything is deployed."""

    def engine_name(self) -> tuple[str, str]:
        """Give its name and, if it cannot be used yet, what to do first."""


class Prediction(Record):
    """What the planner expects of a deployment."""

    model: ModelShape
    flags: Flags
    accelerator: Accelerator
    memory: MemoryPlan


@runtime_checkable
class Predicts(Protocol):
    """Knows on what its deployments run, well enough to foresee their memory."""

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected, None where too little is known."""

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the accelerators of one replica, None where they are not known."""


@runtime_checkable
class WritesConfig(Protocol):
    """Can print a deployment as text for a person."""

    async def config(self, name: str) -> DeploymentConfig:
        """Give the exact commands and files that do the same."""


class Usage(Record):
    """What a deployment takes of its host now, seen from outside the engine."""

    processes: int
    cpu_percent: float
    """Of one core, over a tenth of a second."""
    resident_memory_bytes: int
    log_bytes: int


class HostState(Record):
    """How a host is."""

    health: Literal["ok", "short of memory", "short of disk"]
    cpu_percent: float
    """Of all cores."""
    memory_available_gib: float
    memory_total_gib: float
    disk_free_gib: float


@runtime_checkable
class HasHost(Protocol):
    """Runs on a host that can be looked at."""

    async def host(self) -> HostState:
        """Say how the host is."""

    async def usage(self, name: str) -> Usage | None:
        """Say what a deployment takes now, None when it does not run."""
