"""Managed environments: made, changed, listed, deleted."""

import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure import environment_rules as rules
from emulators.azure.bodies import check_tags, merged, region_of, system_data
from emulators.azure.operations import begin, lasting, location_header, under_way, worker
from emulators.azure.paging import page
from emulators.azure.profiles_known import display_of
from emulators.azure.refusing import conflict
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World, id_of

TYPE: Final = "Microsoft.App/managedEnvironments"
_SUBSCRIPTION: Final = f"/subscriptions/{{subscription}}/providers/{TYPE}"
_GROUP: Final = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
_ONE: Final = f"{_GROUP}/{{environment}}"
_ASKED: Final[tuple[str, ...]] = ("location", "tags", "properties")
_RESULTS: Final = "managedEnvironmentOperationResults"
_RHYTHM_SECONDS: Final = 0.05


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    return (
        arm("GET", _ONE, _get, type=TYPE, world=world),
        arm("PUT", _ONE, _put, type=TYPE, world=world),
        arm("PATCH", _ONE, _patch, type=TYPE, world=world),
        arm("DELETE", _ONE, _delete, type=TYPE, world=world),
        arm("GET", _GROUP, _list_group, type=TYPE, world=world),
        arm("GET", _SUBSCRIPTION, _list_all, type=TYPE, world=world),
    )


def shown(body: dict[str, Any]) -> dict[str, Any]:
    """Give an environment as ARM does: the workspace's key is kept back."""
    properties = dict(body["properties"])
    logs = properties.get("appLogsConfiguration", {})
    if logs.get("logAnalyticsConfiguration"):
        told = {"customerId": logs["logAnalyticsConfiguration"].get("customerId", "")}
        properties["appLogsConfiguration"] = {**logs, "logAnalyticsConfiguration": told}
    return {**body, "properties": properties}


async def _get(call: Call) -> dict[str, Any]:
    return shown(call.found())


async def _list_group(call: Call) -> dict[str, Any]:
    return page(call, [shown(one) for one in call.sub.under(call.id)])


async def _list_all(call: Call) -> dict[str, Any]:
    return page(call, [shown(one) for one in call.sub.of_type(TYPE)])


async def _put(call: Call) -> Response:
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
    rules.check(call, region, properties, there)
    body = _made(call, region, asked, there)
    call.sub.resources[call.id] = body
    work = "environment-change" if there else "environment-create"
    operation = begin(call, work, region, _RESULTS)
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
        "type": TYPE,
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


async def _delete(call: Call) -> Response:
    body = call.sub.get(call.id)
    if body is None:
        return Response(status_code=204)
    _check_free(call)
    rules.check_empty(call)
    body["properties"]["provisioningState"] = "ScheduledForDelete"
    operation = begin(call, "environment-delete", region_of(body), _RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("environment-delete")
async def _deleted(_world: World, sub: Subscription, operation: Operation) -> None:
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
