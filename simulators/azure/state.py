"""Everything the simulated cloud knows: subscriptions, what is in them, what tests set."""

import contextlib
import time
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.records import Record
from core.settings import AzurePlane

Body = dict[str, Any]
"""A resource, or a part of one, as it is written in JSON."""
_HERE: Final = Path(__file__).parent
CATALOG: Final[dict[str, Any]] = tomllib.loads((_HERE / "catalog.toml").read_text("utf-8"))
TYPES: Final[dict[str, Any]] = tomllib.loads((_HERE / "types.toml").read_text("utf-8"))
REFUSALS: Final[dict[str, Any]] = tomllib.loads((_HERE / "refusals.toml").read_text("utf-8"))
Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-host"]
Forbidden = Literal["shared-keys", "public-ingress"]


class Fault(Record):
    """Something that goes wrong with the next calls of a method."""

    method: str
    """Such as `PUT Microsoft.App/containerApps`, `GET operations`; `*` stands for any letters."""
    status: int = 503
    code: str = ""
    message: str = ""
    times: int = 1
    """How many calls; -1 is all."""
    when: Literal["before", "after", "hang", "hang-after"] = "before"
    """Before it took effect, after, or no answer at all (without or with effect)."""
    retry_after: float | None = None
    """Seconds that the answer asks to wait; none if None."""


class Knobs(Record):
    """The controls of one subscription; a fresh one has the defaults."""

    prepared: bool = False
    """As after `set_up` of both targets in swedencentral, with the names that it gives."""
    boot_seconds: float = Field(default=1.0, ge=0)
    """How long a replica's engine boots."""
    engine_seconds: dict[str, float] = {}
    """Seconds of single phases of that boot, in place of their share."""
    engine_environment: dict[str, str] = {}
    """More settings of the simulated engine, such as SIMULATED_ENGINE_FAIL."""
    rollout: Rollout = "ok"
    """How the next rollouts go; `no-host` waits for a GPU for ever."""
    probe_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a probe's period."""
    environment_seconds: float = Field(default=0.2, ge=0)
    """How long an environment takes to be made."""
    operation_seconds: float = Field(default=0.05, ge=0)
    """How long any other change takes."""
    patience_seconds: float | None = Field(default=None, ge=0)
    """How long the change of an app waits for its new revision to be ready; then it has failed,
    and the replica boots on. None: it is over before the boot."""
    quotas: dict[str, int] = {}
    """GPUs in each region, by a100 and t4; 2 where none is set."""
    environment_quotas: dict[str, int] = {}
    """GPUs in each environment, likewise."""
    profiles: dict[str, tuple[str, ...]] | None = None
    """Workload profile types that regions offer, in place of Azure's."""
    disk_gib: float | None = Field(default=None, gt=0)
    """What the disk of a container with a GPU holds of files from the Hub; nobody documents it.
    None: whatever they need."""
    startup_failures: int = Field(default=240, ge=1)
    """How many failures of a startup probe the region takes; 10 where its service is older."""
    whole_nodes: bool = True
    """A GPU's profile takes its whole pair of processors and memory alone; nobody documents it."""
    organisation_forbids: tuple[Forbidden, ...] = ()
    """What policies deny: storage accounts with shared keys, apps that the internet reaches."""
    docker_hub_limited: bool = False
    """Docker Hub gives its images to nobody without an account, as too many have asked."""
    old_environment: bool = False
    """Environments take no GPU profile after they are made."""
    identity: str = ""
    """Whoever calls; empty is an account of the subscription's own."""
    login: Literal["ok", "expired", "none"] = "ok"
    """Whether a token is given."""
    token_seconds: float = Field(default=3600, gt=0)
    """How long a token is valid."""
    denied_actions: tuple[str, ...] = ()
    """What the caller, who owns the subscription, may nevertheless not do; `*` matches."""
    group_alone: bool = False
    """The caller's role is on resource groups, and none on the subscription."""
    role_seconds: float = Field(default=0, ge=0)
    """From a role's assignment until it takes effect."""
    cooldown_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a cooldown or a polling interval."""
    gateway_seconds: float = Field(default=240, gt=0)
    """After which the ingress ends a request."""
    partial_queries: bool = False
    """Log Analytics answers in part."""
    registration_seconds: float = Field(default=0.05, ge=0)
    """How long the registration of a provider takes."""
    caller_address: str = "127.0.0.1"
    """Where requests to apps come from, as the ingress sees it."""
    made_ago_seconds: float = Field(default=0, ge=0)
    """How much longer ago than now it is that jobs, secrets and role assignments are made."""
    clock_ahead_seconds: float = Field(default=0, ge=0)
    """How far the simulated world's clock is ahead of the real one: jobs start by it."""
    faults: tuple[Fault, ...] = ()


class Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class LogRow(Kept):
    """One line of a container, or one event of the system."""

    at: float
    """Epoch seconds, as are all moments."""
    table: str
    """`console` or `system`."""
    app: str
    """Its name."""
    revision: str = ""
    replica: str = ""
    text: str
    reason: str = ""
    """Of an event, such as AssigningReplica."""
    environment: str = ""
    """The environment's id in lower case."""


class Replica(Kept):
    """One replica of a revision, from its scheduling to its end; ids are in lower case."""

    name: str
    app: str
    """The app's id."""
    revision: str
    """The revision's name."""
    profile_type: str
    environment: str
    """The environment's id."""
    region: str = ""
    created: float
    """When it was scheduled: the cooldown's clock begins."""
    assigned: float | None = None
    """When it had a host."""
    ended: float | None = None
    state: str = "NotRunning"
    """Running, NotRunning or Unknown, as the SDK names them."""
    details: str = ""
    """Why, such as AssigningReplica."""
    started: bool = False
    ready: bool = False
    restarts: int = 0


class Operation(Kept):
    """A change that goes on by itself."""

    id: str
    type: str
    """The type of what is changed, in lower case."""
    work: str
    """What is done to it: `put`, `delete`, or the name of an action."""
    resource: str
    """The id in lower case of what is changed."""
    url: str
    """Where it is looked up."""
    begun: float
    status: str = "InProgress"
    """InProgress, Succeeded, Failed or Canceled."""
    error: dict[str, Any] | None = None
    answer: Body | None = None
    """What is given at its end by a `Location`; None is no content."""
    revision: str = ""
    """The name of the revision that it makes."""


class Secret(Kept):
    """One secret of a vault with its versions, newest last."""

    versions: list[Body] = []
    deleted: float | None = None
    """When it was deleted; it can be recovered or purged."""


_MOST_KEPT: Final = 5000
"""Lines, calls and needed actions of a subscription."""
_OWN: Final = uuid.UUID("5f0c1c55-6c1e-4c3c-9b5f-8f0a5f6f1f00")
"""What ids are derived from."""


def id_of(*words: str) -> str:
    """Return the id that something always has."""
    return str(uuid.uuid5(_OWN, "/".join(words).lower()))


