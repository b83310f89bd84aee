"""Pools of quota: the entry that counts, defaults that are opposite, and what is not known."""

from collections.abc import Mapping, Sequence

import pytest
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaDetails, QuotaInfo

from backends.tpu import zones
from backends.tpu.planes import Place, PlaneKind, Provisioning
from backends.tpu.zones import NO_LIMIT, Counting, room_for

FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region"
PREEMPTIBLE = "PREEMPTIBLE-TPU-V6E-per-project-region"
ZONAL, REGIONAL = "TPUV6EPerProjectPerZoneForTPUAPI", "TPUV6EPerProjectPerRegionForTPUAPI"
GATE = "GPUS-ALL-REGIONS-per-project"

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


def limits(of: Mapping[str, QuotaInfo]) -> Counting:
    """Make what was read; what is not named the project does not have."""
    names = [pool.id for pool in zones.pool_data().pools]
    return Counting({**dict.fromkeys([*names, GATE]), **of}, None)


def told(
    found: Counting,
    plane: PlaneKind = "compute",
    provisioning: Provisioning = "on-demand",
    zone: str = "us-east5-b",
) -> dict[str, float | None]:
    room = room_for(found, Place(zone, plane), provisioning, 0)
    return {row.pool.id: row.limit for row in room.rows}


def test_chips_on_demand_and_preemptible_ones_are_counted_in_pools_of_their_own() -> None:
    """Spot and flex-start are preemptible, and each control plane counts for itself."""
    found = {
        (plane, way): [
            one.id for one in zones.pool_data().pools if one.plane == plane and way in one.counts
        ]
        for plane in ("queued", "compute")
        for way in ("on-demand", "spot", "flex-start")
    }
    assert found["compute", "on-demand"] == [FAMILY]
    assert found["compute", "spot"] == found["compute", "flex-start"] == [PREEMPTIBLE]
    assert found["queued", "on-demand"] == [ZONAL, REGIONAL]
    assert found["queued", "spot"] == found["queued", "flex-start"]
    assert not set(found["queued", "spot"]) & set(found["queued", "on-demand"])


def test_the_defaults_of_the_two_pools_of_compute_engine_are_opposite() -> None:
    """Without an entry for the region the family has none, and preemptible chips 1536."""
    empty = limits(of={FAMILY: info(), PREEMPTIBLE: info()})
    assert told(empty) == {FAMILY: 0}
    assert told(empty, provisioning="spot") == {PREEMPTIBLE: 1536}


def test_an_entry_of_another_family_is_not_ours() -> None:
    """The same quota counts every generation of chips."""
    other = ({"region": "us-east5", "tpu_family": "CT5LP"}, ["us-east5"], 64)
    ours = ({"region": "us-east5", "tpu_family": "CT6E"}, ["us-east5"], 32)
    assert told(limits(of={FAMILY: info(other)})) == {FAMILY: 0}
    assert told(limits(of={FAMILY: info(other, ours)})) == {FAMILY: 32}


def test_the_entry_of_the_place_goes_before_one_that_applies_to_it() -> None:
    general: Entry = ({}, ["us-east5-a", "us-east5-b"], 16)
    own: Entry = ({"zone": "us-east5-b"}, [], 0)
    found = limits(of={ZONAL: info(general, own)})
    assert told(found, "queued") == {ZONAL: 0}
    assert told(found, "queued", zone="us-east5-a") == {ZONAL: 16}


def test_minus_one_is_no_limit() -> None:
    assert told(
        limits(of={FAMILY: info(({"region": "us-east5", "tpu_family": "CT6E"}, [], -1))})
    ) == {FAMILY: NO_LIMIT}


def test_what_a_quota_of_the_queue_does_not_name_is_not_known_and_not_0() -> None:
    place = Place("us-east5-b", "queued")
    room = room_for(limits(of={ZONAL: info()}), place, "on-demand", 1)
    (zonal,) = room.rows
    assert (room.enough, zonal.limit, "us-east5-b" in zonal.detail) == (None, None, True)


def test_a_quota_that_the_project_does_not_have_is_not_known_but_its_twin_is_left_out() -> None:
    """Some projects have no limit for each region beside that for each zone."""
    assert told(limits(of={}), "queued") == {ZONAL: None}


def test_flex_start_may_count_as_standard_on_compute_engine_alone() -> None:
    """Google's words are of VMs of Compute Engine."""
    found = limits(of={FAMILY: info(({"region": "us-east5", "tpu_family": "CT6E"}, [], 8))})
    place = Place("us-east5-b", "compute")
    empty = {PREEMPTIBLE: info(({"region": "us-east5"}, [], 0))}
    found = found._replace(read={**found.read, **empty})
    flex = room_for(found, place, "flex-start", 4)
    assert (flex.enough, [row.limit for row in flex.rows]) == (True, [8])
    assert room_for(found, place, "spot", 4).enough is False


@pytest.mark.parametrize(("value", "shut"), [(0, True), (1, False), (-1, False)])
def test_no_gpu_in_any_region_shuts_tpus_out_as_well(value: int, *, shut: bool) -> None:
    assert limits(of={GATE: info(({}, ["global"], value))}).shut is shut


def test_a_gate_that_nobody_reads_shuts_nothing() -> None:
    assert limits(of={}).shut is False
