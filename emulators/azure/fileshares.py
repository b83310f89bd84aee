"""What is on file shares: folders and files, for REST clients and for mounts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import BaseRoute

from emulators.azure.roles_known import READ_ANY_FILE, WRITE_ANY_FILE
from emulators.azure.shares_arm import TYPE
from emulators.azure.state import World
from emulators.azure.storage_accounts import account_named
from emulators.azure.storage_accounts_folders import share_folder
from emulators.azure.storage_accounts_ranges import described, downloaded, range_of
from emulators.azure.storage_accounts_serving import Asked, Method, http_date, refused, served
from emulators.azure.storage_accounts_xml import element, enumeration, paged

_PAGE: Final = 5000
_NOT_IN_NAMES: Final = frozenset('"\\:|<>*?')
_FILE_ATTRIBUTES: Final = {
    "x-ms-file-attributes": "Archive",
    "x-ms-file-permission-key": "0*0",
    "x-ms-server-encrypted": "true",
}


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the shares of every account."""
    return served(world, "file", _METHODS)


def _share_id(asked: Asked) -> str:
    found = account_named(asked.world, asked.account)
    return f"{found[1]['id']}/fileServices/default/shares/{asked.top}" if found else ""


async def _list_shares(asked: Asked) -> Response:
    found = {
        one["name"]: one["properties"]
        for one in asked.sub.of_type(TYPE)
        if f"/{asked.account}/" in one["id"] and one["name"].startswith(_prefix(asked))
    }
    names, following = paged(found, asked.query.get("marker", ""), _size(asked))
    rows = [
        element("Share", one, {"Quota": found[one]["shareQuota"], "Etag": '"0x1"'}) for one in names
    ]
    return _listing(asked, rows, "Shares", {}, following)


async def _share(asked: Asked) -> Response:
    root = _root(asked)
    body = asked.sub.get(_share_id(asked)) or {}
    quota = str(body["properties"]["shareQuota"])
    return Response(headers={**described(root), "x-ms-share-quota": quota})


async def _list_folder(asked: Asked) -> Response:
    folder = _place(asked)
    if not folder.is_dir():
        raise refused(404, "ResourceNotFound")
    found = {one.name: one for one in folder.iterdir() if one.name.startswith(_prefix(asked))}
    names, following = paged(found, asked.query.get("marker", ""), _size(asked))
    rows = [_row(found[one]) for one in names]
    attributes = {"ShareName": asked.top, "DirectoryPath": asked.below}
    return _listing(asked, rows, "Entries", attributes, following)


def _row(path: Path) -> str:
    seen = path.stat()
    if path.is_dir():
        return element("Directory", path.name, {"Last-Modified": http_date(seen.st_mtime)})
    changed = {"Last-Modified": http_date(seen.st_mtime), "Etag": described(path)["ETag"]}
    return element("File", path.name, {"Content-Length": seen.st_size, **changed})


async def _folder_there(asked: Asked) -> Response:
    folder = _place(asked)
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
    folder = _place(asked)
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


def _root(asked: Asked) -> Path:
    if not asked.sub.get(_share_id(asked)):
        raise refused(404, "ShareNotFound")
    folder = share_folder(asked.world, asked.sub, asked.account, asked.top)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place(asked: Asked) -> Path:
    """Give where something is, or would be."""
    root, words = _root(asked), asked.below.split("/") if asked.below else []
    if any(one in {"", ".", ".."} or _NOT_IN_NAMES & set(one) for one in words):
        raise refused(400, "InvalidResourceName")
    return root.joinpath(*words)


def _new(asked: Asked) -> Path:
    """Give where something is to be made: the folder around it is there."""
    place = _place(asked)
    if not place.parent.is_dir():
        raise refused(404, "ParentNotFound")
    return place


def _file(asked: Asked) -> Path:
    place = _place(asked)
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


def _listing(
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


def _reading(depth: int, name: str, answer: Any, verb: str = "GET", **more: Any) -> Method:
    return Method(verb=verb, depth=depth, answer=answer, action=READ_ANY_FILE, name=name, **more)


def _writing(verb: str, name: str, answer: Any, **more: Any) -> Method:
    return Method(verb=verb, depth=2, answer=answer, action=WRITE_ANY_FILE, name=name, **more)


_METHODS: Final = (
    _reading(0, "shares", _list_shares, comp="list"),
    _reading(1, "shares", _share, restype="share"),
    _reading(1, "directories", _list_folder, restype="directory", comp="list", deeper=True),
    _reading(1, "directories", _folder_there, restype="directory", deeper=True),
    _reading(2, "files", _read),
    _reading(2, "files", _file_there, verb="HEAD"),
    _writing("PUT", "directories", _make_folder, restype="directory"),
    _writing("DELETE", "directories", _delete_folder, restype="directory"),
    _writing("PUT", "files", _make_file),
    _writing("PUT", "files", _write, comp="range"),
    _writing("DELETE", "files", _delete_file),
)
