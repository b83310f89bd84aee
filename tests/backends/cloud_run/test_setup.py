"""A project is set up once, by steps that can be done again; secrets have one reader each."""

import shlex
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from google.cloud.secretmanager_v1.types import Replication, Secret
from google.iam.v1.policy_pb2 import Policy
from pydantic import SecretStr

from backends.cloud_run.checks import shared
from backends.cloud_run.site import Site
from backends.google import secrets
from backends.google.clients import HF_SECRET, key_secret
from backends.lifecycle import set_up, setup
from core import errors
from core.settings import GooglePlane
from tests.backends.cloud_run.shelf import store
from tests.backends.cloud_run.sites import fault, opened
from tests.backends.google_secrets import keep_key, remove_secret
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]

TOKEN = "hf_secretword"
ACCESSOR = "roles/secretmanager.secretAccessor"
STEPS = (
    "ServiceUsage/BatchEnableServices",
    "IAM/CreateServiceAccount",
    "Projects/SetIamPolicy",
    "ArtifactRegistry/CreateRepository",
    "ArtifactRegistry/SetIamPolicy",
    "SecretManagerService/CreateSecret",
)


def account(project: str) -> str:
    return f"serviceAccount:vllm-devops-runtime@{project}.iam.gserviceaccount.com"


def builder(project: str) -> str:
    return account(project).replace("runtime", "builder")


async def project_policy(site: Site) -> Policy:
    client = await site.clients.projects()
    request: dict[str, Any] = {
        "resource": f"projects/{site.clients.project}",
        "options": {"requested_policy_version": 3},
    }
    return await client.get_iam_policy(request=request)


