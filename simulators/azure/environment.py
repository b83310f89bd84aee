"""Managed environments with their profiles, links to shares and workspaces of logs."""

import base64
import hmac
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from azure.mgmt.loganalytics import models
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.azure.catalog import A100, CONSUMPTION, T4, TYPES, ProfileType, display_of, offered
from simulators.azure.errors import Refused, conflict, invalid, not_found
from simulators.azure.replicas import environment_of
from simulators.azure.serving import (
    Call,
    arm,
    begin,
    check_tags,
    checked,
    lasting,
    location_header,
    looked_at,
    merged,
    moment,
    page,
    plain_region,
    region_of,
    system_data,
    under_way,
    worker,
)
from simulators.azure.state import Operation, Replica, Subscription, World, id_of

_OFFERS: Final = "availableManagedEnvironmentsWorkloadProfileTypes"
_OFFER_TYPE: Final = f"Microsoft.App/locations/{_OFFERS}"
_ENVIRONMENT: Final = "Microsoft.App/managedEnvironments"
_PAGE: Final = 4
"""Rows of one page, so that there is more than one."""
_MOST_ENVIRONMENTS: Final = 15
_MOST_CORES: Final = 100


def profile_routes(world: World) -> Sequence[BaseRoute]:
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


_ENVIRONMENT_RULES_NAME: Final = re.compile(r"^[a-zA-Z](?!.*--)[a-zA-Z0-9-]{0,58}[a-zA-Z0-9]$")
_LONGEST_PROFILE_NAME: Final = 15
"""Source: github.com/Azure/azure-cli/issues/31239."""
_APP: Final = "Microsoft.App/containerApps"
_LINKED: Final = "logAnalyticsConfiguration"


def check(
    call: Call, region: str, asked: Mapping[str, Any], there: Mapping[str, Any] | None
) -> None:
    """Refuse what Azure does not make.

    Raises:
        Refused: Something about it cannot be.
    """
    name = call.params["environment"]
    if not _ENVIRONMENT_RULES_NAME.match(name):
        raise invalid(
            f"Invalid ManagedEnvironment name '{name}'. A name must consist of alphanumeric"
            " characters or '-', start with an alphabetic character, end with an alphanumeric"
            " character and cannot have '--'. The length must not be more than 60 characters.",
            "ManagedEnvironmentInvalidName",
        )
    profiles = asked.get("workloadProfiles") or []
    for profile in profiles:
        _check_profile(call, region, profile)
    if len({one["name"] for one in profiles}) < len(profiles):
        raise invalid("Workload profile names must be unique.", "WorkloadProfileDuplicateName")
    _check_logs(asked)
    if there:
        _check_change(call, profiles, there)


def check_empty(call: Call) -> None:
    """Refuse to delete an environment that has apps.

    Raises:
        Refused: It has some.
    """
    apps = _apps(call)
    if apps:
        raise conflict(
            "ManagedEnvironmentHasContainerApps",
            f"The specified environment {call.params['environment']} cannot be deleted because it"
            f" still contains {len(apps)} ContainerApps.",
        )


def _check_profile(call: Call, region: str, profile: Mapping[str, Any]) -> None:
    name, kind = profile["name"], profile["workloadProfileType"]
    if len(name) > _LONGEST_PROFILE_NAME:
        raise invalid(
            f"Workload profile name '{name}' is too long. The maximum is {_LONGEST_PROFILE_NAME}"
            " characters.",
            "WorkloadProfileInvalidNameTooLong",
        )
    if kind not in offered_in(call.sub, region):
        raise invalid(
            f"Workload profile type '{kind}' is not supported in location '{region}'.",
            "WorkloadProfileTypeNotSupported",
        )
    if not kind.startswith(CONSUMPTION):
        return
    for key in ("minimumCount", "maximumCount"):
        if profile.get(key) is not None:
            raise invalid(
                f"Workload Profile property '{key[0].upper()}{key[1:]}' is not supported for"
                f" {kind.replace('-', '_')}",
                "WorkloadProfilePropertyNotSupported",
            )


