"""Cloud Quotas v1 and Service Usage v1: what a project may use, and which APIs it has."""

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
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
from google.cloud.service_usage_v1.types import (
    BatchEnableServicesRequest,
    BatchEnableServicesResponse,
    BatchGetServicesRequest,
    BatchGetServicesResponse,
    EnableServiceRequest,
    EnableServiceResponse,
    GetServiceRequest,
    ListServicesRequest,
    ListServicesResponse,
    OperationMetadata,
    Service,
    ServiceConfig,
    State,
)
from google.longrunning.operations_pb2 import Operation

from simulators.google import serving, tpu_zones
from simulators.google.serving import (
    ALWAYS_ENABLED,
    Refused,
    add,
    invalid,
    not_found,
    page_of,
    unary,
)
from simulators.google.state import Project, World

TPU: Final = "tpu.googleapis.com"
COMPUTE: Final = "compute.googleapis.com"
FAMILY: Final = "CT6E"
_UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class TpuKnown:
    """One quota."""

    service: str
    pool: str
    """As in the project's `tpu_quotas`."""
    where: str
    """zone, region or nothing: what it is counted by."""
    default: int
    """Of whatever place has no entry of its own."""
    by_family: bool = False


TPU_KNOWN: Final[Mapping[str, TpuKnown]] = {
    "TPUV6EPerProjectPerZoneForTPUAPI": TpuKnown(TPU, "tpu", "zone", 16),
    "TPUV6EPerProjectPerRegionForTPUAPI": TpuKnown(TPU, "tpu", "region", 16),
    "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": TpuKnown(TPU, "tpu-preemptible", "zone", 16),
    "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI": TpuKnown(TPU, "tpu-preemptible", "region", 16),
    "TPUS-PER-TPU-FAMILY-per-project-region": TpuKnown(
        COMPUTE, "compute", "region", 0, by_family=True
    ),
    "PREEMPTIBLE-TPU-V6E-per-project-region": TpuKnown(
        COMPUTE, "compute-preemptible", "region", 1536
    ),
    "PREEMPTIBLE-TPU-V6E-per-project-zone": TpuKnown(COMPUTE, "", "zone", _UNLIMITED),
    "GPUS-ALL-REGIONS-per-project": TpuKnown(COMPUTE, tpu_zones.ALL_REGIONS, "", 0),
}
"""Ids, dimensions and defaults: readings of Cloud Quotas in public reports of 2026. A region
without an entry has 0 of a family on demand and 1536 preemptible ones."""


def infos(project: Project, service: str) -> Sequence[QuotaInfo]:
    """Give a service's quotas of TPUs; none if it has none."""
    return [
        _told_tpu(project, name, one) for name, one in TPU_KNOWN.items() if one.service == service
    ]


def _told_tpu(project: Project, quota_id: str, known: TpuKnown) -> QuotaInfo:
    entries = _entries(project, known)
    usual, named = known.default, {next(iter(one.applicable_locations)) for one in entries}
    others = _places(project, known.where) if known.where else []
    rest = DimensionsInfo(
        details=QuotaDetails(value=usual if known.where else _everywhere(project)),
        applicable_locations=[one for one in others if one not in named] or ["global"],
    )
    words = quota_id.removesuffix("ForTPUAPI")
    return QuotaInfo(
        name=f"projects/{project.number}/locations/global/services/{known.service}"
        f"/quotaInfos/{quota_id}",
        quota_id=quota_id,
        metric=f"{known.service}/{words.replace('-', '_').lower()}",
        service=known.service,
        container_type=QuotaInfo.ContainerType.PROJECT,
        dimensions=[*([known.where] if known.where else []), *_family(known)],
        quota_display_name=words,
        metric_unit="1",
        quota_increase_eligibility=QuotaIncreaseEligibility(is_eligible=True),
        dimensions_infos=[*entries, rest],
    )


def _entries(project: Project, known: TpuKnown) -> Sequence[DimensionsInfo]:
    """Give the places whose limit is not the default."""
    if not known.pool or not known.where:
        return []
    limits = {
        place: tpu_zones.limit_of(project, known.pool, _as_zone(place, known.where))
        for place in _places(project, known.where)
    }
    return [
        DimensionsInfo(
            dimensions={known.where: place, **_family(known)},
            details=QuotaDetails(value=limit),
            applicable_locations=[place],
        )
        for place, limit in limits.items()
        if limit != known.default
    ]


