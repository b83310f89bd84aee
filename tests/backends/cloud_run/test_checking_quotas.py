"""A plan is held against the quotas of vCPU and memory, before and after it is asked for."""

import pytest

from core.errors import QuotaExceeded
from core.records import Preflight
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.planned import RTX, planned
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.preflights import WHOLE, checked, row, the_only_failure
from tests.backends.cloud_run.sites import deployed, fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

FRESH = {"rtx-pro-6000": 1, "cpu": 20, "memory_gib": 40}
"""A project that is new to billing, which was given one of the larger GPU."""
ROWS = {"l4": "The quota allows", "cpu": "many vCPU", "memory_gib": "much memory"}


async def preflight(plane: GooglePlane, project: str) -> Preflight:
    async with opened(plane, project, target=offline(RTX).target) as site:
        return await checked(site)


async def test_memory_that_the_project_may_not_use_fails_before_anything_is_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas=FRESH)
    found = await preflight(plane, project)
    failed = the_only_failure(found)
    assert failed.what == "The project may use that much memory"
    assert "MemAllocPerProjectRegion is 40 GiB" in failed.detail
    assert "80 GiB asked for" in failed.detail
    assert f"?project={project}" in failed.fix
    assert row(found, "many vCPU").outcome == "pass"
    assert row(found, WHOLE).outcome == "unknown"


async def test_vcpu_that_the_project_may_not_use_fail_and_say_how_many_instances_fit(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas={"cpu": 12})
    async with opened(plane, project) as site:
        size = planned(site).steps[-1].request["service"]["template"]["containers"][0]
        most = 12 // int(size["resources"]["limits"]["cpu"])
        failed = the_only_failure(await checked(site, max_replicas=3))
    assert failed.what == "The project may use that many vCPU"
    assert f"max_replicas {most} or less" in failed.fix


async def test_quotas_that_are_not_told_are_unknown(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", "PERMISSION_DENIED", times=-1)])
    async with opened(plane, project) as site:
        found = await checked(site)
    assert {row(found, words).outcome for words in ROWS.values()} == {"unknown"}
    assert found.failed == ()


async def test_a_refusal_names_the_quota_in_units_of_people(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, quotas=FRESH)
    async with opened(plane, project, target=offline(RTX).target) as site:
        with pytest.raises(QuotaExceeded) as refused:
            await server.apply(site, planned(site))
    assert "MemAllocPerProjectRegion: 80 GiB asked for, 40 GiB allowed" in refused.value.fix
    seen = controls.get(project)
    assert (seen["services"], seen["secrets"]) == ([], {})


@pytest.mark.parametrize("knob", ROWS)
async def test_a_quota_that_is_exactly_enough_may_not_do_for_a_change(
    plane: GooglePlane, project: str, controls: Controls, knob: str
) -> None:
    """A rollout takes more for a moment; the first deployment has nothing beside it."""
    async with opened(plane, project) as site:
        limits = planned(site).steps[-1].request["service"]["template"]["containers"][0]
        said = limits["resources"]["limits"]
        exact = {"l4": 1, "cpu": int(said["cpu"]), "memory_gib": int(said["memory"][:-2])}
        controls.set(project, quotas={knob: exact[knob]})
        assert row(await checked(site), ROWS[knob]).outcome == "pass"
        await deployed(site)
        found = await checked(site, max_num_seqs=7)
    assert found.failed == ()
    told = row(found, ROWS[knob])
    assert told.outcome == "unknown"
    assert "three times" in told.detail
    assert "destroy_vllm" in told.fix
    assert "raise the quota" in told.fix
    others = [words for name, words in ROWS.items() if name != knob]
    assert {row(found, words).outcome for words in others} == {"pass"}
