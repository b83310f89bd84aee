"""What is in storage accounts: files on shares and blobs in containers."""

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

from simulators.azure.catalog import READ_ANY_FILE, READ_BLOB, WRITE_ANY_FILE, WRITE_BLOB
from simulators.azure.state import World
from simulators.azure.storage import (
    SHARE_TYPE,
    Asked,
    Method,
    account_named,
    container_folder,
    described,
    downloaded,
    element,
    enumeration,
    http_date,
    paged,
    range_of,
    refused,
    served,
    share_folder,
    tags,
)

_PAGE: Final = 5000
_NOT_IN_NAMES: Final = frozenset('"\\:|<>*?')
_FILE_ATTRIBUTES: Final = {
    "x-ms-file-attributes": "Archive",
    "x-ms-file-permission-key": "0*0",
    "x-ms-server-encrypted": "true",
}


def fileshare_routes(world: World) -> Sequence[BaseRoute]:
    """Serve the shares of every account."""
    return served(world, "file", _FILESHARE_METHODS)


def _share_id(asked: Asked) -> str:
    found = account_named(asked.world, asked.account)
    return f"{found[1]['id']}/fileServices/default/shares/{asked.top}" if found else ""


async def _list_shares(asked: Asked) -> Response:
    found = {
        one["name"]: one["properties"]
        for one in asked.sub.of_type(SHARE_TYPE)
        if f"/{asked.account}/" in one["id"] and one["name"].startswith(_prefix(asked))
    }
    names, following = paged(found, asked.query.get("marker", ""), _size(asked))
    rows = [
        element("Share", one, {"Quota": found[one]["shareQuota"], "Etag": '"0x1"'}) for one in names
    ]
    return _listing_fileshare(asked, rows, "Shares", {}, following)


async def _share(asked: Asked) -> Response:
    root = _root_fileshare(asked)
    body = asked.sub.get(_share_id(asked)) or {}
    quota = str(body["properties"]["shareQuota"])
    return Response(headers={**described(root), "x-ms-share-quota": quota})


async def _list_folder(asked: Asked) -> Response:
    folder = _place_fileshare(asked)
    if not folder.is_dir():
        raise refused(404, "ResourceNotFound")
    found = {one.name: one for one in folder.iterdir() if one.name.startswith(_prefix(asked))}
    names, following = paged(found, asked.query.get("marker", ""), _size(asked))
    rows = [_row_fileshare(found[one]) for one in names]
    attributes = {"ShareName": asked.top, "DirectoryPath": asked.below}
    return _listing_fileshare(asked, rows, "Entries", attributes, following)


def _row_fileshare(path: Path) -> str:
    seen = path.stat()
    if path.is_dir():
        return element("Directory", path.name, {"Last-Modified": http_date(seen.st_mtime)})
    changed = {"Last-Modified": http_date(seen.st_mtime), "Etag": described(path)["ETag"]}
    return element("File", path.name, {"Content-Length": seen.st_size, **changed})


async def _folder_there(asked: Asked) -> Response:
    folder = _place_fileshare(asked)
    if not folder.is_dir():
        raise refused(404, "ResourceNotFound")
    return Response(headers={**described(folder), "x-ms-file-attributes": "Directory"})


async def _make_folder(asked: Asked) -> Response:
    folder = _new(asked)
    if folder.exists():
        raise refused(409, "ResourceAlreadyExists")
    folder.mkdir()
    told = {**described(folder), **_FILE_ATTRIBUTES, "x-ms-file-attributes": "Directory"}
    return Response(status_code=201, headers=told)


async def _delete_folder(asked: Asked) -> Response:
    folder = _place_fileshare(asked)
    if not folder.is_dir():
        raise refused(404, "ResourceNotFound")
    if any(folder.iterdir()):
        raise refused(409, "DirectoryNotEmpty")
    folder.rmdir()
    return Response(status_code=202)


async def _make_file(asked: Asked) -> Response:
    """Make a file of a length, full of nothing."""
    file, length = _new(asked), asked.headers.get("x-ms-content-length", "")
    if file.is_dir():
        raise refused(409, "ResourceTypeMismatch")
    if asked.headers.get("x-ms-type") != "file" or not length.isdecimal():
        raise refused(400, "InvalidHeaderValue")
    with file.open("wb") as stream:
        stream.truncate(int(length))
    return Response(status_code=201, headers={**described(file), **_FILE_ATTRIBUTES})


