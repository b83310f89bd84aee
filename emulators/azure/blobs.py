"""Containers of blobs: made, listed flat or folder by folder, written whole, read in parts."""

import base64
import hashlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.responses import Response
from starlette.routing import BaseRoute

from emulators.azure.roles_known import READ_BLOB, WRITE_BLOB
from emulators.azure.state import World
from emulators.azure.storage_accounts_folders import container_folder
from emulators.azure.storage_accounts_ranges import described, downloaded
from emulators.azure.storage_accounts_serving import Asked, Method, http_date, refused, served
from emulators.azure.storage_accounts_xml import element, enumeration, paged, tags

_PAGE: Final = 5000
_CONTAINER: Final = re.compile(r"^(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*$")
_TOLD: Final = {
    "x-ms-blob-type": "BlockBlob",
    "x-ms-lease-status": "unlocked",
    "x-ms-lease-state": "available",
    "x-ms-server-encrypted": "true",
}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the containers of every account."""
    return served(world, "blob", _METHODS)


async def _list_containers(asked: Asked) -> Response:
    root, prefix = _root(asked), asked.query.get("prefix", "")
    found = {one.name: one for one in root.iterdir()} if root.is_dir() else {}
    named = [one for one in found if one.startswith(prefix)]
    names, following = paged(named, asked.query.get("marker", ""), _size(asked))
    rows = [element("Container", one, _properties(found[one])) for one in names]
    return _listing(asked, rows, "Containers", {}, following)


async def _make_container(asked: Asked) -> Response:
    folder = _root(asked, asked.top)
    if not _CONTAINER.match(asked.top):
        raise refused(400, "InvalidResourceName")
    if folder.is_dir():
        raise refused(409, "ContainerAlreadyExists")
    folder.mkdir(parents=True)
    return Response(status_code=201, headers=described(folder))


async def _container(asked: Asked) -> Response:
    told = {"x-ms-lease-status": "unlocked", "x-ms-lease-state": "available"}
    return Response(headers={**described(_container_of(asked)), **told})


async def _delete_container(asked: Asked) -> Response:
    shutil.rmtree(_container_of(asked))
    return Response(status_code=202)


async def _list(asked: Asked) -> Response:
    """List blobs; with a delimiter, what lies deeper is one row for each beginning."""
    folder, prefix = _container_of(asked), asked.query.get("prefix", "")
    delimiter = asked.query.get("delimiter", "")
    titles = {unquote(one.name) for one in folder.iterdir()}
    shown = {_cut(one, prefix, delimiter) for one in titles if one.startswith(prefix)}
    names, following = paged(shown, asked.query.get("marker", ""), _size(asked))
    rows = [_row(folder, one, deeper=one not in titles) for one in names]
    attributes = {"ContainerName": asked.top}
    return _listing(asked, rows, "Blobs", attributes, following)


def _cut(name: str, prefix: str, delimiter: str) -> str:
    """Give a name up to where it goes deeper, with the delimiter."""
    if not delimiter:
        return name
    begin, found, _rest = name[len(prefix) :].partition(delimiter)
    return f"{prefix}{begin}{found}"


def _row(folder: Path, name: str, *, deeper: bool) -> str:
    if deeper:
        return f"<BlobPrefix>{tags({'Name': name})}</BlobPrefix>"
    file = folder / quote(name, safe="")
    size = {"Content-Length": file.stat().st_size, "Content-Type": "application/octet-stream"}
    kind = {"BlobType": "BlockBlob", "AccessTier": "Hot", "ServerEncrypted": "true"}
    return element("Blob", name, {**_properties(file), **size, **kind})


async def _put(asked: Asked) -> Response:
    file = _place(asked)
    if asked.headers.get("x-ms-blob-type") != "BlockBlob":
        raise refused(400, "InvalidHeaderValue")
    if asked.headers.get("if-none-match") == "*" and file.is_file():
        raise refused(409, "BlobAlreadyExists")
    digest = base64.b64encode(hashlib.md5(asked.body, usedforsecurity=False).digest()).decode()
    if asked.headers.get("content-md5", digest) != digest:
        raise refused(400, "Md5Mismatch")
    file.write_bytes(asked.body)
    told = {**described(file), "Content-MD5": digest, "x-ms-request-server-encrypted": "true"}
    return Response(status_code=201, headers=told)


async def _get(asked: Asked) -> Response:
    return downloaded(_blob(asked), asked.headers, _TOLD)


async def _there(asked: Asked) -> Response:
    file = _blob(asked)
    told = {**described(file), **_TOLD, "Content-Length": str(file.stat().st_size)}
    return Response(headers=told, media_type="application/octet-stream")


async def _delete(asked: Asked) -> Response:
    _blob(asked).unlink()
    return Response(status_code=202)


def _root(asked: Asked, container: str = "") -> Path:
    return container_folder(asked.world, asked.sub, asked.account, container)


def _container_of(asked: Asked) -> Path:
    folder = _root(asked, asked.top)
    if not _CONTAINER.match(asked.top) or not folder.is_dir():
        raise refused(404, "ContainerNotFound")
    return folder


def _place(asked: Asked) -> Path:
    """Give where a blob is, or would be: a name is one file, however many slashes it has."""
    return _container_of(asked) / quote(asked.below, safe="")


def _blob(asked: Asked) -> Path:
    file = _place(asked)
    if not file.is_file():
        raise refused(404, "BlobNotFound")
    return file


def _properties(path: Path) -> dict[str, object]:
    seen, told = path.stat(), described(path)
    return {
        "Last-Modified": http_date(seen.st_mtime),
        "Etag": told["ETag"].strip('"'),
        "LeaseStatus": "unlocked",
        "LeaseState": "available",
    }


def _size(asked: Asked) -> int:
    asked_for = asked.query.get("maxresults", str(_PAGE))
    if not asked_for.isdecimal() or asked_for == "0":
        raise refused(400, "InvalidQueryParameterValue")
    return min(int(asked_for), _PAGE)


def _listing(
    asked: Asked, rows: list[str], wrapper: str, attributes: dict[str, str], following: str
) -> Response:
    names = ("prefix", "marker", "maxresults", "delimiter")
    titles = ("Prefix", "Marker", "MaxResults", "Delimiter")
    content = enumeration(
        rows,
        wrapper,
        attributes={"ServiceEndpoint": asked.endpoint, **attributes},
        told={title: asked.query.get(name, "") for name, title in zip(names, titles, strict=True)},
        following=following,
    )
    return Response(content, media_type="application/xml")


def _reading(depth: int, name: str, answer: Any, verb: str = "GET", **more: Any) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=READ_BLOB, name=name, **more)


def _writing(verb: str, depth: int, name: str, answer: Any, **more: Any) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=WRITE_BLOB, name=name, **more)


_METHODS: Final = (
    _reading(0, "containers", _list_containers, comp="list"),
    _reading(1, "containers", _container, restype="container"),
    _reading(1, "containers", _container, verb="HEAD", restype="container"),
    _reading(1, "blobs", _list, restype="container", comp="list"),
    _reading(2, "blobs", _get),
    _reading(2, "blobs", _there, verb="HEAD"),
    _writing("PUT", 1, "containers", _make_container, restype="container"),
    _writing("DELETE", 1, "containers", _delete_container, restype="container"),
    _writing("PUT", 2, "blobs", _put),
    _writing("DELETE", 2, "blobs", _delete),
)