def _places(project: Project, where: str) -> Sequence[str]:
    zones = sorted(project.knobs.tpu_zones or tpu_zones.ZONES)
    return zones if where == "zone" else sorted({one.rpartition("-")[0] for one in zones})


def _as_zone(place: str, where: str) -> str:
    """Give what a limit is asked by; of a region it is that of none of its zones."""
    return place if where == "zone" else f"{place}-"


def _family(known: TpuKnown) -> dict[str, str]:
    return {"tpu_family": FAMILY} if known.by_family else {}


def _everywhere(project: Project) -> int:
    return tpu_zones.limit_of(project, tpu_zones.ALL_REGIONS, "")


SERVICE: Final = "run.googleapis.com"
GIB: Final = 2**30
FIRST_GRANT: Final = 3
"""GPUs without zonal redundancy that a project's first deployment in a region is given. Source:
Google's page on GPUs of Cloud Run, as quoted in public notes of 2025 and 2026."""


@dataclass(frozen=True, slots=True)
class QuotasKnown:
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

QUOTAS_KNOWN: Final[Mapping[str, QuotasKnown]] = {
    "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion": QuotasKnown(
        "Total Nvidia L4 GPU allocation without zonal redundancy", "l4", None, 1, _L4
    ),
    "NvidiaL4GpuAllocPerProjectRegion": QuotasKnown(
        "Total Nvidia L4 GPU allocation with zonal redundancy", "l4-zonal", 0, 1, _L4
    ),
    "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion": QuotasKnown(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, without zonal redundancy",
        "rtx-pro-6000",
        None,
        1000,
        _RTX,
    ),
    "NvidiaRtxPro6000GpuAllocPerProjectRegion": QuotasKnown(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, with zonal redundancy",
        "rtx-pro-6000-zonal",
        0,
        1000,
        _RTX,
    ),
    "CpuAllocPerProjectRegion": QuotasKnown(
        "Total CPU allocation, in milli vCPU", "cpu", 200, 1000, _ALL
    ),
    "MemAllocPerProjectRegion": QuotasKnown(
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
    known = QUOTAS_KNOWN[quota_id]
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
        return [info for one in QUOTAS_KNOWN if (info := _told(project, one))]
    return infos(project, service)


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
        for quota_id, known in QUOTAS_KNOWN.items()
        if known.knob in project.knobs.quotas
        for value in [project.knobs.quotas[known.knob] * known.factor]
    ]
    page, token = page_of(rows, request.page_size, request.page_token, most=500, usual=50)
    return ListQuotaPreferencesResponse(quota_preferences=page, next_page_token=token)


def _told(project: Project, quota_id: str) -> QuotaInfo | None:
    known, unused = QUOTAS_KNOWN[quota_id], project.knobs.unused_quota
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


MOST_AT_ONCE: Final = 20
"""Services that one call enables. Source: the documentation of BatchEnableServicesRequest."""
_MOST_READ: Final = 30
ENABLING_SECONDS: Final = 0.2
"""In reality about ten."""
USAGE_KNOWN: Final = frozenset(
    f"{name}.googleapis.com"
    for name in (
        *("aiplatform", "artifactregistry", "cloudbuild", "cloudquotas", "cloudresourcemanager"),
        *("compute", "containerregistry", "container", "iam", "iamcredentials", "iap", "logging"),
        *("monitoring", "networkmanagement", "networkservices", "pubsub", "run", "secretmanager"),
        *("servicenetworking", "serviceusage", "storage", "storage-api", "storage-component"),
        *("sts", "tpu", "vpcaccess", "cloudbilling", "cloudapis", "cloudtrace", "dns"),
    )
)
"""Those that can be enabled here; another is refused as one that does not exist."""
_USAGE_NAME: Final = re.compile(r"^projects/[^/]+/services/(?P<id>[^/]+)$")


def usage_mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "BatchEnableServices": unary(
            BatchEnableServicesRequest, Operation, _batch_enable, _may("enable")
        ),
        "EnableService": unary(EnableServiceRequest, Operation, _enable, _may("enable")),
        "BatchGetServices": unary(
            BatchGetServicesRequest, BatchGetServicesResponse, _batch_get, _may("get")
        ),
        "GetService": unary(GetServiceRequest, Service, _get_usage, _may("get")),
        "ListServices": unary(ListServicesRequest, ListServicesResponse, _list_usage, _may("list")),
    }
    add(
        server,
        world,
        "google.api.serviceusage.v1.ServiceUsage",
        methods,
        api="serviceusage.googleapis.com",
    )


