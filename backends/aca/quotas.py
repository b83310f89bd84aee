"""How many GPUs the subscription may use at once: in the region, and in the environment."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from backends.aca import rules
from backends.aca.failing import translated
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.base import Quota
from backends.common.concurrency import side_by_side
from core.cloud_errors import ApiDisabled, CloudError

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import Usage

_SERVERLESS: Final = "consumption"
"""In the names of quotas that count here; the others are of GPUs hired by the month.
Source: answers in public projects' notes, read 2026-11."""
ENVIRONMENTS: Final = "managedenvironmentcount"
"""How the name of the quota of environments in a region ends, in lower case."""
_NO_ENVIRONMENT: Final = "There is no environment yet, so its own limit is not known."


class Used(NamedTuple):
    """One reading."""

    name: str
    limit: float
    in_use: float


async def read(site: Site) -> Sequence[Quota]:
    """Give the region's quota and the environment's, the one with the least room first.

    What cannot be read has no limit and says why, and stands last.

    Raises:
        NotConfigured: No subscription is named.
    """
    _named = site.clients.subscription
    found = await side_by_side([partial(_region, site), partial(_environment, site)])
    return sorted(found, key=_room)


async def of_region(site: Site) -> list[Used]:
    """Read everything that is counted in the region.

    Raises:
        CloudError: Azure does not tell.
    """
    from azure.core.exceptions import ResourceNotFoundError

    client, found = await site.clients.apps(), list[Used]()
    try:
        with translated(f"read the quotas of {site.clients.region}"):
            async for usage in client.usages.list(site.clients.region, **reading()):
                found.append(_used(usage))
    except ResourceNotFoundError:
        return []
    return found


async def of_environment(site: Site) -> list[Used] | None:
    """Read everything that is counted in the environment; None where there is none.

    Raises:
        CloudError: Azure does not tell.
    """
    from azure.core.exceptions import ResourceNotFoundError

    client, ground = await site.clients.apps(), site.ground
    usages, found = client.managed_environment_usages, list[Used]()
    try:
        with translated(f"read the quotas of the environment {ground.environment}"):
            pages = usages.list(ground.resource_group, ground.environment, **reading())
            async for usage in pages:
                found.append(_used(usage))
    except ResourceNotFoundError:
        return None
    return found


def _used(usage: "Usage") -> Used:
    name = usage.name.value if usage.name else ""
    return Used(name or "", usage.limit, usage.current_value)


async def _region(site: Site) -> Quota:
    missing = f"Azure names no quota of these GPUs in {site.clients.region}, which is not 0."
    return await _quota(site, partial(of_region, site), missing)


async def _environment(site: Site) -> Quota:
    missing = f"The environment {site.ground.environment} names no quota of these GPUs."
    return await _quota(site, partial(of_environment, site), missing)


async def _quota(
    site: Site, look: Callable[[], Awaitable[list[Used] | None]], missing: str
) -> Quota:
    try:
        usages = await look()
    except ApiDisabled:
        return _row(site, None, "Microsoft.App is not registered yet: setup_target does it.")
    except CloudError as exc:
        return _row(site, None, f"{exc.summary} {exc.cause}".strip())
    if usages is None:
        return _row(site, None, _NO_ENVIRONMENT)
    ours = next((one for one in usages if _counts(site, one.name)), None)
    return _row(site, ours, "" if ours else missing)


def _counts(site: Site, name: str) -> bool:
    """Whether a quota is that of the target's GPU, hired by the second."""
    lower, gpu = name.lower(), rules.gpu_of(site.target).quota.lower()
    return _SERVERLESS in lower and lower.endswith(f"{gpu}gpus")


def _row(site: Site, used: Used | None, detail: str) -> Quota:
    return Quota(
        quota=used.name if used else "",
        region=site.clients.region,
        accelerator=site.target.accelerator or "",
        limit=used.limit if used else None,
        in_use=used.in_use if used else None,
        detail=detail,
    )


def _room(quota: Quota) -> float:
    """Give how many are left; without end where it is not known."""
    return float("inf") if quota.limit is None else quota.limit - (quota.in_use or 0)
