"""What every place that can run a model promises, and what it may be able to do beyond."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import AwareDatetime, Field, SecretStr

from core.records import (
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    MemoryPlan,
    ModelShape,
    Plan,
    Preflight,
    Record,
    Remainder,
    Target,
)
from core.settings import AzurePlane, GooglePlane, Settings
from logs.read import Line
from planner.flags import Flags
from planner.places import Accelerator


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

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        """Take it away; `gone` only when seen to be gone. Already gone is not an error.

        `keep_cache`: what its engine compiled stays, where that is carried, and is named.
        """

    async def access(self, name: str) -> Access:
        """Say where it answers and with which credential.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
            NotReady: It has no address yet.
        """


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
    boot: dict[str, float] = {}
    """Seconds of each phase of that boot, where the log tells it whole."""
    warm_at: AwareDatetime | None = None
    """When it began to warm up, which was the end of it."""


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
class KeepsEngine(Protocol):
    """Lets an engine run on where nothing but some flags of its spec changes."""

    beside_engine: ClassVar[frozenset[str]]
    """These flags."""


@runtime_checkable
class Extends(Protocol):
    """Can give a deployment more time, or less, without touching its engine."""

    async def extend(self, name: str, *, ttl_minutes: int) -> Deployment:
        """Let its time end so long from now; what comes back was read back.

        What max_usd bounds ends no later than that.

        Raises:
            InvalidArgument: Its max_usd is used up.
        """


@runtime_checkable
class ExtendsSome(Protocol):
    """Can give only some of its deployments more time, or less."""

    async def can_extend(self, name: str) -> bool:
        """Return whether this is one of them."""


@runtime_checkable
class Stops(Protocol):
    """Can stop billing without forgetting the deployment."""

    async def stop(self, name: str) -> Deployment:
        """End every replica; seen to be ended."""

    async def start(self, name: str) -> Deployment:
        """Start it again as it was asked for; running already is not an error."""


@runtime_checkable
class HasLogs(Protocol):
    """Keeps what the engine writes, and gives any number of lines of it, page by page."""

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


class Leaving(Record):
    """What a deletion is about, by name and as far as it is there: nobody was asked."""

    deletes: tuple[str, ...]
    purged: tuple[str, ...] = ()
    """Only by a purge."""
    stays: tuple[str, ...] = ()


@runtime_checkable
class Leaves(Protocol):
    """Knows what a deletion would take away, before it does."""

    def leaving(self, name: str, *, keep_cache: bool = False) -> Leaving:
        """Name it for a person who has to agree; looks at nothing."""


@runtime_checkable
class KeepsPaid(Protocol):
    """Keeps something that bills by the month, whether anything is deployed or not."""

    async def paid_leftovers(self) -> Sequence[Remainder]:
        """Return what is there now and bills; only looks.

        Raises:
            CloudError: It cannot be looked at.
        """


class Leftover(Record):
    """A resource of ours in an account that no living deployment stands on."""

    id: str
    """As its cloud names it, whole."""
    kind: str
    """Such as "Cloud Scheduler job"."""
    where: str
    """Region or zone; "global" where it has none."""
    deployment: str = ""
    """The one that it was made for; empty where all share it."""
    usd_per_month: float | None = None
    """While it is there, at 730 hours; None: nobody has said."""
    why: str
    """Part of a sentence, such as "no deployment of that name is there"."""


class Leftovers(Record):
    """What a look through a whole account found."""

    ours: tuple[Leftover, ...]
    others: Mapping[str, int]
    """How many of each kind were not made here."""
    not_seen: tuple[str, ...] = ()
    """What could not be looked at, and why."""


@runtime_checkable
class FindsLeftovers(Protocol):
    """Looks through its whole account for what no deployment needs any more."""

    @property
    def account(self) -> str:
        """Name what it looks through, such as "project P"; targets of one are asked once."""

    async def find_leftovers(self, kept: Collection[str]) -> Leftovers:
        """Look through every region; `kept` names deployments that are there or on their way.

        Ends within 25 s, after which nothing of it is seen; what of it took longer is named.
        """

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        """Look anew and delete it; whether it was seen to be gone.

        Raises:
            NotFound: There is none of that id.
            NotOurs: It was not made here.
            InvalidArgument: It is no leftover: a deployment stands on it.
        """


class BootBudget(Record):
    """How long a replica may take until it answers, before its platform gives it up."""

    seconds: int | None = None
    """From the container's start, as the deployment's own startup probe says; None: nothing ends
    it."""
    probe: str = ""
    """The same as it was told to the platform."""
    longest_seconds: int | None = None
    """The most that the platform, or this project on it, lets a probe allow."""
    weights_from: str
    """A name of `planner/boot.toml`: where a boot reads the weights."""
    fetches_first: bool = False
    """The first boot of all downloads them to there beforehand."""
    idle_seconds: int | None = None
    """After which a replica that nobody asks is taken away, even while it boots; counted from
    when it was scheduled. None: that never happens."""
    stays_seconds: int | None = None
    """For which a replica that may sleep stays after its last request, and bills; None: not
    known."""
    notes: tuple[str, ...] = ()
    """What else ends a boot there, or waits for it."""


@runtime_checkable
class EndsSlowBoots(Protocol):
    """Gives up a replica that does not answer in time."""

    async def boot_budget(self, name: str, model: ModelShape) -> BootBudget:
        """Say how long a deployment of a model may take, read from the platform. Wakes nothing.

        Raises:
            DeploymentNotFound: Nothing of that name was made here.
            CloudError: The platform cannot be asked.
        """


class SetupStep(Record):
    """One thing that a target needs once, before anything can be deployed."""

    what: str
    done: bool
    """Seen to be there."""
    command: str
    """As a person would type it."""
    usd_per_month: float = 0.0
    """While it is there, whether it is used or not."""


class Setup(Record):
    """What a target needs, and how much of it is there."""

    steps: tuple[SetupStep, ...]

    @property
    def missing(self) -> tuple[SetupStep, ...]:
        """What is still to be done."""
        return tuple(step for step in self.steps if not step.done)


@runtime_checkable
class SetsUp(Protocol):
    """Needs things of its own in the cloud, and can make them."""

    async def setup(self) -> Setup:
        """Look at what is there; changes nothing."""

    async def set_up(self) -> Setup:
        """Make what is missing; what comes back was read back. Twice is harmless."""


class Quota(Record):
    """How many accelerators may be used at once."""

    quota: str
    """The provider's own name of it."""
    region: str
    accelerator: str
    limit: float | None
    """Accelerators; None is not known, which is not 0."""
    in_use: float | None = None
    first_grant: int | None = None
    """What the first deployment there is granted, where the limit is not known for want of one."""
    detail: str = ""
    """Why it is not known, or how the figure was read."""


