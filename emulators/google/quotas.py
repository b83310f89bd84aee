"""Cloud Quotas v1: what Cloud Run may use in a region, and TPUs of both their APIs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio
from google.cloud.cloudquotas_v1.types import (
    DimensionsInfo,
    GetQuotaInfoRequest,
    ListQuotaInfosRequest,
    ListQuotaInfosResponse,
    ListQuotaPreferencesRequest,
    ListQuotaPreferencesResponse,
    QuotaConfig,
    QuotaDetails,
    QuotaIncreaseEligibility,
    QuotaInfo,
    QuotaPreference,
)

from emulators.google import quotas_tpu
from emulators.google.paging import page_of
from emulators.google.refusing import invalid, not_found
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

SERVICE: Final = "run.googleapis.com"
GIB: Final = 2**30
FIRST_GRANT: Final = 3
"""GPUs without zonal redundancy that a project's first deployment in a region is given. Source:
Google's page on GPUs of Cloud Run, as quoted in public notes of 2025 and 2026."""


@dataclass(frozen=True, slots=True)
class Known:
    """One quota of Cloud Run."""

    display: str
    knob: str
    """Name in the project's `quotas`."""
    usual: int | None
    """In the knob's unit, where nothing is set; None is nothing before the first deployment."""
    factor: int
    """Of the API's unit in one of the knob's."""
    regions: tuple[str, ...]


_L4: Final = ("us-central1", "us-east4", "europe-west1", "europe-west4", "asia-southeast1")
_RTX: Final = ("us-central1", "europe-west4", "asia-southeast1")
_ALL: Final = (*_L4, "us-east1", "us-west1", "europe-north1", "asia-south1", "asia-northeast1")

KNOWN: Final[Mapping[str, Known]] = {
    "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion": Known(
        "Total Nvidia L4 GPU allocation without zonal redundancy", "l4", None, 1, _L4
    ),
    "NvidiaL4GpuAllocPerProjectRegion": Known(
        "Total Nvidia L4 GPU allocation with zonal redundancy", "l4-zonal", 0, 1, _L4
    ),
    "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion": Known(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, without zonal redundancy",
        "rtx-pro-6000",
        None,
        1000,
        _RTX,
    ),
    "NvidiaRtxPro6000GpuAllocPerProjectRegion": Known(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, with zonal redundancy",
        "rtx-pro-6000-zonal",
        0,
        1000,
        _RTX,
    ),
    "CpuAllocPerProjectRegion": Known(
        "Total CPU allocation, in milli vCPU", "cpu", 200, 1000, _ALL
    ),
    "MemAllocPerProjectRegion": Known(
        "Total memory allocation, in bytes", "memory_gib", 400, GIB, _ALL
    ),
}
"""Units and ids: readings of Cloud Quotas and refusals of 2026 by Google; a project that is new to
billing has 20 vCPU and 40 GiB in place of 200 and 400."""
_NAME: Final = re.compile(
    r"^projects/[^/]+/locations/global/services/(?P<service>[^/]+)(/quotaInfos/(?P<id>[^/]+))?$"
)


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "GetQuotaInfo": unary(GetQuotaInfoRequest, QuotaInfo, _get, "cloudquotas.quotas.get"),
        "ListQuotaInfos": unary(
            ListQuotaInfosRequest, ListQuotaInfosResponse, _list, "cloudquotas.quotas.get"
        ),
        "ListQuotaPreferences": unary(
            ListQuotaPreferencesRequest,
            ListQuotaPreferencesResponse,
            _preferences,
            "cloudquotas.quotas.get",
        ),
    }
    api = "cloudquotas.googleapis.com"
    add(server, world, "google.api.cloudquotas.v1.CloudQuotas", methods, api=api)


