"""Workload profiles: what a region offers, what an environment has, what GPUs are left of each."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute

from emulators.azure.bodies import plain_region
from emulators.azure.paging import page
from emulators.azure.profiles_known import A100, CONSUMPTION, T4, TYPES, ProfileType, offered
from emulators.azure.refusing import Refused
from emulators.azure.serving import Call, arm
from emulators.azure.state import Replica, Subscription, World

_OFFERS: Final = "availableManagedEnvironmentsWorkloadProfileTypes"
_OFFER_TYPE: Final = f"Microsoft.App/locations/{_OFFERS}"
_ENVIRONMENT: Final = "Microsoft.App/managedEnvironments"
_PAGE: Final = 4
"""Rows of one page, so that there is more than one."""
_MOST_ENVIRONMENTS: Final = 15
_MOST_CORES: Final = 100


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    region = "/subscriptions/{subscription}/providers/Microsoft.App/locations/{location}"
    environment = (
        "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.App"
        "/managedEnvironments/{environment}"
    )
    return (
        arm("GET", f"{region}/{_OFFERS}", _offers, type=_OFFER_TYPE, world=world),
        arm("GET", f"{region}/usages", _usages, type="Microsoft.App/locations/usages", world=world),
        arm(
            "GET",
            f"{environment}/usages",
            _environment_usages,
            type=f"{_ENVIRONMENT}/usages",
            world=world,
        ),
        arm(
            "GET",
            f"{environment}/workloadProfileStates",
            _states,
            type=f"{_ENVIRONMENT}/workloadProfileStates",
            world=world,
        ),
    )


def offered_in(sub: Subscription, region: str) -> tuple[str, ...]:
    """Give the profile types that a region offers."""
    if sub.knobs.profiles is None:
        return offered(region)
    return sub.knobs.profiles.get(region, ())


async def _offers(call: Call) -> dict[str, Any]:
    region = plain_region(call.params["location"])
    types = offered_in(call.sub, region)
    if not types:
        raise Refused(
            400,
            "NoRegisteredProviderFound",
            f"No registered resource provider found for location '{region}' and API version"
            f" '{call.api_version}' for type 'locations/{_OFFERS}'.",
        )
    return page(call, [_offer(call.path, region, name) for name in types], _PAGE)


def _offer(path: str, region: str, name: str) -> dict[str, Any]:
    kind = TYPES.get(name, ProfileType(category=name, cores=4, memory_gib=8))
    return {
        "id": f"{path}/{name}",
        "name": name,
        "type": f"Microsoft.App/{_OFFERS}",
        "location": region,
        "properties": {
            "category": kind.category,
            "applicability": "LocationDefault",
            "cores": kind.cores,
            "memoryGiB": kind.memory_gib,
            "gpus": kind.gpus,
            "displayName": kind.display_name or name,
        },
    }


async def _usages(call: Call) -> dict[str, Any]:
    sub, region = call.sub, plain_region(call.params["location"])
    here = [one for one in sub.living() if one.region == region]
    environments = sum(
        plain_region(str(one.get("location", ""))) == region for one in sub.of_type(_ENVIRONMENT)
    )
    rows = [
        _usage("ManagedEnvironmentCount", environments, _MOST_ENVIRONMENTS),
        _usage("SubscriptionNCA100Gpus", 0, 0),
        _usage("SubscriptionConsumptionNCA100Gpus", _using(here, A100), sub.knobs.quota("a100")),
        _usage("SubscriptionConsumptionT4Gpus", _using(here, T4), sub.knobs.quota("t4")),
        _usage("SessionPools", 0, 20),
    ]
    return page(call, rows, _PAGE)


async def _environment_usages(call: Call) -> dict[str, Any]:
    sub, name = call.sub, _environment_of(call)
    here = [one for one in sub.living() if one.environment == name]
    cores = sum(TYPES[one.profile_type].cores for one in here if one.profile_type == CONSUMPTION)
    rows = [
        _usage("ManagedEnvironmentConsumptionCores", cores, _MOST_CORES),
        _usage("ManagedEnvironmentGeneralPurposeCores", 0, _MOST_CORES),
        _usage(
            "ManagedEnvironmentConsumptionNCA100Gpus",
            _using(here, A100),
            sub.knobs.environment_quota("a100"),
        ),
        _usage(
            "ManagedEnvironmentConsumptionT4Gpus",
            _using(here, T4),
            sub.knobs.environment_quota("t4"),
        ),
        _usage("ManagedEnvironmentMemoryOptimizedCores", 0, 50),
    ]
    return page(call, rows, _PAGE)


async def _states(call: Call) -> dict[str, Any]:
    name = _environment_of(call)
    profiles = call.sub.resources[name]["properties"].get("workloadProfiles") or []
    here = [one for one in call.sub.living() if one.environment == name]
    return page(
        call,
        [
            {
                "id": f"{call.path}/{profile['name']}",
                "name": profile["name"],
                "type": f"{_ENVIRONMENT}/workloadProfileStates",
                "properties": {
                    "minimumCount": profile.get("minimumCount", 0),
                    "maximumCount": profile.get("maximumCount", 0),
                    "currentCount": _using(here, profile["workloadProfileType"]),
                },
            }
            for profile in profiles
        ],
        _PAGE,
    )


def _environment_of(call: Call) -> str:
    name = call.id.rpartition("/")[0]
    if name not in call.sub.resources:
        raise Refused(
            404,
            "ResourceNotFound",
            f"The Resource '{_ENVIRONMENT}/{call.params['environment']}' under resource group"
            f" '{call.params['group']}' was not found.",
        )
    return name


def _using(replicas: Iterable[Replica], profile_type: str) -> int:
    return sum(one.profile_type == profile_type for one in replicas)


def _usage(name: str, current: int, limit: int) -> dict[str, Any]:
    shown = {"value": name, "localizedValue": name}
    return {"unit": "Count", "currentValue": current, "limit": limit, "name": shown}
