"""Key Vaults, deleted softly and recovered, and their secrets."""

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from azure.keyvault.secrets._generated import models as secrets
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from simulators.azure import roles
from simulators.azure.admission import (
    Refused,
    begin_call,
    caller_of,
    endpoint,
    json_of,
    refusal,
)
from simulators.azure.arm import Call, kind_of, moment
from simulators.azure.schema import checked
from simulators.azure.state import Body, Secret, Subscription, World

VAULT: Final = "Microsoft.KeyVault/vaults"
READ: Final = "Microsoft.KeyVault/vaults/secrets/getSecret/action"
_DELETED: Final = "Microsoft.KeyVault/deletedVaults"
_LONGEST_DAYS: Final = 90
_DAY: Final = 86_400


def _vault(call: Call, asked: Body, there: Body | None) -> Body:
    properties, name = asked["properties"], call.name.lower()
    if properties["tenantId"].lower() != call.sub.tenant:
        raise refusal("vault-tenant", tenant=properties["tenantId"])
    mode = properties.pop("createMode", "default")
    deleted = _softly_deleted(call.sub, name)
    softly = deleted if deleted and deleted["id"].lower() == call.id else None
    if not there:
        if mode == "recover" and not softly:
            raise refusal("vault-lost")
        if softly and mode != "recover":
            raise refusal("vault-deleted")
        if _taken(call.world, name) and not softly:
            raise refusal("vault-taken", name=call.name)
    made: Body = {
        "location": (softly or asked)["location"],
        "tags": (softly or asked).get("tags") or {},
        "properties": {
            "enableSoftDelete": True,
            "softDeleteRetentionInDays": _LONGEST_DAYS,
            "enableRbacAuthorization": True,
            "publicNetworkAccess": "Enabled",
            "accessPolicies": [],
            **(softly["properties"] if softly else properties),
            "vaultUri": f"https://{call.name}.vault.azure.net/",
        },
    }
    call.sub.secrets.setdefault(name, {})
    known = {"id": call.path, "name": call.name}
    call.sub.vaults[name] = {"body": {**known, **made}, "deleted": None}
    return made


def _taken(world: World, name: str) -> bool:
    """Return whether a vault of that name is somewhere, deleted ones as well."""
    return any(name.lower() in sub.vaults for sub in world)


async def _ended(_world: World, sub: Subscription, vault: Body) -> None:
    sub.vaults[vault["name"].lower()]["deleted"] = time.time()


def _softly_deleted(sub: Subscription, name: str) -> Body | None:
    """Return what a softly deleted vault was."""
    kept = sub.vaults.get(name.lower())
    return kept["body"] if kept and kept["deleted"] else None


def _deleted_found(call: Call) -> Body:
    body = _softly_deleted(call.sub, call.name)
    if body is None:
        raise refusal("vault-not-deleted", name=call.name)
    return body


async def _get_deleted(call: Call) -> Body:
    return _deleted(call.sub, _deleted_found(call)["name"])


def _deleted(sub: Subscription, name: str) -> Body:
    kept = sub.vaults[name.lower()]
    body, region, at = kept["body"], kept["body"]["location"], kept["deleted"]
    provider = f"/subscriptions/{sub.id}/providers/Microsoft.KeyVault"
    days = body["properties"]["softDeleteRetentionInDays"]
    return {
        "id": f"{provider}/locations/{region}/deletedVaults/{body['name']}",
        "name": body["name"],
        "type": _DELETED,
        "properties": {
            "vaultId": body["id"],
            "location": region,
            "tags": body["tags"],
            "deletionDate": moment(at),
            "scheduledPurgeDate": moment(at + days * _DAY),
        },
    }


KINDS: Final = (
    kind_of(VAULT, fill=_vault, ended=_ended),
    kind_of("Microsoft.KeyVault/locations/deletedVaults", handlers={"GET": _get_deleted}),
)