@runtime_checkable
class HasQuotas(Protocol):
    """Is limited by a quota that can be read."""

    async def quotas(self) -> Sequence[Quota]:
        """Give those of the target's accelerator in its region, the one that counts first."""


class KeptSecret(Record):
    """A secret that the cloud keeps; its value is never told."""

    name: str
    version: str
    readable_by: tuple[str, ...]
    """Identities of ours that may read it, as seen."""


@runtime_checkable
class KeepsSecrets(Protocol):
    """Can keep a token where its deployments read it."""

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a new version, unless the newest is the same; what comes back was read back."""


class StoredModel(Record):
    """A model's files in a bucket."""

    location: str
    """gs://BUCKET/FOLDER or files://SHARE/FOLDER: what `weights` takes."""
    model: str | None
    """As its config names it, where that can be told."""
    files: int
    size_bytes: int
    complete: bool | None
    """Every file that its index names is there with its size; None cannot be told."""
    detail: str = ""
    """What is missing, or why it cannot be told."""


@runtime_checkable
class ListsWeights(Protocol):
    """Can look into a bucket for models."""

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        """Give every folder that holds a model; a bucket left out is that of the settings."""


class Upload(Record):
    """How a person brings a model's folder to where deployments read it."""

    location: str
    """What `weights` takes afterwards."""
    bucket: str
    """Where `stored_models` finds it."""
    steps: tuple[tuple[str, str], ...]
    """What each is for, and the command."""
    notes: tuple[str, ...]


@runtime_checkable
class TakesUploads(Protocol):
    """Reads weights from a place that a person fills by the cloud's own commands."""

    def upload(self, folder: str, here: str, bucket: str | None = None) -> Upload:
        """Say how the folder `here` is copied there, as `folder` where the bucket names none."""


class RegisteredModel(Record):
    """A model of the cloud's registry."""

    name: str
    display_name: str
    version: str
    created_at: str
    artifact: str
    """Where its files are."""


