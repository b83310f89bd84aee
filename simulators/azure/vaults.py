"""Key Vaults, deleted softly and recovered, and their secrets."""

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from azure.keyvault.secrets._generated import models as secrets
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from simulators.azure import grants
from simulators.azure.admission import caller_of, endpoint, faults_of, json_of, refusal
from simulators.azure.arm import Call, kind_of, moment, paged
from simulators.azure.schema import checked
from simulators.azure.state import Body, Secret, Subscription, World

VAULT: Final = "Microsoft.KeyVault/vaults"
_AUDIENCE: Final = "https://vault.azure.net"
_CHALLENGE: Final = 'Bearer authorization="{login}", resource="{audience}"'
_DAY: Final = 86_400
_MOST_LISTED: Final = 25


def _vault(call: Call, asked: Body, there: Body | None) -> Body:
    properties, name = asked["properties"], call.name.lower()
    if properties["tenantId"].lower() != call.sub.tenant:
        raise refusal("vault-tenant", tenant=properties["tenantId"])
    recovers = properties.pop("createMode", "default") == "recover"
    softly = call.sub.vaults.get(name)
    if softly and softly["id"].lower() != call.id:
        softly = None
    if not there:
        if recovers and not softly:
            raise refusal("vault-lost")
        if softly and not recovers:
            raise refusal("vault-deleted")
        known = call.world.named(VAULT, name) or any(name in sub.vaults for sub in call.world)
        if known and not softly:
            raise refusal("vault-taken", name=call.name)
    call.sub.secrets.setdefault(name, {})
    call.sub.vaults.pop(name, None)
    return {
        "location": (softly or asked)["location"],
        "tags": (softly or asked).get("tags") or {},
        "properties": {
            **(softly["properties"] if softly else properties),
            "vaultUri": f"https://{call.name}.vault.azure.net/",
        },
    }


async def _ended(_world: World, sub: Subscription, vault: Body) -> None:
    sub.vaults[vault["name"].lower()] = {**vault, "deleted": time.time()}


def _softly_deleted(call: Call) -> Body:
    """Return what a softly deleted vault was."""
    body = call.sub.vaults.get(call.name.lower())
    if body is None:
        raise refusal("vault-not-deleted", name=call.name)
    return body


async def _get_deleted(call: Call) -> Body:
    return _deleted(call.sub, _softly_deleted(call))


async def _list_deleted(call: Call) -> Body:
    return {"value": [_deleted(call.sub, one) for one in call.sub.vaults.values()]}


async def _purge_vault(call: Call) -> Response:
    if _softly_deleted(call)["properties"].get("enablePurgeProtection"):
        raise refusal("vault-protected", name=call.name)
    call.sub.vaults.pop(call.name.lower())
    call.sub.secrets.pop(call.name.lower(), None)
    return Response(status_code=200)


def _deleted(sub: Subscription, body: Body) -> Body:
    at, days = body["deleted"], body["properties"]["softDeleteRetentionInDays"]
    where = f"/subscriptions/{sub.id}/providers/Microsoft.KeyVault/locations/{body['location']}"
    return {
        "id": f"{where}/deletedVaults/{body['name']}",
        "name": body["name"],
        "type": "Microsoft.KeyVault/deletedVaults",
        "properties": {
            "vaultId": body["id"],
            "location": body["location"],
            "tags": body["tags"],
            "deletionDate": moment(at),
            "scheduledPurgeDate": moment(at + days * _DAY),
            "purgeProtectionEnabled": body["properties"].get("enablePurgeProtection"),
        },
    }


