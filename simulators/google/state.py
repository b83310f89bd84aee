"""Everything the simulated cloud knows: projects, what is in them, what tests set about them."""

import base64
import importlib
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from google.iam.v1.policy_pb2 import Policy
from pydantic import Field, PlainSerializer, PlainValidator

from core.environment import read_toml
from core.records import Record
from simulators.common import world
from simulators.common.world import MOST_KEPT, Customer, Kept
from simulators.google.grants import acting, granted

CATALOG: Final = read_toml(Path(__file__).with_name("catalog.toml"))
REFUSALS: Final = read_toml(Path(__file__).with_name("refusals.toml"))
_TYPE: Final = "type"
_DATA: Final = "data"


def _written(message: Any) -> Any:
    kind = type(message)
    if hasattr(kind, "serialize"):  # of proto-plus
        data: bytes = kind.serialize(message)
    else:
        data = message.SerializeToString()
    return {
        _TYPE: f"{kind.__module__}:{kind.__qualname__}",
        _DATA: base64.b64encode(data).decode("ascii"),
    }


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    module, _, name = value[_TYPE].partition(":")
    kind = getattr(importlib.import_module(module), name)
    parse = getattr(kind, "deserialize", None) or kind.FromString
    return parse(base64.b64decode(value[_DATA]))


Proto = Annotated[Any, PlainValidator(_read), PlainSerializer(_written)]
"""Any message, of proto-plus or plain, that a model keeps by its type and bytes."""


GCLOUD_CLIENT: Final = "32555940559.apps.googleusercontent.com"
"""The audience of the ID token of a person's gcloud, which Cloud Run takes for every service: it is
how docs.cloud.google.com/run/docs/authenticating/developers (2026-11) calls a private one."""

Constraint = Literal[
    "run.allowedIngress", "run.managed.requireInvokerIam", "compute.vmExternalIpAccess"
]
Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-capacity"]


class Fault(world.Fault):
    """By methods such as google.cloud.run.v2.Services/CreateService."""

    status: str = "UNAVAILABLE"
    reason: str = ""
    """Of the ErrorInfo that goes with it; none if empty."""


class TpuZone(Record):
    """What one zone has of TPUs."""

    accelerators: tuple[str, ...] = ("v6e-1", "v6e-4", "v6e-8")
    """By either control plane; none is a zone without such hardware."""
    accepts: tuple[str, ...] = ("on-demand", "spot", "flex-start")
    """Provisioning models."""
    free: int = 64
    """Chips that nobody has; 0 is a stock-out."""
    wait_seconds: float = 0
    """Simulated seconds that a request waits at least."""


class Knobs(world.Knobs):
    """The controls of one project; `prepared` has APIs, accounts with their roles, repository."""

    lease_prepared: bool = True
    """Whether that includes what a lease of the cloud needs: API, account, role, its grant."""
    rollout: Rollout = "ok"
    """How the next rollouts go."""
    quotas: dict[str, int] = {}
    """What was asked for and granted: accelerators without zonal redundancy by l4 and rtx-pro-6000,
    cpu, memory_gib. Of what is not named a new project has nothing yet."""
    unused_quota: Literal["absent", "no-row", "zero"] = "absent"
    """What Cloud Quotas says of GPUs before the first deployment in a region: it has no such quota,
    no entry of the region, or a 0. Nobody has published which."""
    validates_first_grant: bool = True
    """Whether validate_only counts what the first deployment would be given."""
    identity_kind: Literal["service_account", "user"] = "service_account"
    """A user has no metadata server, no ID token and no quota project but `quota_project`."""
    quota_project: str = ""
    """Of a user's application default login; none if empty."""
    gcloud: str = ""
    """Who is logged in to gcloud on the caller's machine; empty is a machine without gcloud."""
    denied_permissions: tuple[str, ...] = ()
    """What the caller, who owns the project, may nevertheless not do."""
    constraints: tuple[Constraint, ...] = ()
    """What the project's organisation forbids: services that the internet reaches, services that
    ask nobody's identity, VMs with an address of their own."""
    metric_delay_seconds: float = Field(default=0, ge=0)
    """How late Cloud Monitoring knows."""
    log_empty_pages: int = Field(default=0, ge=0)
    """How many pages of each search in logs are empty, before the first that has entries."""
    refused_builders: tuple[str, ...] = ("N1_HIGHCPU_32", "E2_HIGHCPU_32")
    """Machine types that the project may not build on outside the global pool, UNSPECIFIED among
    them if need be: what many new projects were told."""
    beta_gpus: tuple[str, ...] = ()
    """Accelerators, such as nvidia-rtx-pro-6000, that a service has in BETA or ALPHA alone."""
    grant_seconds: float = Field(default=0, ge=0)
    """How long a grant on a secret takes to be in effect; Google: mostly within 2 minutes, at times
    7 or more (docs.cloud.google.com/iam/docs/access-change-propagation)."""
    vertex_models: tuple[dict[str, Any], ...] = ()
    """Vertex AI's registry."""
    tpu_zones: dict[str, TpuZone] = {}
    """All that have, or may have, TPUs; empty is what the catalogue has."""
    tpu_quotas: dict[str, int] = {}
    """Chips by pool: tpu, tpu-preemptible, compute, compute-preemptible; of one zone or region
    alone as POOL@WHERE."""
    tpu_clock: float = Field(default=60, gt=0)
    """Simulated seconds in a real one, of whatever TPUs wait for and take."""
    tpu_run_clock: float = Field(default=1, gt=0)
    """The same of how long they may run: real time, as `ttl_minutes` and what is billed are."""
    tpu_provision_seconds: float = Field(default=30, ge=0)
    """Simulated, from the chip to the VM."""
    tpu_delete_seconds: float = Field(default=30, ge=0)
    """Simulated."""
    vm_trouble: Literal["ok", "image-missing"] = "ok"
    """What goes wrong in the next VMs: the image does not exist."""
    faults: tuple[Fault, ...] = ()


