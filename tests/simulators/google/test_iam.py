"""Simulated accounts, and the policies of accounts and projects."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.type.expr_pb2 import Expr

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_VERSION_3 = {"requested_policy_version": 3}


@pytest.fixture
def iam(google: Google) -> Any:
    return google.client("google.cloud.iam_admin_v1", "iam", "IAMAsyncClient")


@pytest.fixture
def projects(google: Google) -> Any:
    return google.client("google.cloud.resourcemanager_v3", "projects", "ProjectsAsyncClient")


async def _made(iam: Any, project: str, name: str = "deployer") -> str:
    account = await iam.create_service_account(
        request={"name": f"projects/{project}", "account_id": name}
    )
    assert isinstance(account.email, str)
    return account.email


async def _policy(client: Any, resource: str, version: int = 3) -> policy_pb2.Policy:
    options = {"requested_policy_version": version}
    return await client.get_iam_policy(request={"resource": resource, "options": options})


async def _set(client: Any, resource: str, policy: policy_pb2.Policy) -> policy_pb2.Policy:
    request = iam_policy_pb2.SetIamPolicyRequest(resource=resource, policy=policy)
    return await client.set_iam_policy(request=request)


async def test_an_account_is_found_by_its_address(iam: Any, project: str) -> None:
    """With the project named, and without."""
    email = await _made(iam, project)
    for owner in (project, "-"):
        found = await iam.get_service_account(name=f"projects/{owner}/serviceAccounts/{email}")
        assert (found.email, found.project_id) == (email, project)
    listed = await iam.list_service_accounts(name=f"projects/{project}")
    assert email in [account.email async for account in listed]


async def test_an_account_that_is_taken_is_refused(iam: Any, project: str) -> None:
    """There is one of each name."""
    await _made(iam, project)
    with pytest.raises(exceptions.AlreadyExists):
        await _made(iam, project)


@pytest.mark.parametrize("name", ["tiny", "Deployer", "deployer-", "d" * 31])
async def test_an_account_id_has_its_form(iam: Any, project: str, name: str) -> None:
    """Six to thirty small letters, figures and hyphens."""
    with pytest.raises(exceptions.InvalidArgument):
        await _made(iam, project, name)


async def test_a_deleted_account_is_gone(iam: Any, project: str) -> None:
    """It is not found afterwards."""
    name = f"projects/{project}/serviceAccounts/{await _made(iam, project)}"
    await iam.delete_service_account(name=name)
    with pytest.raises(exceptions.NotFound):
        await iam.get_service_account(name=name)


async def test_a_project_is_known_by_id_and_number(projects: Any, project: str) -> None:
    """Both mean the same one."""
    by_id = await projects.get_project(name=f"projects/{project}")
    by_number = await projects.get_project(name=by_id.name)
    assert (by_number.project_id, by_number.state.name) == (project, "ACTIVE")


async def test_two_writers_of_a_policy_do_not_overwrite_each_other(
    projects: Any, iam: Any, project: str
) -> None:
    """Who writes with the etag of before is refused, and may read again."""
    resource, email = f"projects/{project}", await _made(iam, project)
    mine, theirs = await _policy(projects, resource), await _policy(projects, resource)
    mine.bindings.add(role="roles/logging.logWriter", members=[f"serviceAccount:{email}"])
    theirs.bindings.add(role="roles/run.admin", members=["user:someone@example.com"])
    await _set(projects, resource, theirs)
    with pytest.raises(exceptions.Aborted):
        await _set(projects, resource, mine)
    after = await _policy(projects, resource)
    assert "roles/run.admin" in [binding.role for binding in after.bindings]


async def test_a_condition_is_only_seen_by_who_asks_for_version_3(
    projects: Any, project: str
) -> None:
    """Others see a role of another name, which they cannot write back."""
    resource = f"projects/{project}"
    policy = await _policy(projects, resource)
    policy.version = 3
    policy.bindings.add(
        role="roles/run.admin",
        members=["user:someone@example.com"],
        condition=Expr(title="soon over", expression="request.time < timestamp('2027-01-01')"),
    )
    await _set(projects, resource, policy)
    old = await _policy(projects, resource, version=1)
    assert any("_withcond_" in binding.role for binding in old.bindings)
    assert not any(binding.HasField("condition") for binding in old.bindings)
    with pytest.raises(exceptions.InvalidArgument):
        await _set(projects, resource, old)
    kept = await _policy(projects, resource)
    assert [one.condition.title for one in kept.bindings if one.HasField("condition")]


@pytest.mark.parametrize(
    ("role", "member"),
    [
        ("run.admin", "user:someone@example.com"),
        ("roles/run.admin", "someone@example.com"),
        ("roles/run.admin", "serviceAccount:nobody@{project}.iam.gserviceaccount.com"),
    ],
)
async def test_a_binding_that_cannot_be_is_refused(
    projects: Any, project: str, role: str, member: str
) -> None:
    """No such role; no such kind of member; no such account."""
    policy = await _policy(projects, f"projects/{project}")
    policy.bindings.add(role=role, members=[member.format(project=project)])
    with pytest.raises(exceptions.InvalidArgument):
        await _set(projects, f"projects/{project}", policy)


async def test_a_condition_needs_version_3(projects: Any, project: str) -> None:
    """A policy of an older version cannot hold one."""
    policy = await _policy(projects, f"projects/{project}")
    policy.version = 1
    policy.bindings.add(
        role="roles/run.admin",
        members=["user:someone@example.com"],
        condition=Expr(expression="true"),
    )
    with pytest.raises(exceptions.InvalidArgument):
        await _set(projects, f"projects/{project}", policy)


async def test_only_what_is_allowed_is_given_back(
    projects: Any, iam: Any, project: str, controls: Controls
) -> None:
    """The caller owns the project, but for what the controls deny."""
    controls.set(project, denied_permissions=["run.services.create"])
    asked = ["run.services.create", "run.services.get"]
    answer = await projects.test_iam_permissions(resource=f"projects/{project}", permissions=asked)
    assert list(answer.permissions) == ["run.services.get"]
    account = f"projects/{project}/serviceAccounts/{await _made(iam, project)}"
    answer = await iam.test_iam_permissions(
        request={"resource": account, "permissions": ["iam.serviceAccounts.actAs"]}
    )
    assert list(answer.permissions) == ["iam.serviceAccounts.actAs"]
    with pytest.raises(exceptions.InvalidArgument):
        await projects.test_iam_permissions(resource=f"projects/{project}", permissions=["run"])


async def test_an_account_has_a_policy_of_its_own(iam: Any, project: str) -> None:
    """Which says who may act as it."""
    account = f"projects/{project}/serviceAccounts/{await _made(iam, project)}"
    policy = await _policy(iam, account, version=1)
    policy.bindings.add(
        role="roles/iam.serviceAccountTokenCreator", members=["user:someone@example.com"]
    )
    await _set(iam, account, policy)
    assert len((await _policy(iam, account)).bindings) == 1
    with pytest.raises(exceptions.NotFound):
        await _policy(iam, account.replace("deployer", "nobody-x"))
