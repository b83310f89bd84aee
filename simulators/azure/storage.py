"""Storage accounts and file shares, and the files in them."""

import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response
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
from simulators.azure.state import Body, Subscription, World

ACCOUNT: Final = "Microsoft.Storage/storageAccounts"
SHARE: Final = f"{ACCOUNT}/fileServices/shares"
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
    taken = None if there else call.world.named(ACCOUNT, name)
    if taken:
        raise refusal("account-taken", name=name)
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


def _share(call: Call, asked: Body, there: Body | None) -> Body:
    account, properties = call.sub.resources[call.parent.lower()], asked.get("properties", {})
    premium = account["sku"]["tier"] == "Premium"
    folder = account_folder(call.world, call.sub, account["name"], "file", call.name)
    if not there:  # its account may have been deleted with the whole group
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "etag": '"0x8DD0A1"',
        "properties": {
            "shareQuota": 100,
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
)


_AUDIENCE: Final = "https://storage.azure.com"
_RANGE: Final = re.compile(r"^bytes=(\d+)-(\d*)$")
_HEAD: Final = '<?xml version="1.0" encoding="utf-8"?>'
_TOLD: Final = {
    "x-ms-file-attributes": "Archive", "x-ms-file-permission-key": "0*0",
    "x-ms-server-encrypted": "true", "x-ms-type": "File",
}  # fmt: skip
"""What is told of every file."""
_READ: Final = f"{ACCOUNT}/fileServices/readFileBackupSemantics/action"
"""What the caller's roles must allow; what lies there is put into its folder by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for data that was admitted."""

    root: Path
    """The folder of the share."""
    below: str
    """What lies in it; empty where it is about the share itself."""
    headers: Mapping[str, str]

    @property
    def place(self) -> Path:
        """Where something is, or would be."""
        words = self.below.split("/") if self.below else []
        if any(one in {"", ".", ".."} or set('"\\:|<>*?') & set(one) for one in words):
            raise refusal("InvalidResourceName")
        return self.root.joinpath(*words)


def _tags(values: Mapping[str, object]) -> str:
    return "".join(f"<{name}>{escape(str(one))}</{name}>" for name, one in values.items())


def _row(kind: str, title: str, path: Path) -> str:
    told = _described(path)
    properties = {"Last-Modified": told["Last-Modified"], "Etag": told["ETag"].strip('"')}
    more: dict[str, object] = {} if path.is_dir() else {"Content-Length": path.stat().st_size}
    inner = f"<Name>{escape(title)}</Name><Properties>{_tags(properties | more)}</Properties>"
    return f"<{kind}>{inner}</{kind}>"


def _list_folder(asked: Asked) -> Response:
    folder = asked.place
    if not folder.is_dir():
        raise refusal("ResourceNotFound")
    rows = [("Directory" if one.is_dir() else "File", one) for one in sorted(folder.iterdir())]
    entries = "".join(_row(kind, one.name, one) for kind, one in rows)
    content = (
        f"{_HEAD}<EnumerationResults><Entries>{entries}</Entries><NextMarker/></EnumerationResults>"
    )
    return Response(content, media_type="application/xml")


def _described(path: Path) -> dict[str, str]:
    """Return the headers that tell when something was changed."""
    seen = path.stat()
    return {
        "ETag": f'"0x{seen.st_mtime_ns:X}"',
        "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seen.st_mtime)),
        "Accept-Ranges": "bytes",
    }


def _download(asked: Asked) -> Response:
    """Give the bytes that are asked for; Microsoft's clients always ask for some."""
    file, named = asked.place, asked.headers.get("x-ms-range") or asked.headers.get("range") or ""
    found = _RANGE.match(named)
    if not file.is_file():
        raise refusal("ResourceNotFound")
    if not found:
        raise refusal("InvalidHeaderValue")
    first, size = int(found[1]), file.stat().st_size
    if first >= size:
        raise refusal("InvalidRange")
    last = min(int(found[2] or size), size - 1)
    with file.open("rb") as stream:
        stream.seek(first)
        content = stream.read(last - first + 1)
    told = {**_described(file), **_TOLD}
    told["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Response(content, 206, headers=told, media_type="application/octet-stream")


_METHODS: Final[Mapping[tuple[str, str], tuple[str, Callable[[Asked], Response]]]] = {
    ("directory", "list"): ("GET directories", _list_folder),
    ("", ""): ("GET files", _download),
}
"""By `restype` and `comp`: what faults know it by, and the answer."""


def routes(world: World) -> Iterable[Route]:
    """Serve the data of every account."""

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            answer = await _answered(world, request)
        except Refused as no:
            told = {"Code": no.code, "Message": no.message}
            answer = Response(
                f"{_HEAD}<Error>{_tags(told)}</Error>",
                status_code=no.status,
                headers={"x-ms-error-code": no.code, **no.headers},
                media_type="application/xml",
            )
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        answer.headers["x-ms-version"] = request.headers.get("x-ms-version", "")
        return answer

    return [Route("/storage/{kind}/{account}/{top}{below:path}", endpoint, methods=["GET"])]


async def _answered(world: World, request: Request) -> Response:
    kind, named = request.path_params["kind"], request.path_params["account"]
    found = world.named(ACCOUNT, named)
    if found is None or kind != "file":
        # The real one has no such host: this status is the nearest to that.
        raise refusal("no-host", host=f"{named}.{kind}.core.windows.net")
    sub, account = found
    caller, query = _caller(world, sub, request), request.query_params
    top, form = request.path_params["top"], (query.get("restype", ""), query.get("comp", ""))
    if form not in _METHODS:
        raise refusal("UnsupportedHttpVerb")
    label, answer = _METHODS[form]
    fault = await begin_call(sub, label)
    if request.headers.get("x-ms-file-request-intent") != "backup":
        raise refusal("MissingRequiredHeader")  # a login reads past the files' own permissions
    if not roles.may(sub, caller, _READ, account["id"]):
        raise refusal("AuthorizationPermissionMismatch")
    if sub.get(f"{account['id']}/fileServices/default/shares/{top}") is None:
        raise refusal("ShareNotFound")
    root = account_folder(world, sub, account["name"], kind, top)
    root.mkdir(parents=True, exist_ok=True)
    below = request.path_params["below"].strip("/")
    told = answer(Asked(root=root, below=below, headers=request.headers))
    if fault:
        await fault.happen()
    return told


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
