"""Resource Manager v3: the project itself and its policy."""

import grpc.aio
from google.cloud.resourcemanager_v3.types import GetProjectRequest
from google.cloud.resourcemanager_v3.types import Project as ProjectMessage
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy

from emulators.google import policies
from emulators.google.serving import add, unary
from emulators.google.state import Project, World


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "GetProject": unary(
            GetProjectRequest, ProjectMessage, _get, "resourcemanager.projects.get"
        ),
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest,
            Policy,
            _get_policy,
            "resourcemanager.projects.getIamPolicy",
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest,
            Policy,
            _set_policy,
            "resourcemanager.projects.setIamPolicy",
        ),
        "TestIamPermissions": unary(
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
            _test_permissions,
        ),
    }
    api = "cloudresourcemanager.googleapis.com"
    add(server, world, "google.cloud.resourcemanager.v3.Projects", methods, api=api)


async def _get(_world: World, project: Project, _request: GetProjectRequest) -> ProjectMessage:
    return ProjectMessage(
        name=f"projects/{project.number}",
        project_id=project.id,
        display_name=project.id,
        state=ProjectMessage.State.ACTIVE,
    )


async def _get_policy(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    return policies.asked(project.policy, request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    project.policy = policies.replaced(project.policy, request, project)
    return policies.answer(project.policy)


async def _test_permissions(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    project.tested += request.permissions
    return policies.allowed(project, request)
