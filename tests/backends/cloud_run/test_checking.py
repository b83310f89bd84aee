"""A preflight fails for what is wrong and for nothing else, and changes nothing."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import SecretStr

from backends.cloud_run import checks
from backends.google import secrets
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import RTX, planned
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.preflights import WHOLE, checked, row, the_only_failure
from tests.backends.cloud_run.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

READS = (
    "Projects/GetProject",
    "ServiceUsage/BatchGetServices",
    "Projects/TestIamPermissions",
    "IAM/GetServiceAccount",
    "IAM/TestIamPermissions",
    "SecretManagerService/GetSecretVersion",
    "CloudQuotas/GetQuotaInfo",
    "Services/GetService",
    "Services/CreateService",
)

APIS = (
    *("run", "secretmanager", "iam", "logging", "monitoring", "cloudquotas"),
    *("cloudresourcemanager", "artifactregistry"),
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)


def kept(controls: Controls, project: str) -> Mapping[str, Any]:
    """Give what there is of a project, without the calls that were made."""
    asked = {"calls", "needed", "tested"}
    return {name: held for name, held in controls.get(project).items() if name not in asked}


async def test_a_prepared_project_passes_and_only_the_hub_is_not_asked(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas={"l4": 3})
    async with opened(plane, project) as site:
        found = await checked(site)
    unknown = [one for one in found.checks if one.outcome != "pass"]
    assert [one.what for one in unknown] == ["google/gemma-4-E4B-it can be fetched from the Hub"]
    assert "rehearsal" in unknown[0].detail
    assert len(found.checks) >= 10


async def test_the_larger_gpu_passes_with_its_quota(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas={"rtx-pro-6000": 1})
    async with opened(plane, project, target=offline(RTX).target) as site:
        assert (await checked(site)).failed == ()


async def test_nothing_is_written(plane: GooglePlane, project: str, controls: Controls) -> None:
    async with opened(plane, project, hf_token="hf_x") as site:
        before = kept(controls, project)
        await checked(site)
        await checked(site, engine="ollama", model="gemma3:4b")
    assert kept(controls, project) == before


async def test_a_bare_project_fails_for_its_apis_and_passes_nothing_it_could_not_see(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project) as site:
        found = await checked(site)
    failed = the_only_failure(found)
    assert failed.what == "Its APIs are enabled"
    assert "run.googleapis.com" in failed.fix
    assert row(found, "quota").outcome == "unknown"
    assert row(found, WHOLE).outcome == "unknown"


@pytest.mark.parametrize(
    ("permission", "role"),
    [
        ("run.services.create", "roles/run.admin"),
        ("secretmanager.versions.add", "roles/secretmanager.admin"),
        ("logging.logEntries.list", "roles/logging.viewer"),
    ],
)
async def test_a_permission_that_is_missing_is_named_with_its_role(
    plane: GooglePlane, project: str, controls: Controls, permission: str, role: str
) -> None:
    controls.set(project, denied_permissions=[permission])
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site))
    assert permission in failed.detail
    assert role in failed.fix


async def test_whoever_may_not_act_as_the_runtime_account_is_told_the_role(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, denied_permissions=["iam.serviceAccounts.actAs"])
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site))
    assert "roles/iam.serviceAccountUser" in failed.fix


async def test_a_runtime_account_that_is_missing_fails(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project) as site:
        usage = await site.clients.usage()
        names = [f"{name}.googleapis.com" for name in APIS]
        parent = f"projects/{bare_project}"
        asked = {"parent": parent, "service_ids": names}
        operation = await usage.batch_enable_services(request=asked)
        await operation.result(timeout=10)
        failed = the_only_failure(await checked(site))
    assert f"vllm-devops-runtime@{bare_project}" in failed.what


async def test_a_project_that_is_not_there_for_you_fails(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, denied_permissions=["resourcemanager.projects.get"])
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site))
    assert "GOOGLE_CLOUD_PROJECT" in failed.fix


async def test_a_token_that_is_set_here_and_not_kept_there_fails(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, hf_token="hf_x") as site:
        failed = the_only_failure(await checked(site))
    assert "save_hf_token" in failed.fix
    assert "hf_x" not in repr(failed)


async def test_a_token_that_instances_may_not_read_fails(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        client = await site.clients.secrets()
        asked: dict[str, Any] = {"replication": {"automatic": {}}}
        made = {"parent": f"projects/{project}", "secret_id": "hf-token", "secret": asked}
        await client.create_secret(request=made)
        path = f"projects/{project}/secrets/hf-token"
        await client.add_secret_version(request={"parent": path, "payload": {"data": b"hf_x"}})
        failed = the_only_failure(await checked(site))
    assert "may not read" in failed.detail


async def test_a_token_that_is_kept_and_readable_passes(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        await secrets.keep(site, "hf-token", SecretStr("hf_x"))
        found = await checked(site)
    assert found.failed == ()
    assert "may read it" in row(found, "Hub's token").detail


@pytest.mark.parametrize("method", READS)
async def test_what_google_does_not_answer_is_unknown_and_never_a_pass(
    plane: GooglePlane, project: str, controls: Controls, method: str
) -> None:
    controls.set(project, faults=[fault(method, "UNAVAILABLE", times=-1)])
    async with opened(plane, project) as site:
        found = await checked(site)
    assert found.failed == ()
    unknown = [one for one in found.checks if one.outcome == "unknown"]
    assert len(unknown) >= 2
    assert all(one.detail for one in unknown)


async def test_what_takes_too_long_is_unknown_and_the_rest_is_told(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_DEADLINE", 2.0)
    controls.set(project, faults=[fault("Projects/GetProject", when="hang")])
    async with opened(plane, project) as site:
        found = await checked(site)
    late = row(found, f"project {project}")
    assert late.outcome == "unknown"
    assert "within 2 s" in late.detail
    assert row(found, "APIs").outcome == "pass"


async def test_without_a_project_one_row_says_what_to_set(plane: GooglePlane) -> None:
    async with opened(plane, "p") as site:
        plan = planned(site)
        unset = site.settings.model_copy(update={"google_cloud_project": None})
        site.clients._world = site.clients._world._replace(google=None, settings=unset)
        (only,) = (await checks.preflight(site, plan)).checks
    assert only.outcome == "fail"
    assert "GOOGLE_CLOUD_PROJECT" in only.fix
