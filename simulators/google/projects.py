"""A project itself: its accounts, its policy, and the APIs that it has enabled."""

import uuid
from collections.abc import Collection
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.resourcemanager_v3.types import Project as ProjectMessage
from google.cloud.service_usage_v1.types import (
    BatchEnableServicesResponse,
    BatchGetServicesResponse,
    OperationMetadata,
    Service,
    ServiceConfig,
    State,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation

from simulators.google import serving
from simulators.google.serving import ALWAYS_ENABLED, Method, Refused, invalid
from simulators.google.state import Project, World
from simulators.google.store import Kind, serve

_MOST_ENABLED: Final = 20
"""Services that one call enables. Source: the documentation of BatchEnableServicesRequest."""
_MOST_READ: Final = 30
_ENABLING_SECONDS: Final = 0.2
"""In reality about ten."""
_KNOWN_APIS: Final = frozenset(
    f"{name}.googleapis.com"
    for name in (
        *("aiplatform", "artifactregistry", "cloudbuild", "cloudquotas", "cloudresourcemanager"),
        *("compute", "containerregistry", "container", "iam", "iamcredentials", "iap", "logging"),
        *("monitoring", "networkmanagement", "networkservices", "pubsub", "run", "secretmanager"),
        *("servicenetworking", "serviceusage", "storage", "storage-api", "storage-component"),
        *("sts", "tpu", "vpcaccess", "cloudbilling", "cloudapis", "cloudtrace", "dns"),
    )
)
"""Those that can be enabled here; another is refused as one that does not exist."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them."""
    serve(server, world, "google.iam.admin.v1.IAM", "iam", _Accounts())
    manager = "google.cloud.resourcemanager.v3.Projects"
    serve(server, world, manager, "cloudresourcemanager", _Projects())
    serve(server, world, "google.api.serviceusage.v1.ServiceUsage", "serviceusage", _Apis())


class _Accounts(Kind):
    """A service account, known by its address."""

    types = "google.cloud.iam_admin_v1.types"
    noun, parent, collection = "ServiceAccount", "projects/*", "serviceAccounts"
    permission = "iam.serviceAccounts"
    table = "accounts"
    identifier = r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])"
    policies = True

    def key(self, project: Project, name: str) -> str:
        """Return its address."""
        named = name.rpartition("/")[2]
        return named if "@" in named else f"{named}@{project.id}.iam.gserviceaccount.com"

    def missing(self, _project: Project, name: str) -> Refused:
        """Refuse to find one that is not there."""
        return Refused("NOT_FOUND", f"Unknown service account: {name.rpartition('/')[2]}.")

    async def begin(self, _world: World, project: Project, request: Any, made: Any) -> Any:
        """Keep a new one."""
        made.email = self.key(project, request.account_id)
        made.name = f"projects/{project.id}/serviceAccounts/{made.email}"
        made.project_id = project.id
        project.accounts[made.email] = made
        return made


class _Projects(Kind):
    """The project, by its id or its number."""

    types = "google.cloud.resourcemanager_v3.types"
    noun, parent, collection = "Project", "", "projects"
    permission = "resourcemanager.projects"
    verbs = ("Get",)
    policies = by_number = True

    def find(self, project: Project, name: str) -> Any:
        """Return it: every project that is named exists."""
        return ProjectMessage(
            name=self.full(project, name),
            project_id=project.id,
            display_name=project.id,
            state=ProjectMessage.State.ACTIVE,
        )

    def policy(self, project: Project, _name: str) -> Policy:
        """Return the project's own."""
        found: Policy = project.policy
        return found

    def keep_policy(self, project: Project, _name: str, policy: Policy) -> None:
        """Let the project have another."""
        project.policy = policy


class _Apis(Kind):
    """An API, which a project has enabled or not."""

    types = "google.cloud.service_usage_v1.types"
    noun, parent, collection = "Service", "projects/*", "services"
    permission = "serviceusage.services"
    verbs = ()
    by_number = True

    def methods(self) -> dict[str, Method]:
        """Return the methods that read and enable many at once."""
        return {
            "BatchEnableServices": self.method("BatchEnableServices", self.enable, "enable"),
            "BatchGetServices": self.method("BatchGetServices", self.read, "get"),
        }

    def find(self, project: Project, name: str) -> Service:
        """Return one as it is now, if it exists at all."""
        api = self.full(project, name).rpartition("/")[2]
        _check_known([api])
        on = api in project.apis | ALWAYS_ENABLED
        return Service(
            name=f"projects/{project.number}/services/{api}",
            parent=f"projects/{project.number}",
            config=ServiceConfig(name=api),
            state=State.ENABLED if on else State.DISABLED,
        )

    async def enable(self, world: World, project: Project, request: Any) -> Operation:
        """Answer BatchEnableServices."""
        wanted = list(request.service_ids)
        if not 0 < len(wanted) <= _MOST_ENABLED:
            raise invalid(f"Between 1 and {_MOST_ENABLED} services can be enabled at once.")
        _check_known(wanted)
        names = [f"projects/{project.number}/services/{one}" for one in wanted]

        async def work() -> Any:
            if set(wanted) - project.apis:
                await anyio.sleep(_ENABLING_SECONDS)
            project.apis |= set(wanted)
            found = [self.find(project, one) for one in names]
            return BatchEnableServicesResponse(services=found)

        operation = f"operations/acf.{uuid.uuid4().hex}-{project.number}"
        metadata = OperationMetadata(resource_names=names)
        return serving.begun(world, project, operation, work, metadata=metadata)

    async def read(self, _world: World, project: Project, request: Any) -> BatchGetServicesResponse:
        """Answer BatchGetServices."""
        if not 0 < len(request.names) <= _MOST_READ:
            raise invalid(f"Between 1 and {_MOST_READ} services can be read at once.")
        return BatchGetServicesResponse(services=[self.find(project, one) for one in request.names])


def _check_known(wanted: Collection[str]) -> None:
    unknown = ",".join(sorted(set(wanted) - _KNOWN_APIS))
    if unknown:
        raise Refused(
            "PERMISSION_DENIED",
            f"Not found or permission denied for service(s): {unknown}.",
            reason="SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED",
            domain="serviceusage.googleapis.com",
            metadata={"services": unknown},
        )