class Entry(Kept):
    """One entry of Cloud Logging."""

    timestamp: float
    severity: str
    text: str
    log_name: str
    """Its id, such as run.googleapis.com/stderr."""
    resource: str
    """Type of the monitored resource."""
    labels: dict[str, str]
    """Of that resource."""
    own_labels: dict[str, str] = {}
    """Of the entry itself."""
    payload: dict[str, Any] = {}
    """In place of the text, where it is not empty: the text is then its `message`."""
    insert_id: str

    @property
    def json_payload(self) -> dict[str, Any]:
        """Its payload with the text; empty where the text stands alone."""
        return {**self.payload, "message": self.text} if self.payload else {}


class Version(Kept):
    """One version of a secret."""

    number: int
    data: str
    """The value, base64."""


class Secret(Kept):
    """One secret with its versions."""

    message: Proto
    """secretmanager_v1.Secret."""
    versions: list[Version] = []
    policy: Proto = Field(default_factory=Policy)
    former_policy: Proto = Field(default_factory=Policy)
    """In effect until the present one has spread."""
    policy_since: float = 0


class Instance(Kept):
    """The time that one instance of a service was there; all of it is billed."""

    service: str
    """Its id."""
    revision: str
    location: str
    started: float
    ended: float | None = None
    busy: list[tuple[float, float | None]] = []
    """When it answered requests: from, to (None: still does)."""

    def exists(self, at: float) -> bool:
        """Whether it was there at that moment."""
        return self.started <= at and (self.ended is None or at < self.ended)

    def active(self, at: float) -> bool:
        """Whether it answered a request at that moment."""
        return any(begin <= at and (end is None or at < end) for begin, end in self.busy)

    def billed(self, begin: float, end: float) -> float:
        """Seconds of an interval that are billed."""
        return max(0.0, min(end, self.ended or end) - max(begin, self.started))


class Tpu(Kept):
    """One request for chips, from when it is taken until it is deleted."""

    plane: str
    """queued or compute."""
    zone: str
    id: str
    chips: int
    provisioning: str
    """on-demand, spot or flex-start."""
    asked: float
    given: float | None = None
    """Since when it has its chips."""
    run_seconds: float = 0
    """How long a queued one may run; 0 is for ever."""

    @property
    def key(self) -> str:
        """Of this one among the project's."""
        return f"{self.plane}/{self.zone}/{self.id}"


class Life(Kept):
    """How far a queued resource, a node or an instance is."""

    since: float
    """When its state began."""
    operations: list[str] = []
    """Names of those that end with what goes on."""
    patience: float = 0
    """Simulated seconds that it waits for chips; of an instance."""


