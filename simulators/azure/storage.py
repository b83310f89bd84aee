"""Storage accounts and file shares, and the files in them."""

import base64
import hmac
import shutil
import uuid
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from simulators.azure import grants
from simulators.azure.admission import Refused, caller_of, derived_key, endpoint, faults_of, refusal
from simulators.azure.arm import Call, kind_of, moment
from simulators.azure.ground import refuse_by_policy
from simulators.azure.state import Body, Subscription, World

ACCOUNT: Final = "Microsoft.Storage/storageAccounts"
_KEYS: Final = ("key1", "key2")
_AUDIENCE: Final = "https://storage.azure.com"
_CHALLENGE: Final = "Bearer authorization_uri={login}/oauth2/authorize resource_id={audience}"
_READ: Final = f"{ACCOUNT}/fileServices/readFileBackupSemantics/action"
"""What the caller's roles must allow; what lies there is put into its folder by hand."""
_WRITE: Final = f"{ACCOUNT}/fileServices/writeFileBackupSemantics/action"
_SIGNED: Final = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip
"""Headers of a signature by key, in this order; source: learn.microsoft.com, Authorize with Shared
Key (2026-11)."""


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
        if folder.name not in world.customers:
            shutil.rmtree(folder, ignore_errors=True)


def _account(call: Call, asked: Body, there: Body | None) -> Body:
    name, sku = call.name, asked["sku"]["name"]
    refuse_by_policy(call.sub, call.kind.type, name, asked)
    if not there:
        if call.world.named(ACCOUNT, name):
            raise refusal("account-taken", name=name)
        # One of that name may have been deleted with its whole group.
        shutil.rmtree(account_folder(call.world, call.sub, name), ignore_errors=True)
    return {
        "kind": asked["kind"],
        "sku": {"name": sku, "tier": "Premium" if sku.startswith("Premium") else "Standard"},
        "properties": {
            **asked["properties"],
            "primaryLocation": asked["location"],
            "primaryEndpoints": {"file": f"https://{name}.file.core.windows.net/"},
        },
    }


async def _account_ended(world: World, sub: Subscription, account: Body) -> None:
    shutil.rmtree(account_folder(world, sub, account["name"]), ignore_errors=True)


async def _list_keys(call: Call) -> Body:
    name = call.found()["name"]
    rows = [
        {"keyName": one, "value": derived_key(call.world, call.sub.id, name, one),
         "permissions": "FULL"}
        for one in _KEYS
    ]  # fmt: skip
    return {"keys": rows}


def _share(call: Call, asked: Body, there: Body | None) -> Body:
    account = call.sub.resources[call.parent.lower()]
    folder = account_folder(call.world, call.sub, account["name"], "file", call.name)
    if not there:  # its account may have been deleted with the whole group
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return {"properties": {**asked["properties"], "lastModifiedTime": moment()}}


async def _share_ended(world: World, sub: Subscription, share: Body) -> None:
    account = share["id"].split("/")[8]
    shutil.rmtree(account_folder(world, sub, account, "file", share["name"]), ignore_errors=True)


KINDS: Final = (
    kind_of(ACCOUNT, fill=_account, handlers={"listKeys": _list_keys}, ended=_account_ended),
    kind_of(f"{ACCOUNT}/fileServices/shares", fill=_share, ended=_share_ended),
)


def _place_of(root: Path, below: str) -> Path:
    """Return where something of a share is, or would be."""
    words = below.split("/") if below else []
    if any(one in {"", ".", ".."} or set('"\\:|<>*?') & set(one) for one in words):
        raise refusal("InvalidResourceName")
    return root.joinpath(*words)


def _tags(values: dict[str, object]) -> str:
    return "".join(f"<{name}>{escape(str(one))}</{name}>" for name, one in values.items())


def _row(path: Path) -> str:
    described = _described(path)
    told: dict[str, object] = {
        "Last-Modified": described["Last-Modified"],
        "Etag": described["ETag"].strip('"'),
        **({} if path.is_dir() else {"Content-Length": path.stat().st_size}),
    }
    kind = "Directory" if path.is_dir() else "File"
    name = escape(path.name)
    return f"<{kind}><Name>{name}</Name><Properties>{_tags(told)}</Properties></{kind}>"


def _list_folder(folder: Path, _request: Request) -> Response:
    rows = "".join(map(_row, sorted(folder.iterdir())))
    listed = f"<EnumerationResults><Entries>{rows}</Entries><NextMarker/></EnumerationResults>"
    return Response(listed, media_type="application/xml")


def _described(path: Path) -> dict[str, str]:
    """Return the headers that tell when something was changed."""
    seen = path.stat()
    return {
        "ETag": f'"0x{seen.st_mtime_ns:X}"',
        "Last-Modified": formatdate(seen.st_mtime, usegmt=True),
    }


