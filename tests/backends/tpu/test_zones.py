"""Zones: what can be seen of each and what asking came to, the promising first."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from backends.base import Zone
from backends.tpu import zones
from backends.tpu.site import GIVEN, TIMED_OUT, Place, Site
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.tpu.fake_planes import BEGIN, Cloud
from tests.backends.tpu.searches import A as IN_A
from tests.backends.tpu.searches import B as IN_B
from tests.backends.tpu.searches import C as IN_C
from tests.backends.tpu.searches import at, site_on
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
B, A, EU = "us-east5-b", "us-east5-a", "europe-west4-a"
ONE, FLEX = "tpu-v6e-1", "tpu-v6e-1-flex"
EMPTY: Final = {"accelerators": ()}


def named(rows: Sequence[Zone], zone: str) -> Zone:
    (row,) = [one for one in rows if one.zone == zone]
    return row


async def seen(site: Site, zone: str = B) -> Zone:
    return named(await zones.list_zones(site), zone)


class Case(NamedTuple):
    """What is known of a zone, and what is seen of it."""

    seen: tuple[bool | None, bool | None, bool | None]
    """Hardware, accepts, usable."""
    words: tuple[str, ...] = ()
    """Of its verdict."""
    target: str = FLEX
    zone: str = "us-east1-d"
    knobs: Mapping[str, Any] = {}
    ended: str = ""
    """How a request of this way of giving ended there, by either control plane."""
    days_ago: int = 0


CASES: Final = {
    # Capacity is not to be seen: the verdict says so.
    "nothing stands against it": Case((True, True, True), ("only when one is asked for",), ONE, B),
    "no hardware": Case((False, True, False), (), ONE, B, {"tpu_zones": {B: EMPTY, A: {}}}),
    # Which control plane can be used is in the verdict, and why the other cannot.
    "no pool": Case((True, True, True), ("against queued resource.",
                    "Compute Engine: no, TPUS-PER-TPU-FAMILY"), ONE, B,
                    {"tpu_quotas": {"compute": 0}}),
    # Hardware is there, in three zones the queue was seen to give it so; others are documented.
    "seen": Case((True, True, True), ("Compute Engine: not known",), zone=A),
    "documented": Case((False, None, False), zone="us-central1-a"),
    "nobody has seen it": Case((True, None, None), ("shows only when it is asked",)),
    "refused": Case((True, False, False), ("FLEX_START is not",), zone=B, ended="ZONE_REFUSED"),
    # Zones open in time.
    "refused long ago": Case((True, None, None), ended="ZONE_REFUSED", days_ago=30),
    # That no chip came tells of the capacity of that hour, and of nothing today.
    **{one: Case((True, True, True), ended=one) for one in ("GIVEN", "TIMED_OUT", "NO_CAPACITY")},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a_zone_is_told_as_it_is_seen(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    controls.set(project, **case.knobs)
    at_that_time = datetime.now(UTC) - timedelta(days=case.days_ago)
    async with opened(plane, project, case.target, folder=tmp_path) as site:
        for kind in site.planes if case.ended else ():
            place = Place(case.zone, kind)
            await zones.remember_outcome(
                at(site, at_that_time), place, case.ended, "FLEX_START is not …"
            )
        rows = await zones.list_zones(site)
        row = named(rows, case.zone)
    assert (row.hardware, row.accepts, row.usable) == case.seen
    assert [one for one in case.words if one not in row.verdict] == []
    assert {one.control_plane for one in row.quotas} == {"queued resource", "Compute Engine"}
    assert {one.minutes_ago for one in row.outcomes} <= {case.days_ago * 24 * 60}
    assert [one.provisioning for one in row.outcomes] == ["flex-start"] * len(row.outcomes)
    order = [one.usable for one in rows]
    assert order == sorted(order, key=[True, None, False].index)


async def test_a_refusal_that_was_met_here_counts_for_its_way_of_giving_alone(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    async with opened(plane, project, FLEX, folder=tmp_path) as site:
        for kind in site.planes:
            await zones.remember_outcome(site, Place(B, kind), "ZONE_REFUSED")
    async with opened(plane, project, "tpu-v6e-1-spot", folder=tmp_path) as site:
        assert (await seen(site)).usable is True


async def test_where_a_chip_was_given_last_goes_first(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    async with opened(plane, project, folder=tmp_path) as site:
        assert (await zones.list_zones(site))[0].zone == B
        await zones.remember_outcome(site, Place(EU, "compute"), "GIVEN")
        assert (await zones.list_zones(site))[0].zone == EU


async def test_what_cannot_be_read_is_not_known_and_says_why(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It is neither a pass nor a no; zones that are known are shown all the same."""
    refused = ("compute.machineTypes.*", "Tpu/ListAccelerator*", "Tpu/GetAccelerator*")
    controls.set(project, faults=[fault(one, "INTERNAL", times=-1) for one in refused])
    async with opened(plane, project) as site:
        with collecting_notes() as notes:
            row = await seen(site)
    assert (row.hardware, row.usable) == (None, None)
    assert "not known" in row.verdict
    assert any("list the zones" in said for said in notes)


