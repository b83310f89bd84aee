"""Region, quota, image, name and the whole of a plan are judged before anything is made."""

import pytest

from backends.cloud_run.site import Site
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import L4, RTX, typed
from tests.backends.cloud_run.preflights import WHOLE, checked, row, the_only_failure
from tests.backends.cloud_run.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


async def test_google_itself_says_whether_a_region_that_is_not_listed_has_the_gpu(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, google_cloud_location="europe-north1") as site:
        found = await checked(site)
    doubted, failed = row(found, "europe-north1 has nvidia-l4"), the_only_failure(found)
    assert doubted.outcome == "unknown"
    assert "europe-west4" in doubted.detail
    assert failed.what == WHOLE
    assert "not supported in region europe-north1" in failed.detail


async def test_a_region_by_invitation_is_unknown(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, google_cloud_location="us-central1") as site:
        found = row(await checked(site), "us-central1 has")
    assert found.outcome == "unknown"
    assert "invitation" in found.detail


async def test_more_instances_than_the_quota_allows_fail(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas={"l4": 3})
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site, max_replicas=4))
    assert failed.what == "The quota allows 4 at once"
    assert "max_replicas 3" in failed.fix


async def test_no_quota_at_all_asks_for_some(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas={"l4": 0})
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site))
    assert "console.cloud.google.com" in failed.fix


async def test_an_image_that_does_not_exist_fails(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site, image="nobody/nothing:1"))
    assert failed.what == "The container image is there"
    assert "nobody/nothing:1" in failed.detail


async def test_an_image_that_will_be_built_passes(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        found = await checked(site, engine="ollama", model="gemma3:4b")
    assert "Cloud Build" in row(found, "image").detail
    assert not [one for one in found.checks if "Hub" in one.what]


async def taken(site: Site, **labels: str) -> None:
    """Make a service of the same name by somebody else."""
    service = typed(site)
    service.labels = labels
    run = await site.clients.run()
    made = {"parent": site.clients.parent, "service_id": "gemma", "service": service}
    await run.create_service(request=made)


async def test_a_service_of_somebody_else_fails_and_is_left_alone(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await taken(site, team="theirs")
        failed = the_only_failure(await checked(site))
    assert failed.what == "The name gemma is free or yours"
    assert "not made here" in failed.detail


async def test_a_deployment_of_another_target_fails_and_names_it(
    plane: GooglePlane, project: str
) -> None:
    labels = {"managed-by": "vllm-devops-agent", "vllm-devops-target": RTX}
    async with opened(plane, project) as site:
        await taken(site, **labels)
        failed = the_only_failure(await checked(site))
    assert RTX in failed.detail


async def test_a_deployment_of_our_own_may_be_changed_and_is_not(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    labels = {"managed-by": "vllm-devops-agent", "vllm-devops-target": L4}
    async with opened(plane, project) as site:
        await taken(site, **labels)
        found = await checked(site, max_num_seqs=7)
        run = await site.clients.run()
        there = await run.get_service(name=f"{site.clients.parent}/services/gemma")
    assert found.failed == ()
    assert "would be changed" in row(found, "gemma is free").detail
    assert there.template.containers[0].args == typed(site).template.containers[0].args
    assert len(controls.get(project)["revisions"]) == 1


async def test_a_registry_that_is_not_there_leaves_the_image_unknown(
    plane: GooglePlane, project: str
) -> None:
    silent = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(silent, project) as site:
        found = await checked(site)
    assert [one.what for one in found.failed] == ["You can call what you deploy"]  # the same door
    assert row(found, "image").outcome == "unknown"


async def test_what_only_google_knows_to_be_wrong_fails_as_a_whole(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    words = "Violates constraint constraints/run.allowedIngress."
    refusal = fault("Services/CreateService", "FAILED_PRECONDITION", message=words)
    controls.set(project, faults=[refusal])
    async with opened(plane, project) as site:
        failed = the_only_failure(await checked(site))
    assert failed.what == WHOLE
    assert words in failed.detail
