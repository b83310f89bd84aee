"""Storage accounts and file shares, and the data in them: files of shares, blobs of containers."""

import base64
import hashlib
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape, quoteattr

from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from simulators.azure import roles
from simulators.azure.admission import (
    Refused,
    begin_call,
    caller_of,
    derived_key,
    refusal,
)
from simulators.azure.arm import Call, kind_of, moment
from simulators.azure.ground import refuse_by_policy
from simulators.azure.schema import checked
from simulators.azure.state import Body, Subscription, World

ACCOUNT: Final = "Microsoft.Storage/storageAccounts"
SHARE: Final = f"{ACCOUNT}/fileServices/shares"
_NAMES: Final = r"^[a-z0-9]{3,24}$"
_WORD: Final = r"^(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*$"
"""Of shares and containers."""
_FILES_ONLY: Final = "FileStorage"
_KEYS: Final = ("key1", "key2")


def account_folder(world: World, sub: Subscription, *words: str) -> Path:
    """Return the folder of an account, its kind of data, and what is in that."""
    return world.folder.joinpath("storage", sub.id, *words)


def opens(world: World, sub: Subscription, account: Body, key: str) -> bool:
    """Return whether a key opens an account."""
    known = {derived_key(world, sub.id, account["name"], one) for one in _KEYS}
    return account["properties"].get("allowSharedKeyAccess") is not False and key in known


def resume(world: World) -> None:
    """Remove the data of accounts whose subscription was forgotten."""
    for folder in world.folder.joinpath("storage").glob("*"):
        if folder.name not in world.subscriptions:
            shutil.rmtree(folder, ignore_errors=True)


def _account(call: Call, asked: Body, there: Body | None) -> Body:
    name, kind, sku = call.name, asked["kind"], asked["sku"]["name"]
    refuse_by_policy(call.sub, call.kind.type, name, asked)
    if kind == _FILES_ONLY and sku.startswith("Standard_"):
        raise refusal("account-sku", sku=sku, kind=kind)
    if there and there["kind"] != kind:
        raise refusal("account-kind")
    taken = None if there else call.world.named(ACCOUNT, name)
    if taken:
        own = taken[0] is call.sub
        raise refusal("account-elsewhere" if own else "account-taken", name=name)
    if not there:  # one of that name may have been deleted with its whole group
        shutil.rmtree(account_folder(call.world, call.sub, name), ignore_errors=True)
    served = ("file",) if kind == _FILES_ONLY else ("blob", "file", "queue", "table", "dfs")
    return {
        "kind": kind,
        "sku": {"name": sku, "tier": "Premium" if sku.startswith("Premium") else "Standard"},
        "properties": {
            "supportsHttpsTrafficOnly": True,
            "minimumTlsVersion": "TLS1_0",
            "allowBlobPublicAccess": False,
            "accessTier": "Hot",
            **asked.get("properties", {}),
            "creationTime": there["properties"]["creationTime"] if there else moment(),
            "primaryLocation": asked["location"],
            "statusOfPrimary": "available",
            "primaryEndpoints": {one: f"https://{name}.{one}.core.windows.net/" for one in served},
        },
    }


async def _account_ended(world: World, sub: Subscription, account: Body) -> None:
    shutil.rmtree(account_folder(world, sub, account["name"]), ignore_errors=True)


async def _list_keys(call: Call) -> Body:
    account = call.found()
    rows = [
        {
            "keyName": key,
            "value": derived_key(call.world, call.sub.id, account["name"], key),
            "permissions": "FULL",
            "creationTime": account["properties"]["creationTime"],
        }
        for key in _KEYS
    ]
    return {"keys": rows}


async def _check_name(call: Call) -> Body:
    name = checked(M.StorageAccountCheckNameAvailabilityParameters, call.body)["name"]
    if not re.match(_NAMES, name):
        told = f"{name} is not a valid storage account name."
        return {"nameAvailable": False, "reason": "AccountNameInvalid", "message": told}
    if call.world.named(ACCOUNT, name):
        told = f"The storage account named {name} is already taken."
        return {"nameAvailable": False, "reason": "AlreadyExists", "message": told}
    return {"nameAvailable": True}


