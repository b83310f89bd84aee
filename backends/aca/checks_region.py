"""Whether the region has the GPU, for how many replicas, and room for an environment."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from backends.aca import quotas, rules
from backends.aca.failing import translated
from backends.aca.ground_environment import environment
from backends.aca.site import Site
from backends.aca.waiting import reading
from backends.base import Quota
from backends.common.preflight import Answer, Question
from core.cloud_errors import CloudRefused
from core.plans import Plan
from planner.places import place

_MORE: Final = "Ask for more: Azure portal, Quotas, Azure Container Apps, in this region."


def questions(site: Site, plan: Plan) -> Iterator[Question]:
    """Ask for what the plan needs of its region."""
    kind, region = rules.gpu_of(site.target).profile_type, site.clients.region
    yield Question(f"{region} offers {kind}", partial(_offered, site, kind))
    yield Question(
        f"The quotas allow {plan.spec.max_replicas} at once", partial(_quota, site, plan)
    )
    yield Question("The region takes the environment", partial(_room, site))


async def _offered(site: Site, kind: str) -> Answer:
    from azure.core.exceptions import ResourceNotFoundError

    client, region, found = await site.clients.apps(), site.clients.region, list[str]()
    try:
        with translated(f"see which workload profiles {region} offers"):
            async for one in client.available_workload_profiles.get(region, **reading()):
                found.append(str(one.name))
    except (ResourceNotFoundError, CloudRefused) as exc:
        words = exc.cause if isinstance(exc, CloudRefused) else exc.message
        return _elsewhere(site, f"Azure knows no Container Apps in {region}. {words}")
    if any(name.lower() == kind.lower() for name in found):
        return Answer(passed=True, detail="Azure lists it now.")
    return _elsewhere(site, f"It offers {', '.join(sorted(found)) or 'no profile at all'}.")


def _elsewhere(site: Site, detail: str) -> Answer:
    regions = ", ".join(place(site.target.name).regions)
    fix = f"Set AZURE_LOCATION to a region that has it; by Microsoft's page: {regions}."
    return Answer(passed=False, detail=detail, fix=fix)


async def _quota(site: Site, plan: Plan) -> Answer:
    rows, most = await quotas.read(site), plan.spec.max_replicas
    said = " ".join(_said(row) for row in rows)
    short = [row for row in rows if row.limit is not None and row.limit < most]
    if short:
        limit = min(int(row.limit or 0) for row in short)
        smaller = f"Give max_replicas {limit} or less. " if limit else ""
        return Answer(passed=False, detail=said, fix=f"{smaller}{_MORE}")
    if all(row.limit is None for row in rows):
        return Answer(passed=None, detail=said)
    if _taken(rows, most):
        busy = "Replicas that run now, perhaps of this deployment, leave less: a new one waits."
        return Answer(passed=None, detail=f"{said} {busy}", fix="Remove what uses them.")
    return Answer(passed=True, detail=said)


def _said(row: Quota) -> str:
    if row.limit is None:
        return row.detail
    return f"{row.quota} is {row.limit:g}, of which {row.in_use or 0:g} are in use."


def _taken(rows: Sequence[Quota], most: int) -> bool:
    known = ((row.limit, row.in_use or 0) for row in rows)
    return any(limit is not None and limit - used < most for limit, used in known)


async def _room(site: Site) -> Answer:
    if await environment(site):
        return Answer(passed=True, detail=f"{site.ground.environment} is there.")
    counted = await quotas.of_region(site)
    ours = next((one for one in counted if one.name.lower().endswith(quotas.ENVIRONMENTS)), None)
    if ours is None:
        return Answer(passed=None, detail="Azure does not say how many it takes.")
    said = f"{ours.name} is {ours.limit:g}, of which {ours.in_use:g} are there."
    if ours.in_use >= ours.limit:
        fix = "Set AZURE_CONTAINERAPPS_ENVIRONMENT (and AZURE_RESOURCE_GROUP) to one of them."
        return Answer(passed=False, detail=said, fix=f"{fix} {_MORE}")
    return Answer(passed=True, detail=said)