async def test_a_zone_that_does_not_answer_keeps_no_other_waiting(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is one for all of them."""
    monkeypatch.setattr(zones, "_SECONDS", 0.5)
    async with opened(plane, project) as site:
        offer = type(site.planes["queued"]).offer

        async def slow(self: Any, zone: str, accelerator: str) -> Any:
            if zone == B:
                await anyio.sleep_forever()
            return await offer(self, zone, accelerator)

        monkeypatch.setattr(type(site.planes["queued"]), "offer", slow)
        rows = await zones.list_zones(site)
    assert "no answer within" in named(rows, B).verdict
    assert named(rows, A).hardware is True


async def test_the_newest_of_each_place_counts(tmp_path: Path) -> None:
    """The file never grows beyond a row for each place."""
    site = site_on(Cloud(), tmp_path)
    await zones.remember_outcome(at(site, BEGIN), IN_A, "NO_CAPACITY", "No more.")
    await zones.remember_outcome(at(site, BEGIN + timedelta(minutes=1)), IN_B, GIVEN)
    await zones.remember_outcome(at(site, BEGIN + timedelta(minutes=2)), IN_A, TIMED_OUT, "No.")
    found = zones.outcomes_of(site)
    assert {place: one.outcome for place, one in found.items()} == {
        IN_A: "TIMED_OUT",
        IN_B: "GIVEN",
    }
    last = found[IN_A]
    assert (last.detail, last.provisioning, last.accelerator) == ("No.", "on-demand", "v6e-1")
    assert last.minutes_ago(BEGIN + timedelta(minutes=92, seconds=59)) == 90
    assert last.minutes_ago(BEGIN - timedelta(minutes=5)) == 0


@pytest.mark.parametrize("target", ["tpu-v6e-1-spot", "tpu-v6e-1-flex", "tpu-v6e-4"])
async def test_another_provisioning_model_or_size_is_another_question(
    tmp_path: Path, target: str
) -> None:
    """A zone that gives no flex-start may give spot; every target writes to the same file."""
    cloud = Cloud()
    await zones.remember_outcome(at(site_on(cloud, tmp_path), BEGIN), IN_A, "ZONE_REFUSED")
    other = site_on(cloud, tmp_path, target)
    assert zones.outcomes_of(other) == {}
    await zones.remember_outcome(at(other, BEGIN), IN_A, GIVEN)
    assert [one.outcome for one in zones.outcomes_of(other).values()] == ["GIVEN"]
    assert [one.outcome for one in zones.outcomes_of(site_on(cloud, tmp_path)).values()] == [
        "ZONE_REFUSED"
    ]


async def test_another_project_knows_nothing_of_it(tmp_path: Path) -> None:
    """Its quotas and its access to zones are others."""
    cloud = Cloud()
    await zones.remember_outcome(at(site_on(cloud, tmp_path), BEGIN), IN_A, GIVEN)
    assert zones.outcomes_of(site_on(cloud, tmp_path, google_cloud_project="other")) == {}


async def test_servers_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """One after the other has its turn."""
    site = site_on(Cloud(), tmp_path)
    async with anyio.create_task_group() as group:
        for place in (IN_A, IN_B, IN_C):
            group.start_soon(zones.remember_outcome, site, place, GIVEN)
    assert {*zones.outcomes_of(site)} == {IN_A, IN_B, IN_C}


async def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    """It is a help, not a truth."""
    site = site_on(Cloud(), tmp_path)
    site.shared.mkdir(parents=True)
    (site.shared / "zones.json").write_text("{]")
    assert zones.outcomes_of(site) == {}
    await zones.remember_outcome(site, IN_A, GIVEN)
    assert len(zones.outcomes_of(site)) == 1
