"""What can be seen of a place before a chip is asked for there: hardware, way of giving, quota."""

import re
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from backends.tpu import outcomes
from backends.tpu.chip import Place, PlaneKind, Provisioning
from backends.tpu.offers import offers_of
from backends.tpu.outcomes import Outcome
from backends.tpu.planes import Offer
from backends.tpu.room import Counting, Room, room
from backends.tpu.site import Site
from core.cloud_errors import NoCapacity, ZoneRefused
from core.record import Record

_REFUSED: Final = ZoneRefused.code
_TRUSTED_MINUTES: Final = 7 * 24 * 60
"""A refusal that is older says nothing any more: zones open."""
_ADDRESS: Final = re.compile(r"\b[A-Z]+ https?://\S+: ")
_TAKEN: Final = frozenset({outcomes.GIVEN, outcomes.TIMED_OUT, NoCapacity.code})
"""Outcomes of requests that were let wait, so that the way of giving was accepted."""


class Report(Record):
    """Where a way of giving chips was seen to be accepted or refused."""

    plane: PlaneKind
    provisioning: Provisioning
    accepts: bool
    zones: tuple[str, ...]
    source: str


class Accepted(NamedTuple):
    """Whether a place gives chips in a way."""

    yes: bool | None
    """None is not known before it is asked."""
    why: str = ""


class Prospect(NamedTuple):
    """One place."""

    place: Place
    offer: Offer
    accepted: Accepted
    room: Room
    outcomes: Sequence[Outcome]
    """Newest first."""

    @property
    def against(self) -> tuple[str, ...]:
        """What is seen to stand against it."""
        return tuple(why for good, why in self._seen if good is False)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What nobody knows of it."""
        return tuple(why for good, why in self._seen if good is None)

    @property
    def good(self) -> bool | None:
        """Whether nothing stands against it; None where too little is known."""
        if self.against:
            return False
        return None if self.unknown else True

    @property
    def _seen(self) -> tuple[tuple[bool | None, str], ...]:
        return (
            (self.offer.hardware, without_address(self.offer.detail) or "no such hardware"),
            (self.accepted.yes, self.accepted.why),
            (self.room.enough, self.room.why),
        )


async def of(
    site: Site, places: Sequence[Place], counting: Counting, seconds: float
) -> Sequence[Prospect]:
    """Look at places side by side, for so many seconds at most; in their order."""
    offers = await offers_of(site, places, seconds)
    seen = outcomes.of(site)
    return tuple(
        _prospect(site, place, offers[place], counting, [one for one in seen if one.place == place])
        for place in places
    )


def accepted(site: Site, place: Place, seen: Sequence[Outcome]) -> Accepted:
    """Say whether a place gives chips in the target's way: by what was seen, then by reports."""
    telling = (one for one in seen if one.outcome == _REFUSED or one.outcome in _TAKEN)
    last = next(telling, None)
    if last and last.outcome in _TAKEN:
        return Accepted(yes=True)
    minutes = last.minutes_ago(datetime.now(UTC)) if last else 0
    if last and minutes <= _TRUSTED_MINUTES:
        return Accepted(yes=False, why=f"refused {said_ago(minutes)}: {last.detail}")
    row = next((one for one in reports() if _fits(one, place, site.provisioning)), None)
    if row is None:
        why = f"whether it gives {site.provisioning} shows only when it is asked"
        return Accepted(yes=None, why=why)
    why = "" if row.accepts else f"it does not give {site.provisioning} ({row.source})"
    return Accepted(yes=row.accepts, why=why)


@cache
def reports() -> tuple[Report, ...]:
    """Read them, once."""
    text = Path(__file__).with_name("zones.toml").read_text(encoding="utf-8")
    return tuple(Report.model_validate(row) for row in tomllib.loads(text)["reports"])


def without_address(words: str) -> str:
    """Leave out the address that was asked, which stands before Google's words on an instance.

    >>> without_address("GET https://compute.googleapis.com/x: Unknown zone.")
    'Unknown zone.'
    """
    return _ADDRESS.sub("", words)


def said_ago(minutes: int) -> str:
    """Say how long ago something was.

    >>> said_ago(5), said_ago(200), said_ago(5000)
    ('5 min ago', '3 h ago', '3 d ago')
    """
    if minutes < 120:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 2880 else f"{minutes // 1440} d ago"


def _prospect(
    site: Site, place: Place, offer: Offer, counting: Counting, seen: Sequence[Outcome]
) -> Prospect:
    return Prospect(
        place,
        offer,
        accepted(site, place, seen),
        room(counting, place, site.provisioning, site.offered.count),
        seen,
    )


def _fits(row: Report, place: Place, provisioning: Provisioning) -> bool:
    asked = (place.plane, provisioning)
    return (row.plane, row.provisioning) == asked and place.zone in row.zones