class Project(Customer):
    """One project; a fresh one is bare.

    Messages are of the SDK, by their full name where nothing else is said; what Compute Engine has
    is JSON, by its path.
    """

    number: str
    knobs: Knobs = Knobs()
    apis: set[str] = set()
    """Enabled ones, such as run.googleapis.com."""
    policy: Proto = Field(default_factory=Policy)
    """Of the project."""
    accounts: dict[str, Proto] = {}
    """ServiceAccount by e-mail."""
    roles: dict[str, Proto] = {}
    """Its own, by full name; deleted ones among them."""
    jobs: dict[str, Proto] = {}
    """Of Cloud Scheduler."""
    job_retries: dict[str, int] = {}
    """How often each of those that failed was tried again."""
    ahead: float = 0
    """Seconds that its clock is ahead of the real one: what jobs go by."""
    policies: dict[str, Proto] = {}
    """Of whatever has one of its own, but secrets and the project."""
    secrets: dict[str, Secret] = {}
    """By id."""
    services: dict[str, Proto] = {}
    revisions: dict[str, Proto] = {}
    operations: dict[str, Proto] = {}
    repositories: dict[str, Proto] = {}
    images: dict[str, str] = {}
    """Digest (sha256:…) of each image in the project's repositories, by its reference with tag."""
    builds: dict[str, Proto] = {}
    """By id."""
    tpus: dict[str, Tpu] = {}
    """Whatever counts against a quota of TPUs."""
    queued_resources: dict[str, Proto] = {}
    nodes: dict[str, Proto] = {}
    lives: dict[str, Life] = {}
    """Of queued resources, nodes and instances."""
    vms: dict[str, dict[str, Any]] = {}
    compute_operations: dict[str, dict[str, Any]] = {}
    firewalls: dict[str, dict[str, Any]] = {}
    disks: dict[str, dict[str, Any]] = {}
    """That no instance has; an instance's own are told with it."""
    log: list[Entry] = []
    instances: list[Instance] = []
    """Every instance of a service that there ever was, for Cloud Monitoring."""
    granted_quotas: set[tuple[str, str]] = set()
    """Quota and region of each first deployment."""
    tested: list[str] = []
    """Permissions that the caller asked about, newest last."""

    @property
    def caller(self) -> str:
        """E-mail of whoever calls."""
        return self.account or self.knobs.identity or f"operator@{self.id}.iam.gserviceaccount.com"

    def own_account(self, role: str) -> str:
        """Return the e-mail of one of our accounts: runtime, builder, lease, tpu-lease."""
        return f"vllm-devops-{role}@{self.id}.iam.gserviceaccount.com"

    def append(self, severity: str, text: str, source: Mapping[str, Any]) -> None:
        """Write one log entry, now; a source is what all entries of its log have alike."""
        number = int(self.log[-1].insert_id, 16) + 1 if self.log else 1
        known = {"severity": severity, "text": text, "insert_id": f"{number:016x}"}
        self.log.append(Entry(timestamp=time.time(), **known, **source))
        del self.log[:-MOST_KEPT]

    @property
    def account(self) -> str:
        """E-mail of an account that calls with its grants alone; empty is the usual caller."""
        return acting()

    @property
    def now(self) -> float:
        """By the project's clock."""
        return time.time() + self.ahead

    def denies(self, permission: str, resource: str = "") -> bool:
        """Say whether the caller lacks what a call takes; none if empty."""
        if permission and not self.account:
            self.need(permission)
        return bool(permission) and self.lacks(permission, resource)

    def lacks(self, permission: str, resource: str) -> bool:
        """Say whether the caller, who owns the project or is an account, lacks a permission."""
        if self.account:
            return not self.grants(self.account, permission, *self._policies(resource))
        return permission in self.knobs.denied_permissions

    def grants(self, email: str, permission: str, *policies: Policy, resource: str = "") -> bool:
        """Say whether one of these policies allows it to an account, on a resource."""
        return any(granted(one, self.roles, email, permission, resource) for one in policies)

    def _policies(self, resource: str) -> Iterator[Policy]:
        """Give those of a resource and of everything that it lies in."""
        yield self.policy
        parts = ["projects", self.id, *resource.split("/")[2:]]
        if parts[2:3] == ["secrets"] and parts[3] in self.secrets:
            yield self.secrets[parts[3]].policy
        for end in range(4, len(parts) + 1, 2):
            yield self.policies.get("/".join(parts[:end]), Policy())


@dataclass(kw_only=True)
class World(world.World[Project]):
    """All projects; what is `live` is known by its full name, `planted` are entries in order."""

    kind = Project
    http: str = ""
    """Base URL of the plane's web server."""
    buckets: str = ""
    """Base URL of Cloud Storage."""

    def project(self, named: str) -> Project:
        """Give a project by id or number; every one that is named exists."""
        if named.isdigit():
            found = next((one for one in self if one.number == named), None)
            if found:
                return found
        if named not in self.customers:
            number = str(100_000_000_000 + zlib.crc32(named.encode()))
            self.customers[named] = Project(id=named, number=number)
        return self.customers[named]

    def id_token(self, project: Project, audience: str, email: str) -> str:
        """Mint a Google identity token."""
        who = {"sub": email, "email": email, "email_verified": True, "aud": audience}
        seconds = project.knobs.token_seconds
        return self.tokens.mint(seconds, **who, iss="https://accounts.google.com")[0]
