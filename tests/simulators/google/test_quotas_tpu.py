"""The simulated quotas of TPUs: two services whose pools and defaults are not alike."""

from typing import Any, Final

import pytest

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_TPU: Final = "tpu.googleapis.com"
_COMPUTE: Final = "compute.googleapis.com"
_FAMILY: Final = "TPUS-PER-TPU-FAMILY-per-project-region"
_PREEMPTIBLE: Final = "PREEMPTIBLE-TPU-V6E-per-project-region"
_BY_ZONE: Final = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"


@pytest.fixture
def quotas(google: Google) -> Any:
    return google.client("google.cloud.cloudquotas_v1", "cloud_quotas", "CloudQuotasAsyncClient")


async def _rows(quotas: Any, project: str, service: str, quota_id: str) -> dict[str, int]:
    """Limits by place; that of all others by nothing."""
    parent = f"projects/{project}/locations/global/services/{service}"
    info = await quotas.get_quota_info(name=f"{parent}/quotaInfos/{quota_id}")
    places = [dict(one.dimensions) for one in info.dimensions_infos]
    return {
        place.get("region") or place.get("zone") or "": row.details.value
        for place, row in zip(places, info.dimensions_infos, strict=True)
    }


async def test_the_api_counts_chips_by_zone(quotas: Any, project: str, controls: Controls) -> None:
    """16 are usual; a zone may have a limit of its own."""
    assert await _rows(quotas, project, _TPU, _BY_ZONE) == {"": 16}
    controls.set(project, tpu_quotas={"tpu-preemptible@us-east5-b": 0})
    assert await _rows(quotas, project, _TPU, _BY_ZONE) == {"us-east5-b": 0, "": 16}
    on_demand = _BY_ZONE.replace("Preemptible", "")
    assert await _rows(quotas, project, _TPU, on_demand) == {"": 16}


async def test_on_demand_a_region_without_an_entry_has_none(
    quotas: Any, project: str, controls: Controls
) -> None:
    """Of a family on Compute Engine."""
    assert (await _rows(quotas, project, _COMPUTE, _FAMILY))["us-east5"] == 32
    controls.set(project, tpu_quotas={"compute@us-east5": 0})
    rows = await _rows(quotas, project, _COMPUTE, _FAMILY)
    assert ("us-east5" in rows, rows["europe-west4"], rows[""]) == (False, 32, 0)


async def test_preemptible_a_region_without_an_entry_has_many(
    quotas: Any, project: str, controls: Controls
) -> None:
    """The opposite default."""
    assert await _rows(quotas, project, _COMPUTE, _PREEMPTIBLE) == {"": 1536}
    controls.set(project, tpu_quotas={"compute-preemptible@us-east5": 0})
    assert await _rows(quotas, project, _COMPUTE, _PREEMPTIBLE) == {"us-east5": 0, "": 1536}
    by_zone = _PREEMPTIBLE.replace("region", "zone")
    assert await _rows(quotas, project, _COMPUTE, by_zone) == {"": -1}


async def test_the_family_is_a_dimension(quotas: Any, project: str) -> None:
    """Beside the region."""
    parent = f"projects/{project}/locations/global/services/{_COMPUTE}"
    info = await quotas.get_quota_info(name=f"{parent}/quotaInfos/{_FAMILY}")
    assert list(info.dimensions) == ["region", "tpu_family"]
    assert {one.dimensions["tpu_family"] for one in info.dimensions_infos[:-1]} == {"CT6E"}


async def test_all_accelerators_together_are_limited_too(
    quotas: Any, project: str, controls: Controls
) -> None:
    """By a quota that a new project has none of."""
    controls.set(project, tpu_quotas={"gpus-all-regions": 0})
    rows = await _rows(quotas, project, _COMPUTE, "GPUS-ALL-REGIONS-per-project")
    assert rows == {"": 0}


async def test_each_service_lists_its_own(quotas: Any, project: str) -> None:
    """Four of each; other services have none of TPUs."""
    parent = f"projects/{project}/locations/global/services"
    for service, many in ((_TPU, 4), (_COMPUTE, 4), ("logging.googleapis.com", 0)):
        pager = await quotas.list_quota_infos(parent=f"{parent}/{service}")
        assert len([one async for one in pager]) == many
