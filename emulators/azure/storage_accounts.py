"""Storage accounts: made, looked at, deleted; a name is the whole world's; and their keys."""

import base64
import hmac
import re
import shutil
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure import policies, roles
from emulators.azure.bodies import check_tags, moment, region_of, system_data
from emulators.azure.operations import begin, lasting, location_header, looked_at, worker
from emulators.azure.paging import page
from emulators.azure.refusing import conflict, invalid
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, World
from emulators.azure.storage_accounts_folders import account_folder, storage_folder

TYPE: Final = "Microsoft.Storage/storageAccounts"
_NAME: Final = re.compile(r"^[a-z0-9]{3,24}$")
_RESULTS: Final = "asyncoperations"
_KEYS: Final = ("key1", "key2")
_FILES_ONLY: Final = "FileStorage"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve accounts; their shares are in shares_arm."""
    provider = "/subscriptions/{subscription}/providers/Microsoft.Storage"
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{TYPE}"
    one = f"{here}/{{account}}"
    return (
        arm("PUT", one, _put, type=TYPE, world=world),
        arm("GET", one, _get, type=TYPE, world=world),
        arm("DELETE", one, _delete, type=TYPE, world=world),
        arm("GET", here, _list, type=TYPE, world=world),
        arm("GET", f"{provider}/storageAccounts", _list, type=TYPE, world=world),
        arm("POST", f"{one}/listKeys", _keys, type=TYPE, action="listKeys", world=world),
        arm(
            "POST",
            f"{provider}/checkNameAvailability",
            _check_name,
            type="Microsoft.Storage",
            action="checkNameAvailability",
            world=world,
        ),
        *looked_at(world, "Microsoft.Storage", _RESULTS),
    )


def account_named(world: World, name: str) -> tuple[Subscription, dict[str, Any]] | None:
    """Give a storage account and whose it is, wherever it is."""
    for sub in world:
        for body in sub.of_type(TYPE):
            if body["name"] == name:
                return sub, body
    return None


def key_of(world: World, sub: Subscription, account: str, key: str = "key1") -> str:
    """Give an account's key, key1 or key2."""
    told = f"{sub.id}/{account}/{key}".encode()
    return base64.b64encode(hmac.digest(world.key, told, "sha512")).decode("ascii")


def opens(world: World, sub: Subscription, account: str, key: str) -> bool:
    """Whether a key opens an account of the subscription, as one does that a link has."""
    found = next((one for one in sub.of_type(TYPE) if one["name"] == account), None)
    if found is None or found["properties"].get("allowSharedKeyAccess") is False:
        return False
    return key in {key_of(world, sub, account, name) for name in _KEYS}