def _account_of(call: Call) -> Body:
    account = call.sub.resources[call.parent.lower()]
    if account["kind"] != _FILES_ONLY and account["sku"]["tier"] == "Premium":
        raise refusal("share-account")
    return account


def _share(call: Call, asked: Body, there: Body | None) -> Body:
    account, properties = _account_of(call), asked.get("properties", {})
    premium = account["sku"]["tier"] == "Premium"
    usual, least = (100, 1) if premium else (5120, 1)
    if account["sku"]["name"] in {"Premium_LRS", "Premium_ZRS"}:
        least = 100
    if not least <= properties.get("shareQuota", usual) <= 102_400:
        raise refusal("share-size", least=least)
    folder = account_folder(call.world, call.sub, account["name"], "file", call.name)
    if not there:  # its account may have been deleted with the whole group
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "etag": '"0x8DD0A1"',
        "properties": {
            "shareQuota": usual,
            "enabledProtocols": "SMB",
            "accessTier": "Premium" if premium else "TransactionOptimized",
            "metadata": {},
            **properties,
            "lastModifiedTime": moment(),
            "leaseStatus": "unlocked",
            "leaseState": "available",
        },
    }


async def _share_ended(world: World, sub: Subscription, share: Body) -> None:
    account = share["id"].split("/")[8]
    shutil.rmtree(account_folder(world, sub, account, "file", share["name"]), ignore_errors=True)


KINDS: Final = (
    kind_of(ACCOUNT, fill=_account, handlers={"listKeys": _list_keys}, ended=_account_ended),
    kind_of(SHARE, fill=_share, ended=_share_ended),
    kind_of("Microsoft.Storage", handlers={"checkNameAvailability": _check_name}),
)


