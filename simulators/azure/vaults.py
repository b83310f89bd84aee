"""Key Vaults, deleted softly and recovered, and their secrets."""

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from azure.keyvault.secrets._generated import models
from azure.mgmt.keyvault import models as M  # noqa: N812  as Microsoft writes it
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.azure import roles, tokens
from simulators.azure.catalog import (
    DELETE_SECRET,
    LIST_SECRETS,
    PURGE_SECRET,
    READ_SECRET,
    RECOVER_SECRET,
    SET_SECRET,
)
from simulators.azure.errors import Refused, conflict, invalid, take_fault
from simulators.azure.serving import (
    Call,
    arm,
    begin,
    check_tags,
    checked,
    json_of,
    lasting,
    location_header,
    looked_at,
    moment,
    page,
    refusal,
    region_of,
    system_data,
    worker,
)
from simulators.azure.state import Operation, Secret, Subscription, Vault, World

TYPE: Final = "Microsoft.KeyVault/vaults"
_DELETED_TYPE: Final = "Microsoft.KeyVault/deletedVaults"
_RETENTION_DAYS: Final = 90
_VAULT_DAY: Final = 86_400.0
_VAULT_NAME: Final = re.compile(r"^(?=.{3,24}$)[A-Za-z](?:-?[A-Za-z0-9])*$")
_DELETED: Final = "deleted-vaults"
"""Where a subscription remembers the bodies of vaults, deleted ones as well."""
_RESULTS: Final = "operationResults"


def vault_routes(world: World) -> Sequence[BaseRoute]:
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
            _check_name_vault,
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
    if not _VAULT_NAME.match(name):
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
    return _shown(call.sub, _deleted_found_vault(call)["name"])


async def _list_deleted(call: Call) -> dict[str, Any]:
    names = call.sub.kept.get(_DELETED, {})
    return page(call, [_shown(call.sub, name) for name in names if _deleted_body(call.sub, name)])


async def _purge(call: Call) -> Response:
    body = _deleted_found_vault(call)
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


def _deleted_found_vault(call: Call) -> dict[str, Any]:
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
            "scheduledPurgeDate": moment(kept["deleted"] + _RETENTION_DAYS * _VAULT_DAY),
        },
    }


async def _check_name_vault(call: Call) -> dict[str, Any]:
    name = checked(M.VaultCheckNameAvailabilityParameters, call.body)["name"]
    if not _VAULT_NAME.match(name):
        said = f"The vault name '{name}' is invalid."
        return {"nameAvailable": False, "reason": "AccountNameInvalid", "message": said}
    if _taken(call.world, name):
        said = f"The vault name '{name}' is already in use."
        return {"nameAvailable": False, "reason": "AlreadyExists", "message": said}
    return {"nameAvailable": True}


AUDIENCE: Final = "https://vault.azure.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that was admitted."""

    vault: Vault
    vault_uri: str
    """Its address in the real world, with the slash."""
    days: int
    """For which what is deleted can be recovered."""
    purge_protected: bool
    name: str
    """Of the secret; empty where it is about all of them."""
    version: str
    """Empty is the newest."""
    query: Mapping[str, str]
    url: str
    """Where it was asked, without what follows the question mark."""
    body: dict[str, Any]


Answer = Callable[[Asked], Awaitable[dict[str, Any] | Response]]
"""Answers a request; raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the vault's own API."""

    verb: str
    pattern: str
    """Below the vault."""
    answer: Answer
    action: str
    """What the caller's roles must allow."""

    @property
    def name(self) -> str:
        """What faults and the list of calls know it by, such as `PUT secrets`."""
        words = [word for word in self.pattern.split("/") if word and not word.startswith("{")]
        return f"{self.verb} {'/'.join(words)}"


def served(world: World, method: Method) -> Route:
    """Serve a method for every vault."""

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            return await _answered(world, method, request)
        except Refused as refused:
            return refusal(refused)

    return Route(f"/vaults/{{vault}}{method.pattern}", endpoint, methods=[method.verb])


