"""Managed identities that are assigned by users: who an app is when it asks for something."""

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.msi.v2024_11_30 import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.bodies import check_tags, region_of, system_data
from emulators.azure.paging import page
from emulators.azure.refusing import invalid
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Subscription, World

TYPE: Final = "Microsoft.ManagedIdentity/userAssignedIdentities"
_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{2,127}$")


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
    one = f"{here}/{{identity}}"
    return (
        arm("PUT", one, _put, type=TYPE, world=world),
        arm("GET", one, _get, type=TYPE, world=world),
        arm("DELETE", one, _delete, type=TYPE, world=world),
        arm("GET", here, _list, type=TYPE, world=world),
        arm(
            "GET",
            f"/subscriptions/{{subscription}}/providers/{TYPE}",
            _list,
            type=TYPE,
            world=world,
        ),
    )


def made(
    sub: Subscription, group: str, name: str, region: str, tags: dict[str, str]
) -> dict[str, Any]:
    """Make an identity, or write over one; who it is does not change by that."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{TYPE}/{name}"
    there = sub.get(path)
    body = {
        "id": there["id"] if there else path,
        "name": there["name"] if there else name,
        "type": TYPE,
        "location": region,
        "tags": tags,
        "systemData": system_data(sub, there),
        "properties": there["properties"]
        if there
        else {
            "tenantId": sub.tenant,
            "principalId": str(uuid.uuid4()),
            "clientId": str(uuid.uuid4()),
        },
    }
    sub.resources[path.lower()] = body
    return body


async def _put(call: Call) -> Response:
    there, name = call.sub.get(call.id), call.params["identity"]
    body = checked(M.Identity, call.body)
    if not _NAME.match(name):
        raise invalid(
            f"The resource name '{name}' is not valid: 3 to 128 letters, digits, hyphens and"
            " underscores, the first a letter or digit.",
            "InvalidResourceName",
        )
    region = region_of(call.body, there)
    check_tags(body.get("tags"))
    kept = made(call.sub, call.params["group"], name, region, body.get("tags", {}))
    return JSONResponse(kept, status_code=200 if there else 201)


async def _get(call: Call) -> dict[str, Any]:
    return call.found()


async def _list(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(TYPE))


async def _delete(call: Call) -> Response:
    """Delete it; its role assignments are left, for nobody."""
    there = call.sub.resources.pop(call.id, None)
    return Response(status_code=200 if there else 204)