async def _write(asked: Asked) -> Response:
    file, bounds = _file(asked), range_of(asked.headers)
    if bounds is None or bounds[1] is None:
        raise refused(400, "InvalidHeaderValue")
    first, last = bounds[0], bounds[1]
    if last >= file.stat().st_size:
        raise refused(416, "InvalidRange")
    wanted = last - first + 1
    content = asked.body if asked.headers.get("x-ms-write") == "update" else bytes(wanted)
    if len(content) != wanted:
        raise refused(400, "InvalidHeaderValue")
    with file.open("r+b") as stream:
        stream.seek(first)
        stream.write(content)
    told = {**described(file), "x-ms-request-server-encrypted": "true"}
    return Response(status_code=201, headers=told)


async def _read(asked: Asked) -> Response:
    return downloaded(_file(asked), asked.headers, {**_FILE_ATTRIBUTES, "x-ms-type": "File"})


async def _file_there(asked: Asked) -> Response:
    file = _file(asked)
    told = {**described(file), **_FILE_ATTRIBUTES, "x-ms-type": "File"}
    told["Content-Length"] = str(file.stat().st_size)
    return Response(headers=told, media_type="application/octet-stream")


async def _delete_file(asked: Asked) -> Response:
    _file(asked).unlink()
    return Response(status_code=202)


def _root_fileshare(asked: Asked) -> Path:
    if not asked.sub.get(_share_id(asked)):
        raise refused(404, "ShareNotFound")
    folder = share_folder(asked.world, asked.sub, asked.account, asked.top)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place_fileshare(asked: Asked) -> Path:
    """Give where something is, or would be."""
    root, words = _root_fileshare(asked), asked.below.split("/") if asked.below else []
    if any(one in {"", ".", ".."} or _NOT_IN_NAMES & set(one) for one in words):
        raise refused(400, "InvalidResourceName")
    return root.joinpath(*words)


def _new(asked: Asked) -> Path:
    """Give where something is to be made: the folder around it is there."""
    place = _place_fileshare(asked)
    if not place.parent.is_dir():
        raise refused(404, "ParentNotFound")
    return place


def _file(asked: Asked) -> Path:
    place = _place_fileshare(asked)
    if place.is_dir():
        raise refused(409, "ResourceTypeMismatch")
    if not place.is_file():
        raise refused(404, "ResourceNotFound" if place.parent.is_dir() else "ParentNotFound")
    return place


def _prefix(asked: Asked) -> str:
    return asked.query.get("prefix", "")


def _size(asked: Asked) -> int:
    asked_for = asked.query.get("maxresults", str(_PAGE))
    if not asked_for.isdecimal() or asked_for == "0":
        raise refused(400, "InvalidQueryParameterValue")
    return min(int(asked_for), _PAGE)


def _listing_fileshare(
    asked: Asked, rows: list[str], wrapper: str, attributes: dict[str, str], following: str
) -> Response:
    content = enumeration(
        rows,
        wrapper,
        attributes={"ServiceEndpoint": asked.endpoint, **attributes},
        told={
            "Prefix": _prefix(asked),
            "Marker": asked.query.get("marker", ""),
            "MaxResults": asked.query.get("maxresults", ""),
        },
        following=following,
    )
    return Response(content, media_type="application/xml")


def _reading_fileshare(
    depth: int, name: str, answer: Any, verb: str = "GET", **more: Any
) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=READ_ANY_FILE, name=name, **more)


def _writing_fileshare(verb: str, name: str, answer: Any, **more: Any) -> Method:
    return Method(verb=verb, depth=2, answer=answer, action=WRITE_ANY_FILE, name=name, **more)


