"""The files on a share of Azure Files, folder by folder: the service lists one at a time."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from backends.aca.site import Site
from backends.aca.storage import FILES_ROLE, looking, refused
from backends.common.concurrency import side_by_side
from backends.common.models import ENDINGS, MOST_FILES, File, limited
from core.reply import note

if TYPE_CHECKING:
    from azure.storage.fileshare.aio import ShareClient

_AT_ONCE: Final = 8
_MOST_FOLDERS: Final = 400
HUB_CACHE: Final = "models--"
"""What the Hub's library begins a folder with that it keeps a model in."""


class _Listed(NamedTuple):
    folders: list[str]
    files: dict[str, File]


async def listing(site: Site, share: str, under: str) -> dict[str, File]:
    """List what models are made of by their paths, below a folder if one is given.

    Below a folder of the Hub's own cache every file counts: the names there say nothing.

    Raises:
        CloudRefused: There is no such share or folder.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    client = (await site.clients.files()).get_share_client(share)
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    found: dict[str, File] = {}
    waiting, seen = [under], 0

    async def look(folder: str) -> _Listed:
        async with limiter:
            return await _folder(site, client, share, folder)

    while waiting and seen < _MOST_FOLDERS and len(found) <= MOST_FILES:
        these = waiting[: _MOST_FOLDERS - seen]
        waiting, seen = waiting[len(these) :], seen + len(these)
        for one in await side_by_side([partial(look, folder) for folder in these]):
            waiting += one.folders
            found |= one.files
    if waiting and len(found) <= MOST_FILES:
        note(f"{share} holds more than {_MOST_FOLDERS} folders; only these were looked at.")
    return limited(found, share)


async def _folder(site: Site, client: "ShareClient", share: str, folder: str) -> _Listed:
    folders: list[str] = []
    files: dict[str, File] = {}
    store = f"The share {share}" if not folder else f"The folder {folder} of the share {share}"
    with refused(site, f"list {share}/{folder}", store=store, role=FILES_ROLE):
        there = client.get_directory_client(folder)
        async for one in there.list_directories_and_files(**looking()):
            path = f"{folder}/{one.name}".lstrip("/")
            if one.is_directory:
                folders += [] if one.name.startswith(".") else [path]
            elif _matters(path):
                files[path] = File(int(one["size"] or 0), _reader(site, client, path))
    return _Listed(folders, files)


def _matters(path: str) -> bool:
    return path.rpartition(".")[2] in ENDINGS or HUB_CACHE in path


def _reader(site: Site, client: "ShareClient", path: str) -> Callable[[int, int], Awaitable[bytes]]:
    async def read(offset: int, length: int) -> bytes:
        with refused(site, f"read {path}", store=f"The file {path}", role=FILES_ROLE):
            got = await client.get_file_client(path).download_file(offset, length, **looking())
            return bytes(await got.readall())

    return read
