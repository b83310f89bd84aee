"""Cloud Quotas v1: what a project may use of Cloud Run and of TPUs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import grpc.aio
from google.cloud.cloudquotas_v1.types import (
    DimensionsInfo,
    QuotaConfig,
    QuotaDetails,
    QuotaIncreaseEligibility,
    QuotaInfo,
    QuotaPreference,
)

from simulators.google import tpu_zones
from simulators.google.state import Project, World
from simulators.google.store import Kind, serve

_TPU: Final = "tpu.googleapis.com"
_COMPUTE: Final = "compute.googleapis.com"
_RUN: Final = "run.googleapis.com"
_FAMILY: Final = {"tpu_family": "CT6E"}


class _OfTpus(NamedTuple):
    """One quota of TPUs."""

    service: str
    pool: str
    """As in the project's `tpu_quotas`."""
    where: str
    """zone, region or nothing: what it is counted by."""
    default: int
    """Of whatever place has no entry of its own."""
    family: Mapping[str, str] = {}


_TPU_QUOTAS: Final[Mapping[str, _OfTpus]] = {
    "TPUV6EPerProjectPerZoneForTPUAPI": _OfTpus(_TPU, "tpu", "zone", 16),
    "TPUV6EPerProjectPerRegionForTPUAPI": _OfTpus(_TPU, "tpu", "region", 16),
    "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": _OfTpus(_TPU, "tpu-preemptible", "zone", 16),
    "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI": _OfTpus(_TPU, "tpu-preemptible", "region", 16),
    "TPUS-PER-TPU-FAMILY-per-project-region": _OfTpus(_COMPUTE, "compute", "region", 0, _FAMILY),
    "PREEMPTIBLE-TPU-V6E-per-project-region": _OfTpus(
        _COMPUTE, "compute-preemptible", "region", 1536
    ),
    "GPUS-ALL-REGIONS-per-project": _OfTpus(_COMPUTE, tpu_zones.ALL_REGIONS, "", 0),
}
"""Ids, dimensions and defaults: readings of Cloud Quotas in public reports of 2026. A region
without an entry has 0 of a family on demand and 1536 preemptible ones."""

GIB: Final = 2**30
FIRST_GRANT: Final = 3
"""GPUs without zonal redundancy that a project's first deployment in a region is given. Source:
Google's page on GPUs of Cloud Run, as quoted in public notes of 2025 and 2026."""


class _OfRun(NamedTuple):
    """One quota of Cloud Run."""

    display: str
    knob: str
    """Name in the project's `quotas`."""
    usual: int | None
    """In the knob's unit, where nothing is set; None is nothing before the first deployment."""
    factor: int
    """Of the API's unit in one of the knob's."""
    regions: tuple[str, ...]


L4: Final = ("us-central1", "us-east4", "europe-west1", "europe-west4", "asia-southeast1")
RTX: Final = ("us-central1", "europe-west4", "asia-southeast1")
_ALL: Final = (*L4, "us-east1", "us-west1", "europe-north1", "asia-south1", "asia-northeast1")

RUN_QUOTAS: Final[Mapping[str, _OfRun]] = {
    "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion": _OfRun(
        "Total Nvidia L4 GPU allocation without zonal redundancy", "l4", None, 1, L4
    ),
    "NvidiaL4GpuAllocPerProjectRegion": _OfRun(
        "Total Nvidia L4 GPU allocation with zonal redundancy", "l4-zonal", 0, 1, L4
    ),
    "NvidiaRtxPro6000GpuAllocNoZonalRedundancyPerProjectRegion": _OfRun(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, without zonal redundancy",
        *("rtx-pro-6000", None, 1000, RTX),
    ),
    "NvidiaRtxPro6000GpuAllocPerProjectRegion": _OfRun(
        "Total Nvidia RTX PRO 6000 GPU allocation, in milli GPU, with zonal redundancy",
        *("rtx-pro-6000-zonal", 0, 1000, RTX),
    ),
    "CpuAllocPerProjectRegion": _OfRun(
        "Total CPU allocation, in milli vCPU", "cpu", 200, 1000, _ALL
    ),
    "MemAllocPerProjectRegion": _OfRun(
        "Total memory allocation, in bytes", "memory_gib", 400, GIB, _ALL
    ),
}
"""Units and ids: readings of Cloud Quotas and refusals of 2026 by Google; a project that is new to
billing has 20 vCPU and 40 GiB in place of 200 and 400."""


def limit(project: Project, quota_id: str, region: str) -> int | None:
    """Return a limit of Cloud Run in the API's unit; None before the first deployment there."""
    known = RUN_QUOTAS[quota_id]
    granted = FIRST_GRANT if (quota_id, region) in project.granted_quotas else known.usual
    value = project.knobs.quotas.get(known.knob, granted)
    return None if value is None else value * known.factor