async def _answered(world: World, method: Method, request: Request) -> Response:
    sub, vault = _vault_of(world, request.path_params["vault"])
    caller = _caller(world, sub, request)
    sub.called(method.name)
    fault = take_fault(sub, method.name)
    if fault and fault.when in {"before", "hang"}:
        await fault.happen()
    _check_version(request)
    asked = Asked(
        vault=sub.vaults[vault["name"].lower()],
        vault_uri=vault["properties"]["vaultUri"],
        days=vault["properties"]["softDeleteRetentionInDays"],
        purge_protected=bool(vault["properties"].get("enablePurgeProtection")),
        name=request.path_params.get("name", ""),
        version=request.path_params.get("version", ""),
        query=request.query_params,
        url=f"{world.urls.arm}{request.url.path}",
        body=await json_of(request),
    )
    check_access(sub, vault, caller, method.action, asked.name)
    answer = await method.answer(asked)
    if method.verb != "GET":
        world.keep(sub)
    if fault:
        await fault.happen()
    return JSONResponse(answer) if isinstance(answer, dict) else answer


def check_access(
    sub: Subscription, vault: dict[str, Any], principal: str, action: str, name: str
) -> None:
    """Refuse whoever has no role, in effect, that allows this.

    Raises:
        Refused: In Microsoft's words.
    """
    if not vault["properties"]["enableRbacAuthorization"]:
        raise Refused(
            403,
            "Forbidden",
            f"The user, group or application 'oid={principal}' does not have secrets permission on"
            f" key vault '{vault['name']};location={vault['location']}'.",
            inner={"code": "AccessDenied"},
        )
    resource = f"{vault['id']}/secrets/{name}" if name else vault["id"]
    if roles.may(sub, principal, action, resource):
        return
    raise Refused(
        403,
        "Forbidden",
        "Caller is not authorized to perform action on resource.\r\nIf role assignments, deny"
        " assignments or role definitions were changed recently, please observe propagation"
        f" time.\r\nCaller: oid={principal};iss=https://sts.windows.net/{sub.tenant}/\r\n"
        f"Action: '{action}'\r\nResource: '{resource.lower()}'\r\nAssignment: (not found)\r\n"
        "DenyAssignmentId: null\r\nDecisionReason: null \r\n"
        f"Vault: {vault['name']};location={vault['location']}\r\n",
        inner={"code": "ForbiddenByRbac"},
    )


def _vault_of(world: World, name: str) -> tuple[Subscription, dict[str, Any]]:
    found = vault_named(world, name)
    if found is None:
        # The real one has no such host: nobody answers, which this status is the nearest to.
        raise Refused(503, "NoSuchHost", f"No address is known for {name}.vault.azure.net.")
    return found


def _caller(world: World, sub: Subscription, request: Request) -> str:
    try:
        claims = tokens.caller_of(world, request.headers, AUDIENCE)
    except Refused as refused:
        raise _challenge(sub, refused.message) from refused
    if claims.subscription != sub.id:
        raise _challenge(sub, "AKV10032: Invalid issuer.")
    return claims.object_id


def _challenge(sub: Subscription, why: str) -> Refused:
    login = f"https://login.microsoftonline.com/{sub.tenant}"
    challenge = f'Bearer authorization="{login}", resource="{AUDIENCE}"'
    return Refused(401, "Unauthorized", why, headers={"WWW-Authenticate": challenge})


def _check_version(request: Request) -> None:
    if "api-version" not in request.query_params:
        raise invalid("The api-version query parameter is missing.", "BadParameter")


_VAULT_SECRETS_NAME: Final = re.compile(r"^[0-9A-Za-z-]{1,127}$")
_MOST_LETTERS: Final = 25_600
_MOST_TAGS: Final = 15
_PAGE: Final = 25
_LONGEST_DAYS: Final = 90
_VAULT_SECRETS_DAY: Final = 86_400


async def set_secret(asked: Asked) -> dict[str, Any]:
    """Add a version; the first one makes the secret."""
    _check_name_vault_secrets(asked.name)
    body = checked(models.SecretSetParameters, asked.body)
    _check_body(body)
    secret = asked.vault.secrets.setdefault(asked.name.lower(), Secret())
    if secret.deleted is not None:
        raise _deleted_but_recoverable(asked.name)
    secret.versions.append(_version(asked, body))
    return secret.versions[-1]