_AUDIENCE: Final = "https://storage.azure.com"
_PAGE: Final = 5000
_RANGE: Final = re.compile(r"^bytes=(\d+)-(\d*)$")
_HEAD: Final = '<?xml version="1.0" encoding="utf-8"?>'
_FILE: Final = {
    "x-ms-file-attributes": "Archive", "x-ms-file-permission-key": "0*0",
    "x-ms-server-encrypted": "true", "x-ms-type": "File",
}  # fmt: skip
_LEASE: Final = {"x-ms-lease-status": "unlocked", "x-ms-lease-state": "available"}
_BLOB: Final = {"x-ms-blob-type": "BlockBlob", "x-ms-server-encrypted": "true", **_LEASE}
_ACTIONS: Final = {
    "file": f"{ACCOUNT}/fileServices/{{}}FileBackupSemantics/action",
    "blob": f"{ACCOUNT}/blobServices/containers/blobs/{{}}",
}
"""What the caller's roles must allow, to read or to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for data that was admitted."""

    world: World
    sub: Subscription
    account: Body
    top: str
    """The share or container; empty where it is about all of them."""
    below: str
    """What lies in it; empty where it is about the share or container itself."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    endpoint: str
    """Of the service, as answers tell it."""

    def folder(self, kind: str) -> Path:
        """Return the folder of the share or container, or of all."""
        return account_folder(self.world, self.sub, self.account["name"], kind, self.top)

    def listing(self, rows: Mapping[str, str], wrapper: str, **attributes: str) -> Response:
        """Return a page of a list: from the marker on, as many as are asked for."""
        size = self.query.get("maxresults", str(_PAGE))
        if not size.isdecimal() or size == "0":
            raise refusal("InvalidQueryParameterValue")
        most, marker = min(int(size), _PAGE), self.query.get("marker", "")
        left = [name for name in sorted(rows) if name >= marker]
        told = {"Prefix": "prefix", "Marker": "marker", "MaxResults": "maxresults"}
        shown = {title: self.query[name] for title, name in told.items() if self.query.get(name)}
        attributes = {"ServiceEndpoint": self.endpoint, **attributes}
        said = "".join(f" {name}={quoteattr(one)}" for name, one in attributes.items())
        following = escape(left[most]) if len(left) > most else ""
        inner = "".join(rows[name] for name in left[:most])
        content = (
            f"{_HEAD}<EnumerationResults{said}>{_tags(shown)}<{wrapper}>{inner}</{wrapper}>"
            f"<NextMarker>{following}</NextMarker></EnumerationResults>"
        )
        return Response(content, media_type="application/xml")


def _tags(values: Mapping[str, object]) -> str:
    return "".join(f"<{name}>{escape(str(one))}</{name}>" for name, one in values.items())


def _row(kind: str, title: str, properties: Mapping[str, object]) -> str:
    inner = f"<Name>{escape(title)}</Name><Properties>{_tags(properties)}</Properties>"
    return f"<{kind}>{inner}</{kind}>"


def _list_folder(asked: Asked) -> Response:
    folder, prefix = _folder_there(asked), asked.query.get("prefix", "")
    rows = {one.name: _file_row(one) for one in folder.iterdir() if one.name.startswith(prefix)}
    return asked.listing(rows, "Entries", ShareName=asked.top, DirectoryPath=asked.below)


def _file_row(path: Path) -> str:
    told = _described(path)
    if path.is_dir():
        return _row("Directory", path.name, {"Last-Modified": told["Last-Modified"]})
    more = {"Last-Modified": told["Last-Modified"], "Etag": told["ETag"]}
    return _row("File", path.name, {"Content-Length": path.stat().st_size, **more})


def _make_folder(asked: Asked) -> Response:
    folder = _new(asked)
    if folder.exists():
        raise refusal("ResourceAlreadyExists")
    folder.mkdir()
    told = {**_FILE, **_described(folder), "x-ms-file-attributes": "Directory"}
    return Response(status_code=201, headers=told)


def _make_file(asked: Asked) -> Response:
    """Make a file of a length, full of nothing."""
    file, length = _new(asked), asked.headers.get("x-ms-content-length", "")
    if file.is_dir():
        raise refusal("ResourceTypeMismatch")
    if asked.headers.get("x-ms-type") != "file" or not length.isdecimal():
        raise refusal("InvalidHeaderValue")
    with file.open("wb") as stream:
        stream.truncate(int(length))
    return Response(status_code=201, headers=_FILE | _described(file))


def _write_file(asked: Asked) -> Response:
    file, (first, last) = _file(asked), _range_of(asked.headers)
    if last is None or len(asked.body) != last - first + 1:
        raise refusal("InvalidHeaderValue")
    if last >= file.stat().st_size:
        raise refusal("InvalidRange")
    with file.open("r+b") as stream:
        stream.seek(first)
        stream.write(asked.body)
    told = {**_described(file), "x-ms-request-server-encrypted": "true"}
    return Response(status_code=201, headers=told)


def _get_file(asked: Asked) -> Response:
    return _downloaded(_file(asked), asked.headers, _FILE)


def _share_id(asked: Asked) -> str:
    return f"{asked.account['id']}/fileServices/default/shares/{asked.top}".lower()


def _share_root(asked: Asked) -> Path:
    if _share_id(asked) not in asked.sub.resources:
        raise refusal("ShareNotFound")
    folder = asked.folder("file")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place(asked: Asked) -> Path:
    """Return where something is, or would be."""
    root, words = _share_root(asked), asked.below.split("/") if asked.below else []
    if any(one in {"", ".", ".."} or set('"\\:|<>*?') & set(one) for one in words):
        raise refusal("InvalidResourceName")
    return root.joinpath(*words)


def _new(asked: Asked) -> Path:
    """Return where something is to be made: the folder around it is there."""
    place = _place(asked)
    if not place.parent.is_dir():
        raise refusal("ParentNotFound")
    return place


def _folder_there(asked: Asked) -> Path:
    folder = _place(asked)
    if not folder.is_dir():
        raise refusal("ResourceNotFound")
    return folder


def _file(asked: Asked) -> Path:
    place = _place(asked)
    if place.is_dir():
        raise refusal("ResourceTypeMismatch")
    if not place.is_file():
        raise refusal("ResourceNotFound" if place.parent.is_dir() else "ParentNotFound")
    return place


def _make_container(asked: Asked) -> Response:
    folder = asked.folder("blob")
    if not re.match(_WORD, asked.top):
        raise refusal("InvalidResourceName")
    if folder.is_dir():
        raise refusal("ContainerAlreadyExists")
    folder.mkdir(parents=True)
    return Response(status_code=201, headers=_described(folder))


def _list_blobs(asked: Asked) -> Response:
    prefix, files = asked.query.get("prefix", ""), list(_container(asked).iterdir())
    rows = {
        name: _row("Blob", name, _blob_properties(file))
        for name, file in zip((unquote(one.name) for one in files), files, strict=True)
        if name.startswith(prefix)
    }
    return asked.listing(rows, "Blobs", ContainerName=asked.top)


def _blob_properties(file: Path) -> dict[str, object]:
    told = _described(file)
    return {
        "Last-Modified": told["Last-Modified"],
        "Etag": told["ETag"].strip('"'),
        "LeaseStatus": "unlocked",
        "LeaseState": "available",
        "Content-Length": file.stat().st_size,
        "Content-Type": "application/octet-stream",
        "BlobType": "BlockBlob",
        "AccessTier": "Hot",
        "ServerEncrypted": "true",
    }


def _put_blob(asked: Asked) -> Response:
    """Keep a blob: a name is one file, however many slashes it has."""
    file = _container(asked) / quote(asked.below, safe="")
    if asked.headers.get("x-ms-blob-type") != "BlockBlob":
        raise refusal("InvalidHeaderValue")
    if asked.headers.get("if-none-match") == "*" and file.is_file():
        raise refusal("BlobAlreadyExists")
    file.write_bytes(asked.body)
    digest = base64.b64encode(hashlib.md5(asked.body, usedforsecurity=False).digest()).decode()
    told = {**_described(file), "Content-MD5": digest, "x-ms-request-server-encrypted": "true"}
    return Response(status_code=201, headers=told)


def _get_blob(asked: Asked) -> Response:
    file = _container(asked) / quote(asked.below, safe="")
    if not file.is_file():
        raise refusal("BlobNotFound")
    return _downloaded(file, asked.headers, _BLOB)


def _container(asked: Asked) -> Path:
    folder = asked.folder("blob")
    if not re.match(_WORD, asked.top) or not folder.is_dir():
        raise refusal("ContainerNotFound")
    return folder


def _described(path: Path) -> dict[str, str]:
    """Return the headers that tell when something was changed."""
    seen = path.stat()
    return {
        "ETag": f'"0x{seen.st_mtime_ns:X}"',
        "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seen.st_mtime)),
        "Accept-Ranges": "bytes",
    }


def _range_of(headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Return first and last byte that are asked for; None is up to the end."""
    named = headers.get("x-ms-range") or headers.get("range") or "bytes=0-"
    found = _RANGE.match(named)
    if not found:
        raise refusal("InvalidHeaderValue")
    return int(found[1]), int(found[2]) if found[2] else None


