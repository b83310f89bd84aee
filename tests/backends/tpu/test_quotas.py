"""The quota of chips: both control planes, what is in use, and unknown where nobody tells."""

from pathlib import Path

import pytest

from backends.tpu import zones
from backends.tpu.planes import ChipState
from core.settings import GooglePlane
from tests.backends.tpu.planted import NO_CHIP, foreign, ours, until
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region"
PREEMPTIBLE = "PREEMPTIBLE-TPU-V6E-per-project-region"
ZONAL, REGIONAL = "TPUV6EPerProjectPerZoneForTPUAPI", "TPUV6EPerProjectPerRegionForTPUAPI"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)


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


@pytest.mark.parametrize("way", ["spot", "flex"])
async def test_spot_and_flex_start_are_counted_as_preemptible(
    plane: GooglePlane, project: str, way: str
) -> None:
    async with opened(plane, project, f"tpu-v6e-4-{way}") as site:
        names = [row.quota for row in await zones.read_quotas(site)]
    assert names[0] == PREEMPTIBLE
    assert len(names) == 3
    assert all("reemptible" in name.lower() for name in names)


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
    """A leftover holds its quota until somebody deletes it."""
    controls.set(project, tpu_clock=6000, tpu_zones={"us-east5-b": NO_CHIP})
    async with opened(plane, project, "tpu-v6e-4") as site:
        await ours(site)
        await foreign(site, "theirs")
        await until(site, "vllm-devops-gemma", ChipState.FAILED)
        rows = {row.quota: row for row in await zones.read_quotas(site)}
    assert rows[ZONAL].in_use == rows[REGIONAL].in_use == 8
    assert rows[FAMILY].in_use == 0


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


async def test_targets_that_are_asked_together_read_every_quota_once(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> None:
    """Google counts readings; nine targets ask for the same six pools and the gate."""
    for target in ("tpu-v6e-1", "tpu-v6e-4-spot", "tpu-v6e-8-flex"):
        async with opened(plane, project, target, folder=tmp_path) as site:
            await zones.read_quotas(site)
    calls = [one for one in controls.get(project)["calls"] if one.endswith("GetQuotaInfo")]
    assert len(calls) == len(zones.pool_data().pools) + 1
