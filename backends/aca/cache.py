"""What an engine compiled, carried on the share of weights: its files, priced and removed."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

from backends.aca import app as apps
from backends.aca import storage
from backends.aca.site import SHARE, Site, every, strictly
from backends.common.concurrency import in_time
from backends.compile_cache import FOLDER
from backends.lifecycle import CACHE, Resource
from core.errors import CloudRefused, CloudUnavailable, PermissionDenied
from core.records import NAME_PATTERN
from core.reply import note

_FILE: Final = re.compile(r"[0-9a-f]{16}(\.aside)?\.tar(\.part)?")
"""What the program in the container writes; nothing else is ever removed."""
_SECONDS: Final = 8.0
_UNSEEN: Final = (CloudRefused, CloudUnavailable, PermissionDenied)


def owned(site: Site, name: str) -> Resource:
    """Return a deployment's cache as a deletion sees it; what nobody may see is not deleted.

    It is deleted with the account's key, as nothing else was needed to mount the share.
    """

    async def get() -> Mapping[str, int] | None:
        try:
            return await files(site, name)
        except _UNSEEN as exc:
            app = await apps.find_any(site, name)
            if app is None or apps.carries(app):
                note(f"Whether a compile cache of {name} is left is not known: {exc.summary}")
            return None

    async def delete() -> None:
        try:
            await remove(site, name)
        except PermissionDenied as exc:
            exc.fix = f"{exc.fix} Or leave it there: destroy_vllm with keep_cache=true.".strip()
            raise

    def bill(found: Mapping[str, int]) -> tuple[str, float]:
        gib = sum(found.values()) / 2**30
        what = f"the compile cache {FOLDER}/{name} of the share {SHARE} ({gib:.2g} GiB of it)"
        return what, storage.usd_per_month(gib)

    return Resource(
        name=CACHE,
        title=f"its compile cache ({FOLDER}/{name} of the share {SHARE})",
        get=get,
        delete=delete,
        bill=bill,
        how_to_remove="destroy_vllm, or its id from get_system_status(leftovers=true)",
    )


def id_of(site: Site, name: str) -> str:
    """Return what a leftover is named by: a folder has no id of Azure's."""
    return f"{storage.share_id(site)}/{FOLDER}/{name}"


async def names(site: Site) -> list[str]:
    """Return whose caches there may be, of deployments that are there or are not."""
    found = await _entries(site, FOLDER)
    return [one.name for one in found if one.is_directory and re.fullmatch(NAME_PATTERN, one.name)]


async def files(site: Site, name: str) -> Mapping[str, int] | None:
    """Return the bytes of each file of a cache; None where there is none."""
    if not re.fullmatch(NAME_PATTERN, name) or await storage.find_account(site) is None:
        return None
    found = await _entries(site, f"{FOLDER}/{name}")
    ours = [one for one in found if not one.is_directory and _FILE.fullmatch(one.name)]
    return {one.name: int(one.size or 0) for one in ours} or None


async def _entries(site: Site, folder: str) -> list[Any]:
    what = f"list {folder} of the share {SHARE}"
    client = (await site.clients.files()).get_share_client(SHARE)
    with in_time("Azure", what, _SECONDS, fix="Ask again later."):
        return await every(what, client.list_directories_and_files(folder, **storage.LIMITS))


async def remove(site: Site, name: str) -> None:
    """Delete a cache's files, and its folder unless there is something else in it.

    Raises:
        PermissionDenied: The account's key may not be read.
    """
    found, what = await files(site, name) or {}, f"delete {FOLDER}/{name} of the share {SHARE}"
    key = await storage.account_key(site)
    with strictly(what):
        async with await site.clients.files(key) as client:
            there = client.get_share_client(SHARE).get_directory_client(f"{FOLDER}/{name}")
            for one in found:
                with suppress(ResourceNotFoundError):
                    await there.delete_file(one, **storage.LIMITS)
            with suppress(ResourceNotFoundError, ResourceExistsError):
                await there.delete_directory(**storage.LIMITS)