class _Infos(Kind):
    """A quota, with a limit for each place that it is counted by."""

    types = "google.cloud.cloudquotas_v1.types"
    noun, parent, collection = "QuotaInfo", "projects/*/locations/global/services/*", "quotaInfos"
    permission = "cloudquotas.quotas"
    verbs = ("Get", "List")
    pages = (50, 500)
    by_number = True

    def may(self, verb: str) -> str:  # noqa: ARG002  one for all
        """Return the one permission for them."""
        return "cloudquotas.quotas.get"

    def rows(self, project: Project) -> dict[str, Any]:
        """Return what the project is told of, by full name."""
        run = (_of_run(project, *each) for each in RUN_QUOTAS.items())
        told = [*run, *(_of_tpus(project, *each) for each in _TPU_QUOTAS.items())]
        return {one.name: one for one in told if one}


class _Preferences(Kind):
    """What was once asked for: whatever the rehearsal has set."""

    types = _Infos.types
    noun, parent, collection = "QuotaPreference", "projects/*/locations/global", "quotaPreferences"
    permission = _Infos.permission
    verbs = ("List",)
    pages = (50, 500)
    may = _Infos.may

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return one of each quota that is set."""
        for quota_id, known in RUN_QUOTAS.items():
            if known.knob in project.knobs.quotas:
                value = project.knobs.quotas[known.knob] * known.factor
                yield QuotaPreference(
                    name=f"{parent}/quotaPreferences/{_snake(quota_id)}",
                    service=_RUN,
                    quota_id=quota_id,
                    quota_config=QuotaConfig(preferred_value=value, granted_value=value),
                )


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    service = "google.api.cloudquotas.v1.CloudQuotas"
    serve(server, world, service, "cloudquotas", _Infos(), _Preferences())


def _of_tpus(project: Project, quota_id: str, known: _OfTpus) -> QuotaInfo:
    zones = sorted(project.knobs.tpu_zones or tpu_zones.ZONES)
    regions = sorted({one.rpartition("-")[0] for one in zones})
    places = {"zone": zones, "region": regions, "": []}[known.where]
    ending = "-" if known.where == "region" else ""  # a limit is asked by a zone: here by none
    limits = {
        place: tpu_zones.limit_of(project, known.pool, f"{place}{ending}") for place in places
    }
    own = {place: value for place, value in limits.items() if value != known.default}
    everywhere = known.default if known.where else tpu_zones.limit_of(project, known.pool, "")
    rows = [
        _row(value, [place], {known.where: place, **known.family}) for place, value in own.items()
    ]
    others = [one for one in places if one not in own] or ["global"]
    words = quota_id.removesuffix("ForTPUAPI")
    return _info(
        project,
        known.service,
        quota_id,
        words.replace("-", "_").lower(),
        words,
        [*rows, _row(everywhere, others)],
        dimensions=[*filter(None, [known.where]), *known.family],
        eligible=True,
    )


def _of_run(project: Project, quota_id: str, known: _OfRun) -> QuotaInfo | None:
    unused = project.knobs.unused_quota
    values = {region: limit(project, quota_id, region) for region in known.regions}
    shown = {
        region: value or 0
        for region, value in values.items()
        if value is not None or unused == "zero"
    }
    if not shown and unused == "absent":
        return None
    name, display = _snake(quota_id), f"{known.display}, per project per region"
    rows, eligible = list(_rows(shown)), any(shown.values())
    return _info(
        project, _RUN, quota_id, name, display, rows, dimensions=["region"], eligible=eligible
    )


def _info(
    project: Project,
    service: str,
    quota_id: str,
    metric: str,
    display: str,
    rows: Sequence[DimensionsInfo],
    *,
    dimensions: Sequence[str],
    eligible: bool,
) -> QuotaInfo:
    return QuotaInfo(
        name=f"projects/{project.number}/locations/global/services/{service}/quotaInfos/{quota_id}",
        quota_id=quota_id,
        metric=f"{service}/{metric}",
        service=service,
        container_type=QuotaInfo.ContainerType.PROJECT,
        dimensions=dimensions,
        quota_display_name=display,
        metric_unit="1",
        quota_increase_eligibility=QuotaIncreaseEligibility(is_eligible=eligible),
        dimensions_infos=rows,
    )


def _row(value: int, places: Sequence[str], only: Mapping[str, str] | None = None) -> Any:
    details = QuotaDetails(value=value)
    return DimensionsInfo(dimensions=only or {}, details=details, applicable_locations=places)


def _rows(shown: Mapping[str, int]) -> Iterator[DimensionsInfo]:
    """Return a row of its own for the first region, and one for each value of the others."""
    for first in list(shown)[:1]:
        yield _row(shown[first], [first], {"region": first})
    others = list(shown)[1:]
    for value in dict.fromkeys(shown[region] for region in others):
        yield _row(value, [region for region in others if shown[region] == value])


def _snake(name: str) -> str:
    words = re.sub(r"PerProjectRegion$", "", name)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", words).lower()
