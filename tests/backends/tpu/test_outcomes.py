"""What asking came to is remembered by zone, control plane and provisioning model."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from backends.tpu import zones
from tests.backends.tpu.fake_planes import BEGIN, Cloud
from tests.backends.tpu.searches import A, B, C, at, site_on

pytestmark = pytest.mark.anyio


async def test_the_newest_comes_first_with_its_age(tmp_path: Path) -> None:
    """Of one place, or of all of them."""
    site = site_on(Cloud(), tmp_path)
    await zones.remember_outcome(at(site, BEGIN), A, "NO_CAPACITY", "No more.")
    await zones.remember_outcome(at(site, BEGIN + timedelta(minutes=1)), B, zones.GIVEN)
    await zones.remember_outcome(at(site, BEGIN + timedelta(minutes=2)), A, zones.TIMED_OUT)
    assert [one.outcome for one in zones.outcomes_of(site)] == ["TIMED_OUT", "GIVEN", "NO_CAPACITY"]
    assert [one.outcome for one in zones.outcomes_of(site, A)] == ["TIMED_OUT", "NO_CAPACITY"]
    oldest = zones.outcomes_of(site, A)[-1]
    assert (oldest.detail, oldest.provisioning, oldest.accelerator) == (
        "No more.",
        "on-demand",
        "v6e-1",
    )
    assert oldest.minutes_ago(BEGIN + timedelta(minutes=90, seconds=59)) == 90
    assert oldest.minutes_ago(BEGIN - timedelta(minutes=5)) == 0
    assert zones.outcomes_of(site, C) == ()


@pytest.mark.parametrize("target", ["tpu-v6e-1-spot", "tpu-v6e-1-flex", "tpu-v6e-4"])
async def test_another_provisioning_model_or_size_is_another_question(
    tmp_path: Path, target: str
) -> None:
    """A zone that gives no flex-start may give spot; every target writes to the same file."""
    cloud = Cloud()
    await zones.remember_outcome(at(site_on(cloud, tmp_path), BEGIN), A, "ZONE_REFUSED")
    other = site_on(cloud, tmp_path, target)
    assert zones.outcomes_of(other) == ()
    await zones.remember_outcome(at(other, BEGIN), A, zones.GIVEN)
    assert [one.outcome for one in zones.outcomes_of(other)] == ["GIVEN"]
    assert [one.outcome for one in zones.outcomes_of(site_on(cloud, tmp_path))] == ["ZONE_REFUSED"]


async def test_another_project_knows_nothing_of_it(tmp_path: Path) -> None:
    """Its quotas and its access to zones are others."""
    cloud = Cloud()
    await zones.remember_outcome(at(site_on(cloud, tmp_path), BEGIN), A, zones.GIVEN)
    assert zones.outcomes_of(site_on(cloud, tmp_path, google_cloud_project="other")) == ()


async def test_only_the_last_few_of_a_place_are_kept(tmp_path: Path) -> None:
    """The file never grows beyond a few rows for each place."""
    site = site_on(Cloud(), tmp_path)
    for number in range(8):
        await zones.remember_outcome(at(site, BEGIN), A, zones.TIMED_OUT, str(number))
    await zones.remember_outcome(at(site, BEGIN), B, zones.GIVEN)
    assert [one.detail for one in zones.outcomes_of(site, A)] == ["7", "6", "5"]


async def test_servers_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """One after the other has its turn."""
    site = site_on(Cloud(), tmp_path)
    async with anyio.create_task_group() as group:
        for place in (A, B, C):
            group.start_soon(zones.remember_outcome, site, place, zones.GIVEN)
    assert {one.place for one in zones.outcomes_of(site)} == {A, B, C}


async def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    """It is a help, not a truth."""
    site = site_on(Cloud(), tmp_path)
    site.shared.mkdir(parents=True)
    (site.shared / "zones.json").write_text("{]")
    assert zones.outcomes_of(site) == ()
    await zones.remember_outcome(site, A, zones.GIVEN)
    assert len(zones.outcomes_of(site)) == 1