class Subscription(Kept):
    """One subscription; a fresh one is bare. Ids and names that are keys are in lower case."""

    id: str
    knobs: Knobs = Knobs()
    providers: dict[str, float] = {}
    """When each registration takes effect."""
    resources: dict[str, Body] = {}
    """ARM's body of each resource by its id, secrets included."""
    operations: dict[str, Operation] = {}
    secrets: dict[str, dict[str, Secret]] = {}
    """Of each vault by its name."""
    vaults: dict[str, Body] = {}
    """Each vault's `body`, and when it was `deleted`, by its name until purged."""
    log: list[LogRow] = []
    replicas: list[Replica] = []
    """Every one that there ever was."""
    role_effects: dict[str, float] = {}
    """When a role assignment takes effect."""
    due: dict[str, float] = {}
    """When each job starts next, by its id; of the subscription's own clock."""
    tokens: dict[str, float] = {}
    """When a token of getAuthtoken runs out."""
    doors: dict[str, int] = {}
    """The port of each app's front door."""
    calls: list[str] = []
    """Such as `PUT Microsoft.App/containerApps`, newest last."""
    needed: list[str] = []
    """Actions that those calls took, newest last."""

    @property
    def tenant(self) -> str:
        """The id of whose it is."""
        return id_of("tenant", self.id)

    @property
    def caller(self) -> str:
        """The object id of whoever calls."""
        named = self.knobs.identity
        try:
            return str(uuid.UUID(named))
        except ValueError:
            return id_of("caller", named or self.id)

    @property
    def caller_name(self) -> str:
        """The name of whoever calls."""
        return self.knobs.identity or f"operator@{self.id[:8]}.example"

    @property
    def now(self) -> float:
        """What its clock says, in epoch seconds."""
        return time.time() + self.knobs.clock_ahead_seconds

    def registered(self, namespace: str) -> bool:
        """Return whether a provider may be used."""
        return self.providers.get(namespace.lower(), float("inf")) <= time.time()

    def get(self, resource_id: str) -> Body | None:
        """Return the body of a resource, in whatever letters its id is written."""
        return self.resources.get(resource_id.lower())

    def under(self, collection: str) -> list[Body]:
        """Return what is directly in a collection such as `…/managedEnvironments`."""
        prefix = f"{collection.lower()}/"
        return [
            body
            for name, body in self.resources.items()
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        ]

    def of_type(self, kind: str) -> list[Body]:
        """Return every resource of a type such as Microsoft.App/containerApps."""
        return [one for one in self.resources.values() if one["type"].lower() == kind.lower()]

    def living(self, app: str = "", revision: str = "") -> list[Replica]:
        """Return the replicas that are there, of one app (its id) or of all."""
        return [
            one
            for one in self.replicas
            if one.ended is None and app.lower() in {"", one.app} and revision in {"", one.revision}
        ]

    def write(self, table: str, app: str, text: str, **more: str) -> None:
        """Write one line of the log, now; `more` are further fields of `LogRow`."""
        self.log.append(LogRow(at=time.time(), table=table, app=app, text=text, **more))
        del self.log[:-_MOST_KEPT]

    def called(self, method: str) -> None:
        """Remember a call."""
        self.calls.append(method)
        del self.calls[:-_MOST_KEPT]

    def need(self, action: str) -> None:
        """Remember an action that a call took."""
        self.needed.append(action)
        del self.needed[:-_MOST_KEPT]


@dataclass(slots=True, kw_only=True)
class World:
    """All subscriptions, on the disk and in memory."""

    folder: Path
    tasks: TaskGroup
    """Where whatever goes on by itself is started; it ends with the process."""
    key: bytes
    """What tokens are signed with."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    urls: AzurePlane = field(init=False)
    """Where everything listens; known before anything is served."""
    seen: float = field(default_factory=time.monotonic)
    """When the plane was last called, of the monotonic clock."""
    planted: dict[str, Any] = field(default_factory=dict)
    """Lines that were put into a subscription's log, by its id; never on the disk."""
    live: dict[str, Any] = field(default_factory=dict)
    """What runs for each app, by its id in lower case; never on the disk."""

    def __post_init__(self) -> None:
        self._files().mkdir(parents=True, exist_ok=True)
        for file in sorted(self._files().glob("*.json")):
            with contextlib.suppress(ValidationError):  # an older version's: it begins anew
                found = Subscription.model_validate_json(file.read_bytes())
                self.subscriptions[found.id] = found

    def subscription(self, named: str) -> Subscription:
        """Return a subscription by its id; every one that is named exists."""
        name = named.lower()
        if name not in self.subscriptions:
            self.subscriptions[name] = Subscription(id=name)
        return self.subscriptions[name]

    def named(self, kind: str, name: str) -> tuple[Subscription, Body] | None:
        """Return a resource whose name is the world's own, such as a vault, and whose it is."""
        for sub in tuple(self.subscriptions.values()):
            for body in sub.of_type(kind):
                if body["name"].lower() == name.lower():
                    return sub, body
        return None

    def keep(self, sub: Subscription) -> None:
        """Write a subscription down, unless it was forgotten meanwhile."""
        if self.subscriptions.get(sub.id) is not sub:
            return
        part = self._files() / f".{sub.id}.part"
        part.write_text(sub.model_dump_json(), encoding="utf-8")
        part.replace(self._files() / f"{sub.id}.json")

    def forget(self, sub: Subscription) -> None:
        """Know nothing of a subscription any more."""
        self.subscriptions.pop(sub.id, None)
        self.planted.pop(sub.id, None)
        for operation in sub.operations.values():
            operation.status = "Canceled"
        (self._files() / f"{sub.id}.json").unlink(missing_ok=True)

    def touch(self) -> None:
        """Somebody is there."""
        self.seen = time.monotonic()

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self.subscriptions.values()))

    def _files(self) -> Path:
        return self.folder / "subscriptions"
