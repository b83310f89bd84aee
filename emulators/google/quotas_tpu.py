"""How many chips Cloud TPU's API and Compute Engine may give: two services, pools apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.cloud.cloudquotas_v1.types import (
    DimensionsInfo,
    QuotaDetails,
    QuotaIncreaseEligibility,
    QuotaInfo,
)

from emulators.google.state import Project
from emulators.google.tpu import capacity

TPU: Final = "tpu.googleapis.com"
COMPUTE: Final = "compute.googleapis.com"
FAMILY: Final = "CT6E"
_UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class Known:
    """One quota."""

    service: str
    pool: str
    """As in the project's `tpu_quotas`."""
    where: str
    """zone, region or nothing: what it is counted by."""
    default: int
    """Of whatever place has no entry of its own."""
    by_family: bool = False


KNOWN: Final[Mapping[str, Known]] = {
    "TPUV6EPerProjectPerZoneForTPUAPI": Known(TPU, "tpu", "zone", 16),
    "TPUV6EPerProjectPerRegionForTPUAPI": Known(TPU, "tpu", "region", 16),
    "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": Known(TPU, "tpu-preemptible", "zone", 16),
    "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI": Known(TPU, "tpu-preemptible", "region", 16),
    "TPUS-PER-TPU-FAMILY-per-project-region": Known(
        COMPUTE, "compute", "region", 0, by_family=True
    ),
    "PREEMPTIBLE-TPU-V6E-per-project-region": Known(COMPUTE, "compute-preemptible", "region", 1536),
    "PREEMPTIBLE-TPU-V6E-per-project-zone": Known(COMPUTE, "", "zone", _UNLIMITED),
    "GPUS-ALL-REGIONS-per-project": Known(COMPUTE, capacity.ALL_REGIONS, "", 0),
}
"""Ids, dimensions and defaults: readings of Cloud Quotas in public reports of 2026. A region
without an entry has 0 of a family on demand and 1536 preemptible ones."""


def infos(project: Project, service: str) -> Sequence[QuotaInfo]:
    """Give a service's quotas of TPUs; none if it has none."""
    return [_told(project, name, one) for name, one in KNOWN.items() if one.service == service]


def _told(project: Project, quota_id: str, known: Known) -> QuotaInfo:
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


def _entries(project: Project, known: Known) -> Sequence[DimensionsInfo]:
    """Give the places whose limit is not the default."""
    if not known.pool or not known.where:
        return []
    limits = {
        place: capacity.limit_of(project, known.pool, _as_zone(place, known.where))
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
    zones = sorted(project.knobs.tpu_zones or capacity.ZONES)
    return zones if where == "zone" else sorted({one.rpartition("-")[0] for one in zones})


def _as_zone(place: str, where: str) -> str:
    """Give what a limit is asked by; of a region it is that of none of its zones."""
    return place if where == "zone" else f"{place}-"


def _family(known: Known) -> dict[str, str]:
    return {"tpu_family": FAMILY} if known.by_family else {}


def _everywhere(project: Project) -> int:
    return capacity.limit_of(project, capacity.ALL_REGIONS, "")