async def get_secret(asked: Asked) -> dict[str, Any]:
    """Give a version with its value, the newest if none is named."""
    version = _found(asked)
    if not version["attributes"]["enabled"]:
        raise Refused(
            403,
            "Forbidden",
            "Operation get is not allowed on a disabled secret.",
            inner={"code": "SecretDisabled"},
        )
    return version


async def update_secret(asked: Asked) -> dict[str, Any]:
    """Change what is told about a version, but not its value."""
    version, body = _found(asked), checked(models.SecretUpdateParameters, asked.body)
    _check_tags(body)
    version.update({key: body[key] for key in ("tags", "contentType") if key in body})
    attributes = {**body.get("attributes", {}), "updated": int(time.time())}
    version["attributes"] = {**version["attributes"], **attributes}
    return _without_value(version)


async def list_secrets(asked: Asked) -> dict[str, Any]:
    """List the newest version of each that is not deleted, without values."""
    rows = [
        {**_without_value(one.versions[-1]), "id": _id(asked, name)}
        for name, one in asked.vault.secrets.items()
        if one.deleted is None
    ]
    return _page(asked, rows)


async def list_versions(asked: Asked) -> dict[str, Any]:
    """List the versions of one, without values; of none, nothing."""
    secret = asked.vault.secrets.get(asked.name.lower())
    versions = secret.versions if secret and secret.deleted is None else []
    return _page(asked, [_without_value(one) for one in versions])


async def delete_secret(asked: Asked) -> dict[str, Any]:
    """Delete it softly."""
    _found(asked)
    secret = asked.vault.secrets[asked.name.lower()]
    secret.deleted = time.time()
    return _deleted(asked, asked.name, secret)


async def get_deleted(asked: Asked) -> dict[str, Any]:
    """Tell of one that can be recovered."""
    return _deleted(asked, asked.name, _deleted_found_vault_secrets(asked))


async def list_deleted(asked: Asked) -> dict[str, Any]:
    """List those that can be recovered."""
    rows = [
        _deleted(asked, name, one)
        for name, one in asked.vault.secrets.items()
        if one.deleted is not None
    ]
    return _page(asked, rows)


async def recover_deleted(asked: Asked) -> dict[str, Any]:
    """Let it be as before."""
    secret = _deleted_found_vault_secrets(asked)
    secret.deleted = None
    return _without_value(secret.versions[-1])


async def purge_deleted(asked: Asked) -> Response:
    """Forget it for ever."""
    _deleted_found_vault_secrets(asked)
    del asked.vault.secrets[asked.name.lower()]
    return Response(status_code=204)


def _without_value(bundle: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in bundle.items() if key != "value"}


def _deleted_found_vault_secrets(asked: Asked) -> Secret:
    secret = asked.vault.secrets.get(asked.name.lower())
    if secret is None or secret.deleted is None:
        raise _not_found(asked.name)
    return secret


def _not_found(name: str) -> Refused:
    return Refused(
        404,
        "SecretNotFound",
        f"A secret with (name/id) {name} was not found in this key vault. If you recently deleted"
        " this secret you may be able to recover it using the correct recovery command. For help"
        " resolving this issue, please see https://go.microsoft.com/fwlink/?linkid=2125182",
    )


def _deleted(asked: Asked, name: str, secret: Secret) -> dict[str, Any]:
    at = int(secret.deleted or 0)
    return {
        **_without_value(secret.versions[-1]),
        "recoveryId": _id(asked, name, "deletedsecrets"),
        "deletedDate": at,
        "scheduledPurgeDate": at + asked.days * _VAULT_SECRETS_DAY,
    }


def _id(asked: Asked, name: str, kind: str = "secrets") -> str:
    """Give the id as the real one does: by the vault's own host."""
    return f"{asked.vault_uri}{kind}/{name}"


