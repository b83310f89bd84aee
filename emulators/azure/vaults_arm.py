"""Key Vaults: made, looked at, deleted softly, recovered, purged; a name is the whole world's."""

import re
import time
from collections.abc import Sequence
from typing import Any, Final

from azure.mgmt.keyvault import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from emulators.azure import roles
from emulators.azure.bodies import check_tags, moment, region_of, system_data
from emulators.azure.operations import begin, lasting, location_header, looked_at, worker
from emulators.azure.paging import page
from emulators.azure.refusing import Refused, conflict, invalid
from emulators.azure.schema import checked
from emulators.azure.serving import Call, arm
from emulators.azure.state import Operation, Subscription, Vault, World

TYPE: Final = "Microsoft.KeyVault/vaults"
_DELETED_TYPE: Final = "Microsoft.KeyVault/deletedVaults"
_RETENTION_DAYS: Final = 90
_DAY: Final = 86_400.0
_NAME: Final = re.compile(r"^(?=.{3,24}$)[A-Za-z](?:-?[A-Za-z0-9])*$")
_DELETED: Final = "deleted-vaults"
"""Where a subscription remembers the bodies of vaults, deleted ones as well."""
_RESULTS: Final = "operationResults"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve vaults, deleted ones, and whether a name is free."""
    provider = "/subscriptions/{subscription}/providers/Microsoft.KeyVault"
    here = "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.KeyVault"
    may = "Microsoft.KeyVault/locations/deletedVaults"
    deleted = f"{provider}/locations/{{location}}/deletedVaults/{{vault}}"
    one = f"{here}/vaults/{{vault}}"
    return (
        arm("PUT", one, _put, type=TYPE, world=world),
        arm("GET", one, _get, type=TYPE, world=world),
        arm("DELETE", one, _delete, type=TYPE, world=world),
        arm("GET", f"{here}/vaults", _list, type=TYPE, world=world),
        arm("GET", f"{provider}/vaults", _list, type=TYPE, world=world),
        arm("GET", f"{provider}/deletedVaults", _list_deleted, type=_DELETED_TYPE, world=world),
        arm(
            "GET", deleted, _get_deleted, type=_DELETED_TYPE, permission=f"{may}/read", world=world
        ),
        arm(
            "POST",
            f"{deleted}/purge",
            _purge,
            type=_DELETED_TYPE,
            action="purge",
            permission=f"{may}/purge/action",
            world=world,
        ),
        arm(
            "POST",
            f"{provider}/checkNameAvailability",
            _check_name,
            type="Microsoft.KeyVault",
            action="checkNameAvailability",
            world=world,
        ),
        *looked_at(world, "Microsoft.KeyVault", _RESULTS),
    )


def vault_named(world: World, name: str) -> tuple[Subscription, dict[str, Any]] | None:
    """Give a vault and whose it is, wherever it is; not one that is deleted."""
    for sub in world:
        for body in sub.of_type(TYPE):
            if body["name"].lower() == name.lower():
                return sub, body
    return None


def made(
    sub: Subscription, group: str, name: str, body: dict[str, Any], *, state: str = "Succeeded"
) -> dict[str, Any]:
    """Make a vault, or write over one."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{TYPE}/{name}"
    there = sub.get(path)
    vault = {
        "id": path,
        "name": name,
        "type": TYPE,
        "location": body["location"],
        "tags": body.get("tags", {}),
        "systemData": system_data(sub, there),
        "properties": {
            "enableSoftDelete": True,
            "softDeleteRetentionInDays": _RETENTION_DAYS,
            "enableRbacAuthorization": True,
            "publicNetworkAccess": "Enabled",
            "accessPolicies": [],
            **{key: one for key, one in body["properties"].items() if key != "createMode"},
            "vaultUri": f"https://{name}.vault.azure.net/",
            "provisioningState": state,
        },
    }
    sub.resources[path.lower()] = vault
    sub.vaults.setdefault(name.lower(), Vault())
    sub.kept.setdefault(_DELETED, {})[name.lower()] = {"body": vault, "deleted": None}
    return vault


async def _put(call: Call) -> Response:
    body = checked(M.VaultCreateOrUpdateParameters, call.body)
    name, there = call.params["vault"], call.sub.get(call.id)
    body["location"] = region_of(call.body, there)
    check_tags(body.get("tags"))
    _check_properties(call, name, body["properties"])
    softly = _softly_deleted(call)
    if not there:
        _check_free(call, name, softly, body["properties"].get("createMode", "default"))
    state = "Succeeded" if there else "RegisteringDns"
    kept = made(call.sub, call.params["group"], name, softly or body, state=state)
    if not there:
        begin(call, "vault-make", body["location"], _RESULTS)
    return JSONResponse(kept)


@worker("vault-make")
async def _make(_world: World, sub: Subscription, operation: Operation) -> None:
    await lasting(operation, sub.knobs.operation_seconds)
    found = sub.get(operation.resource)
    if found:
        found["properties"]["provisioningState"] = "Succeeded"


def _check_properties(call: Call, name: str, properties: dict[str, Any]) -> None:
    if not _NAME.match(name):
        raise invalid(
            f"The vault name '{name}' is invalid. A vault's name must be between 3-24 alphanumeric"
            " characters. The name must begin with a letter, end with a letter or digit, and not"
            " contain consecutive hyphens. Follow this link for more information:"
            " https://go.microsoft.com/fwlink/?linkid=2147742",
            "VaultNameNotValid",
        )
    if properties["tenantId"].lower() != call.sub.tenant:
        raise invalid(
            f"Invalid tenant: '{properties['tenantId']}' is not the directory of the subscription.",
            "BadRequest",
        )
    if properties.get("enableSoftDelete") is False:
        raise invalid(
            'The property "enableSoftDelete" can be set to false only for creating new vault.'
            " Enabling the 'soft delete' functionality is an irreversible action.",
            "BadRequest",
        )


