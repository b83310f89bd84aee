"""Models on the target's file share, which apps mount; or in blobs, which they cannot."""

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from backends.aca import blobs, files
from backends.aca.names import SHARE
from backends.aca.site import Site
from backends.aca.storage import deadline
from backends.base import StoredModel
from backends.common.models import (
    ENDINGS,
    Completeness,
    File,
    Files,
    folders,
    judge_whole,
    models_among,
    sizes_of,
)
from core.errors import InvalidArgument

_LOCATION: Final = re.compile(
    r"(?:(?P<kind>files|blob)://)?(?P<store>[a-z0-9](?:-?[a-z0-9]){2,62})"
    r"(?:/(?P<folder>[^\x00-\x1f\\:*?\"<>|]*))?"
)
"""Shares and containers have the same rule: 3 to 63 lower-case letters, digits, single hyphens."""
_CACHED: Final = re.compile(rf"(?P<folder>(?:.*/)?{files.HUB_CACHE}(?P<model>[^/]+))/.+")
_NO_MOUNT: Final = (
    "Container Apps mount no blobs: copy it to the share (see"
    " get_huggingface_model_copy_instructions)."
)
_THE_HUBS: Final = (
    "The Hub's own cache, for weights=hub: a boot reads it, and loads what is missing."
)
_CUT_OFF: Final = "A download is under way, or was cut off."


class Place(NamedTuple):
    """A folder of a share, or of a container of blobs."""

    kind: Literal["files", "blob"]
    store: str
    folder: str

    @property
    def service(self) -> Literal["file", "blob"]:
        """The storage account's own name of the kind."""
        return "blob" if self.kind == "blob" else "file"

    @property
    def root(self) -> str:
        """What locations in it begin with."""
        return f"{self.kind}://{self.store}"


async def models(site: Site, bucket: str | None) -> Sequence[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names.

    `bucket` is SHARE, files://SHARE/FOLDER or blob://CONTAINER/FOLDER; left out, the share that
    the set-up makes.

    Raises:
        InvalidArgument: It is none of these.
        CloudRefused: There is no such share, container, folder or account.
        PermissionDenied, CloudTimeout, CloudUnavailable: It cannot be read.
    """
    place = named(bucket or SHARE)
    what = f"read the {'share' if place.kind == 'files' else 'container'} {place.store}"
    async with deadline(site, what, kind=place.service):
        if place.kind == "blob":
            found = await models_among(await _listing(site, place), place.root)
            return [_not_to_be_mounted(one) for one in found]
        there = await _listing(site, place)
        cached = {path: file for path, file in there.items() if _CACHED.fullmatch(path)}
        rest = {path: file for path, file in there.items() if path not in cached}
        return [*await models_among(rest, place.root), *_of_the_hub(cached, place.root)]


async def whole(site: Site, location: str) -> Completeness:
    """Judge the model at a location, each file by its own header.

    Raises:
        InvalidArgument, CloudRefused, PermissionDenied, CloudTimeout, CloudUnavailable: As above.
    """
    async with deadline(site, f"look into {location}", kind=named(location).service):
        return await judge_whole(await _of_one_folder(site, location))


async def size(site: Site, location: str) -> int:
    """Give the bytes of the model at a location.

    Raises:
        InvalidArgument, CloudRefused, PermissionDenied, CloudTimeout, CloudUnavailable: As above.
    """
    async with deadline(site, f"add up {location}", kind=named(location).service):
        return sum(sizes_of(await _of_one_folder(site, location)).values())


def named(location: str) -> Place:
    """Read what a person calls a place.

    >>> named("files://weights/gemma")
    Place(kind='files', store='weights', folder='gemma')
    >>> named("weights").root
    'files://weights'

    Raises:
        InvalidArgument: It can be none.
    """
    found = _LOCATION.fullmatch(location.rstrip("/"))
    folder = (found["folder"] or "").strip("/") if found else ".."
    if not found or any(part in {"", ".", ".."} for part in folder.split("/") if folder):
        raise InvalidArgument(
            f"{location[:100]!r} is no place that Azure keeps weights in.",
            fix="Give SHARE, files://SHARE/FOLDER or blob://CONTAINER/FOLDER.",
        )
    return Place("blob" if found["kind"] == "blob" else "files", found["store"], folder)


async def _listing(site: Site, place: Place) -> dict[str, File]:
    look = blobs.listing if place.kind == "blob" else files.listing
    return await look(site, place.store, place.folder)


async def _of_one_folder(site: Site, location: str) -> Files:
    place = named(location)
    return folders(await _listing(site, place)).get(place.folder, {})


def _not_to_be_mounted(one: StoredModel) -> StoredModel:
    detail = f"{one.detail} {_NO_MOUNT}".strip()
    return one.model_copy(update={"detail": detail, "servable": False})


def _of_the_hub(cached: Files, root: str) -> list[StoredModel]:
    """Give one row for each model of the Hub's cache: links there hide which files are whole."""
    held: dict[tuple[str, str], dict[str, File]] = {}
    for path, file in cached.items():
        found = _CACHED.fullmatch(path)
        assert found
        held.setdefault((found["folder"], found["model"]), {})[path] = file
    return [
        _cached(f"{root}/{folder}", name.replace("--", "/", 1), its)
        for (folder, name), its in sorted(held.items())
    ]


def _cached(location: str, model: str, its: Files) -> StoredModel:
    cut_off = any(path.endswith(".incomplete") for path in its)
    return StoredModel(
        location=location,
        model=model,
        files=sum(path.rpartition(".")[2] in ENDINGS for path in its),
        size_bytes=sum(sizes_of(its).values()),
        complete=False if cut_off else None,
        detail=f"{_CUT_OFF} {_THE_HUBS}" if cut_off else _THE_HUBS,
        servable=False,
    )