def _page(asked: Asked, rows: list[dict[str, Any]]) -> dict[str, Any]:
    size = min(int(asked.query.get("maxresults", _PAGE)), _PAGE)
    begin = int(asked.query.get("$skiptoken", 0))
    end = begin + size
    following = f"{asked.url}?api-version={asked.query['api-version']}&maxresults={size}"
    link = f"{following}&$skiptoken={end}" if end < len(rows) else None
    return {"value": rows[begin:end], "nextLink": link}


def _check_tags(body: dict[str, Any]) -> None:
    if len(body.get("tags", {})) > _MOST_TAGS:
        raise invalid(
            f"Tags may not exceed the maximum number of {_MOST_TAGS} for one secret.",
            "BadParameter",
        )


def _found(asked: Asked) -> dict[str, Any]:
    secret = asked.vault.secrets.get(asked.name.lower())
    versions = secret.versions if secret and secret.deleted is None else []
    wanted = asked.version
    found = [one for one in versions if not wanted or one["id"].endswith(f"/{wanted}")]
    if not found:
        raise _not_found(f"{asked.name}/{wanted}" if wanted else asked.name)
    return found[-1]


def _version(asked: Asked, body: dict[str, Any]) -> dict[str, Any]:
    now, given = int(time.time()), body.get("attributes", {})
    version: dict[str, Any] = {
        "id": f"{_id(asked, asked.name)}/{uuid.uuid4().hex}",
        "value": body["value"],
        "tags": body.get("tags", {}),
        "attributes": {
            "enabled": True,
            **given,
            "created": now,
            "updated": now,
            "recoveryLevel": _level(asked),
            "recoverableDays": asked.days,
        },
    }
    if "contentType" in body:
        version["contentType"] = body["contentType"]
    return version


def _level(asked: Asked) -> str:
    """Say how deleted secrets come back, in Microsoft's words for fewer days than usual."""
    customized = "Customized" if asked.days < _LONGEST_DAYS else ""
    return f"{customized}Recoverable{'' if asked.purge_protected else '+Purgeable'}"


def _deleted_but_recoverable(name: str) -> Refused:
    refused = conflict(
        "Conflict",
        f"Secret {name} is currently in a deleted but recoverable state, and its name cannot be"
        " reused; in this state, the secret can only be recovered or purged.",
    )
    refused.inner = {"code": "ObjectIsDeletedButRecoverable"}
    return refused


def _check_body(body: dict[str, Any]) -> None:
    if len(body["value"]) > _MOST_LETTERS:
        raise invalid(
            f"The secret's value has {len(body['value'])} letters; at most {_MOST_LETTERS} are"
            " allowed.",
            "BadParameter",
        )
    _check_tags(body)


def _check_name_vault_secrets(name: str) -> None:
    if not _VAULT_SECRETS_NAME.match(name):
        raise invalid(f"The request URI contains an invalid name: {name}", "BadParameter")


METHODS: Final = (
    Method("GET", "/secrets", list_secrets, LIST_SECRETS),
    Method("PUT", "/secrets/{name}", set_secret, SET_SECRET),
    Method("GET", "/secrets/{name}", get_secret, READ_SECRET),
    Method("GET", "/secrets/{name}/", get_secret, READ_SECRET),  # so Microsoft's client asks
    Method("DELETE", "/secrets/{name}", delete_secret, DELETE_SECRET),
    Method("PATCH", "/secrets/{name}", update_secret, SET_SECRET),
    Method("PATCH", "/secrets/{name}/", update_secret, SET_SECRET),
    Method("GET", "/secrets/{name}/versions", list_versions, LIST_SECRETS),
    Method("GET", "/secrets/{name}/{version}", get_secret, READ_SECRET),
    Method("PATCH", "/secrets/{name}/{version}", update_secret, SET_SECRET),
    Method("GET", "/deletedsecrets", list_deleted, LIST_SECRETS),
    Method("GET", "/deletedsecrets/{name}", get_deleted, LIST_SECRETS),
    Method("DELETE", "/deletedsecrets/{name}", purge_deleted, PURGE_SECRET),
    Method("POST", "/deletedsecrets/{name}/recover", recover_deleted, RECOVER_SECRET),
)


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the secrets of every vault."""
    return [served(world, method) for method in METHODS]
