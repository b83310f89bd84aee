"""An environment's links to file shares, which apps mount by the link's name."""

import re
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.bodies import system_data
from emulators.azure.refusing import invalid, not_found
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import World

TYPE: Final = "Microsoft.App/managedEnvironments/storages"
_ALL: Final = (
    "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.App"
    "/managedEnvironments/{environment}/storages"
)
_ONE: Final = f"{_ALL}/{{link}}"
_NAME: Final = re.compile(r"^[a-z](?!.*--)[a-z0-9-]{0,30}[a-z0-9]$")
_NEEDED: Final = {
    "azureFile": ("accountName", "accountKey", "shareName", "accessMode"),
    "nfsAzureFile": ("server", "shareName", "accessMode"),
}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    return (
        arm("GET", _ALL, _list, type=TYPE, world=world),
        arm("GET", _ONE, _get, type=TYPE, world=world),
        arm("PUT", _ONE, _put, type=TYPE, world=world),
        arm("DELETE", _ONE, _delete, type=TYPE, world=world),
    )


async def _list(call: Call) -> dict[str, Any]:
    _environment(call)
    return {"value": [_shown(one) for one in call.sub.under(call.id)]}


async def _get(call: Call) -> dict[str, Any]:
    return _shown(call.found())


async def _put(call: Call) -> Response:
    _environment(call)
    name, asked = call.params["link"], checked(M.ManagedEnvironmentStorage, call.body)
    if not _NAME.match(name):
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
        "type": TYPE,
        "systemData": system_data(call.sub, there),
        "properties": asked["properties"],
    }
    call.sub.resources[call.id] = body
    return JSONResponse(_shown(body), status_code=200 if there else 201)


async def _delete(call: Call) -> Response:
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