def _check_logs(asked: Mapping[str, Any]) -> None:
    """A workspace is written with its key each time: what GET answers lacks it."""
    logs = asked.get("appLogsConfiguration") or {}
    if logs.get("destination") != "log-analytics":
        return
    linked = logs.get(_LINKED) or {}
    if not linked.get("customerId") or not linked.get("sharedKey"):
        raise invalid(
            "LogAnalyticsConfiguration is invalid. Must provide a valid LogAnalyticsConfiguration",
            "InvalidRequestParameterWithDetails",
        )


def _check_change(call: Call, profiles: list[dict[str, Any]], there: Mapping[str, Any]) -> None:
    before = {one["name"]: one for one in there["properties"].get("workloadProfiles") or []}
    after = {one["name"]: one for one in profiles}
    for name in after.keys() - before.keys():
        kind = after[name]["workloadProfileType"]
        if call.sub.knobs.old_environment and "GPU" in kind:
            raise invalid(
                f"Workload profile type '{kind}' is not supported by the environment"
                f" '{there['name']}': it was created before.",
                "WorkloadProfileTypeNotSupported",
            )
    for app in _apps(call):
        used = app["properties"].get("workloadProfileName", CONSUMPTION)
        if used in before and used not in after:
            raise conflict(
                "WorkloadProfileInUse",
                f"Workload profile '{used}' is used by the container app '{app['name']}'.",
            )


def _apps(call: Call) -> list[dict[str, Any]]:
    return [one for one in call.sub.of_type(_APP) if environment_of(one) == call.id]


ENVIRONMENT_TYPE: Final = "Microsoft.App/managedEnvironments"
_SUBSCRIPTION: Final = f"/subscriptions/{{subscription}}/providers/{ENVIRONMENT_TYPE}"
_GROUP: Final = (
    f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{ENVIRONMENT_TYPE}"
)
_ENVIRONMENT_ONE: Final = f"{_GROUP}/{{environment}}"
_ASKED: Final[tuple[str, ...]] = ("location", "tags", "properties")
_ENVIRONMENT_RESULTS: Final = "managedEnvironmentOperationResults"
_RHYTHM_SECONDS: Final = 0.05


def environment_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    return (
        arm("GET", _ENVIRONMENT_ONE, _get_environment, type=ENVIRONMENT_TYPE, world=world),
        arm("PUT", _ENVIRONMENT_ONE, _put_environment, type=ENVIRONMENT_TYPE, world=world),
        arm("PATCH", _ENVIRONMENT_ONE, _patch, type=ENVIRONMENT_TYPE, world=world),
        arm("DELETE", _ENVIRONMENT_ONE, _delete_environment, type=ENVIRONMENT_TYPE, world=world),
        arm("GET", _GROUP, _list_group, type=ENVIRONMENT_TYPE, world=world),
        arm("GET", _SUBSCRIPTION, _list_all, type=ENVIRONMENT_TYPE, world=world),
    )


def shown(body: dict[str, Any]) -> dict[str, Any]:
    """Give an environment as ARM does: the workspace's key is kept back."""
    properties = dict(body["properties"])
    logs = properties.get("appLogsConfiguration", {})
    if logs.get("logAnalyticsConfiguration"):
        told = {"customerId": logs["logAnalyticsConfiguration"].get("customerId", "")}
        properties["appLogsConfiguration"] = {**logs, "logAnalyticsConfiguration": told}
    return {**body, "properties": properties}


async def _get_environment(call: Call) -> dict[str, Any]:
    return shown(call.found())


async def _list_group(call: Call) -> dict[str, Any]:
    return page(call, [shown(one) for one in call.sub.under(call.id)])


async def _list_all(call: Call) -> dict[str, Any]:
    return page(call, [shown(one) for one in call.sub.of_type(ENVIRONMENT_TYPE)])


