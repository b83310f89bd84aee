"""How many GPUs, vCPU and GiB the project may use at once in the region, as Cloud Quotas says."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from backends.cloud_abilities import Quota
from backends.cloud_run.site import Site
from backends.google.failing import UNITS, translated, why_unread
from backends.google.waiting import reading, strictly
from core.cloud_errors import CloudError

if TYPE_CHECKING:
    from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaInfo


class Allowed(NamedTuple):
    """What all instances of the project may have together in the region."""

    quota: str
    unit: str
    limit: float | None
    """In the unit; None is not known."""
    detail: str
    """Why it is not known."""


class _Kind(NamedTuple):
    stem: str
    """Of both of its quotas' ids."""
    per_gpu: int
    """What one GPU is in the quota's unit."""


_KINDS: Final = {
    "nvidia-l4": _Kind("NvidiaL4Gpu", 1),
    "nvidia-rtx-pro-6000": _Kind("NvidiaRtxPro6000Gpu", 1000),
}
"""Source: answers of the Cloud Quotas API in public projects' notes, read 2026-11; the RTX PRO
6000's are in thousandths of a GPU."""
_WITHOUT, _WITH = "AllocNoZonalRedundancyPerProjectRegion", "AllocPerProjectRegion"
FIRST_GRANT: Final = 3
_UNUSED: Final = (
    f"Not used in this region yet: Google grants a project {FIRST_GRANT} (zonal redundancy off)"
    " with its first deployment there."
)
"""Source: Google, "Projects using Cloud Run nvidia-l4 GPUs in a region for the first time are
automatically granted 3 GPU quota (zonal redundancy off) when the first deployment is created", and
the same of the RTX PRO 6000 (docs.cloud.google.com/run/docs/configuring/services/gpu, as quoted in
public notes, 2026-11-23). What the API says before that nobody has published: no such quota, no
entry of the region and a 0 are taken alike."""


async def read(site: Site) -> Sequence[Quota]:
    """Give the quota without zonal redundancy, which deployments made here need, and the other.

    What cannot be read has no limit and says why.

    Raises:
        NotConfigured: No project is named.
    """
    kind = _KINDS.get(site.target.accelerator or "")
    if not (site.clients.project and kind):
        return ()
    used: list[tuple[float | None, str]] = []
    found: dict[str, Quota] = {}

    async def look(ending: str) -> None:
        found[ending] = await _one(site, kind, f"{kind.stem}{ending}")

    async def count() -> None:
        used.append(await _in_use(site))

    async with anyio.create_task_group() as group:
        group.start_soon(look, _WITHOUT)
        group.start_soon(look, _WITH)
        group.start_soon(count)
    (in_use, how), ours = used[0], found[_WITHOUT]
    if ours.limit == 0 and not in_use and not await _asked_for(site, ours.quota):
        new = {"limit": None, "first_grant": FIRST_GRANT, "detail": _UNUSED}
        ours = ours.model_copy(update=new)
    detail = " ".join(part for part in (ours.detail, how) if part)
    return (ours.model_copy(update={"in_use": in_use, "detail": detail}), found[_WITH])


async def allowed(site: Site, quota: str) -> Allowed:
    """Give a quota of vCPU or of memory; what cannot be read has no limit and says why."""
    unit = UNITS[quota]
    try:
        info = await _info(site, quota)
    except CloudError as exc:
        return Allowed(quota, unit.name, None, why_unread(exc))
    entry = entry_of(info, site.clients.region) if info else None
    if entry is None:
        why = f"Google says nothing of {site.clients.region}."
        return Allowed(quota, unit.name, None, why)
    return Allowed(quota, unit.name, entry.details.value / unit.size, "")


async def _one(site: Site, kind: _Kind, quota: str) -> Quota:
    try:
        info = await _info(site, quota)
    except CloudError as exc:
        return _quota(site, quota, None, why_unread(exc))
    if info is None:
        return _quota(site, quota, 0, "The project has no such quota.")
    entry = entry_of(info, site.clients.region)
    if entry is None:
        return _quota(site, quota, 0, f"The quota says nothing of {site.clients.region}.")
    note = f"Read as {entry.details.value} thousandths." if kind.per_gpu != 1 else ""
    return _quota(site, quota, entry.details.value / kind.per_gpu, note)


def _quota(site: Site, quota: str, limit: float | None, detail: str) -> Quota:
    return Quota(
        quota=quota,
        region=site.clients.region,
        accelerator=site.target.accelerator or "",
        limit=limit,
        detail=detail,
    )


async def _info(site: Site, quota: str) -> "QuotaInfo | None":
    from google.api_core.exceptions import NotFound

    clients = site.clients
    place = f"projects/{clients.project}/locations/global/services/run.googleapis.com"
    quotas = await clients.quotas()
    try:
        with translated(f"read the quota {quota}"):
            return await quotas.get_quota_info(name=f"{place}/quotaInfos/{quota}", **reading())
    except NotFound:
        return None


def entry_of(info: "QuotaInfo", region: str) -> "DimensionsInfo | None":
    """Choose the region's own entry, else the one that is said to apply to it."""
    own = (one for one in info.dimensions_infos if one.dimensions.get("region") == region)
    general = (one for one in info.dimensions_infos if region in one.applicable_locations)
    return next(own, None) or next(general, None)


async def _asked_for(site: Site, quota: str) -> bool:
    """Whether Google has decided on this quota; where it cannot be asked, it has not."""
    parent = f"projects/{site.clients.project}/locations/global"
    client = await site.clients.quotas()
    try:
        with translated(f"read what was asked for of {quota}"):
            pager = await client.list_quota_preferences(parent=parent, **reading())
            asked = [row async for row in pager if row.quota_id == quota]
    except CloudError:
        return False
    region = site.clients.region
    return any(row.dimensions.get("region", region) == region for row in asked)


async def _in_use(site: Site) -> tuple[float | None, str]:
    """Add up the most instances that services of the region may have on this accelerator."""
    total = number = 0
    try:
        run = await site.clients.run()
        with strictly("list the region's services"):
            pager = await run.list_services(parent=site.clients.parent, **reading())
            async for service in pager:
                template = service.template
                same = template.node_selector.accelerator == site.target.accelerator
                if same and template.gpu_zonal_redundancy_disabled:
                    number += 1
                    total += (
                        service.scaling.max_instance_count or template.scaling.max_instance_count
                    )
    except CloudError as exc:
        return None, f"What is in use is not known: {why_unread(exc)}"
    return total, f"In use: the most instances that {number} service(s) may have." if number else ""