def _download(file: Path, request: Request) -> Response:
    """Give the bytes that are asked for; Microsoft's clients always ask for some."""
    named = request.headers["x-ms-range"].removeprefix("bytes=").partition("-")
    first, size = int(named[0]), file.stat().st_size
    if first >= size:
        raise refusal("InvalidRange")
    last = min(int(named[2] or size), size - 1)
    with file.open("rb") as stream:
        stream.seek(first)
        content = stream.read(last - first + 1)
    told = {
        **_described(file),
        "Content-Range": f"bytes {first}-{last}/{size}",
        "x-ms-file-attributes": "Archive",
        "x-ms-file-permission-key": "0*0",
        "x-ms-server-encrypted": "true",
        "x-ms-type": "File",
    }
    return Response(content, 206, headers=told, media_type="application/octet-stream")


def _remove_folder(folder: Path, _request: Request) -> Response:
    if any(folder.iterdir()):
        raise refusal("DirectoryNotEmpty")
    folder.rmdir()
    return Response(status_code=202)


def _remove_file(file: Path, _request: Request) -> Response:
    file.unlink()
    return Response(status_code=202)


_METHODS: Final = {
    ("GET", "directory", "list"): ("GET directories", _list_folder),
    ("GET", "", ""): ("GET files", _download),
    ("DELETE", "directory", ""): ("DELETE directories", _remove_folder),
    ("DELETE", "", ""): ("DELETE files", _remove_file),
}
"""By method, `restype` and `comp`: what faults know it by, and the answer of what is there."""


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the data of every account."""

    async def answered(request: Request) -> Response:
        answer = await _answered(world, request)
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        answer.headers["x-ms-version"] = request.headers.get("x-ms-version", "")
        return answer

    path = "/storage/{kind}/{account}/{top}{below:path}"
    return [Route(path, endpoint(world, answered, _refused), methods=["GET", "DELETE"])]


def _refused(no: Refused) -> Response:
    return Response(
        f"<Error>{_tags({'Code': no.code, 'Message': no.message})}</Error>",
        status_code=no.status,
        headers={"x-ms-error-code": no.code, **no.headers},
        media_type="application/xml",
    )


def _is_signed(world: World, sub: Subscription, account: Body, request: Request) -> bool:
    """Return whether it is signed by one of the account's keys, and not by a login.

    Raises:
        Refused: By another.
    """
    kind, _, said = request.headers.get("authorization", "").partition(" ")
    if kind != "SharedKey":
        return False
    own = sorted(
        (name, value) for name, value in request.headers.items() if name.startswith("x-ms-")
    )
    path = request.scope["raw_path"].decode("ascii")
    asked = sorted((name.lower(), value) for name, value in request.query_params.items())
    signed = "\n".join(
        (
            request.method,
            *("" if (value := request.headers.get(one, "")) == "0" else value for one in _SIGNED),
            *(f"{name}:{value}" for name, value in own),
            f"/{account['name']}{path}",
            *(f"{name}:{value}" for name, value in asked),
        )
    )
    for one in _KEYS:
        key = derived_key(world, sub.id, account["name"], one)
        made = hmac.digest(base64.b64decode(key), signed.encode(), "sha256")
        signature = base64.b64encode(made).decode()
        if opens(world, sub, account, key) and said == f"{account['name']}:{signature}":
            return True
    raise refusal("AuthenticationFailed")


async def _answered(world: World, request: Request) -> Response:
    kind, named, top, below = (
        request.path_params[one] for one in ("kind", "account", "top", "below")
    )
    found = world.named(ACCOUNT, named)
    if found is None or kind != "file":
        # The real one has no such host: this status is the nearest to that.
        raise refusal("no-host", host=f"{named}.{kind}.core.windows.net")
    sub, account = found
    keyed = _is_signed(world, sub, account, request)
    claims = (
        None
        if keyed
        else caller_of(world, request.headers, _AUDIENCE, sub=sub, challenge=_CHALLENGE)
    )
    query = request.query_params
    form = request.method, query.get("restype", ""), query.get("comp", "")
    if form not in _METHODS:
        raise refusal("UnsupportedHttpVerb")
    label, behave = _METHODS[form]
    async with faults_of(sub, label):
        if claims:
            if request.headers.get("x-ms-file-request-intent") != "backup":
                raise refusal("MissingRequiredHeader")  # it reads past the files' own permissions
            action = _READ if request.method == "GET" else _WRITE
            if not grants.may(sub, claims.oid, action, account["id"]):
                raise refusal("AuthorizationPermissionMismatch")
        if sub.get(f"{account['id']}/fileServices/default/shares/{top}") is None:
            raise refusal("ShareNotFound")
        root = account_folder(world, sub, account["name"], kind, top)
        root.mkdir(parents=True, exist_ok=True)
        there = _place_of(root, below.strip("/"))
        if not (there.is_dir() if form[1] else there.is_file()):
            raise refusal("ResourceNotFound")
        return behave(there, request)