async def _put_environment(call: Call) -> Response:
    there = call.sub.get(call.id)
    region_of(call.body, there)
    return _changed(call, checked(M.ManagedEnvironment, call.body), there, 200 if there else 201)


async def _patch(call: Call) -> Response:
    there, asked = call.found(), checked(M.ManagedEnvironment, call.body, patch=True)
    whole: dict[str, Any] = {key: there[key] for key in _ASKED if key in there}
    return _changed(call, merged(whole, {"location": there["location"], **asked}), there, 202)


def _changed(
    call: Call, asked: dict[str, Any], there: dict[str, Any] | None, status: int
) -> Response:
    region = region_of(asked, there)
    check_tags(asked.get("tags"))
    _check_free(call)
    properties = asked.get("properties", {})
    check(call, region, properties, there)
    body = _made(call, region, asked, there)
    call.sub.resources[call.id] = body
    work = "environment-change" if there else "environment-create"
    operation = begin(call, work, region, _ENVIRONMENT_RESULTS)
    return JSONResponse(
        shown(body), status_code=status, headers=location_header(call.world, operation)
    )


def _made(
    call: Call, region: str, asked: dict[str, Any], there: dict[str, Any] | None
) -> dict[str, Any]:
    name, old = call.params["environment"], (there or {}).get("properties", {})
    word = id_of(call.id, call.sub.id)[:8]
    filled = {
        "zoneRedundant": False,
        "environmentMode": "WorkloadProfiles"
        if asked["properties"].get("workloadProfiles")
        else "ConsumptionOnly",
        "publicNetworkAccess": "Enabled",
        **asked["properties"],
        "provisioningState": "Waiting" if there else "InfrastructureSetupInProgress",
        "defaultDomain": old.get(
            "defaultDomain", f"gentle{word[:4]}-{word}.{region}.azurecontainerapps.io"
        ),
        "staticIp": "203.0.113.7",
        "eventStreamEndpoint": f"{call.world.urls.http}{call.path}/eventstream",
    }
    return {
        "id": there["id"] if there else call.path,
        "name": there["name"] if there else name,
        "type": ENVIRONMENT_TYPE,
        "location": display_of(region),
        "tags": asked.get("tags", {}),
        "systemData": system_data(call.sub, there),
        "properties": filled,
    }


