"""File shares as Azure Resource Manager sees them: made, looked at, listed, deleted."""

import re
import shutil
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure.bodies import moment
from emulators.azure.paging import page
from emulators.azure.refusing import Refused, invalid, not_found
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Subscription, World
from emulators.azure.storage_accounts_folders import share_folder

TYPE: Final = "Microsoft.Storage/storageAccounts/fileServices/shares"
_SERVICE: Final = "Microsoft.Storage/storageAccounts/fileServices"
_ACCOUNTS: Final = "providers/Microsoft.Storage/storageAccounts"
_NAME: Final = re.compile(r"^(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*$")
_LARGEST_GIB: Final = 102_400
_SMALLEST_PREMIUM_GIB: Final = 100
_USUAL_STANDARD_GIB: Final = 5120


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    account = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/{_ACCOUNTS}/{{account}}"
    service = f"{account}/fileServices/default"
    one = f"{service}/shares/{{share}}"
    return (
        arm("GET", service, _service, type=_SERVICE, world=world),
        arm("GET", f"{service}/shares", _list, type=TYPE, world=world),
        arm("PUT", one, _put, type=TYPE, world=world),
        arm("GET", one, _get, type=TYPE, world=world),
        arm("DELETE", one, _delete, type=TYPE, world=world),
    )


def made(
    world: World, sub: Subscription, account: dict[str, Any], name: str, properties: dict[str, Any]
) -> dict[str, Any]:
    """Make a share, or write over one; what is in it stays."""
    path = f"{account['id']}/fileServices/default/shares/{name}"
    body = {
        "id": path,
        "name": name,
        "type": TYPE,
        "etag": '"0x8DD0A1"',
        "properties": {
            "shareQuota": _usual_quota(account),
            "enabledProtocols": "SMB",
            "accessTier": "Premium" if _premium(account) else "TransactionOptimized",
            "metadata": {},
            **properties,
            "lastModifiedTime": moment(),
            "leaseStatus": "unlocked",
            "leaseState": "available",
        },
    }
    folder = share_folder(world, sub, account["name"], name)
    if not sub.get(path):  # its account may have been deleted with the whole group
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    sub.resources[path.lower()] = body
    return body


async def _service(call: Call) -> dict[str, Any]:
    account = _account(call)
    return {
        "id": call.path,
        "name": "default",
        "type": _SERVICE,
        "sku": account["sku"],
        "properties": {"shareDeleteRetentionPolicy": {"enabled": True, "days": 7}},
    }


async def _put(call: Call) -> Response:
    account, name = _account(call), call.params["share"]
    properties = checked(M.FileShare, call.body).get("properties", {})
    if not _NAME.match(name):
        raise invalid(
            f"The share name '{name}' is not valid: 3 to 63 lower-case letters, digits and single"
            " hyphens.",
            "InvalidResourceName",
        )
    _check_size(account, properties.get("shareQuota", _usual_quota(account)))
    there = call.sub.get(call.id)
    kept = made(call.world, call.sub, account, name, properties)
    return JSONResponse(kept, status_code=200 if there else 201)


async def _get(call: Call) -> dict[str, Any]:
    _account(call)
    found = call.sub.get(call.id)
    if found is None:
        raise Refused(404, "ShareNotFound", "The specified share does not exist.")
    return found


async def _list(call: Call) -> dict[str, Any]:
    _account(call)
    return page(call, call.sub.under(call.path))


async def _delete(call: Call) -> Response:
    account = _account(call)
    found = call.sub.resources.pop(call.id, None)
    if found is None:
        return Response(status_code=204)
    folder = share_folder(call.world, call.sub, account["name"], found["name"])
    shutil.rmtree(folder, ignore_errors=True)
    return Response(status_code=200)


def _account(call: Call) -> dict[str, Any]:
    path = call.path[: call.id.index("/fileservices/")]
    account = call.sub.get(path)
    if account is None:
        raise not_found(path)
    if account["kind"] != "FileStorage" and _premium(account):
        raise invalid("File is not supported for the account.", "FeatureNotSupportedForAccount")
    return account


def _premium(account: dict[str, Any]) -> bool:
    return bool(account["sku"]["name"].startswith("Premium"))


def _usual_quota(account: dict[str, Any]) -> int:
    return _SMALLEST_PREMIUM_GIB if _premium(account) else _USUAL_STANDARD_GIB


def _check_size(account: dict[str, Any], quota: int) -> None:
    first = account["sku"]["name"] in {"Premium_LRS", "Premium_ZRS"}
    smallest = _SMALLEST_PREMIUM_GIB if first else 1
    if not smallest <= quota <= _LARGEST_GIB:
        raise invalid(
            "The value for one of the properties is not in the correct format: shareQuota must be"
            f" from {smallest} to {_LARGEST_GIB}.",
            "InvalidXmlNodeValue",
        )
