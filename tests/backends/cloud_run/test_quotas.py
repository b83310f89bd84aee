"""Quotas of accelerators: the right one, in GPUs, and unknown where Google does not tell."""

from typing import Any

import pytest
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaDetails, QuotaInfo

from backends.cloud_run import checks
from backends.google.setup import limit_in
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import L4, RTX, typed
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.sites import fault, opened
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]


@pytest.mark.parametrize(
    ("target", "knob", "stem"),
    [(L4, "l4", "NvidiaL4Gpu"), (RTX, "rtx-pro-6000", "NvidiaRtxPro6000Gpu")],
)
async def test_the_quota_without_zonal_redundancy_counts_first(
    plane: GooglePlane, project: str, controls: Controls, target: str, knob: str, stem: str
) -> None:
    """In GPUs, though Google counts thousandths of the larger one."""
    denied = [fault("Services/ListServices", "PERMISSION_DENIED", times=-1)]
    controls.set(project, quotas={knob: 2}, faults=denied)
    async with opened(plane, project, target=offline(target).target) as site:
        first, second = await checks.read_quotas(site)
    assert first.quota == f"{stem}AllocNoZonalRedundancyPerProjectRegion"
    assert second.quota == f"{stem}AllocPerProjectRegion"
    assert (first.limit, first.region, first.in_use) == (2, site.clients.region, None)
    assert "not known" in first.detail


async def test_a_quota_of_nothing_counts_where_services_use_the_gpu(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It was more, and is not granted anew."""
    async with opened(plane, project, target=offline(L4).target) as site:
        run = await site.clients.run()
        made = {"parent": site.clients.parent, "service_id": "one"}
        await run.create_service({**made, "service": typed(site)})
        controls.set(project, faults=[fault("GetQuotaInfo", "NOT_FOUND", times=-1)])
        first, _second = await checks.read_quotas(site)
    assert (first.limit, first.first_grant) == (0, None)


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAVAILABLE", "INTERNAL"])
async def test_a_quota_that_cannot_be_read_is_unknown_and_says_why(
    plane: GooglePlane, project: str, controls: Controls, status: str
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", status, times=-1)])
    async with opened(plane, project) as site:
        rows = await checks.read_quotas(site)
    assert [row.limit for row in rows] == [None, None]
    assert all(row.detail for row in rows)


async def test_services_on_the_same_accelerator_are_counted_by_their_most_instances(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, target=offline(L4).target) as site:
        assert (await checks.read_quotas(site))[0].in_use == 0
        run = await site.clients.run()
        made = {"parent": site.clients.parent, "service_id": "one"}
        await run.create_service({**made, "service": typed(site, max_replicas=2)})
        first, second = await checks.read_quotas(site)
    assert first.in_use == 2
    assert second.in_use is None


def test_the_entry_of_the_region_goes_before_one_that_applies_to_it() -> None:
    rows: list[Any] = [({}, ["a", "b"], 1), ({"region": "b"}, ["b"], 5),
         ({"region": "group"}, ["a", "c"], 7)]  # fmt: skip
    entries = [
        DimensionsInfo(
            dimensions=said, applicable_locations=places, details=QuotaDetails(value=value)
        )
        for said, places, value in rows
    ]
    info = QuotaInfo(dimensions_infos=entries)
    assert [limit_in(info, region) for region in "abcd"] == [1, 5, 7, None]
