"""The account that a build runs as: it has to be there, and holds what the build may do."""

from typing import Any

import pytest
from google.api_core import exceptions

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google
from tests.simulators.google.test_builds import Workshop

pytestmark = pytest.mark.anyio


@pytest.fixture
def workshop(google: Google, project: str, controls: Controls) -> Workshop:
    """A build there takes no time."""
    controls.set(project, boot_seconds=0)
    return Workshop(google, project)


def _as_builder(workshop: Workshop) -> dict[str, Any]:
    email = f"vllm-devops-builder@{workshop.project}.iam.gserviceaccount.com"
    account = f"projects/{workshop.project}/serviceAccounts/{email}"
    return {"service_account": account, "options": {"logging": "CLOUD_LOGGING_ONLY"}}


async def _set_policy(client: Any, resource: str, *bindings: dict[str, Any]) -> None:
    policy = {"bindings": list(bindings)}
    await client.set_iam_policy(request={"resource": resource, "policy": policy})


async def test_a_role_on_the_repository_is_enough_to_push(workshop: Workshop) -> None:
    """It is asked of that repository; taken away, nothing is pushed."""
    assert (await workshop.ended(**_as_builder(workshop))).status.name == "SUCCESS"
    await workshop.registry.delete_package(name=f"{workshop.repository}/packages/small")
    await _set_policy(workshop.registry, workshop.repository)
    build = await workshop.ended(**_as_builder(workshop))
    assert build.failure_info.type_.name == "PUSH_NOT_AUTHORIZED"


async def test_an_account_that_may_not_write_logs_leaves_none(
    workshop: Workshop, google: Google
) -> None:
    """The build goes on without one."""
    projects = google.client("google.cloud.resourcemanager_v3", "projects", "ProjectsAsyncClient")
    await _set_policy(projects, f"projects/{workshop.project}")
    build = await workshop.ended(**_as_builder(workshop))
    assert build.status.name == "SUCCESS"
    assert await workshop.log(build.id) == []


async def test_an_account_that_is_not_there_builds_nothing(workshop: Workshop) -> None:
    """It is looked for before anything is queued."""
    changes = _as_builder(workshop)
    nobody = changes["service_account"].replace("builder", "nobody")
    with pytest.raises(exceptions.NotFound):
        await workshop.begin(**{**changes, "service_account": nobody})


async def test_an_account_that_one_may_not_act_as_builds_nothing(
    workshop: Workshop, controls: Controls
) -> None:
    """Beside the permission to build."""
    controls.set(workshop.project, denied_permissions=["iam.serviceAccounts.actAs"])
    with pytest.raises(exceptions.PermissionDenied, match="act as service account"):
        await workshop.begin(**_as_builder(workshop))
