"""Everything the simulated cloud knows: subscriptions, what is in them, what tests set."""

import time
import tomllib
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from core.settings import AzurePlane
from simulators.common import world
from simulators.common.world import MOST_KEPT, Customer, Kept

Body = dict[str, Any]
"""A resource, or a part of one, as it is written in JSON."""
_HERE: Final = Path(__file__).parent
CATALOG: Final[dict[str, Any]] = tomllib.loads((_HERE / "catalog.toml").read_text("utf-8"))
TYPES: Final[dict[str, Any]] = tomllib.loads((_HERE / "types.toml").read_text("utf-8"))
REFUSALS: Final[dict[str, Any]] = tomllib.loads((_HERE / "refusals.toml").read_text("utf-8"))
Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-host"]
Forbidden = Literal["shared-keys", "public-ingress"]


class Fault(world.Fault):
    """By methods such as `PUT Microsoft.App/containerApps`, `GET operations`."""

    status: int = 503
    code: str = ""
    retry_after: float | None = None
    """Seconds that the answer asks to wait; none if None."""


class Knobs(world.Knobs):
    """The controls of one subscription; what is `prepared` is in swedencentral."""

    rollout: Rollout = "ok"
    """How the next rollouts go; `no-host` waits for a GPU for ever."""
    environment_seconds: float = Field(default=0.2, ge=0)
    """How long an environment takes to be made."""
    operation_seconds: float = Field(default=0.05, ge=0)
    """How long any other change takes."""
    grace_seconds: float = Field(default=2.0, ge=0)
    """How long a replica that is told to end may answer on; 30 s by Azure's own default."""
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
    login: Literal["ok", "expired", "none"] = "ok"
    """Whether a token is given."""
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


_OWN: Final = uuid.UUID("5f0c1c55-6c1e-4c3c-9b5f-8f0a5f6f1f00")
"""What ids are derived from."""


def id_of(*words: str) -> str:
    """Return the id that something always has."""
    return str(uuid.uuid5(_OWN, "/".join(words).lower()))


class Subscription(Customer):
    """One subscription; a fresh one is bare. Ids and names that are keys are in lower case."""

    knobs: Knobs = Knobs()
    providers: dict[str, float] = {}
    """When each registration takes effect."""
    resources: dict[str, Body] = {}
    """ARM's body of each resource by its id, secrets included."""
    operations: dict[str, Operation] = {}
    secrets: dict[str, dict[str, Secret]] = {}
    """Of each vault by its name."""
    vaults: dict[str, Body] = {}
    """Those that are softly deleted, each with when it was `deleted`, by name until purged."""
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

    def write(self, table: str, text: str, **more: str) -> None:
        """Write one line of the log, now; `more` are further fields of `LogRow`."""
        at = round(time.time(), 6)  # what Log Analytics shows of a moment
        self.log.append(LogRow(at=at, table=table, text=text, **more))
        del self.log[:-MOST_KEPT]


@dataclass(kw_only=True)
class World(world.World[Subscription]):
    """All subscriptions; what is `live` is known by its app's id, `planted` are rows."""

    kind = Subscription
    urls: AzurePlane = field(init=False)
    """Where everything listens; known before anything is served."""

    def subscription(self, named: str) -> Subscription:
        """Return a subscription by its id; every one that is named exists."""
        return self.customers.setdefault(named.lower(), Subscription(id=named.lower()))

    def named(self, kind: str, name: str) -> tuple[Subscription, Body] | None:
        """Return a resource whose name is the world's own, such as a vault, and whose it is."""
        for sub in self:
            for body in sub.of_type(kind):
                if body["name"].lower() == name.lower():
                    return sub, body
        return None

    def forget(self, customer: Subscription) -> None:
        """End its operations, too."""
        super().forget(customer)
        for operation in customer.operations.values():
            operation.status = "Canceled"
