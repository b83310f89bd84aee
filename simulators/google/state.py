"""Everything the simulated cloud knows: projects, what is in them, what tests set about them."""

import base64
import contextlib
import hmac
import importlib
import json
import secrets
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from anyio.abc import TaskGroup
from google.iam.v1.policy_pb2 import Policy
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from core.records import Record
from simulators.google.grants import acting, granted

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


ISSUER: Final = "https://accounts.google.com"
GCLOUD_CLIENT: Final = "32555940559.apps.googleusercontent.com"
"""The audience of the ID token of a person's gcloud, which Cloud Run takes for every service: it is
how docs.cloud.google.com/run/docs/authenticating/developers (2026-11) calls a private one."""
HOUR_SECONDS: Final = 3600
"""How long Google's identity tokens live."""
_KEY_FILE: Final = "idtokens.key"


class InvalidToken(ValueError):
    """The token is not one of ours, has run out, or is meant for somebody else."""


class IdTokens:
    """Mints and verifies; a process that is started anew knows the tokens of the one before."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _KEY_FILE

    @cached_property
    def _key(self) -> bytes:
        if not self._file.exists():
            self._file.touch(mode=0o600)
            self._file.write_bytes(secrets.token_bytes(32))
        return self._file.read_bytes()

    def mint(self, audience: str, email: str, seconds: float = HOUR_SECONDS) -> str:
        """Give a token for `audience` that lives for `seconds`."""
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": audience,
            "sub": email,
            "email": email,
            "email_verified": True,
            "iat": now,
            "exp": now + int(seconds),
        }
        head = ".".join(_encoded(json.dumps(one).encode()) for one in ({"alg": "HS256"}, claims))
        return f"{head}.{self._signature(head)}"

    def verify(self, token: str, audience: str) -> str:
        """Return whose a token is that was minted here for `audience`; not a second too old.

        Raises:
            InvalidToken: It does not hold.
        """
        head, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(head).encode()):
            raise InvalidToken("It was not minted here.")
        claims = json.loads(base64.urlsafe_b64decode(head.partition(".")[2] + "=="))
        if claims["aud"] != audience or claims["exp"] <= time.time():
            raise InvalidToken("It is for another audience, or too old.")
        return str(claims["email"])

    def _signature(self, head: str) -> str:
        return _encoded(hmac.digest(self._key, head.encode(), "sha256"))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


Constraint = Literal[
    "run.allowedIngress", "run.managed.requireInvokerIam", "compute.vmExternalIpAccess"
]
Rollout = Literal["ok", "never", "probe-fails", "image-missing", "no-capacity"]


class Fault(Record):
    """Something that goes wrong with the next calls of a method."""

    method: str
    """Such as google.cloud.run.v2.Services/CreateService; `*` stands for any letters."""
    status: str = "UNAVAILABLE"
    message: str = ""
    reason: str = ""
    """Of the ErrorInfo that goes with it; none if empty."""
    times: int = 1
    """How many calls; -1 is all."""
    when: Literal["before", "after", "hang", "hang-after"] = "before"
    """Before it took effect, after, or no answer at all (without or with effect)."""


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


class Knobs(Record):
    """The controls of one project; a fresh one has the defaults."""

    prepared: bool = False
    """As after `set_up`: APIs, accounts with their roles, repository."""
    lease_prepared: bool = True
    """Whether that includes what a lease of the cloud needs: API, account, role, its grant."""
    boot_seconds: float = Field(default=1.0, ge=0)
    """How long an instance's engine boots."""
    engine_environment: dict[str, str] = {}
    """More settings of the simulated engine, such as SIMULATED_ENGINE_FAIL."""
    rollout: Rollout = "ok"
    """How the next rollouts go."""
    probe_scale: float = Field(default=0.02, gt=0)
    """Real seconds per second of a probe's period."""
    quotas: dict[str, int] = {}
    """What was asked for and granted: accelerators without zonal redundancy by l4 and rtx-pro-6000,
    cpu, memory_gib. Of what is not named a new project has nothing yet."""
    unused_quota: Literal["absent", "no-row", "zero"] = "absent"
    """What Cloud Quotas says of GPUs before the first deployment in a region: it has no such quota,
    no entry of the region, or a 0. Nobody has published which."""
    validates_first_grant: bool = True
    """Whether validate_only counts what the first deployment would be given."""
    identity: str = ""
    """Whoever calls; empty is a service account of the project."""
    acts_as: str = ""
    """A service account that makes all calls, with nothing but what it is granted; empty is the
    `identity`, who owns the project."""
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
    token_seconds: float = Field(default=3600, gt=0)
    """How long an ID token is valid."""
    vertex_models: tuple[dict[str, Any], ...] = ()
    """Vertex AI's registry."""
    tpu_zones: dict[str, TpuZone] = {}
    """All that have, or may have, TPUs; empty is `chips.ZONES`."""
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


_LOG_ENTRIES: Final = 5000
"""How many a project keeps."""
_CALLS: Final = 5000


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Entry(_Kept):
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
    """In place of the text, where it is not empty: the text is then only its `message`."""
    insert_id: str


class Version(_Kept):
    """One version of a secret."""

    number: int
    data: str
    """The value, base64."""
    created: float = Field(default_factory=time.time)


class Secret(_Kept):
    """One secret with its versions."""

    message: Proto
    """secretmanager_v1.Secret."""
    versions: list[Version] = []
    policy: Proto = Field(default_factory=Policy)
    former_policy: Proto = Field(default_factory=Policy)
    """In effect until the present one has spread."""
    policy_since: float = 0


class Instance(_Kept):
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


