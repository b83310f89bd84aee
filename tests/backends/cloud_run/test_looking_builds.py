"""A deployment whose image is still being built: there is no service to look at yet."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.cloud.devtools import cloudbuild_v1

from backends.cloud_run import build as builds
from backends.cloud_run.build import SPEC as SPEC_OF
from backends.cloud_run.build import TARGET
from core.errors import DeploymentNotFound
from core.records import DeploymentSpec, State
from core.reply import collecting_notes
from tests.backends.cloud_run.planted import PROJECT, REGION, Planted, planting
from tests.backends.cloud_run.server import describe, list_deployments

pytestmark = pytest.mark.anyio

SPEC = DeploymentSpec(name="small", model="gemma3:4b", engine="ollama")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def build(there: Planted, status: str, *, target: str = "cloud-run-l4", **said: Any) -> None:
    """Plant a build of that spec's image."""
    made = builds.build_of(SPEC, project=PROJECT, region=REGION)
    planted: Any = cloudbuild_v1.Build(made)
    planted.id = f"build-{len(there.project.builds)}"
    planted.name = f"projects/{PROJECT}/locations/{REGION}/builds/{planted.id}"
    planted.create_time = datetime.now(UTC)
    planted.status = type(planted).Status[status]
    planted.substitutions = {SPEC_OF: SPEC.model_dump_json(), TARGET: target}
    for name, value in said.items():
        setattr(planted, name, value)
    there.project.builds[planted.id] = planted


@pytest.mark.parametrize("status", ["PENDING", "QUEUED", "WORKING"])
async def test_while_its_image_is_built_a_deployment_is_being_created(
    there: Planted, status: str
) -> None:
    """It is told as what it will be, listed and by name."""
    build(there, status)
    now = await describe(there.site, "small")
    assert (now.state, now.phase and now.phase.name) == (State.CREATING, "building image")
    assert (now.model, now.revision, now.url) == (SPEC.model, SPEC.fingerprint, None)
    assert [one.name for one in await list_deployments(there.site)] == ["small"]


async def test_a_build_that_failed_leaves_no_deployment_but_its_reason(there: Planted) -> None:
    """Builds are kept for ever; they must not haunt whoever destroyed it."""
    why = cloudbuild_v1.Build.FailureInfo(detail="ollama pull: no such model")
    build(there, "FAILURE", failure_info=why)
    with pytest.raises(DeploymentNotFound, match="no such model"):
        await describe(there.site, "small")
    assert await list_deployments(there.site) == ()


async def test_a_build_that_is_done_says_who_goes_on_with_it(there: Planted) -> None:
    """The image alone is no deployment."""
    build(there, "SUCCESS")
    with pytest.raises(DeploymentNotFound, match="deploy_vllm would go on"):
        await describe(there.site, "small")


async def test_another_targets_build_is_not_told_here(there: Planted) -> None:
    """Nor one that was not made for a deployment."""
    build(there, "WORKING", target="cloud-run-rtx-pro-6000")
    build(there, "WORKING", substitutions={})
    with pytest.raises(DeploymentNotFound):
        await describe(there.site, "small")
    assert await list_deployments(there.site) == ()


async def test_a_service_goes_before_the_build_of_its_next_image(there: Planted) -> None:
    """What runs is told, once."""
    there.service("small", delete_time=datetime.now(UTC))
    build(there, "WORKING")
    assert [one.state for one in await list_deployments(there.site)] == [State.DELETING]


async def test_without_cloud_build_nothing_is_being_built(there: Planted) -> None:
    """A project that only serves vLLM need not have it."""
    there.project.apis.discard("cloudbuild.googleapis.com")
    with collecting_notes() as notes, pytest.raises(DeploymentNotFound):
        await describe(there.site, "small")
    assert await list_deployments(there.site) == ()
    assert notes == []


async def test_builds_that_may_not_be_seen_are_noted(there: Planted) -> None:
    """The rest is told."""
    there.fail("google.devtools.cloudbuild.*", "PERMISSION_DENIED")
    with collecting_notes() as notes:
        assert await list_deployments(there.site) == ()
    assert any("list the builds" in note for note in notes)
