"""A VM is stopped only where its control plane can start it again."""

import pytest

from backends.tpu import status
from backends.tpu.site import ChipState
from core.errors import DeploymentNotFound, Unsupported
from core.records import State
from core.settings import GooglePlane
from tests.backends.tpu.fake_planes import Cloud, Script
from tests.backends.tpu.searches import PLACES, A, B, before, planned
from tests.backends.tpu.sites import on

pytestmark = pytest.mark.anyio

RUNS = {place: Script(after=0, delete_seconds=0) for place in PLACES}
QUEUED = {"control_plane": "queued"}


async def test_a_node_on_demand_is_stopped_and_started(plane: GooglePlane, project: str) -> None:
    """Twice is harmless."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site, **QUEUED))
        for _ in range(2):
            await on(site).stop("gemma")
            assert (await status.describe(site, "gemma")).state is State.STOPPED
        for _ in range(2):
            await on(site).start("gemma")
            assert cloud.state(cloud.rows[B]) is ChipState.RUNNING


async def test_a_stopped_one_that_is_deployed_again_is_started(
    plane: GooglePlane, project: str
) -> None:
    """With its chips, where they are free."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site, **QUEUED))
        await on(site).stop("gemma")
        await on(site).apply(planned(site, **QUEUED))
        assert cloud.state(cloud.rows[B]) is ChipState.RUNNING
        assert cloud.asked == [B]


@pytest.mark.parametrize(
    ("target", "wish", "why"),
    [
        ("tpu-v6e-1", {}, "Compute Engine"),
        ("tpu-v6e-1-spot", QUEUED, "spot"),
        ("tpu-v6e-1-flex", QUEUED, "flex-start"),
    ],
)
async def test_what_could_not_be_started_again_is_not_stopped(
    plane: GooglePlane, project: str, target: str, wish: dict[str, str], why: str
) -> None:
    """It says why, and what to do instead."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud, target=target) as site:
        await on(site).apply(planned(site, **wish))
        for change in (on(site).stop, on(site).start):
            with pytest.raises(Unsupported, match=why) as caught:
                await change("gemma")
            assert "destroy_vllm" in caught.value.fix
    assert not any(row.stopped for row in cloud.rows.values())


@pytest.mark.parametrize("becomes", [ChipState.RUNNING, ChipState.SUSPENDED])
async def test_what_has_no_vm_cannot_be_stopped(
    plane: GooglePlane, project: str, becomes: ChipState
) -> None:
    cloud = Cloud(scripts={B: Script(after=1e9)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site, **QUEUED))
        if becomes is ChipState.SUSPENDED:
            cloud.scripts[B] = Script(after=0, becomes=becomes)
        with pytest.raises(Unsupported, match=r"no VM yet|lost its chips"):
            await on(site).stop("gemma")


async def test_one_that_is_not_there_is_not_changed(plane: GooglePlane, project: str) -> None:
    """Neither one that never was, nor one whose VM is gone."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        with pytest.raises(DeploymentNotFound):
            await on(site).stop("gemma")
        await on(site).apply(planned(site))
        del cloud.rows[A]
        with pytest.raises(DeploymentNotFound):
            await on(site).start("gemma")
