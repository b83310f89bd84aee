"""What this machine must remember: deployments, searches under way, and how requests ended."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from backends.common import concurrency
from backends.common.concurrency import on_disk, write_whole
from backends.tpu.site import Blueprint, Place, Site
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


class SearchRecord(Record):
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


def keep_record(site: Site, kept: SearchRecord) -> None:
    """Write it down, so that any server on this machine goes on with it.

    Raises:
        HostError: The disk does not take it.
    """
    with on_disk(site.folder):
        site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_path_record(site, kept.name), kept.model_dump_json(exclude_defaults=True))


def forget_record(site: Site, name: str) -> bool:
    """Take it away; whether there was one."""
    there = record_of(site, name) is not None
    if re.fullmatch(NAME_PATTERN, name):
        with on_disk(site.folder):
            _path_record(site, name).unlink(missing_ok=True)
    return there


def record_of(site: Site, name: str) -> SearchRecord | None:
    """Give that of a deployment; None if there is none, or none that can be read any more."""
    return (
        _read_record(site, _path_record(site, name)) if re.fullmatch(NAME_PATTERN, name) else None
    )


def all_records(site: Site) -> Sequence[SearchRecord]:
    """Give every one of this target, by name."""
    found = [_read_record(site, path) for path in sorted(site.folder.glob("*.json"))]
    return tuple(one for one in found if one is not None)


def other_target_of(site: Site, name: str) -> str:
    """Name another target of which something under this name is remembered; empty if none is."""
    for path in sorted(site.shared.glob(f"*/{name}.json")):
        kept = _read_record(site, path) if path.parent != site.folder else None
        if kept is not None and (kept.left or kept.failure is None):
            return path.parent.name
    return ""


def _read_record(site: Site, path: Path) -> SearchRecord | None:
    """Read one; that of another project is none of this site's."""
    try:
        kept = SearchRecord.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return kept if kept.blueprint.project == site.clients.project else None


def _path_record(site: Site, name: str) -> Path:
    return site.folder / f"{name}.json"


GIVEN: Final = "GIVEN"
TIMED_OUT: Final = "TIMED_OUT"
_EACH: Final = 3
"""How many of one place are remembered."""
_MOST: Final = 600
"""Of all: nine targets in twenty zones of two control planes, and some more."""
_LOCK_SECONDS: Final = 2.0
"""The file is written in a moment."""


class Outcome(Record):
    """How one request for chips ended."""

    project: str
    accelerator: str
    """Such as v6e-4."""
    provisioning: str
    place: Place
    outcome: str
    """`GIVEN`, `TIMED_OUT`, or the code of what stood against it."""
    detail: str = ""
    """Google's words."""
    at: datetime

    def minutes_ago(self, now: datetime) -> int:
        """Give its age."""
        return max(0, int((now - self.at).total_seconds() // 60))


class _File(Record):
    outcomes: tuple[Outcome, ...] = ()


async def remember_outcome(
    site: Site, place: Place, outcome: str, detail: str = "", *, now: datetime | None = None
) -> None:
    """Write down how a request ended.

    Raises:
        Busy: Another server writes and writes.
        HostError: The disk does not take it.
    """
    row = Outcome(
        project=site.clients.project,
        accelerator=site.accelerator,
        provisioning=site.provisioning,
        place=place,
        outcome=outcome,
        detail=detail,
        at=now or datetime.now(UTC),
    )
    lock = site.shared / ".zones.lock"
    async with concurrency.locked(lock, "what is remembered of zones", seconds=_LOCK_SECONDS):
        rows = _bounded((row, *_read_outcome(site)))
        write_whole(
            _path_outcome(site), _File(outcomes=rows).model_dump_json(exclude_defaults=True)
        )


def outcomes_of(site: Site, place: Place | None = None) -> Sequence[Outcome]:
    """Give those of the site's project, accelerator and provisioning model, newest first.

    Of one place, or of all.
    """
    wanted = (site.clients.project, site.accelerator, site.provisioning)
    return tuple(
        one
        for one in _read_outcome(site)
        if (one.project, one.accelerator, one.provisioning) == wanted and place in {None, one.place}
    )


def _bounded(rows: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Leave the newest of each place."""
    seen: dict[tuple[str, str, str, Place], int] = {}
    left = []
    for one in rows:
        key = (one.project, one.accelerator, one.provisioning, one.place)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= _EACH:
            left.append(one)
    return tuple(left[:_MOST])


def _read_outcome(site: Site) -> tuple[Outcome, ...]:
    """Read all, newest first; what cannot be read is not known."""
    try:
        return _File.model_validate_json(_path_outcome(site).read_bytes()).outcomes
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ()


def _path_outcome(site: Site) -> Path:
    return site.shared / "zones.json"
