"""The secrets of Key Vaults: whoever asks needs a role that is in effect, an owner as well."""

import re
import time
import uuid
from typing import Any, Final

from azure.keyvault.secrets._generated import models as M  # noqa: N812  as Microsoft writes it
from starlette.responses import Response

from emulators.azure.refusing import Refused, conflict, invalid
from emulators.azure.roles_known import (
    DELETE_SECRET,
    LIST_SECRETS,
    PURGE_SECRET,
    READ_SECRET,
    RECOVER_SECRET,
    SET_SECRET,
)
from emulators.azure.schema import checked
from emulators.azure.state import Secret
from emulators.azure.vault_serving import Asked, Method

_NAME: Final = re.compile(r"^[0-9A-Za-z-]{1,127}$")
_MOST_LETTERS: Final = 25_600
_MOST_TAGS: Final = 15
_PAGE: Final = 25
_LONGEST_DAYS: Final = 90
_DAY: Final = 86_400


async def set_secret(asked: Asked) -> dict[str, Any]:
    """Add a version; the first one makes the secret."""
    _check_name(asked.name)
    body = checked(M.SecretSetParameters, asked.body)
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
    version, body = _found(asked), checked(M.SecretUpdateParameters, asked.body)
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
    return _deleted(asked, asked.name, _deleted_found(asked))


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
    secret = _deleted_found(asked)
    secret.deleted = None
    return _without_value(secret.versions[-1])


async def purge_deleted(asked: Asked) -> Response:
    """Forget it for ever."""
    _deleted_found(asked)
    del asked.vault.secrets[asked.name.lower()]
    return Response(status_code=204)


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


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise invalid(f"The request URI contains an invalid name: {name}", "BadParameter")


def _check_body(body: dict[str, Any]) -> None:
    if len(body["value"]) > _MOST_LETTERS:
        raise invalid(
            f"The secret's value has {len(body['value'])} letters; at most {_MOST_LETTERS} are"
            " allowed.",
            "BadParameter",
        )
    _check_tags(body)


def _check_tags(body: dict[str, Any]) -> None:
    if len(body.get("tags", {})) > _MOST_TAGS:
        raise invalid(
            f"Tags may not exceed the maximum number of {_MOST_TAGS} for one secret.",
            "BadParameter",
        )


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


def _without_value(bundle: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in bundle.items() if key != "value"}


def _deleted(asked: Asked, name: str, secret: Secret) -> dict[str, Any]:
    at = int(secret.deleted or 0)
    return {
        **_without_value(secret.versions[-1]),
        "recoveryId": _id(asked, name, "deletedsecrets"),
        "deletedDate": at,
        "scheduledPurgeDate": at + asked.days * _DAY,
    }


def _id(asked: Asked, name: str, kind: str = "secrets") -> str:
    """Give the id as the real one does: by the vault's own host."""
    return f"{asked.vault_uri}{kind}/{name}"


def _found(asked: Asked) -> dict[str, Any]:
    secret = asked.vault.secrets.get(asked.name.lower())
    versions = secret.versions if secret and secret.deleted is None else []
    wanted = asked.version
    found = [one for one in versions if not wanted or one["id"].endswith(f"/{wanted}")]
    if not found:
        raise _not_found(f"{asked.name}/{wanted}" if wanted else asked.name)
    return found[-1]


def _deleted_found(asked: Asked) -> Secret:
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


def _deleted_but_recoverable(name: str) -> Refused:
    refused = conflict(
        "Conflict",
        f"Secret {name} is currently in a deleted but recoverable state, and its name cannot be"
        " reused; in this state, the secret can only be recovered or purged.",
    )
    refused.inner = {"code": "ObjectIsDeletedButRecoverable"}
    return refused


def _page(asked: Asked, rows: list[dict[str, Any]]) -> dict[str, Any]:
    size = min(int(asked.query.get("maxresults", _PAGE)), _PAGE)
    begin = int(asked.query.get("$skiptoken", 0))
    end = begin + size
    following = f"{asked.url}?api-version={asked.query['api-version']}&maxresults={size}"
    link = f"{following}&$skiptoken={end}" if end < len(rows) else None
    return {"value": rows[begin:end], "nextLink": link}
