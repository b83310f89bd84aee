"""Quota: the pools that count, what is in use, and unknown where nobody tells."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaDetails, QuotaInfo

from backends.tpu import zones
from backends.tpu.site import Chip, ChipState, Place, Provisioning
from backends.tpu.zones import NO_LIMIT, Counting, room_for
from core.errors import NotAuthenticated
from core.settings import GooglePlane
from tests.backends.tpu.planted import NO_CHIP, foreign, ours, until
from tests.backends.tpu.sites import fault, offline, opened
from tests.google_plane import Controls

FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region"
PREEMPTIBLE = "PREEMPTIBLE-TPU-V6E-per-project-region"
HERE, QUEUE = Place("us-east5-b", "compute"), Place("us-east5-b", "queued")
ZONAL, REGIONAL = "TPUV6EPerProjectPerZoneForTPUAPI", "TPUV6EPerProjectPerRegionForTPUAPI"
Entry = tuple[Mapping[str, str], Sequence[str], int]


def info(*entries: Entry) -> QuotaInfo:
    """Make a quota of (dimensions, places that it applies to, limit)."""
    return QuotaInfo(
        dimensions_infos=[
            DimensionsInfo(
                dimensions=said, applicable_locations=places, details=QuotaDetails(value=value)
            )
            for said, places, value in entries
        ]
    )


def limits_of(of: Mapping[str, QuotaInfo]) -> Counting:
    """Make what was read; what is not named the project does not have."""
    names = [pool.id for pool in zones.pools()]
    return Counting({**dict.fromkeys(names), **of}, None)


def test_chips_on_demand_and_preemptible_ones_are_counted_in_pools_of_their_own() -> None:
    """Spot and flex-start are preemptible, and each control plane counts for itself."""
    found = {
        (plane, way): [one.id for one in zones.pools() if one.plane == plane and way in one.counts]
        for plane in ("queued", "compute")
        for way in ("on-demand", "spot", "flex-start")
    }
    assert found["compute", "on-demand"] == [FAMILY]
    assert found["compute", "spot"] == found["compute", "flex-start"] == [PREEMPTIBLE]
    assert found["queued", "on-demand"] == [ZONAL, REGIONAL]
    assert found["queued", "spot"] == found["queued", "flex-start"]
    assert not set(found["queued", "spot"]) & set(found["queued", "on-demand"])


def family(limit: int, name: str = "CT6E") -> Entry:
    return ({"region": "us-east5", "tpu_family": name}, ["us-east5"], limit)


EMPTY: Final = {FAMILY: info(), PREEMPTIBLE: info()}
NEAR: Final = {ZONAL: info(({}, ["us-east5-a", "us-east5-b"], 16), ({"zone": "us-east5-b"}, [], 0))}
STANDBY: Final = {FAMILY: info(family(8)), PREEMPTIBLE: info(({"region": "us-east5"}, [], 0))}
Limits = dict[str, float | None]


@pytest.mark.parametrize(
    ("of", "place", "way", "chips", "enough", "limits"),
    [
        # Without an entry for the region the family has none, and preemptible chips 1536.
        (EMPTY, HERE, "on-demand", 1, False, {FAMILY: 0}),
        (EMPTY, HERE, "spot", 1, True, {PREEMPTIBLE: 1536}),
        # The same quota counts every generation of chips.
        ({FAMILY: info(family(64, "CT5LP"))}, HERE, "on-demand", 1, False, {FAMILY: 0}),
        (
            {FAMILY: info(family(64, "CT5LP"), family(32))},
            *(HERE, "on-demand", 1, True, {FAMILY: 32}),
        ),
        # The entry of the place goes before one that applies to it.
        (NEAR, QUEUE, "on-demand", 1, False, {ZONAL: 0}),
        (NEAR, Place("us-east5-a", "queued"), "on-demand", 1, True, {ZONAL: 16}),
        ({FAMILY: info(family(-1))}, HERE, "on-demand", 999, True, {FAMILY: NO_LIMIT}),
        # What a quota of the queue does not name is not known, and not 0.
        ({ZONAL: info()}, QUEUE, "on-demand", 1, None, {ZONAL: None}),
        # A quota that the project does not have is left out; with none it is not known.
        ({ZONAL: info(({"zone": "us-east5-b"}, [], 8))}, QUEUE, "on-demand", 8, True, {ZONAL: 8}),
        ({}, QUEUE, "on-demand", 1, None, {}),
        ({FAMILY: info(family(4))}, HERE, "on-demand", 4, True, {FAMILY: 4}),
        ({FAMILY: info(family(4))}, HERE, "on-demand", 5, False, {FAMILY: 4}),
        # Flex-start may count as standard: Google's words are of VMs of Compute Engine.
        (STANDBY, HERE, "flex-start", 4, True, {FAMILY: 8}),
        (STANDBY, HERE, "spot", 4, False, {PREEMPTIBLE: 0}),
    ],
)
def test_what_the_pools_of_a_place_allow(
    of: Mapping[str, QuotaInfo],
    place: Place,
    way: Provisioning,
    chips: int,
    *,
    enough: bool | None,
    limits: Limits,
) -> None:
    room = room_for(limits_of(of), place, way, chips)
    assert (room.enough, {row.pool.id: row.limit for row in room.rows}) == (enough, limits)


@pytest.mark.parametrize(("way", "used"), [("on-demand", 4), ("spot", 0), (None, None)])
def test_what_is_in_use_is_not_known_where_a_request_does_not_tell_its_way(
    way: Provisioning | None, used: int | None
) -> None:
    """A colleague's flex-start looks to v2 of the queue as one on demand does."""
    others = Chip(
        place=QUEUE,
        id="a-colleagues",
        state=ChipState.RUNNING,
        said="ACTIVE",
        accelerator="v6e-4",
        chips=4,
        provisioning=way,
        created_at=datetime.now(UTC),
    )
    counting = limits_of({ZONAL: info(({"zone": "us-east5-b"}, [], 8))})._replace(chips=[others])
    (row,) = room_for(counting, QUEUE, "on-demand", 1).rows
    assert row.used == used


pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]


async def test_the_control_plane_with_more_room_goes_first(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, tpu_quotas={"tpu": 16, "compute": 32})
    async with opened(plane, project) as site:
        rows = await zones.read_quotas(site)
    assert [(row.quota, row.region, row.limit) for row in rows] == [
        (FAMILY, "us-east5", 32),
        (ZONAL, "us-east5-b", 16),
        (REGIONAL, "us-east5", 16),
    ]
    controls.set(project, tpu_quotas={"tpu": 16, "compute": 0})
    async with opened(plane, project) as site:
        rows = await zones.read_quotas(site)
    assert [row.limit for row in rows] == [16, 16, 0]


async def test_of_the_pools_of_one_plane_the_tightest_goes_first(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Both must have room: the region's may be less than the zone's."""
    controls.set(project, tpu_quotas={"tpu@us-east5-b": 64, "tpu@us-east5": 8, "compute": 0})
    async with opened(plane, project) as site:
        first, second, _third = await zones.read_quotas(site)
    assert (first.limit, second.limit) == (8, 64)


async def test_flex_start_without_preemptible_quota_counts_as_standard(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Only there, and only on Compute Engine."""
    controls.set(project, tpu_quotas={"compute-preemptible": 0, "tpu-preemptible": 0, "compute": 8})
    async with opened(plane, project, "tpu-v6e-4-flex") as site:
        first = (await zones.read_quotas(site))[0]
    assert (first.quota, first.limit) == (FAMILY, 8)
    async with opened(plane, project, "tpu-v6e-4-spot") as site:
        rows = await zones.read_quotas(site)
    assert FAMILY not in {row.quota for row in rows}
    assert {row.limit for row in rows} == {0}


async def test_chips_of_others_and_leftovers_are_in_use(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A leftover holds its quota until somebody deletes it; others' requests tell no way."""
    controls.set(project, tpu_clock=6000, tpu_zones={"us-east5-b": NO_CHIP})
    async with opened(plane, project, "tpu-v6e-4") as site:
        await ours(site)
        await until(site, "vllm-devops-gemma", ChipState.FAILED)
        left = {row.quota: row.in_use for row in await zones.read_quotas(site)}
        await foreign(site, "theirs")
        await until(site, "theirs", ChipState.FAILED)
        both = {row.quota: row.in_use for row in await zones.read_quotas(site)}
    assert left == {ZONAL: 4, REGIONAL: 4, FAMILY: 0}
    assert both == {ZONAL: None, REGIONAL: None, FAMILY: 0}


async def test_preemptible_chips_use_nothing_of_the_other_pool(
    plane: GooglePlane, project: str
) -> None:
    """Nor do those of one control plane use what the other counts."""
    async with opened(plane, project, "tpu-v6e-4-spot") as site:
        await ours(site)
        rows = await zones.read_quotas(site)
    assert {row.quota: row.in_use for row in rows} == {
        PREEMPTIBLE: 0,
        "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": 4,
        "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI": 4,
    }
    async with opened(plane, project, "tpu-v6e-1") as site:
        assert {row.in_use for row in await zones.read_quotas(site)} == {0}


async def test_what_is_in_use_is_not_known_where_tpus_cannot_be_listed(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    refused = [fault("Tpu/List*", "INTERNAL", times=-1), fault("compute.instances.*", times=-1)]
    controls.set(project, faults=refused)
    async with opened(plane, project) as site:
        rows = await zones.read_quotas(site)
    assert {row.in_use for row in rows} == {None}
    assert all("not known" in row.detail for row in rows)


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAVAILABLE", "INTERNAL"])
async def test_a_quota_that_cannot_be_read_is_unknown_and_says_why(
    plane: GooglePlane, project: str, controls: Controls, status: str
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", status, times=-1)])
    async with opened(plane, project) as site:
        rows = await zones.read_quotas(site)
    assert {row.limit for row in rows} == {None}
    assert all(row.detail for row in rows)


async def test_without_a_login_the_whole_is_an_error_that_says_how_to_log_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row for each pool would say why, and not what to do."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent")
    with pytest.raises(NotAuthenticated) as nobody:
        await zones.read_quotas(offline())
    assert "gcloud auth application-default login" in nobody.value.fix


async def test_targets_that_are_asked_together_read_every_quota_once(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> None:
    """Google counts readings; nine targets ask for the same six pools."""
    for target in ("tpu-v6e-1", "tpu-v6e-4-spot", "tpu-v6e-8-flex"):
        async with opened(plane, project, target, folder=tmp_path) as site:
            await zones.read_quotas(site)
    calls = [one for one in controls.get(project)["calls"] if one.endswith("GetQuotaInfo")]
    assert len(calls) == len(zones.pools())
