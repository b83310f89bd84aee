"""What this machine must remember of a deployment: a search under way, and what became of it."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from backends.common import concurrency
from backends.common.concurrency import on_disk, write_whole
from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Place
from backends.tpu.site import Site
from core.records import NAME_PATTERN, Failure, ModelShape, Record


class Attempt(Record):
    """One request for a chip at one place."""

    place: Place
    since: datetime
    asked: datetime | None = None
    """When it was asked for, as long as no answer has come: it may come into being late."""
    taken: bool = False
    """Google has taken it, or it was seen to be there."""
    operation: str = ""
    """Its name at Google."""
    outcome: str = ""
    """How it ended: an error's code, `TIMED_OUT`, or `GIVEN`; empty while it goes on."""
    detail: str = ""
    """Google's words on it."""
    fix: str = ""
    """What could be done about it, where something can."""
    returned: bool = True
    """Seen to be given back: nothing of it is left in the zone."""


class Kept(Record):
    """One deployment; holds no secret."""

    blueprint: Blueprint
    model: ModelShape
    since: datetime
    """When it was asked for."""
    attempts: tuple[Attempt, ...] = ()
    """Oldest first; the last one may be under way."""
    placed: Place | None = None
    """Where it was given a chip."""
    replacing: tuple[Place, ...] = ()
    """Where what ran under this name before is still being deleted."""
    late: datetime | None = None
    """When something of that was asked for without an answer: it may come into being late."""
    key_made: bool = False
    """Its key was made for this search: it goes if nothing comes of it."""
    removing: bool = False
    """It is being deleted; what is left of it is taken away when its chip is gone."""
    failure: Failure | None = None
    """Why it goes on no more; deployed again, it is tried anew."""

    @property
    def name(self) -> str:
        """Of the deployment."""
        return self.blueprint.spec.name

    @property
    def current(self) -> Attempt | None:
        """The request that is under way."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and not last.outcome else None

    @property
    def left(self) -> Mapping[Place, datetime | None]:
        """Where something of it may still be, with when it was asked for without an answer."""
        open_ones = {one.place: one.asked for one in self.attempts if not one.returned}
        placed = (self.placed,) if self.placed else ()
        return {**dict.fromkeys(placed), **dict.fromkeys(self.replacing, self.late), **open_ones}


def locked(
    site: Site, name: str, *, seconds: float | None = None
) -> AbstractAsyncContextManager[int]:
    """Keep other calls and other servers on this machine from changing a deployment meanwhile.

    One name is one VM id, key and firewall rule, whichever target it is on.

    Raises:
        Busy: Another one has been at it for so many seconds, or else for long.
    """
    return concurrency.locked(site.shared / f".{name}.lock", name, seconds=seconds)


def keep(site: Site, kept: Kept) -> None:
    """Write it down, so that any server on this machine goes on with it.

    Raises:
        HostError: The disk does not take it.
    """
    with on_disk(site.folder):
        site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_path(site, kept.name), kept.model_dump_json(exclude_defaults=True))


def forget(site: Site, name: str) -> bool:
    """Take it away; whether there was one."""
    there = of(site, name) is not None
    if re.fullmatch(NAME_PATTERN, name):
        with on_disk(site.folder):
            _path(site, name).unlink(missing_ok=True)
    return there


def of(site: Site, name: str) -> Kept | None:
    """Give that of a deployment; None if there is none, or none that can be read any more."""
    return _read(site, _path(site, name)) if re.fullmatch(NAME_PATTERN, name) else None


def all_of(site: Site) -> Sequence[Kept]:
    """Give every one of this target, by name."""
    found = [_read(site, path) for path in sorted(site.folder.glob("*.json"))]
    return tuple(one for one in found if one is not None)


def elsewhere(site: Site, name: str) -> str:
    """Name another target of which something under this name is remembered; empty if none is."""
    for path in sorted(site.shared.glob(f"*/{name}.json")):
        kept = _read(site, path) if path.parent != site.folder else None
        if kept is not None and (kept.left or kept.failure is None):
            return path.parent.name
    return ""


def _read(site: Site, path: Path) -> Kept | None:
    """Read one; that of another project is none of this site's."""
    try:
        kept = Kept.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return kept if kept.blueprint.project == site.clients.project else None


def _path(site: Site, name: str) -> Path:
    return site.folder / f"{name}.json"
