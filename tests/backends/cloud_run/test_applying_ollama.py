"""The small way: an image is built first, and the service follows when it is there."""

from datetime import UTC, datetime

import pytest
from google.cloud.devtools.cloudbuild_v1 import Build

from backends.cloud_run import access, build
from backends.cloud_run.service import get_service
from backends.cloud_run.site import Site
from backends.lifecycle import Status
from core.errors import CloudError, DeploymentNotFound
from core.records import Plan, State
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.planned import spec
from tests.backends.cloud_run.sites import fault, opened, planned, settled
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str) -> None:
    controls.set(project, boot_seconds=0.3)


def small(site: Site) -> Plan:
    """Plan a model that fits into an image."""
    return planned(site, model="gemma3:4b", engine="ollama")


async def test_a_build_comes_first_and_the_service_follows(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Meanwhile it is being made; the service runs the image of that build, without a key."""
    controls.set(project, boot_seconds=2.0)
    async with opened(plane, project) as site:
        await server.apply(site, small(site))
        seen = await server.describe(site, "gemma")
        assert seen.state is State.CREATING
        assert seen.phase
        assert seen.phase.name == "building image"
        await _built(site)
        await server.go_on(site, "gemma")
        service = await get_service(site, "gemma")
        given = await access.access(site, "gemma")
    assert service.template.containers[0].image.startswith(
        f"us-east4-docker.pkg.dev/{project}/vllm-devops/gemma@sha256:"
    )
    assert given.api_key is None
    assert not controls.get(project)["secrets"]


@pytest.mark.parametrize(("status", "when"), [("UNAVAILABLE", "before"), ("UNAVAILABLE", "after")])
async def test_a_build_whose_answer_got_lost_is_not_made_twice(
    plane: GooglePlane, project: str, controls: Controls, status: str, when: str
) -> None:
    """What began is seen; what did not is an error, and begins with the next call."""
    controls.set(project, faults=[fault("CloudBuild/CreateBuild", status, when=when)])
    async with opened(plane, project) as site:
        if when == "before":
            with pytest.raises(CloudError):
                await server.apply(site, small(site))
        await server.apply(site, small(site))
    assert len(controls.get(project)["builds"]) == 1


async def test_a_deletion_while_it_is_built_ends_the_build(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Nothing comes of it later."""
    controls.set(project, boot_seconds=30)
    async with opened(plane, project) as site:
        await server.apply(site, small(site))
        deleted = await server.delete(site, "gemma")
        await server.go_on(site, "gemma")
        with pytest.raises(DeploymentNotFound):
            await server.describe(site, "gemma")
    assert deleted.removed == ("its build, if one is under way",)
    assert not controls.get(project)["services"]


async def test_the_image_stays_until_it_is_purged(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Its size and price are said; while the service runs it is kept."""
    async with opened(plane, project) as site:
        await server.apply(site, small(site))
        await _built(site)
        await server.go_on(site, "gemma")
        await settled(site)
        assert await server.purge(site, "gemma") == ()
        deleted = await server.delete(site, "gemma")
        assert "GB" in deleted.stays[0].what
        assert await server.purge(site, "gemma") == (
            "its image vllm-devops/gemma, if one was built",
        )
        assert await server.purge(site, "gemma") == ()
    assert not controls.get(project)["images"]


async def test_a_project_that_cannot_build_has_nothing_of_a_build(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Neither an API that is off nor a role that is missing stops a deletion."""
    disabled = "The API has not been used in project 1 before or it is disabled."
    for words in (disabled, "Permission denied."):
        answers = [
            fault(method, "PERMISSION_DENIED", message=words, times=-1)
            for method in ("ArtifactRegistry/*", "CloudBuild/*")
        ]
        controls.set(project, faults=answers)
        async with opened(plane, project) as site:
            assert await server.purge(site, "gemma") == ()
            assert (await server.delete(site, "gemma")).gone


def test_a_build_that_failed_is_a_failure_and_says_why() -> None:
    """Else its deployment would wait for ever."""
    image = build.image_of_build(offline(), spec("gemma3:4b", engine="ollama"), project="mine")
    states = Build.Status
    now, why = datetime.now(UTC), {"detail": "no such model"}
    ended = Build(status=states.FAILURE, failure_info=why, create_time=now)
    assert image.status(ended) is Status.FAILED
    assert image.status(Build(status=states.WORKING)) is Status.PENDING
    assert image.why
    assert "no such model" in image.why(ended).cause


async def _built(site: Site) -> None:
    await wait_until(
        lambda: build.latest_build(site, "gemma"),
        lambda build: build is not None and build.status.name == "SUCCESS",
        waiting_for="the build",
        every=0.05,
        timeout=20,
    )