_FILESHARE_METHODS: Final = (
    _reading_fileshare(0, "shares", _list_shares, comp="list"),
    _reading_fileshare(1, "shares", _share, restype="share"),
    _reading_fileshare(
        1, "directories", _list_folder, restype="directory", comp="list", deeper=True
    ),
    _reading_fileshare(1, "directories", _folder_there, restype="directory", deeper=True),
    _reading_fileshare(2, "files", _read),
    _reading_fileshare(2, "files", _file_there, verb="HEAD"),
    _writing_fileshare("PUT", "directories", _make_folder, restype="directory"),
    _writing_fileshare("DELETE", "directories", _delete_folder, restype="directory"),
    _writing_fileshare("PUT", "files", _make_file),
    _writing_fileshare("PUT", "files", _write, comp="range"),
    _writing_fileshare("DELETE", "files", _delete_file),
)


_CONTAINER: Final = re.compile(r"^(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*$")
_TOLD: Final = {
    "x-ms-blob-type": "BlockBlob",
    "x-ms-lease-status": "unlocked",
    "x-ms-lease-state": "available",
    "x-ms-server-encrypted": "true",
}


def blob_routes(world: World) -> Sequence[BaseRoute]:
    """Serve the containers of every account."""
    return served(world, "blob", _BLOB_METHODS)


async def _list_containers(asked: Asked) -> Response:
    root, prefix = _root_blob(asked), asked.query.get("prefix", "")
    found = {one.name: one for one in root.iterdir()} if root.is_dir() else {}
    named = [one for one in found if one.startswith(prefix)]
    names, following = paged(named, asked.query.get("marker", ""), _size(asked))
    rows = [element("Container", one, _properties(found[one])) for one in names]
    return _listing_blob(asked, rows, "Containers", {}, following)


async def _make_container(asked: Asked) -> Response:
    folder = _root_blob(asked, asked.top)
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
    rows = [_row_blob(folder, one, deeper=one not in titles) for one in names]
    attributes = {"ContainerName": asked.top}
    return _listing_blob(asked, rows, "Blobs", attributes, following)


def _cut(name: str, prefix: str, delimiter: str) -> str:
    """Give a name up to where it goes deeper, with the delimiter."""
    if not delimiter:
        return name
    begin, found, _rest = name[len(prefix) :].partition(delimiter)
    return f"{prefix}{begin}{found}"


def _row_blob(folder: Path, name: str, *, deeper: bool) -> str:
    if deeper:
        return f"<BlobPrefix>{tags({'Name': name})}</BlobPrefix>"
    file = folder / quote(name, safe="")
    size = {"Content-Length": file.stat().st_size, "Content-Type": "application/octet-stream"}
    kind = {"BlobType": "BlockBlob", "AccessTier": "Hot", "ServerEncrypted": "true"}
    return element("Blob", name, {**_properties(file), **size, **kind})


async def _put(asked: Asked) -> Response:
    file = _place_blob(asked)
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


def _root_blob(asked: Asked, container: str = "") -> Path:
    return container_folder(asked.world, asked.sub, asked.account, container)


def _container_of(asked: Asked) -> Path:
    folder = _root_blob(asked, asked.top)
    if not _CONTAINER.match(asked.top) or not folder.is_dir():
        raise refused(404, "ContainerNotFound")
    return folder


def _place_blob(asked: Asked) -> Path:
    """Give where a blob is, or would be: a name is one file, however many slashes it has."""
    return _container_of(asked) / quote(asked.below, safe="")


def _blob(asked: Asked) -> Path:
    file = _place_blob(asked)
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


def _listing_blob(
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


def _reading_blob(depth: int, name: str, answer: Any, verb: str = "GET", **more: Any) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=READ_BLOB, name=name, **more)


def _writing_blob(verb: str, depth: int, name: str, answer: Any, **more: Any) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=WRITE_BLOB, name=name, **more)


_BLOB_METHODS: Final = (
    _reading_blob(0, "containers", _list_containers, comp="list"),
    _reading_blob(1, "containers", _container, restype="container"),
    _reading_blob(1, "containers", _container, verb="HEAD", restype="container"),
    _reading_blob(1, "blobs", _list, restype="container", comp="list"),
    _reading_blob(2, "blobs", _get),
    _reading_blob(2, "blobs", _there, verb="HEAD"),
    _writing_blob("PUT", 1, "containers", _make_container, restype="container"),
    _writing_blob("DELETE", 1, "containers", _delete_container, restype="container"),
    _writing_blob("PUT", 2, "blobs", _put),
    _writing_blob("DELETE", 2, "blobs", _delete),
)