_AUDIENCE: Final = "https://vault.azure.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for secrets that was admitted."""

    secrets: dict[str, Secret]
    """Of the vault."""
    vault: Body
    name: str
    body: Body

    @property
    def secret(self) -> Secret | None:
        """The secret, deleted or not."""
        return self.secrets.get(self.name.lower())

    @property
    def days(self) -> int:
        """For which what is deleted can be recovered."""
        return int(self.vault["properties"]["softDeleteRetentionInDays"])

    def id(self, name: str, kind: str = "secrets") -> str:
        """Return the id as the real one does: by the vault's own host."""
        return f"{self.vault['properties']['vaultUri']}{kind}/{name}"


def _set(asked: Asked) -> Body:
    """Add a version; the first one makes the secret."""
    body = checked(secrets.SecretSetParameters, asked.body)
    secret = asked.secrets.setdefault(asked.name.lower(), Secret())
    if secret.deleted is not None:
        raise _with_inner(
            refusal("secret-deleted", name=asked.name), "ObjectIsDeletedButRecoverable"
        )
    now = int(time.time())
    version: Body = {
        "id": f"{asked.id(asked.name)}/{uuid.uuid4().hex}",
        **{key: body[key] for key in ("value", "contentType") if key in body},
        "tags": body.get("tags", {}),
        "attributes": {
            "enabled": True,
            **body.get("attributes", {}),
            "created": now,
            "updated": now,
            "recoveryLevel": "CustomizedRecoverable+Purgeable",
            "recoverableDays": asked.days,
        },
    }
    secret.versions.append(version)
    return version


def _delete(asked: Asked) -> Body:
    _get(asked)
    secret = asked.secrets[asked.name.lower()]
    secret.deleted = time.time()
    return _deleted_secret(asked, asked.name, secret)


def _get_deleted_secret(asked: Asked) -> Body:
    return _deleted_secret(asked, asked.name, _recoverable(asked))


def _recover(asked: Asked) -> Body:
    secret = _recoverable(asked)
    secret.deleted = None
    return _without_value(secret.versions[-1])


def _purge_secret(asked: Asked) -> Response:
    _recoverable(asked)
    del asked.secrets[asked.name.lower()]
    return Response(status_code=204)


def _without_value(bundle: Body) -> Body:
    return {key: one for key, one in bundle.items() if key != "value"}


def _get(asked: Asked) -> Body:
    if asked.secret is None or asked.secret.deleted is not None:
        raise refusal("secret-lost", name=asked.name)
    return asked.secret.versions[-1]


def _recoverable(asked: Asked) -> Secret:
    if asked.secret is None or asked.secret.deleted is None:
        raise refusal("secret-lost", name=asked.name)
    return asked.secret


def _deleted_secret(asked: Asked, name: str, secret: Secret) -> Body:
    at = int(secret.deleted or 0)
    return {
        **_without_value(secret.versions[-1]),
        "recoveryId": asked.id(name, "deletedsecrets"),
        "deletedDate": at,
        "scheduledPurgeDate": at + asked.days * _DAY,
    }


def _with_inner(refused: Refused, code: str) -> Refused:
    refused.inner = {"code": code}
    return refused


_METHODS: Final[Sequence[tuple[str, str, Callable[[Asked], Body | Response], str]]] = (
    ("PUT", "/secrets/{name}", _set, "setSecret/action"),
    ("GET", "/secrets/{name}", _get, "getSecret/action"),
    ("DELETE", "/secrets/{name}", _delete, "delete"),
    ("GET", "/deletedsecrets/{name}", _get_deleted_secret, "readMetadata/action"),
    ("DELETE", "/deletedsecrets/{name}", _purge_secret, "purge/action"),
    ("POST", "/deletedsecrets/{name}/recover", _recover, "recover/action"),
)
"""Verb, path below the vault, answer, and what the caller's roles must allow of secrets."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the secrets of every vault; Microsoft's client asks with a slash at the end."""
    return [
        Route(f"/vaults/{{vault}}{path}{slash}", _endpoint(world, *method), methods=[method[0]])
        for method in _METHODS
        for path, slash in ((method[1], ""), (method[1], "/"))
    ]