def _check_free(call: Call, name: str, softly: dict[str, Any] | None, mode: str) -> None:
    if mode == "recover" and not softly:
        raise Refused(
            404,
            "SoftDeletedVaultDoesNotExist",
            "A soft deleted vault with the given name does not exist. Ensure that the name for the"
            " vault that is being attempted to recover is in a recoverable state. For more"
            " information on soft delete please follow this link"
            " https://go.microsoft.com/fwlink/?linkid=2149745",
        )
    if softly and mode != "recover":
        raise conflict(
            "ConflictError",
            "A vault with the same name already exists in deleted state. You need to either recover"
            " or purge existing key vault. Follow this link"
            " https://go.microsoft.com/fwlink/?linkid=2149745 for more information on soft delete.",
        )
    if _taken(call.world, name, but=softly):
        raise conflict(
            "VaultAlreadyExists",
            f"The vault name '{name}' is already in use. Vault names are globally unique so it is"
            " possible that the name is already taken. If you are sure that the vault name was not"
            " taken then it is possible that a vault with the same name was recently deleted but"
            " not purged after being placed in a recoverable state. If the vault is in a"
            " recoverable state then the vault will need to be purged before reusing the name. For"
            " more information on soft delete and purging a vault follow this link"
            " https://go.microsoft.com/fwlink/?linkid=2147740",
        )


def _taken(world: World, name: str, *, but: dict[str, Any] | None = None) -> bool:
    """Whether a vault of that name is somewhere, deleted ones as well."""
    found = (sub.kept.get(_DELETED, {}).get(name.lower()) for sub in world)
    return any(one and (but is None or one["body"]["id"] != but["id"]) for one in found)


async def _get(call: Call) -> dict[str, Any]:
    return call.found()


async def _list(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    rows = call.sub.under(call.path) if group else call.sub.of_type(TYPE)
    return page(call, rows)


async def _delete(call: Call) -> Response:
    """Delete it softly: who had roles in it has none any more."""
    if call.sub.resources.pop(call.id, None) is None:
        return Response(status_code=204)
    roles.dropped(call.sub, call.path)
    return Response(status_code=200)


def _deleted_body(sub: Subscription, name: str) -> dict[str, Any] | None:
    """Give what a softly deleted vault was; its group may have been deleted with it."""
    kept = sub.kept.get(_DELETED, {}).get(name.lower())
    if kept is None or sub.get(kept["body"]["id"]):
        return None
    kept["deleted"] = kept["deleted"] or time.time()
    body: dict[str, Any] = kept["body"]
    return body


def _softly_deleted(call: Call) -> dict[str, Any] | None:
    """Give what the vault was that had this very id."""
    body = _deleted_body(call.sub, call.params["vault"])
    return body if body and body["id"].lower() == call.id else None


async def _get_deleted(call: Call) -> dict[str, Any]:
    return _shown(call.sub, _deleted_found(call)["name"])


async def _list_deleted(call: Call) -> dict[str, Any]:
    names = call.sub.kept.get(_DELETED, {})
    return page(call, [_shown(call.sub, name) for name in names if _deleted_body(call.sub, name)])


async def _purge(call: Call) -> Response:
    body = _deleted_found(call)
    if body["properties"].get("enablePurgeProtection"):
        raise conflict(
            "DeletedVaultPurge",
            f"Operation 'DeletedVaultPurge' is not allowed: '{body['name']}' is purge protected.",
        )
    operation = begin(call, "vault-purge", body["location"], _RESULTS, vault=body["name"].lower())
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("vault-purge")
async def _purged(_world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    await lasting(operation, sub.knobs.operation_seconds)
    sub.kept.get(_DELETED, {}).pop(operation.more["vault"], None)
    sub.vaults.pop(operation.more["vault"], None)
    return {}


def _deleted_found(call: Call) -> dict[str, Any]:
    body = _deleted_body(call.sub, call.params["vault"])
    if body is None:
        raise Refused(
            404,
            "DeletedVaultNotFound",
            f"The specified deleted vault '{call.params['vault']}' does not exist.",
        )
    return body


def _shown(sub: Subscription, name: str) -> dict[str, Any]:
    kept = sub.kept[_DELETED][name.lower()]
    body, region = kept["body"], kept["body"]["location"]
    provider = f"/subscriptions/{sub.id}/providers/Microsoft.KeyVault"
    return {
        "id": f"{provider}/locations/{region}/deletedVaults/{body['name']}",
        "name": body["name"],
        "type": _DELETED_TYPE,
        "properties": {
            "vaultId": body["id"],
            "location": region,
            "tags": body["tags"],
            "deletionDate": moment(kept["deleted"]),
            "scheduledPurgeDate": moment(kept["deleted"] + _RETENTION_DAYS * _DAY),
        },
    }


async def _check_name(call: Call) -> dict[str, Any]:
    name = checked(M.VaultCheckNameAvailabilityParameters, call.body)["name"]
    if not _NAME.match(name):
        said = f"The vault name '{name}' is invalid."
        return {"nameAvailable": False, "reason": "AccountNameInvalid", "message": said}
    if _taken(call.world, name):
        said = f"The vault name '{name}' is already in use."
        return {"nameAvailable": False, "reason": "AlreadyExists", "message": said}
    return {"nameAvailable": True}
