"""The simulated Cloud Quotas, asked by Google's own client."""

from typing import Any

import pytest
from google.api_core import exceptions

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_L4 = "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion"
_RTX = "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion"


@pytest.fixture
def quotas(google: Google) -> Any:
    return google.client("google.cloud.cloudquotas_v1", "cloud_quotas", "CloudQuotasAsyncClient")


def _service(project: str) -> str:
    return f"projects/{project}/locations/global/services/run.googleapis.com"


async def _limits(quotas: Any, project: str, quota_id: str) -> dict[str, int]:
    """Each region's limit: by its dimension, else by where it applies."""
    info = await quotas.get_quota_info(name=f"{_service(project)}/quotaInfos/{quota_id}")
    return {
        region: row.details.value
        for row in info.dimensions_infos
        for region in ([row.dimensions["region"]] if row.dimensions else row.applicable_locations)
    }


@pytest.mark.parametrize("quota_id", [_L4, _RTX])
async def test_a_project_that_never_used_a_gpu_has_no_quota_of_it(
    quotas: Any, project: str, controls: Controls, quota_id: str
) -> None:
    """Google has not published how that is told: any of three ways."""
    with pytest.raises(exceptions.NotFound):
        await _limits(quotas, project, quota_id)
    controls.set(project, unused_quota="no-row")
    assert await _limits(quotas, project, quota_id) == {}
    controls.set(project, unused_quota="zero")
    assert set((await _limits(quotas, project, quota_id)).values()) == {0}


async def test_rtx_is_told_in_thousandths_and_l4_whole(
    quotas: Any, project: str, controls: Controls
) -> None:
    """One GPU of the one is 1000, of the other 1."""
    controls.set(project, quotas={"l4": 1, "rtx-pro-6000": 1})
    assert (await _limits(quotas, project, _L4))["us-central1"] == 1
    assert (await _limits(quotas, project, _RTX))["us-central1"] == 1000


async def test_zonal_redundancy_has_a_quota_of_its_own(quotas: Any, project: str) -> None:
    """Which is nothing, by default."""
    assert set((await _limits(quotas, project, "NvidiaL4GpuAllocPerProjectRegion")).values()) == {0}


async def test_a_region_without_the_gpu_is_not_named(
    quotas: Any, project: str, controls: Controls
) -> None:
    """Nothing is said of it."""
    controls.set(project, quotas={"rtx-pro-6000": 1})
    assert "europe-west1" not in await _limits(quotas, project, _RTX)


async def test_cpu_and_memory_are_limited_too(
    quotas: Any, project: str, controls: Controls
) -> None:
    """CPU in thousandths, memory in bytes."""
    controls.set(project, quotas={"cpu": 20, "memory_gib": 40})
    assert (await _limits(quotas, project, "CpuAllocPerProjectRegion"))["us-central1"] == 20_000
    memory = await _limits(quotas, project, "MemAllocPerProjectRegion")
    assert memory["us-central1"] == 42_949_672_960


async def test_an_unknown_quota_is_not_found(quotas: Any, project: str) -> None:
    """Nor is one of another service."""
    with pytest.raises(exceptions.NotFound):
        await _limits(quotas, project, "NvidiaB200GpuAllocPerProjectRegion")


async def test_all_of_them_are_listed(quotas: Any, project: str, controls: Controls) -> None:
    """Over pages."""
    controls.set(project, quotas={"l4": 1, "rtx-pro-6000": 1})
    pager = await quotas.list_quota_infos(request={"parent": _service(project), "page_size": 4})
    assert len([info async for info in pager]) == 6


async def test_quotas_are_kept_at_no_region(quotas: Any, project: str) -> None:
    """Their location is global."""
    with pytest.raises(exceptions.InvalidArgument):
        await quotas.list_quota_infos(
            request={"parent": _service(project).replace("global", "us-central1")}
        )