def _downloaded(file: Path, headers: Mapping[str, str], told: Mapping[str, str]) -> Response:
    (first, last), size = _range_of(headers), file.stat().st_size
    own, partly = {**_described(file), **told}, "range" in headers or "x-ms-range" in headers
    if not partly:
        return FileResponse(file, headers=own, media_type="application/octet-stream")
    if first >= size:
        raise refusal("InvalidRange")
    last = min(size - 1 if last is None else last, size - 1)
    with file.open("rb") as stream:
        stream.seek(first)
        content = stream.read(last - first + 1)
    own["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Response(content, 206, headers=own, media_type="application/octet-stream")


_Answer = Callable[[Asked], Response]
_METHODS: Final[Sequence[tuple[str, str, int, str, str, str, _Answer]]] = (
    ("file", "GET", 1, "directory", "list", "directories", _list_folder),
    ("file", "GET", 2, "directory", "list", "directories", _list_folder),
    ("file", "GET", 2, "", "", "files", _get_file),
    ("file", "HEAD", 2, "", "", "files", _get_file),
    ("file", "PUT", 2, "directory", "", "directories", _make_folder),
    ("file", "PUT", 2, "", "", "files", _make_file),
    ("file", "PUT", 2, "", "range", "files", _write_file),
    ("blob", "PUT", 1, "container", "", "containers", _make_container),
    ("blob", "GET", 1, "container", "list", "blobs", _list_blobs),
    ("blob", "GET", 2, "", "", "blobs", _get_blob),
    ("blob", "HEAD", 2, "", "", "blobs", _get_blob),
    ("blob", "PUT", 2, "", "", "blobs", _put_blob),
)
"""Service, verb, depth (0 the account, 1 a share or container, 2 what is in it), `restype`, `comp`,
what faults know it by, and the answer."""


def routes(world: World) -> Iterable[Route]:
    """Serve the data of every account."""

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            answer = await _answered(world, request)
        except Refused as no:
            told = {"Code": no.code, "Message": no.message}
            answer = Response(
                b"" if request.method == "HEAD" else f"{_HEAD}<Error>{_tags(told)}</Error>",
                status_code=no.status,
                headers={"x-ms-error-code": no.code, **no.headers},
                media_type="application/xml",
            )
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        answer.headers["x-ms-version"] = request.headers.get("x-ms-version", "")
        return answer

    verbs = ["GET", "HEAD", "PUT", "DELETE", "POST"]
    return [
        Route(f"/storage/{{kind}}/{{account}}{path}", endpoint, methods=verbs)
        for path in ("", "/{path:path}")
    ]


async def _answered(world: World, request: Request) -> Response:
    kind, named = request.path_params["kind"], request.path_params["account"]
    top, _, below = request.path_params.get("path", "").strip("/").partition("/")
    found = world.named(ACCOUNT, named)
    if found is None or kind not in found[1]["properties"]["primaryEndpoints"]:
        # The real one has no such host: this status is the nearest to that.
        raise refusal("no-host", host=f"{named}.{kind}.core.windows.net")
    sub, account = found
    caller, asked = _caller(world, sub, request), request.query_params
    form = (kind, request.method, bool(top) + bool(below), asked.get("restype", ""),
            asked.get("comp", ""))  # fmt: skip
    method: Any = next((one for one in _METHODS if one[:5] == form), None)
    if method is None:
        raise refusal("UnsupportedHttpVerb")
    fault = await begin_call(sub, f"{request.method} {method[5]}")
    if kind == "file" and request.headers.get("x-ms-file-request-intent") != "backup":
        raise refusal("MissingRequiredHeader")  # a login reads past the files' own permissions
    action = _ACTIONS[kind].format("write" if request.method == "PUT" else "read")
    if not roles.may(sub, caller, action, account["id"]):
        raise refusal("AuthorizationPermissionMismatch")
    answer: Response = method[6](
        Asked(
            world=world, sub=sub, account=account, top=top, below=below, query=asked,
            headers=request.headers, body=await request.body(),
            endpoint=f"{world.urls.storage}/{kind}/{account['name']}/",
        )
    )  # fmt: skip
    if fault:
        await fault.happen()
    return answer


def _caller(world: World, sub: Subscription, request: Request) -> str:
    try:
        claims = caller_of(world, request.headers, _AUDIENCE)
    except Refused:
        claims = None
    if claims and claims.rehearsed_subscription == sub.id:
        return claims.oid
    refused = refusal("NoAuthenticationInformation")
    login = f"https://login.microsoftonline.com/{sub.tenant}/oauth2/authorize"
    told = f"Bearer authorization_uri={login} resource_id={_AUDIENCE}"
    refused.headers["WWW-Authenticate"] = told
    raise refused