def limit(project: Project, quota_id: str, region: str) -> int | None:
    """Return a limit in the unit of the API; None before the first deployment there."""
    known = KNOWN[quota_id]
    granted = FIRST_GRANT if (quota_id, region) in project.granted_quotas else known.usual
    value = project.knobs.quotas.get(known.knob, granted)
    return None if value is None else value * known.factor


def grant(project: Project, quota_id: str, region: str) -> None:
    """Give a project what the first deployment in a region is given."""
    project.granted_quotas.add((quota_id, region))


async def _get(_world: World, project: Project, request: GetQuotaInfoRequest) -> QuotaInfo:
    service, quota_id = _parts(request.name)
    found = next((one for one in _infos(project, service) if one.quota_id == quota_id), None)
    if found is None:
        raise not_found("Quota", request.name)
    return found


async def _list(
    _world: World, project: Project, request: ListQuotaInfosRequest
) -> ListQuotaInfosResponse:
    service, _none = _parts(request.parent)
    page, token = page_of(
        _infos(project, service), request.page_size, request.page_token, most=500, usual=50
    )
    return ListQuotaInfosResponse(quota_infos=page, next_page_token=token)


def _infos(project: Project, service: str) -> Sequence[QuotaInfo]:
    if service == SERVICE:
        return [info for one in KNOWN if (info := _told(project, one))]
    return quotas_tpu.infos(project, service)


def _parts(name: str) -> tuple[str, str]:
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"Invalid resource name: {name}; its location must be global.")
    return found["service"], found["id"] or ""


async def _preferences(
    _world: World, project: Project, request: ListQuotaPreferencesRequest
) -> ListQuotaPreferencesResponse:
    """Tell what was once asked for: whatever the rehearsal has set."""
    rows = [
        QuotaPreference(
            name=f"{request.parent}/quotaPreferences/{_snake(quota_id)}",
            service=SERVICE,
            quota_id=quota_id,
            quota_config=QuotaConfig(preferred_value=value, granted_value=value),
        )
        for quota_id, known in KNOWN.items()
        if known.knob in project.knobs.quotas
        for value in [project.knobs.quotas[known.knob] * known.factor]
    ]
    page, token = page_of(rows, request.page_size, request.page_token, most=500, usual=50)
    return ListQuotaPreferencesResponse(quota_preferences=page, next_page_token=token)


def _told(project: Project, quota_id: str) -> QuotaInfo | None:
    known, unused = KNOWN[quota_id], project.knobs.unused_quota
    values = {region: limit(project, quota_id, region) for region in known.regions}
    shown = {
        region: value or 0
        for region, value in values.items()
        if value is not None or unused == "zero"
    }
    if not shown and unused == "absent":
        return None
    service = f"projects/{project.number}/locations/global/services/{SERVICE}"
    return QuotaInfo(
        name=f"{service}/quotaInfos/{quota_id}",
        quota_id=quota_id,
        metric=f"{SERVICE}/{_snake(quota_id)}",
        service=SERVICE,
        container_type=QuotaInfo.ContainerType.PROJECT,
        dimensions=["region"],
        quota_display_name=f"{known.display}, per project per region",
        metric_unit="1",
        quota_increase_eligibility=QuotaIncreaseEligibility(is_eligible=any(shown.values())),
        dimensions_infos=list(_rows(shown)),
    )


def _rows(shown: Mapping[str, int]) -> Iterator[DimensionsInfo]:
    """Give the first region a row of its own, and each value of the others one for them all."""
    for first in list(shown)[:1]:
        details = QuotaDetails(value=shown[first])
        yield DimensionsInfo(
            dimensions={"region": first}, details=details, applicable_locations=[first]
        )
    others = list(shown)[1:]
    for value in dict.fromkeys(shown[region] for region in others):
        same = [region for region in others if shown[region] == value]
        yield DimensionsInfo(details=QuotaDetails(value=value), applicable_locations=same)


def _snake(name: str) -> str:
    words = re.sub(r"PerProjectRegion$", "", name)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words).lower()