class Tpu(_Kept):
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

    @property
    def key(self) -> str:
        """Of this one among the project's."""
        return f"{self.plane}/{self.zone}/{self.id}"


class Life(_Kept):
    """How far a queued resource, a node or an instance is."""

    since: float
    """When its state began."""
    operations: list[str] = []
    """Names of those that end with what goes on."""
    request_id: str = ""
    """Of the call that created it."""
    created_by: str = ""
    """The operation of that call."""
    served_by: str = "v2"
    """Version of the API that it came by."""
    patience: float = 0
    """Simulated seconds that it waits for chips; of an instance."""


class Project(_Kept):
    """One project; a fresh one is bare.

    Messages are of the SDK, by their full name where nothing else is said; what Compute Engine has
    is JSON, by its path.
    """

    id: str
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
    queued_more: dict[str, dict[str, Any]] = {}
    """What only v2alpha1 knows of them: provisioningModel, runDuration, bootDiskConfig."""
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
    calls: list[str] = []
    """Methods called, such as google.cloud.run.v2.Services/CreateService, newest last."""
    needed: list[str] = []
    """Permissions that those calls took, newest last."""
    tested: list[str] = []
    """Permissions that the caller asked about, newest last."""

    @property
    def caller(self) -> str:
        """E-mail of whoever calls."""
        return self.account or self.knobs.identity or f"operator@{self.id}.iam.gserviceaccount.com"

    @property
    def runtime_account(self) -> str:
        """E-mail of the account that our deployments run as."""
        return f"vllm-devops-runtime@{self.id}.iam.gserviceaccount.com"

    @property
    def builder_account(self) -> str:
        """E-mail of the account that our images are built as."""
        return f"vllm-devops-builder@{self.id}.iam.gserviceaccount.com"

    @property
    def lease_account(self) -> str:
        """E-mail of the account that ends our deployments when their time is over."""
        return f"vllm-devops-lease@{self.id}.iam.gserviceaccount.com"

    def append(
        self,
        severity: str,
        text: str,
        labels: dict[str, str],
        log_name: str,
        *,
        resource: str = "cloud_run_revision",
        **more: Any,
    ) -> None:
        """Write one log entry, now."""
        number = int(self.log[-1].insert_id, 16) + 1 if self.log else 1
        self.log.append(
            Entry(
                timestamp=time.time(),
                severity=severity,
                text=text,
                log_name=log_name,
                resource=resource,
                labels={"project_id": self.id, **labels},
                insert_id=f"{number:016x}",
                **more,
            )
        )
        del self.log[:-_LOG_ENTRIES]

    @property
    def account(self) -> str:
        """E-mail of an account that calls with its grants alone; empty is the usual caller."""
        return acting() or self.knobs.acts_as

    @property
    def now(self) -> float:
        """By the project's clock."""
        return time.time() + self.ahead

    def denies(self, permission: str, resource: str = "") -> bool:
        """Say whether the caller lacks what a call takes; none if empty."""
        if permission and not self.account:
            self.needed.append(permission)
            del self.needed[:-_CALLS]
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

    def called(self, method: str) -> None:
        """Remember a call."""
        self.calls.append(method)
        del self.calls[:-_CALLS]


@dataclass(slots=True, kw_only=True)
class World:
    """All projects, on the disk and in memory."""

    folder: Path
    tasks: TaskGroup
    """Where whatever goes on by itself is started; it ends with the process."""
    projects: dict[str, Project] = field(default_factory=dict)
    http: str = ""
    """Base URL of the plane's web server."""
    buckets: str = ""
    """Base URL of Cloud Storage."""
    seen: float = field(default_factory=time.monotonic)
    """When the plane was last called, of the monotonic clock."""
    tokens: IdTokens = field(init=False)
    live: dict[str, Any] = field(default_factory=dict)
    """What runs for each service, by its full name; never on the disk."""
    said: dict[str, Any] = field(default_factory=dict)
    """Of each project the `logging.Said` that was put into its log; never on the disk."""

    def __post_init__(self) -> None:
        self._kept().mkdir(parents=True, exist_ok=True)
        self.tokens = IdTokens(self.folder)
        self._load()

    def _load(self) -> None:
        for file in sorted(self._kept().glob("*.json")):
            with contextlib.suppress(ValidationError):  # an older version's: it begins anew
                project = Project.model_validate_json(file.read_bytes())
                self.projects[project.id] = project

    def project(self, named: str) -> Project:
        """Give a project by id or number; every one that is named exists."""
        if named.isdigit():
            found = next((one for one in self if one.number == named), None)
            if found:
                return found
        if named not in self.projects:
            number = str(100_000_000_000 + zlib.crc32(named.encode()))
            self.projects[named] = Project(id=named, number=number)
        return self.projects[named]

    def keep(self, project: Project) -> None:
        """Write a project down, unless it was forgotten meanwhile."""
        if self.projects.get(project.id) is not project:
            return
        part = self._kept() / f".{project.id}.part"
        part.write_text(project.model_dump_json(), encoding="utf-8")
        part.replace(self._kept() / f"{project.id}.json")

    def forget(self, project: Project) -> None:
        """Know nothing of a project any more."""
        self.projects.pop(project.id, None)
        self.said.pop(project.id, None)
        (self._kept() / f"{project.id}.json").unlink(missing_ok=True)

    def touch(self) -> None:
        """Somebody is there."""
        self.seen = time.monotonic()

    def __iter__(self) -> Iterator[Project]:
        return iter(tuple(self.projects.values()))

    def _kept(self) -> Path:
        return self.folder / "projects"
