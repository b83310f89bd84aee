"""The list of requests and TPUs: everybody's is shown, and only leftovers of ours are deleted."""

from pathlib import Path

import pytest

from backends.common import concurrency
from backends.google import leftovers
from backends.tpu import search
from backends.tpu.site import ChipState, Site
from core.errors import Busy, InvalidArgument, NotOurs
from core.settings import GooglePlane
from tests.backends.tpu.planted import NO_CHIP, ZONE, foreign, ours, until
from tests.backends.tpu.sites import on, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

OURS = "vllm-devops-gemma"


@pytest.fixture
def stocked_out(controls: Controls, project: str) -> str:
    """A project in whose zones every request waits in vain, and ends as a leftover."""
    controls.set(project, tpu_clock=6000, tpu_zones={ZONE: NO_CHIP, "us-east5-a": NO_CHIP})
    return project


async def ids(site: Site) -> list[str]:
    site.inventory.forget()
    return [row.id for row in await search.list_queue(site)]


async def paths(site: Site) -> list[str]:
    return [row.path for row in await search.list_queue(site)]


async def test_everything_is_shown_whoever_made_it_and_by_whichever_control_plane(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await foreign(site, "theirs")
        await ours(site)
        await ours(site, "other", plane="compute")
        rows = {row.id: row for row in await search.list_queue(site)}
    assert list(rows)[-1] == "theirs"
    assert {row.ours for name, row in rows.items() if name != "theirs"} == {True}
    assert rows[OURS].deployment == "gemma"
    assert rows[OURS].target == "tpu-v6e-1"
    assert (rows[OURS].control_plane, rows[OURS].zone) == ("queued resource", ZONE)
    assert rows["vllm-devops-other"].control_plane == "Compute Engine"
    assert rows[OURS].path == f"projects/{project}/locations/{ZONE}/queuedResources/{OURS}"
    other = f"projects/{project}/zones/{ZONE}/instances/vllm-devops-other"
    assert rows["vllm-devops-other"].path == other
    assert not rows["theirs"].ours
    assert rows["theirs"].deployment == ""


async def test_a_leftover_that_another_target_made_is_ours_as_well(
    plane: GooglePlane, stocked_out: str, tmp_path: Path
) -> None:
    """Any target of the project may be asked."""
    async with opened(plane, stocked_out, folder=tmp_path) as site:
        await ours(site)
        await until(site, OURS, ChipState.FAILED)
        (path,) = await paths(site)
    async with opened(plane, stocked_out, "tpu-v6e-8-spot", folder=tmp_path) as site:
        assert await on(site).remove_leftover(path, ()) is True
        assert await ids(site) == []


async def test_a_leftover_stays_while_somebody_here_asks_for_its_name(
    plane: GooglePlane, stocked_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its id there might be a new request a moment later."""
    monkeypatch.setattr(concurrency, "LOCK_SECONDS", 0.2)
    async with opened(plane, stocked_out) as site:
        await ours(site)
        await until(site, OURS, ChipState.FAILED)
        async with site.records.locked("gemma"):
            with pytest.raises(Busy):
                await on(site).remove_leftover((await paths(site))[0], ())
        assert await ids(site) == [OURS]


async def test_a_leftover_of_others_is_never_touched(plane: GooglePlane, stocked_out: str) -> None:
    """Not even one with an id such as ours have."""
    async with opened(plane, stocked_out) as site:
        await foreign(site, OURS)
        await until(site, OURS, ChipState.FAILED)
        with pytest.raises(NotOurs):
            await on(site).remove_leftover((await paths(site))[0], ())
        assert await ids(site) == [OURS]


async def test_what_is_no_leftover_is_not_deleted_as_one(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A deployment stands on it, or waits for it."""
    controls.set(project, tpu_clock=6000)
    async with opened(plane, project) as site:
        await ours(site, seconds=7200)
        await until(site, OURS, ChipState.RUNNING)
        with pytest.raises(InvalidArgument, match="no leftover"):
            await on(site).remove_leftover((await paths(site))[0], ())
        assert await ids(site) == [OURS]


async def test_a_deletion_that_takes_long_is_not_taken_for_done(
    plane: GooglePlane, stocked_out: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for once; the next look may find it gone."""
    monkeypatch.setattr(leftovers, "_REMOVE_SECONDS", 0.4)
    controls.set(stocked_out, tpu_delete_seconds=60_000)
    async with opened(plane, stocked_out) as site:
        await ours(site)
        await until(site, OURS, ChipState.FAILED)
        assert await on(site).remove_leftover((await paths(site))[0], ()) is False
        (row,) = await search.list_queue(site)
    assert row.state == "DELETING"