def _may(what: str) -> str:
    return f"serviceusage.services.{what}"


async def _batch_enable(
    world: World, project: Project, request: BatchEnableServicesRequest
) -> Operation:
    wanted = list(request.service_ids)
    if not 0 < len(wanted) <= MOST_AT_ONCE:
        raise invalid(f"Between 1 and {MOST_AT_ONCE} services can be enabled at once.")
    _all_known(wanted)
    missing = set(wanted) - project.apis

    async def work() -> BatchEnableServicesResponse:
        if missing:
            await anyio.sleep(ENABLING_SECONDS)
        project.apis |= missing
        return BatchEnableServicesResponse(services=[_told_usage(project, one) for one in wanted])

    return serving.begun(
        world, project, _operation_name(project), work, metadata=_metadata(project, wanted)
    )


async def _enable(world: World, project: Project, request: EnableServiceRequest) -> Operation:
    wanted = _id(request.name)
    _all_known([wanted])

    async def work() -> EnableServiceResponse:
        await anyio.sleep(ENABLING_SECONDS)
        project.apis.add(wanted)
        return EnableServiceResponse(service=_told_usage(project, wanted))

    return serving.begun(
        world, project, _operation_name(project), work, metadata=_metadata(project, [wanted])
    )


async def _batch_get(
    _world: World, project: Project, request: BatchGetServicesRequest
) -> BatchGetServicesResponse:
    if not 0 < len(request.names) <= _MOST_READ:
        raise invalid(f"Between 1 and {_MOST_READ} services can be read at once.")
    wanted = [_id(name) for name in request.names]
    _all_known(wanted)
    return BatchGetServicesResponse(services=[_told_usage(project, one) for one in wanted])


async def _get_usage(_world: World, project: Project, request: GetServiceRequest) -> Service:
    wanted = _id(request.name)
    _all_known([wanted])
    return _told_usage(project, wanted)


async def _list_usage(
    _world: World, project: Project, request: ListServicesRequest
) -> ListServicesResponse:
    if request.filter not in {"", "state:ENABLED", "state:DISABLED"}:
        raise invalid(f"Invalid filter: {request.filter}")
    told = [_told_usage(project, one) for one in sorted(USAGE_KNOWN)]
    state = request.filter.rpartition(":")[2]
    rows = [one for one in told if state in {"", one.state.name}]
    page, token = page_of(rows, request.page_size, request.page_token, most=200, usual=50)
    return ListServicesResponse(services=page, next_page_token=token)


def _id(name: str) -> str:
    found = _USAGE_NAME.match(name)
    if found is None:
        raise invalid(f"The service name {name} is not valid.")
    return found["id"]


def _all_known(wanted: Collection[str]) -> None:
    unknown = sorted(set(wanted) - USAGE_KNOWN)
    if unknown:
        raise Refused(
            "PERMISSION_DENIED",
            f"Not found or permission denied for service(s): {', '.join(unknown)}.",
            reason="SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED",
            domain="serviceusage.googleapis.com",
            metadata={"services": ",".join(unknown)},
        )


def _told_usage(project: Project, api: str) -> Service:
    on = api in project.apis | ALWAYS_ENABLED
    return Service(
        name=f"projects/{project.number}/services/{api}",
        parent=f"projects/{project.number}",
        config=ServiceConfig(name=api),
        state=State.ENABLED if on else State.DISABLED,
    )


def _operation_name(project: Project) -> str:
    return f"operations/acf.{uuid.uuid4().hex}-{project.number}"


def _metadata(project: Project, wanted: Collection[str]) -> OperationMetadata:
    names = [f"projects/{project.number}/services/{one}" for one in wanted]
    return OperationMetadata(resource_names=names)