async def test_a_bare_project_is_looked_at_set_up_once_and_never_again(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """Looking changes nothing, the token is in no word of it; who builds may write logs, and push
    into one repository alone; every step has a command that a shell can read."""
    async with opened(plane, bare_project, hf_token=TOKEN) as site:
        found = await setup(shared(site))
        assert len(found.missing) == len(found.steps) == 11
        assert controls.changes(bare_project) == []
        made = await set_up(shared(site), seconds=30)
        assert made.missing == ()
        before = controls.changes(bare_project)
        assert await setup(shared(site)) == made == await set_up(shared(site), seconds=30)
        assert controls.changes(bare_project) == before
        place = f"{site.clients.parent}/repositories/vllm-devops"
    assert TOKEN not in repr(made)
    for step in made.steps:
        assert "gcloud" in shlex.split(step.command)
        assert bare_project in step.command
    there, both = controls.get(bare_project), [builder(bare_project), account(bare_project)]
    lease = account(bare_project).replace("runtime", "lease")
    every = [one.removeprefix("serviceAccount:") for one in (*both, lease)]
    assert there["accounts"] == sorted(every)
    assert there["roles"] == {"vllmDevopsLease": ["run.services.get", "run.services.update"]}
    assert there["account_bindings"][every[1]] == {"roles/iam.serviceAccountUser": [lease]}
    assert there["bindings"] == {
        "roles/logging.logWriter": both,
        "roles/monitoring.metricWriter": [account(bare_project)],
        "roles/artifactregistry.reader": [account(bare_project)],
    }
    assert there["secrets"][HF_SECRET]["bindings"] == {ACCESSOR: [account(bare_project)]}
    pushing = {"roles/artifactregistry.writer": [builder(bare_project)]}
    assert there["repository_bindings"] == {place: pushing}


async def test_a_prepared_project_needs_nothing(site: Site, controls: Controls) -> None:
    assert (await set_up(shared(site), seconds=30)).missing == ()
    assert controls.changes(site.clients.project) == []


async def test_roles_of_others_and_their_conditions_stay(
    plane: GooglePlane, bare_project: str
) -> None:
    """A role under a condition is not the role."""
    async with opened(plane, bare_project) as site:
        await set_up(shared(site), seconds=30)
        policy = Policy(version=3, etag=(await project_policy(site)).etag)
        owner = policy.bindings.add(role="roles/viewer", members=["user:a@example.com"])
        owner.condition.title, owner.condition.expression = "soon", "request.time.getHours() < 9"
        policy.bindings.add(role="roles/logging.logWriter", members=["user:b@example.com"])
        under = policy.bindings.add(role="roles/artifactregistry.reader")
        under.members.append(account(bare_project))
        under.condition.expression = "request.time.getHours() < 9"
        client = await site.clients.projects()
        resource = f"projects/{bare_project}"
        await client.set_iam_policy(request={"resource": resource, "policy": policy})
        assert len((await setup(shared(site))).missing) == 2
        await set_up(shared(site), seconds=30)
        every = (await project_policy(site)).bindings
    readers = [one for one in every if one.role == "roles/artifactregistry.reader"]
    assert [bool(one.condition.expression) for one in readers] == [True, False]
    after = {one.role: one for one in every}
    assert after["roles/viewer"].condition.expression == "request.time.getHours() < 9"
    writers = set(after["roles/logging.logWriter"].members)
    assert writers == {"user:b@example.com", account(bare_project), builder(bare_project)}


@pytest.mark.parametrize("method", STEPS)
async def test_a_step_that_fails_tells_what_is_done_and_the_next_call_goes_on(
    plane: GooglePlane, bare_project: str, controls: Controls, method: str
) -> None:
    controls.set(bare_project, faults=[fault(method, "UNAVAILABLE")])
    async with opened(plane, bare_project, hf_token=TOKEN) as site:
        with pytest.raises(errors.CloudUnavailable) as failed:
            await set_up(shared(site), seconds=30)
        done, left = failed.value.data["done"], failed.value.data["not_done"]
        seen = await setup(shared(site))
        assert [step.what for step in seen.steps if step.done] == done
        assert [step.what for step in seen.missing] == left
        assert left[0] in failed.value.summary
        assert (await set_up(shared(site), seconds=30)).missing == ()


@pytest.mark.parametrize("method", STEPS[1:5])
async def test_a_step_that_was_done_though_the_answer_was_lost_is_not_done_twice(
    plane: GooglePlane, bare_project: str, controls: Controls, method: str
) -> None:
    controls.set(bare_project, faults=[fault(method, "UNAVAILABLE", when="after")])
    async with opened(plane, bare_project) as site:
        assert (await set_up(shared(site), seconds=30)).missing == ()
    calls = controls.changes(bare_project)
    often = {"ArtifactRegistry": 1, "IAM": 3}.get(method.partition("/")[0], 2)  # once an account
    assert len([one for one in calls if one.endswith(method)]) == often


@pytest.mark.parametrize(
    "meanwhile",
    [
        fault("Projects/SetIamPolicy", "ABORTED", times=2),
        fault("IAM/CreateServiceAccount", "ALREADY_EXISTS", when="after"),
        fault(
            "Projects/SetIamPolicy",
            "INVALID_ARGUMENT",
            message="Service account vllm-devops-runtime does not exist.",
        ),
    ],
    ids=["policy changed", "made by another", "account not known everywhere"],
)
async def test_what_happens_meanwhile_is_no_failure(
    plane: GooglePlane, bare_project: str, controls: Controls, meanwhile: Mapping[str, Any]
) -> None:
    controls.set(bare_project, faults=[meanwhile])
    async with opened(plane, bare_project) as site:
        assert (await set_up(shared(site), seconds=30)).missing == ()


async def test_whoever_may_not_set_up_is_told_where_it_ended(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """A bucket that is missing is named as well, and the rest is done."""
    controls.set(bare_project, denied_permissions=["iam.serviceAccounts.create"])
    async with opened(plane, bare_project, bucket_name=f"{bare_project}-no") as site:
        with pytest.raises(errors.PermissionDenied) as denied:
            await set_up(shared(site), seconds=30)
        assert "1 of 11 steps" in denied.value.summary
        assert "iam.serviceAccounts.create" in denied.value.cause
        controls.set(bare_project, denied_permissions=[])
        with pytest.raises(errors.CloudRefused) as failed:
            await set_up(shared(site), seconds=30)
    assert len(failed.value.data["done"]) == 10
    assert "buckets create" in failed.value.fix


async def bucket_policy(site: Site, bucket: str) -> Any:
    client = await site.clients.storage()
    there = client.bucket(bucket)
    return await anyio.to_thread.run_sync(lambda: there.get_iam_policy(requested_policy_version=3))


async def test_only_the_bucket_that_is_named_is_opened_to_the_runtime_account(
    plane: GooglePlane, project: str
) -> None:
    """Those who have the role are joined; what others may do stays, under conditions too."""
    bucket, other = f"{project}-one", f"{project}-two"
    async with opened(plane, project, bucket_name=bucket) as site:
        await store(site, bucket, {})
        await store(site, other, {})
        policy = await bucket_policy(site, bucket)
        theirs = {
            "role": "roles/storage.objectViewer",
            "members": {account(project)},
            "condition": {"title": "t", "expression": "resource.name.startsWith('x')"},
        }
        policy.version, before = 3, [*policy.bindings, theirs]
        policy.bindings = [*before, {"role": theirs["role"], "members": {"user:a@example.com"}}]
        there = (await site.clients.storage()).bucket(bucket)
        await anyio.to_thread.run_sync(there.set_iam_policy, policy)
        assert len((await setup(shared(site))).missing) == 1
        assert (await set_up(shared(site), seconds=30)).missing == ()
        mine, others = [await bucket_policy(site, name) for name in (bucket, other)]
    assert all(one in mine.bindings for one in before)
    (joined,) = [one for one in mine.bindings if one not in before]
    assert joined["members"] == {"user:a@example.com", account(project)}
    assert all(account(project) not in one["members"] for one in others.bindings)


async def test_a_kept_token_is_readable_by_the_deployments_account_alone(
    site: Site, controls: Controls
) -> None:
    """Line ends go, the same again makes no version; an empty one is refused before anything."""
    with pytest.raises(errors.InvalidArgument):
        await secrets.keep(site, HF_SECRET, SecretStr(" \n"))
    project = site.clients.project
    assert not controls.get(project)["calls"]
    versions = [
        (await secrets.keep(site, HF_SECRET, SecretStr(text))).version
        for text in (" hf_abcdefgh\n", "hf_abcdefgh", "hf_another", "hf_another")
    ]
    assert versions == ["1", "1", "2", "2"]
    assert await secrets.read(site, HF_SECRET) == SecretStr("hf_another")
    seen = controls.get(project)
    assert seen["secrets"][HF_SECRET]["bindings"] == {ACCESSOR: [account(project)]}
    assert ACCESSOR not in seen["bindings"]


async def test_another_token_than_the_kept_one_is_a_step_to_do(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    for token in (TOKEN, "hf_other"):
        async with opened(plane, project, hf_token=token) as site:
            assert len((await setup(shared(site))).missing) == 1
            assert (await set_up(shared(site), seconds=30)).missing == ()
    assert controls.get(project)["secrets"][HF_SECRET]["versions"] == 2


async def test_a_key_is_made_once_and_kept(site: Site, controls: Controls) -> None:
    """Long and random; one of the same name in another region is left alone; one that a dead
    server did not fill is filled."""
    assert await keep_key(site, "gemma")
    first = await secrets.read(site, key_secret("gemma"))
    assert not await keep_key(site, "gemma")
    assert await secrets.read(site, key_secret("gemma")) == first
    assert len(first.get_secret_value()) == 43
    project = site.clients.project
    async with opened(controls.plane, project, google_cloud_location="europe-west4") as elsewhere:
        with pytest.raises(errors.NotOurs):
            await keep_key(elsewhere, "gemma")
        assert not await remove_secret(elsewhere, key_secret("gemma"))
    faults = [fault("AddSecretVersion", "PERMISSION_DENIED"), fault("DeleteSecret")]
    controls.set(project, faults=faults)
    with pytest.raises(errors.CloudError):
        await keep_key(site, "qwen")
    assert await secrets.exists(site, key_secret("qwen"))
    await keep_key(site, "qwen")
    assert await secrets.read(site, key_secret("qwen")) != first


async def test_a_secret_of_somebody_else_is_left_alone(site: Site, controls: Controls) -> None:
    """It is neither filled nor granted nor deleted; one that is missing says what to do."""
    with pytest.raises(errors.NotFound) as caught:
        await secrets.read(site, HF_SECRET)
    assert "save_hf_token" in caught.value.fix
    assert not await remove_secret(site, HF_SECRET)
    client, project = await site.clients.secrets(), site.clients.project
    made = Secret(replication=Replication(automatic=Replication.Automatic()))
    request = {"parent": f"projects/{project}", "secret_id": HF_SECRET, "secret": made}
    await client.create_secret(request=request)
    with pytest.raises(errors.NotOurs):
        await secrets.keep(site, HF_SECRET, SecretStr(TOKEN))
    assert not await remove_secret(site, HF_SECRET)
    assert controls.get(project)["secrets"][HF_SECRET] == {"versions": 0, "bindings": {}}


@pytest.mark.parametrize(("status", "times"), [("INVALID_ARGUMENT", 1), ("ABORTED", -1)])
async def test_no_secret_is_kept_that_nobody_can_read(
    site: Site, controls: Controls, status: str, times: int
) -> None:
    """What was made before the grant failed is taken back; ABORTED is tried a few times."""
    controls.set(site.clients.project, faults=[fault("SetIamPolicy", status, times=times)])
    with pytest.raises(errors.CloudError):
        await secrets.keep(site, HF_SECRET, SecretStr(TOKEN))
    assert not controls.get(site.clients.project)["secrets"]
