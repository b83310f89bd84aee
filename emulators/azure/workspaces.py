"""Log Analytics workspaces: made, looked at, deleted for a while, and their keys."""

import base64
import hmac
import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.loganalytics import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.bodies import check_tags, moment, region_of
from emulators.azure.operations import begin, lasting, location_header, looked_at, worker
from emulators.azure.paging import page
from emulators.azure.refusing import invalid
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World

TYPE: Final = "Microsoft.OperationalInsights/workspaces"
_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{2,61}[A-Za-z0-9]$")
_GUIDS: Final = "workspace-guids"
"""Where a subscription remembers which GUID each workspace had: one made again has it again."""
_RESULTS: Final = "operationResults"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
    one = f"{here}/{{workspace}}"
    everywhere = f"/subscriptions/{{subscription}}/providers/{TYPE}"
    return (
        arm("PUT", one, _put, type=TYPE, world=world),
        arm("GET", one, _get, type=TYPE, world=world),
        arm("DELETE", one, _delete, type=TYPE, world=world),
        arm("GET", here, _list, type=TYPE, world=world),
        arm("GET", everywhere, _list, type=TYPE, world=world),
        arm("POST", f"{one}/sharedKeys", _keys, type=TYPE, action="sharedKeys", world=world),
        *looked_at(world, "Microsoft.OperationalInsights", _RESULTS),
    )


def workspace_of(sub: Subscription, guid: str) -> dict[str, Any] | None:
    """Give the workspace with that customerId."""
    return next(
        (one for one in sub.of_type(TYPE) if one["properties"]["customerId"] == guid.lower()), None
    )


def key_of(world: World, workspace: dict[str, Any], which: str = "primary") -> str:
    """Give a workspace's key, primary or secondary."""
    told = f"{workspace['properties']['customerId']}/{which}".encode()
    return base64.b64encode(hmac.digest(world.key, told, "sha512")).decode("ascii")


def made(
    sub: Subscription, group: str, name: str, body: dict[str, Any], *, state: str = "Succeeded"
) -> dict[str, Any]:
    """Make a workspace, or write over one."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{TYPE}/{name}"
    there, guids = sub.get(path), sub.kept.setdefault(_GUIDS, {})
    given, now = body.get("properties", {}), moment()
    workspace = {
        "id": path,
        "name": name,
        "type": TYPE,
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


async def _put(call: Call) -> Response:
    there, name = call.sub.get(call.id), call.params["workspace"]
    body = checked(M.Workspace, call.body)
    if not _NAME.match(name):
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
    begin(call, "workspace-make", body["location"], _RESULTS)
    return JSONResponse(kept, status_code=201)


@worker("workspace-make")
async def _make(_world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    found = sub.get(operation.resource)
    if found:
        found["properties"]["provisioningState"] = "Succeeded"


async def _get(call: Call) -> dict[str, Any]:
    return call.found()


async def _list(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(TYPE))


async def _delete(call: Call) -> Response:
    there = call.sub.get(call.id)
    if there is None:
        return Response(status_code=204)
    there["properties"]["provisioningState"] = "Deleting"
    forced = call.query.get("force", "").lower() == "true"
    operation = begin(call, "workspace-delete", there["location"], _RESULTS, forced=forced)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("workspace-delete")
async def _deleted(_world: World, sub: Subscription, operation: Operation) -> None:
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
