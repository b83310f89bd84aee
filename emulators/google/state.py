"""Everything the simulated cloud knows: projects and what is in them."""

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from anyio.abc import TaskGroup
from google.iam.v1.policy_pb2 import Policy
from pydantic import BaseModel, ConfigDict, Field

from emulators.common.nursery import Nursery
from emulators.google.idtokens import IdTokens
from emulators.google.keeping import Proto
from emulators.google.knobs import Knobs

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
    state: str = "ENABLED"
    """ENABLED, DISABLED or DESTROYED."""
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


class TpuLife(_Kept):
    """How far a queued resource or a node is."""

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


class Project(_Kept):
    """One project; a fresh one is bare."""

    id: str
    number: str
    knobs: Knobs = Knobs()
    apis: set[str] = set()
    """Enabled ones, such as run.googleapis.com."""
    policy: Proto = Field(default_factory=Policy)
    """Of the project: google.iam.v1.policy_pb2.Policy, as are all policies."""
    accounts: dict[str, Proto] = {}
    """iam_admin_v1.ServiceAccount by e-mail."""
    account_policies: dict[str, Proto] = {}
    secrets: dict[str, Secret] = {}
    """By id."""
    services: dict[str, Proto] = {}
    """run_v2.Service by full name."""
    service_policies: dict[str, Proto] = {}
    revisions: dict[str, Proto] = {}
    """run_v2.Revision by full name."""
    operations: dict[str, Proto] = {}
    """google.longrunning Operation by name."""
    repositories: dict[str, Proto] = {}
    """artifactregistry_v1.Repository by full name."""
    repository_policies: dict[str, Proto] = {}
    images: dict[str, str] = {}
    """Digest (sha256:…) of each image in the project's repositories, by its reference with tag."""
    builds: dict[str, Proto] = {}
    """cloudbuild_v1.Build by id."""
    tpus: dict[str, Tpu] = {}
    """Whatever counts against a quota of TPUs."""
    queued_resources: dict[str, Proto] = {}
    """tpu_v2.QueuedResource by full name."""
    queued_more: dict[str, dict[str, Any]] = {}
    """What only v2alpha1 knows of them: provisioningModel, runDuration, bootDiskConfig."""
    nodes: dict[str, Proto] = {}
    """tpu_v2.Node by full name."""
    tpu_lives: dict[str, TpuLife] = {}
    """Of queued resources and nodes, by full name."""
    vms: dict[str, dict[str, Any]] = {}
    """compute.v1 Instance as JSON, by projects/P/zones/Z/instances/I."""
    compute_operations: dict[str, dict[str, Any]] = {}
    """compute.v1 Operation as JSON, by its path."""
    firewalls: dict[str, dict[str, Any]] = {}
    """compute.v1 Firewall as JSON, by its name."""
    log: list[Entry] = []
    instances: list[Instance] = []
    """Every instance that there ever was, for Cloud Monitoring."""
    granted_quotas: set[tuple[str, str]] = set()
    """Quota and region of each first deployment."""
    calls: list[str] = []
    """Methods called, such as google.cloud.run.v2.Services/CreateService, newest last."""
    needed: list[str] = []
    """Permissions that those calls took, newest last."""
    tested: list[str] = []
    """Permissions that the caller asked about on the project itself, newest last."""

    @property
    def caller(self) -> str:
        """E-mail of whoever calls."""
        return self.knobs.identity or f"operator@{self.id}.iam.gserviceaccount.com"

    @property
    def runtime_account(self) -> str:
        """E-mail of the account that our deployments run as."""
        return f"vllm-devops-runtime@{self.id}.iam.gserviceaccount.com"

    @property
    def builder_account(self) -> str:
        """E-mail of the account that our images are built as."""
        return f"vllm-devops-builder@{self.id}.iam.gserviceaccount.com"

    def append(
        self,
        severity: str,
        text: str,
        labels: dict[str, str],
        log_name: str,
        *,
        resource: str = "cloud_run_revision",
        own_labels: dict[str, str] | None = None,
        payload: dict[str, Any] | None = None,
    ) -> None:
        """Write one log entry, now."""
        now = time.time()
        number = int(self.log[-1].insert_id, 16) + 1 if self.log else 1
        self.log.append(
            Entry(
                timestamp=now,
                severity=severity,
                text=text,
                log_name=log_name,
                resource=resource,
                labels={"project_id": self.id, **labels},
                own_labels=own_labels or {},
                payload=payload or {},
                insert_id=f"{number:016x}",
            )
        )
        del self.log[:-_LOG_ENTRIES]

    def denies(self, permission: str) -> bool:
        """Say whether the caller lacks what a call takes; none if empty."""
        if permission:
            self.needed.append(permission)
            del self.needed[:-_CALLS]
        return permission in self.knobs.denied_permissions

    def called(self, method: str) -> None:
        """Remember a call."""
        self.calls.append(method)
        del self.calls[:-_CALLS]


def members(policy: Policy, role: str) -> set[str]:
    """Give who has a role by a policy without conditions."""
    return {
        member
        for binding in policy.bindings
        if binding.role == role and not binding.condition.expression
        for member in binding.members
    }


@dataclass(slots=True, kw_only=True)
class World:
    """All projects, on the disk and in memory."""

    folder: Path
    tasks: TaskGroup
    """Where whatever goes on by itself is started; it ends with the process."""
    projects: dict[str, Project] = field(default_factory=dict)
    http: str = ""
    """Base URL of the plane's web server."""
    seen: float = field(default_factory=time.monotonic)
    """When the plane was last called, of the monotonic clock."""
    tokens: IdTokens = field(init=False)
    nursery: Nursery = field(default_factory=Nursery)
    live: dict[str, Any] = field(default_factory=dict)
    """What runs for each service, by its full name; never on the disk."""
    said: dict[str, Any] = field(default_factory=dict)
    """Of each project the `log_said.Said` that was put into its log; never on the disk."""

    def __post_init__(self) -> None:
        self._kept().mkdir(parents=True, exist_ok=True)
        self.tokens = IdTokens(self.folder)
        self._load()

    def _load(self) -> None:
        for file in sorted(self._kept().glob("*.json")):
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