@worker("environment-create")
async def _created(_world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    """Take as long as it is set to take now: it may be let end sooner."""
    while operation.status == "InProgress":
        left = operation.begun + sub.knobs.environment_seconds - time.time()
        if left <= 0:
            break
        await anyio.sleep(min(left, _RHYTHM_SECONDS))
    return await _settled(sub, operation, sub.knobs.environment_seconds)


@worker("environment-change")
async def _change_made(_world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    return await _settled(sub, operation, sub.knobs.operation_seconds)


async def _settled(sub: Subscription, operation: Operation, seconds: float) -> dict[str, Any]:
    await lasting(operation, seconds)
    body = sub.resources[operation.resource]
    body["properties"]["provisioningState"] = "Succeeded"
    return shown(body)


async def _delete_environment(call: Call) -> Response:
    body = call.sub.get(call.id)
    if body is None:
        return Response(status_code=204)
    _check_free(call)
    check_empty(call)
    body["properties"]["provisioningState"] = "ScheduledForDelete"
    operation = begin(call, "environment-delete", region_of(body), _ENVIRONMENT_RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("environment-delete")
async def _deleted_environment(_world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    prefix = f"{operation.resource}/"
    for name in [one for one in sub.resources if f"{one}/".startswith(prefix)]:
        del sub.resources[name]


def _check_free(call: Call) -> None:
    if under_way(call.sub, call.id):
        raise conflict(
            "ManagedEnvironmentOperationInProgress",
            f"Cannot modify Container Apps environment {call.params['environment']} because"
            " another operation is in progress.",
        )


LINK_TYPE: Final = "Microsoft.App/managedEnvironments/storages"
_ALL: Final = (
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.App"
    "/managedEnvironments/{environment}/storages"
)
_LINK_ONE: Final = f"{_ALL}/{{link}}"
_LINK_NAME: Final = re.compile(r"^[a-z](?!.*--)[a-z0-9-]{0,30}[a-z0-9]$")
_NEEDED: Final = {
    "azureFile": ("accountName", "accountKey", "shareName", "accessMode"),
    "nfsAzureFile": ("server", "shareName", "accessMode"),
}


def link_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    return (
        arm("GET", _ALL, _list_link, type=LINK_TYPE, world=world),
        arm("GET", _LINK_ONE, _get_link, type=LINK_TYPE, world=world),
        arm("PUT", _LINK_ONE, _put_link, type=LINK_TYPE, world=world),
        arm("DELETE", _LINK_ONE, _delete_link, type=LINK_TYPE, world=world),
    )


async def _list_link(call: Call) -> dict[str, Any]:
    _environment(call)
    return {"value": [_shown(one) for one in call.sub.under(call.id)]}


async def _get_link(call: Call) -> dict[str, Any]:
    return _shown(call.found())


async def _put_link(call: Call) -> Response:
    _environment(call)
    name, asked = call.params["link"], checked(M.ManagedEnvironmentStorage, call.body)
    if not _LINK_NAME.match(name):
        raise invalid(
            f"Invalid storage name '{name}'. A name must consist of lower case alphanumeric"
            " characters or '-', start with an alphabetic character, and end with an alphanumeric"
            " character and cannot have '--'. The length must not be more than 32 characters.",
            "ManagedEnvironmentStorageInvalidName",
        )
    _check(asked.get("properties", {}))
    there = call.sub.get(call.id)
    body = {
        "id": call.path,
        "name": name,
        "type": LINK_TYPE,
        "systemData": system_data(call.sub, there),
        "properties": asked["properties"],
    }
    call.sub.resources[call.id] = body
    return JSONResponse(_shown(body), status_code=200 if there else 201)


async def _delete_link(call: Call) -> Response:
    found = call.sub.resources.pop(call.id, None)
    return Response(status_code=200 if found else 204)


def _environment(call: Call) -> None:
    environment = call.path.rpartition("/storages")[0]
    if call.sub.get(environment) is None:
        raise not_found(environment)


def _check(properties: dict[str, Any]) -> None:
    kinds = [kind for kind in _NEEDED if properties.get(kind)]
    if len(kinds) != 1:
        raise invalid(
            "Exactly one of azureFile and nfsAzureFile must be provided.",
            "ManagedEnvironmentStorageInvalid",
        )
    missing = [key for key in _NEEDED[kinds[0]] if not properties[kinds[0]].get(key)]
    if missing:
        raise invalid(
            f"The storage's {kinds[0]} lacks {', '.join(missing)}.",
            "ManagedEnvironmentStorageInvalid",
        )


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    """Give a link as ARM does: the account's key is kept back."""
    properties = {
        kind: {key: value for key, value in told.items() if key != "accountKey"}
        for kind, told in body["properties"].items()
    }
    return {**body, "properties": properties}


WORKSPACE_TYPE: Final = "Microsoft.OperationalInsights/workspaces"
_WORKSPACE_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{2,61}[A-Za-z0-9]$")
_GUIDS: Final = "workspace-guids"
"""Where a subscription remembers which GUID each workspace had: one made again has it again."""
_WORKSPACE_RESULTS: Final = "operationResults"


def workspace_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{WORKSPACE_TYPE}"
    one = f"{here}/{{workspace}}"
    everywhere = f"/subscriptions/{{subscription}}/providers/{WORKSPACE_TYPE}"
    return (
        arm("PUT", one, _put_workspace, type=WORKSPACE_TYPE, world=world),
        arm("GET", one, _get_workspace, type=WORKSPACE_TYPE, world=world),
        arm("DELETE", one, _delete_workspace, type=WORKSPACE_TYPE, world=world),
        arm("GET", here, _list_workspace, type=WORKSPACE_TYPE, world=world),
        arm("GET", everywhere, _list_workspace, type=WORKSPACE_TYPE, world=world),
        arm(
            "POST",
            f"{one}/sharedKeys",
            _keys,
            type=WORKSPACE_TYPE,
            action="sharedKeys",
            world=world,
        ),
        *looked_at(world, "Microsoft.OperationalInsights", _WORKSPACE_RESULTS),
    )


def workspace_of(sub: Subscription, guid: str) -> dict[str, Any] | None:
    """Give the workspace with that customerId."""
    return next(
        (
            one
            for one in sub.of_type(WORKSPACE_TYPE)
            if one["properties"]["customerId"] == guid.lower()
        ),
        None,
    )


def key_of(world: World, workspace: dict[str, Any], which: str = "primary") -> str:
    """Give a workspace's key, primary or secondary."""
    told = f"{workspace['properties']['customerId']}/{which}".encode()
    return base64.b64encode(hmac.digest(world.key, told, "sha512")).decode("ascii")


def made(
    sub: Subscription, group: str, name: str, body: dict[str, Any], *, state: str = "Succeeded"
) -> dict[str, Any]:
    """Make a workspace, or write over one."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{WORKSPACE_TYPE}/{name}"
    there, guids = sub.get(path), sub.kept.setdefault(_GUIDS, {})
    given, now = body.get("properties", {}), moment()
    workspace = {
        "id": path,
        "name": name,
        "type": WORKSPACE_TYPE,
        "location": body["location"],
        "tags": body.get("tags", {}),
        "properties": {
            "retentionInDays": 30,
            "publicNetworkAccessForIngestion": "Enabled",
            "publicNetworkAccessForQuery": "Enabled",
            "features": {"enableLogAccessUsingOnlyResourcePermissions": True},
            **given,
            "sku": {"name": "PerGB2018", **given.get("sku", {})},
            "customerId": guids.setdefault(path.lower(), str(uuid.uuid4())),
            "createdDate": there["properties"]["createdDate"] if there else now,
            "modifiedDate": now,
            "provisioningState": state,
        },
    }
    sub.resources[path.lower()] = workspace
    return workspace


async def _put_workspace(call: Call) -> Response:
    there, name = call.sub.get(call.id), call.params["workspace"]
    body = checked(models.Workspace, call.body)
    if not _WORKSPACE_NAME.match(name):
        raise invalid(
            f"'{name}' does not match expected pattern '^[A-Za-z0-9][A-Za-z0-9-]+[A-Za-z0-9]$'.",
            "InvalidParameter",
        )
    body["location"] = region_of(call.body, there)
    check_tags(body.get("tags"))
    state = "Succeeded" if there else "Creating"
    kept = made(call.sub, call.params["group"], name, body, state=state)
    if there:
        return JSONResponse(kept)
    begin(call, "workspace-make", body["location"], _WORKSPACE_RESULTS)
    return JSONResponse(kept, status_code=201)


@worker("workspace-make")
async def _make(_world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    found = sub.get(operation.resource)
    if found:
        found["properties"]["provisioningState"] = "Succeeded"


async def _get_workspace(call: Call) -> dict[str, Any]:
    return call.found()


async def _list_workspace(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(WORKSPACE_TYPE))


async def _delete_workspace(call: Call) -> Response:
    there = call.sub.get(call.id)
    if there is None:
        return Response(status_code=204)
    there["properties"]["provisioningState"] = "Deleting"
    forced = call.query.get("force", "").lower() == "true"
    operation = begin(
        call, "workspace-delete", there["location"], _WORKSPACE_RESULTS, forced=forced
    )
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("workspace-delete")
async def _deleted_workspace(_world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    sub.resources.pop(operation.resource, None)
    if operation.more["forced"]:
        sub.kept.get(_GUIDS, {}).pop(operation.resource, None)


async def _keys(call: Call) -> dict[str, Any]:
    found = call.found()
    return {
        "primarySharedKey": key_of(call.world, found),
        "secondarySharedKey": key_of(call.world, found, "secondary"),
    }
