"""Resource groups: made, looked at, listed, deleted with all that is in them."""

import re
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.resource.resources import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.app_shapes import TYPE as APP
from emulators.azure.apps import gone
from emulators.azure.bodies import check_tags, region_of
from emulators.azure.operations import begin, lasting, location_header, looked_at, worker
from emulators.azure.paging import page
from emulators.azure.refusing import conflict, group_not_found, invalid
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World

TYPE: Final = "Microsoft.Resources/resourceGroups"
_NAME: Final = re.compile(r"^[\w.()-]{0,89}[\w()-]$")
_ALL: Final = "/subscriptions/{subscription}/resourcegroups"
_ONE: Final = f"{_ALL}/{{group}}"
_PERMISSION: Final = "Microsoft.Resources/subscriptions/resourceGroups"
_LISTED: Final[tuple[str, ...]] = ("id", "name", "type", "location", "tags")
_RESULTS: Final = "operationresults"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve resource groups, and every resource that is in one."""
    verbs = (
        ("HEAD", _there, "read"),
        ("GET", _get, "read"),
        ("PUT", _put, "write"),
        ("PATCH", _patch, "write"),
        ("DELETE", _delete, "delete"),
    )
    return (
        *(
            arm(verb, _ONE, handler, type=TYPE, permission=f"{_PERMISSION}/{may}", world=world)
            for verb, handler, may in verbs
        ),
        arm("GET", _ALL, _list, type=TYPE, permission=f"{_PERMISSION}/read", world=world),
        arm("GET", f"{_ONE}/resources", _inside, type="Microsoft.Resources/resources", world=world),
        *looked_at(world, "Microsoft.Resources", _RESULTS),
    )


def made(sub: Subscription, name: str, region: str, tags: dict[str, str]) -> dict[str, Any]:
    """Make a resource group."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{name}"
    body = {
        "id": path,
        "name": name,
        "type": TYPE,
        "location": region,
        "tags": tags,
        "properties": {"provisioningState": "Succeeded"},
    }
    sub.resources[path.lower()] = body
    return body


async def _there(call: Call) -> Response:
    return Response(status_code=204 if call.id in call.sub.resources else 404)


async def _get(call: Call) -> dict[str, Any]:
    return _found(call)


async def _put(call: Call) -> Response:
    region_of(call.body)
    body, there = checked(M.ResourceGroup, call.body), call.sub.get(call.id)
    name = call.params["group"]
    if not _NAME.match(name):
        raise invalid(f"The resource group name '{name}' is not valid.", "InvalidResourceGroupName")
    region = region_of(body)
    check_tags(body.get("tags"))
    if there and there["location"] != region:
        raise conflict(
            "InvalidResourceGroupLocation",
            f"Invalid resource group location '{region}'. The Resource group already exists in"
            f" location '{there['location']}'.",
        )
    kept = made(call.sub, there["name"] if there else name, region, body.get("tags", {}))
    return JSONResponse(kept, status_code=200 if there else 201)


async def _patch(call: Call) -> dict[str, Any]:
    there, body = _found(call), checked(M.ResourceGroupPatchable, call.body, patch=True)
    check_tags(body.get("tags"))
    there["tags"] = body.get("tags", there["tags"])
    return there


async def _list(call: Call) -> dict[str, Any]:
    return page(call, call.sub.of_type(TYPE))


async def _inside(call: Call) -> dict[str, Any]:
    """List the resources of a group; those that belong to another one are not listed."""
    rows = [
        {key: body[key] for key in _LISTED if key in body}
        for name, body in call.sub.resources.items()
        if name.startswith(f"{call.group_id}/providers/") and _is_whole(name)
    ]
    return page(call, rows)


async def _delete(call: Call) -> Response:
    _found(call)
    operation = begin(call, "group-delete", "global", _RESULTS)
    call.sub.resources[call.id]["properties"]["provisioningState"] = "Deleting"
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("group-delete")
async def _deleted(world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    for app in sub.of_type(APP):
        if app["id"].lower().startswith(f"{operation.resource}/"):
            await gone(world, sub, app)
    for name in [one for one in sub.resources if one.startswith(f"{operation.resource}/")]:
        del sub.resources[name]
    sub.resources.pop(operation.resource, None)


def _found(call: Call) -> dict[str, Any]:
    body = call.sub.get(call.id)
    if body is None:
        raise group_not_found(call.params["group"])
    return body


def _is_whole(resource_id: str) -> bool:
    """Whether it is a resource of its own: `…/providers/NAMESPACE/TYPE/NAME`."""
    return len(resource_id.partition("/providers/")[2].split("/")) == 3