def made(
    sub: Subscription, group: str, name: str, body: dict[str, Any], *, state: str = "Succeeded"
) -> dict[str, Any]:
    """Make an account, or write over one."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{TYPE}/{name}"
    there = sub.get(path)
    sku = body["sku"]["name"]
    account = {
        "id": path,
        "name": name,
        "type": TYPE,
        "location": body["location"],
        "tags": body.get("tags", {}),
        "kind": body["kind"],
        "sku": {"name": sku, "tier": "Premium" if sku.startswith("Premium") else "Standard"},
        "systemData": system_data(sub, there),
        "properties": {
            "supportsHttpsTrafficOnly": True,
            "minimumTlsVersion": "TLS1_0",
            "allowBlobPublicAccess": False,
            "accessTier": "Hot",
            **body.get("properties", {}),
            "creationTime": there["properties"]["creationTime"] if there else moment(),
            "primaryLocation": body["location"],
            "statusOfPrimary": "available",
            "primaryEndpoints": _endpoints(name, body["kind"]),
            "provisioningState": state,
        },
    }
    sub.resources[path.lower()] = account
    return account


def resume(world: World) -> None:
    """Remove the data of accounts whose subscription was forgotten."""
    for folder in storage_folder(world).glob("*"):
        if folder.name not in world.subscriptions:
            shutil.rmtree(folder, ignore_errors=True)


def _endpoints(name: str, kind: str) -> dict[str, str]:
    served = ("file",) if kind == _FILES_ONLY else ("blob", "file", "queue", "table", "dfs")
    return {one: f"https://{name}.{one}.core.windows.net/" for one in served}


async def _put(call: Call) -> Response:
    name, there = call.params["account"], call.sub.get(call.id)
    body = checked(M.StorageAccountCreateParameters, call.body)
    _check_letters(name)
    policies.refuse(call.sub, call.type, name, body)
    body["location"] = region_of(call.body, there)
    check_tags(body.get("tags"))
    _check_kind(body, there)
    if there:
        return JSONResponse(made(call.sub, call.params["group"], name, body))
    _check_free(call, name)
    # One of that name may have been deleted with its whole group.
    shutil.rmtree(account_folder(call.world, call.sub, name), ignore_errors=True)
    made(call.sub, call.params["group"], name, body, state="Creating")
    operation = begin(call, "storage-make", body["location"], _RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("storage-make")
async def _make(_world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    await lasting(operation, sub.knobs.operation_seconds)
    found = sub.resources[operation.resource]
    found["properties"]["provisioningState"] = "Succeeded"
    return found


def _check_letters(name: str) -> None:
    if not _NAME.match(name):
        raise invalid(
            f"{name} is not a valid storage account name. Storage account name must be between 3"
            " and 24 characters in length and use numbers and lower-case letters only.",
            "AccountNameInvalid",
        )


def _check_kind(body: dict[str, Any], there: dict[str, Any] | None) -> None:
    kind, sku = body["kind"], body["sku"]["name"]
    if kind == _FILES_ONLY and sku.startswith("Standard_"):
        raise invalid(
            f"Values for request parameters are invalid: sku. The sku {sku} is not for {kind}.",
            "InvalidValuesForRequestParameters",
        )
    if there and there["kind"] != kind:
        raise conflict(
            "AccountPropertyCannotBeUpdated",
            "The property 'kind' was specified in the input, but it cannot be updated.",
        )


def _check_free(call: Call, name: str) -> None:
    found = account_named(call.world, name)
    if found and found[0] is call.sub:
        raise conflict(
            "StorageAccountInAnotherResourceGroup",
            f"The account {name} is already in another resource group in this subscription.",
        )
    if found:
        raise conflict(
            "StorageAccountAlreadyTaken", f"The storage account named {name} is already taken."
        )


async def _get(call: Call) -> dict[str, Any]:
    return call.found()


async def _list(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(TYPE))


async def _delete(call: Call) -> Response:
    """Delete it with everything that is in it."""
    found = call.sub.resources.pop(call.id, None)
    if found is None:
        return Response(status_code=204)
    for name in [one for one in call.sub.resources if one.startswith(f"{call.id}/")]:
        del call.sub.resources[name]
    roles.dropped(call.sub, call.path)
    shutil.rmtree(account_folder(call.world, call.sub, found["name"]), ignore_errors=True)
    return Response(status_code=200)


async def _keys(call: Call) -> dict[str, Any]:
    name = call.found()["name"]
    return {
        "keys": [
            {
                "keyName": key,
                "value": key_of(call.world, call.sub, name, key),
                "permissions": "FULL",
                "creationTime": call.found()["properties"]["creationTime"],
            }
            for key in _KEYS
        ]
    }


async def _check_name(call: Call) -> dict[str, Any]:
    name = checked(M.StorageAccountCheckNameAvailabilityParameters, call.body)["name"]
    if not _NAME.match(name):
        said = f"{name} is not a valid storage account name."
        return {"nameAvailable": False, "reason": "AccountNameInvalid", "message": said}
    if account_named(call.world, name):
        said = f"The storage account named {name} is already taken."
        return {"nameAvailable": False, "reason": "AlreadyExists", "message": said}
    return {"nameAvailable": True}
