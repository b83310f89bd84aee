"""What a build needs is looked at before it is begun, and only where there will be one."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from backends.cloud_run import checks
from backends.cloud_run.site import Site
from core.errors import CloudRefused, PermissionDenied
from core.records import Preflight
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planned import planned
from tests.backends.cloud_run.preflights import row, the_only_failure
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

WISH: Final[Mapping[str, Any]] = {"engine": "ollama", "model": "gemma3:4b"}
ROLES = "It may push what it builds"


async def checked(site: Site, **said: Any) -> Preflight:
    return await checks.preflight(site, planned(site, **WISH, **said))


async def without_builder(site: Site) -> None:
    """Delete the account, as a project has it that was set up before there was one."""
    project = site.clients.project
    email = f"vllm-devops-builder@{project}.iam.gserviceaccount.com"
    client = await site.clients.iam()
    await client.delete_service_account(name=f"projects/{project}/serviceAccounts/{email}")


async def test_a_prepared_project_can_build(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        found = await checked(site)
    assert found.failed == ()
    assert row(found, "vllm-devops-builder").outcome == "pass"
    assert row(found, "build as that account").outcome == "pass"
    assert row(found, ROLES).outcome == "pass"


async def test_an_image_that_is_given_needs_no_account_to_build_it(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await without_builder(site)
        found = await checked(site, image="ollama/ollama:0.40.0")
    assert not [one for one in found.checks if "build" in one.what]


async def test_an_account_to_build_as_that_is_missing_fails_and_nothing_is_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project) as site:
        await without_builder(site)
        failed = the_only_failure(await checked(site))
        with pytest.raises(CloudRefused) as refused:
            await server.apply(site, planned(site, **WISH))
    assert "vllm-devops-builder" in failed.what
    assert "setup_target" in failed.fix
    assert "setup_target" in refused.value.fix
    seen = controls.get(project)
    assert (seen["builds"], seen["services"]) == ([], [])


async def emptied(client: Any, resource: str, role: str) -> None:
    """Take a role from everybody."""
    policy = await client.get_iam_policy(request={"resource": resource})
    left = [one for one in policy.bindings if one.role != role]
    del policy.bindings[:]
    policy.bindings.extend(left)
    await client.set_iam_policy(request={"resource": resource, "policy": policy})


async def test_an_account_that_may_not_push_fails(plane: GooglePlane, project: str) -> None:
    role = "roles/artifactregistry.writer"
    async with opened(plane, project) as site:
        place = f"{site.clients.parent}/repositories/vllm-devops"
        await emptied(await site.clients.repositories(), place, role)
        failed = the_only_failure(await checked(site))
    assert ROLES in failed.what
    assert failed.detail == f"Missing: {role}."


async def test_an_account_that_may_not_write_its_log_fails(
    plane: GooglePlane, project: str
) -> None:
    role = "roles/logging.logWriter"
    async with opened(plane, project) as site:
        await emptied(await site.clients.projects(), f"projects/{project}", role)
        failed = the_only_failure(await checked(site))
    assert failed.detail == f"Missing: {role}."


async def test_whoever_may_not_act_as_it_cannot_build(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, denied_permissions=["iam.serviceAccounts.actAs"])
    async with opened(plane, project) as site:
        found = row(await checked(site), "build as that account")
        with pytest.raises(PermissionDenied):
            await server.apply(site, planned(site, **WISH))
    assert found.outcome == "fail"
    assert "vllm-devops-builder" in found.fix