KINDS: Final = (
    kind_of(VAULT, fill=_vault, ended=_ended),
    kind_of("Microsoft.KeyVault/deletedVaults", handlers={"LIST": _list_deleted}),
    kind_of(
        "Microsoft.KeyVault/locations/deletedVaults",
        handlers={"GET": _get_deleted, "purge": _purge_vault},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a secret that was admitted."""

    sub: Subscription
    vault: Body
    name: str
    body: Body
    request: Request

    @property
    def secrets(self) -> dict[str, Secret]:
        """All of the vault, by name in lower case."""
        return self.sub.secrets[self.vault["name"].lower()]

    def found(self, *, deleted: bool) -> Secret:
        """Return the secret; Refused where it is not there, or not deleted."""
        secret = self.secrets.get(self.name.lower())
        if secret is None or (secret.deleted is not None) is not deleted:
            raise refusal("secret-lost", name=self.name)
        return secret

    @property
    def days(self) -> int:
        """For which what is deleted can be recovered."""
        return int(self.vault["properties"]["softDeleteRetentionInDays"])

    def id(self, kind: str = "secrets") -> str:
        """Return the id as the real one does: by the vault's own host."""
        return f"{self.vault['properties']['vaultUri']}{kind}/{self.name}"


def _set(asked: Asked) -> Body:
    """Add a version; the first one makes the secret."""
    body = checked(secrets.SecretSetParameters, asked.body)
    secret = asked.secrets.setdefault(asked.name.lower(), Secret())
    if secret.deleted is not None:
        raise refusal("secret-deleted", name=asked.name, inner="ObjectIsDeletedButRecoverable")
    now = int(time.time() - asked.sub.knobs.made_ago_seconds)
    version: Body = {
        "id": f"{asked.id()}/{uuid.uuid4().hex}",
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


def _get(asked: Asked) -> Body:
    return asked.found(deleted=False).versions[-1]


def _list(asked: Asked) -> Body:
    """List secrets, without their values, in pages of 25."""
    rows = [
        {**_without_value(one), "id": one.versions[-1]["id"].rpartition("/")[0]}
        for one in asked.secrets.values()
        if one.deleted is None
    ]
    here = str(asked.request.url).partition("?")[0]
    return paged(rows, asked.request.query_params, here, _MOST_LISTED)


def _delete(asked: Asked) -> Body:
    asked.found(deleted=False).deleted = time.time()
    return _get_deleted_secret(asked)


def _get_deleted_secret(asked: Asked) -> Body:
    secret = asked.found(deleted=True)
    at = int(secret.deleted or 0)
    return {
        **_without_value(secret),
        "recoveryId": asked.id("deletedsecrets"),
        "deletedDate": at,
        "scheduledPurgeDate": at + asked.days * _DAY,
    }


def _recover(asked: Asked) -> Body:
    secret = asked.found(deleted=True)
    secret.deleted = None
    return _without_value(secret)


def _purge(asked: Asked) -> Response:
    asked.found(deleted=True)
    del asked.secrets[asked.name.lower()]
    return Response(status_code=204)


def _without_value(secret: Secret) -> Body:
    return {key: one for key, one in secret.versions[-1].items() if key != "value"}


_READ: Final = "getSecret/action"
_METHODS: Final[Sequence[tuple[str, str, Callable[[Asked], Body | Response], str]]] = (
    ("PUT", "/secrets/{name}", _set, "setSecret/action"),
    ("GET", "/secrets/{name}", _get, _READ),
    ("GET", "/secrets", _list, "readMetadata/action"),
    ("DELETE", "/secrets/{name}", _delete, "delete"),
    ("GET", "/deletedsecrets/{name}", _get_deleted_secret, "readMetadata/action"),
    ("DELETE", "/deletedsecrets/{name}", _purge, "purge/action"),
    ("POST", "/deletedsecrets/{name}/recover", _recover, "recover/action"),
)
"""Verb, path below the vault, answer, and what the caller's roles must allow of secrets."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the secrets of every vault; Microsoft's client asks with a slash at the end."""
    return [
        Route(f"/vaults/{{vault}}{path}{slash}", endpoint(world, answer), methods=[verb])
        for verb, path, behave, action in _METHODS
        for answer in (_answering(world, f"{verb} {path[1:]}", behave, action),)
        for slash in ("", "/")
    ]


def _answering(
    world: World, label: str, behave: Callable[[Asked], Body | Response], action: str
) -> Callable[[Request], Awaitable[Response | Body]]:
    async def answered(request: Request) -> Response | Body:
        found = world.named(VAULT, request.path_params["vault"])
        if found is None:  # the real one has no such host; this status is the nearest to that
            raise refusal("no-host", host=f"{request.path_params['vault']}.vault.azure.net")
        sub, vault = found
        claims = caller_of(world, request.headers, _AUDIENCE, sub=sub, challenge=_CHALLENGE)
        async with faults_of(sub, label.replace("/{name}", "")):
            name, body = request.path_params.get("name", ""), await json_of(request)
            asked = Asked(sub=sub, vault=vault, name=name, body=body, request=request)
            _check_access(sub, vault, claims.oid, action, name)
            told = behave(asked)
            world.keep(sub)
        return told

    return answered


def _check_access(sub: Subscription, vault: Body, oid: str, action: str, name: str) -> None:
    """Refuse whoever has no role, in effect, that allows this."""
    where = f"{vault['name']};location={vault['location']}"
    if not vault["properties"]["enableRbacAuthorization"]:
        raise refusal("vault-policy", oid=oid, vault=where, inner="AccessDenied")
    if not _may(sub, vault, oid, action, name):
        resource = f"{vault['id']}/secrets/{name}".lower()
        words = {"oid": oid, "tenant": sub.tenant, "action": f"{VAULT}/secrets/{action}"}
        raise refusal(
            "vault-role", inner="ForbiddenByRbac", resource=resource, vault=where, **words
        )


def _may(sub: Subscription, vault: Body, oid: str, action: str, name: str) -> bool:
    return grants.may(sub, oid, f"{VAULT}/secrets/{action}", f"{vault['id']}/secrets/{name}")


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
    if not _may(sub, vault, principal, _READ, name):
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
