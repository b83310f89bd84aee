"""What asking for chips came to, by place, for every TPU target on this machine."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from backends.common import concurrency
from backends.common.concurrency import write_whole
from backends.tpu.chip import Place
from backends.tpu.site import Site
from core.record import Record

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


async def remember(
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
        rows = _bounded((row, *_read(site)))
        write_whole(_path(site), _File(outcomes=rows).model_dump_json(exclude_defaults=True))


def of(site: Site, place: Place | None = None) -> Sequence[Outcome]:
    """Give those of the site's project, accelerator and provisioning model, newest first.

    Of one place, or of all.
    """
    wanted = (site.clients.project, site.accelerator, site.provisioning)
    return tuple(
        one
        for one in _read(site)
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


def _read(site: Site) -> tuple[Outcome, ...]:
    """Read all, newest first; what cannot be read is not known."""
    try:
        return _File.model_validate_json(_path(site).read_bytes()).outcomes
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ()


def _path(site: Site) -> Path:
    return site.shared / "zones.json"