@runtime_checkable
class ListsRegistry(Protocol):
    """Has a registry of models."""

    async def registered_models(self) -> Sequence[RegisteredModel]:
        """Give every model of the project's registry in the target's region."""


@runtime_checkable
class Purges(Protocol):
    """Leaves something behind that was made for one deployment alone."""

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete that too; names what was seen to go."""


@runtime_checkable
class GoesOn(Protocol):
    """Deploys in several steps, of which the later ones wait for the earlier."""

    waits_in: ClassVar[frozenset[str]]
    """Phases after which there is a next step: only whoever saw one of them may take it."""

    async def go_on(self, name: str) -> None:
        """Take the next step of a deployment if its time has come; else do nothing."""


@runtime_checkable
class RefusesEarly(Protocol):
    """Is paid for, and looks at what stands against a change before anybody agrees to its price.

    Each of these changes nothing, and raises what the change itself would.
    """

    async def refuse_name(self, name: str) -> None:
        """Refuse a name that somebody else's resource has, or what another target stands on."""

    async def refuse_deploy(self, spec: DeploymentSpec) -> Sequence[str]:
        """Refuse the same, and a cloud that lets nobody in.

        What may yet stand against it, and is not sure, comes back: whoever is asked reads it.
        """

    async def refuse_start(self, name: str) -> None:
        """Refuse to start what is not there, or cannot be started again."""

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse to scale what is not there, or more replicas than there can be."""


@runtime_checkable
class Wakes(Protocol):
    """Sleeps when nobody asks, and is started by whoever does."""

    async def wake(self, name: str) -> None:
        """Ask it, which starts a replica where none runs; returns once the model has answered.

        Raises:
            EndpointError: It was asked and did not answer.
        """


@runtime_checkable
class Closes(Protocol):
    """Holds connections while the server lives."""

    async def aclose(self) -> None:
        """Let go of them."""


@runtime_checkable
class Ends(Protocol):
    """Bills on while it is stopped, or cannot be started again: what is overdue is deleted."""

    async def end(self, name: str) -> str:
        """End an overdue deployment in the way that bills nothing; says what was seen."""


class ZoneQuota(Record):
    """How many accelerators one pool of quota allows in a zone."""

    pool: str
    """The provider's own name of it."""
    control_plane: str
    limit: float | None
    """Accelerators; None is not known, which is not 0."""
    detail: str = ""


class ZoneOutcome(Record):
    """What asking for an accelerator in a zone came to, the last time."""

    control_plane: str
    provisioning: str
    outcome: str
    """GIVEN, or the code of what stood against it."""
    minutes_ago: int
    detail: str = ""


class Zone(Record):
    """One zone, as far as can be seen without asking for an accelerator."""

    zone: str
    hardware: bool | None
    """The zone has the accelerator; None is not known."""
    quotas: tuple[ZoneQuota, ...]
    """Those that count for the target's provisioning model."""
    accepts: bool | None
    """It gives accelerators in this way; None is not known before it is asked."""
    outcomes: tuple[ZoneOutcome, ...] = ()
    """Newest first."""
    verdict: str
    """In one sentence; capacity is known only by asking."""
    usable: bool | None
    """Nothing that can be seen stands against it; None where too little is known."""


@runtime_checkable
class FindsZones(Protocol):
    """Has several zones, of which some may give an accelerator."""

    async def zones(self) -> Sequence[Zone]:
        """Give those that are known, the most promising first."""


class QueuedResource(Record):
    """One request for accelerators, or the VM that came of it."""

    id: str
    path: str = Field(default="", exclude=True)
    """As its cloud names it, whole."""
    zone: str
    control_plane: str
    state: str
    """In the provider's own words."""
    node: str
    """Id and state of its node; empty where there is none."""
    health: str = ""
    accelerator: str
    provisioning: str
    external_ip: str = ""
    created_at: str
    """UTC."""
    ours: bool
    """Made by this project: others are shown, never touched."""
    deployment: str = ""
    target: str = ""
    leftover: bool
    """It will never serve again, and holds quota until it is deleted."""
    why: str = ""


@runtime_checkable
class HasQueue(Protocol):
    """Gives accelerators from a queue."""

    async def queued_resources(self) -> Sequence[QueuedResource]:
        """Give every one of the account, ours and others'."""

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        """Delete one of ours that serves nothing any more, as `FindsLeftovers` does."""