def _endpoint(
    world: World, verb: str, path: str, answer: Callable[[Asked], Body | Response], action: str
) -> Any:
    words = [word for word in path.split("/") if word and not word.startswith("{")]
    label, needed = f"{verb} {'/'.join(words)}", f"Microsoft.KeyVault/vaults/secrets/{action}"

    async def answered(request: Request) -> Response | Body:
        sub, vault = _vault_of(world, request.path_params["vault"])
        caller = _caller(world, sub, request)
        fault = await begin_call(sub, label)
        asked = Asked(
            secrets=sub.secrets[vault["name"].lower()],
            vault=vault,
            name=request.path_params.get("name", ""),
            body=await json_of(request),
        )
        _check_access(sub, vault, caller, needed, asked.name)
        told = answer(asked)
        if verb != "GET":
            world.keep(sub)
        if fault:
            await fault.happen()
        return told

    return endpoint(world, answered)


def _vault_of(world: World, name: str) -> tuple[Subscription, Body]:
    found = world.named(VAULT, name)
    if found is None:  # the real one has no such host; this status is the nearest to that
        raise refusal("no-host", host=f"{name}.vault.azure.net")
    return found


def _caller(world: World, sub: Subscription, request: Request) -> str:
    try:
        claims = caller_of(world, request.headers, _AUDIENCE)
        if claims.rehearsed_subscription == sub.id:
            return claims.oid
        why = "AKV10032: Invalid issuer."
    except Refused as exc:
        why = exc.message
    refused = refusal("vault-challenge", why=why)
    login = f"https://login.microsoftonline.com/{sub.tenant}"
    told = f'Bearer authorization="{login}", resource="{_AUDIENCE}"'
    refused.headers["WWW-Authenticate"] = told
    raise refused


def _check_access(sub: Subscription, vault: Body, oid: str, action: str, name: str) -> None:
    """Refuse whoever has no role, in effect, that allows this."""
    where = f"{vault['name']};location={vault['location']}"
    if not vault["properties"]["enableRbacAuthorization"]:
        raise _with_inner(refusal("vault-policy", oid=oid, vault=where), "AccessDenied")
    resource = f"{vault['id']}/secrets/{name}" if name else vault["id"]
    if not roles.may(sub, oid, action, resource):
        words = {"oid": oid, "tenant": sub.tenant, "action": action, "vault": where}
        refused = refusal("vault-role", resource=resource.lower(), **words)
        raise _with_inner(refused, "ForbiddenByRbac")


class SecretLost(Exception):
    """The vault does not give it; the text says why."""


def read_secret(world: World, url: str, principal: str) -> str:
    """Read a vault's secret as an identity does, by a URL here or in the real world.

    Raises:
        SecretLost: It is not there, or may not be read.
    """
    host, *parts = re.sub(r"^https://(.*?/vaults/)?", "", url.lower()).split("/")
    vault_name, (name, version, *_) = host.partition(".")[0], [*parts[1:], "", ""]
    found = world.named(VAULT, vault_name)
    if found is None:
        raise SecretLost(f"lookup {vault_name}.vault.azure.net: no such host")
    sub, vault = found
    if not roles.may(sub, principal, READ, f"{vault['id']}/secrets/{name}"):
        raise SecretLost(
            "RESPONSE 403: 403 Forbidden. ERROR CODE: Forbidden. Caller is not authorized to"
            f" perform action on resource {vault['id']}/secrets/{name}. ForbiddenByRbac"
        )
    held = sub.secrets[vault_name].get(name)
    there = held.versions if held and held.deleted is None else []
    chosen = [one for one in there if not version or one["id"].endswith(f"/{version}")]
    if not chosen:
        raise SecretLost(f"RESPONSE 404: 404 Not Found. ERROR CODE: SecretNotFound: {name}")
    return str(chosen[-1]["value"])
