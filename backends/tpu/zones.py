"""Every zone that may have the target's chips, and what can be seen of each."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from backends.base import Zone, ZoneOutcome, ZoneQuota
from backends.google.errors import strictly, why_unread
from backends.tpu import quotas, rules, store
from backends.tpu.compute import read_call
from backends.tpu.quotas import NO_LIMIT, Counting, Room, room_for
from backends.tpu.site import SAID, Offer, Place, PlaneKind, Provisioning, Site
from backends.tpu.store import Outcome
from core.errors import CloudError, NoCapacity, ZoneRefused
from core.records import Record
from core.reply import note

_FRESH_SECONDS: Final = 20.0
"""Hardware comes and goes in months; nine targets that are asked together ask once."""


async def offers_of(site: Site, places: Sequence[Place], seconds: float) -> Mapping[Place, Offer]:
    """Give what every place has, within so many seconds; what does not answer is not known."""
    return await _shared(site.shared, site.clients.project).of(site, places, seconds)


class _Known(NamedTuple):
    offer: Offer
    at: float


class _Last:
    """What was seen last."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._known: dict[tuple[str, Place], _Known] = {}

    async def of(
        self, site: Site, places: Sequence[Place], seconds: float
    ) -> Mapping[Place, Offer]:
        async with self._locks[site.accelerator]:
            now = anyio.current_time()
            found = {
                place: known.offer
                for place in places
                if (known := self._known.get((site.accelerator, place)))
                and now - known.at <= _FRESH_SECONDS
            }
            missing = [place for place in places if place not in found]
            found |= await _asked(site, missing, seconds)
            self._keep(site.accelerator, {place: found[place] for place in missing})
            return found

    def _keep(self, accelerator: str, found: Mapping[Place, Offer]) -> None:
        now = anyio.current_time()
        for place, offer in found.items():
            if offer.hardware is not None:
                self._known[accelerator, place] = _Known(offer, now)


async def _asked(site: Site, places: Sequence[Place], seconds: float) -> dict[Place, Offer]:
    found = dict.fromkeys(places, Offer(None, f"no answer within {seconds:.0f} s"))

    async def ask(place: Place) -> None:
        plane = site.planes[place.plane]
        try:
            found[place] = await plane.offer(place.zone, site.accelerator)
        except CloudError as exc:
            found[place] = Offer(None, why_unread(exc))

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(ask, place)
    return found


@cache
def _shared(_folder: Path, _project: str) -> _Last:
    return _Last()


_REFUSED: Final = ZoneRefused.code
_TRUSTED_MINUTES: Final = 7 * 24 * 60
"""A refusal that is older says nothing any more: zones open."""
_ADDRESS: Final = re.compile(r"\b[A-Z]+ https?://\S+: ")
_TAKEN: Final = frozenset({store.GIVEN, store.TIMED_OUT, NoCapacity.code})
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


async def prospects_of(
    site: Site, places: Sequence[Place], counting: Counting, seconds: float
) -> Sequence[Prospect]:
    """Look at places side by side, for so many seconds at most; in their order."""
    offers = await offers_of(site, places, seconds)
    seen = store.outcomes_of(site)
    return tuple(
        _prospect(site, place, offers[place], counting, [one for one in seen if one.place == place])
        for place in places
    )


def is_accepted(site: Site, place: Place, seen: Sequence[Outcome]) -> Accepted:
    """Say whether a place gives chips in the target's way: by what was seen, then by reports."""
    telling = (one for one in seen if one.outcome == _REFUSED or one.outcome in _TAKEN)
    last = next(telling, None)
    if last and last.outcome in _TAKEN:
        return Accepted(yes=True)
    minutes = last.minutes_ago(datetime.now(UTC)) if last else 0
    if last and minutes <= _TRUSTED_MINUTES:
        return Accepted(yes=False, why=f"refused {ago(minutes)}: {last.detail}")
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


def ago(minutes: int) -> str:
    """Say how long ago something was.

    >>> ago(5), ago(200), ago(5000)
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
        is_accepted(site, place, seen),
        room_for(counting, place, site.provisioning, site.offered.count),
        seen,
    )


def _fits(row: Report, place: Place, provisioning: Provisioning) -> bool:
    asked = (place.plane, provisioning)
    return (row.plane, row.provisioning) == asked and place.zone in row.zones


_SECONDS: Final = 18.0
"""For the answers of all zones together."""
_LISTING_SECONDS: Final = 6.0
_MOST: Final = 30
_MOST_OUTCOMES: Final = 3
_BY_ASKING: Final = "whether a chip is free shows only when one is asked for"


async def list_zones(site: Site) -> Sequence[Zone]:
    """Give every zone that is known or that Google lists, the most promising first.

    Nothing is asked for and nothing changed. What cannot be read is not known and says why.

    Raises:
        NotConfigured: No project is named.
        NotAuthenticated: Nobody is logged in.
    """
    _named = site.clients.project
    _caller = await site.clients.credentials()
    names = await _names(site)
    places = [Place(zone, kind) for zone in names for kind in site.planes]
    counting = await quotas.count_chips(site)
    found = await prospects_of(site, places, counting, _SECONDS)
    rows = [_zone([one for one in found if one.place.zone == zone]) for zone in names]
    order = {row.zone: number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: (_rank(row), order[row.zone]))


async def zones_not_asked(site: Site, asked: Collection[str]) -> Sequence[str]:
    """Name the other zones in which Google lists the machine; none where it does not say."""
    return tuple(zone for zone in await _listed(site) if zone not in asked)


async def _names(site: Site) -> Sequence[str]:
    """Give what is documented, reported, set or remembered, then what Google lists besides."""
    wanted = site.provisioning
    reported = (
        zone
        for row in reports()
        for zone in row.zones
        if row.provisioning == wanted and row.accepts
    )
    asked = (one.place.zone for one in store.outcomes_of(site))
    known = dict.fromkeys((site.clients.region, *site.offered.regions, *reported, *asked))
    return tuple(dict.fromkeys((*known, *await _listed(site))))[:_MOST]


async def _listed(site: Site) -> Sequence[str]:
    """Ask Compute Engine which zones have the machine; none where it does not say."""
    machine = rules.generation_of(site.offered).machine_type.format(count=site.offered.count)
    found: list[str] = []
    with anyio.move_on_after(_LISTING_SECONDS):
        try:
            found = await _zones_with(site, machine)
        except CloudError as exc:
            note(f"Which zones there are besides those known here is not known: {why_unread(exc)}")
    return found


async def _zones_with(site: Site, machine: str) -> list[str]:
    client = await site.clients.machine_types()
    request = {
        "project": site.clients.project,
        "filter": f'name = "{machine}"',
    }
    what = f"list the zones that have {machine}"

    def zones(**limits: Any) -> list[str]:
        pager = client.aggregated_list(request=request, **limits)
        return sorted(
            scope.removeprefix("zones/")
            for scope, row in pager
            if any(one.name == machine for one in row.machine_types)
        )

    with strictly(what):
        return await read_call(what, zones)


def _zone(seen: Sequence[Prospect]) -> Zone:
    return Zone(
        zone=seen[0].place.zone,
        hardware=_either([one.offer.hardware for one in seen]),
        quotas=tuple(row for one in seen for row in _quotas(one)),
        accepts=_either([one.accepted.yes for one in seen]),
        outcomes=_outcomes(seen),
        verdict=_verdict(seen),
        usable=_either([one.good for one in seen]),
    )


def _either(seen: Sequence[bool | None]) -> bool | None:
    """Say whether it is so by one control plane at least."""
    if True in seen:
        return True
    return None if None in seen else False


def _quotas(seen: Prospect) -> Iterator[ZoneQuota]:
    for row in seen.room.rows:
        used = "" if row.used is None else f"{row.used} in use in {row.limit.where}."
        limit = row.limit.limit
        yield ZoneQuota(
            pool=row.limit.pool.id,
            control_plane=SAID[seen.place.plane],
            limit=None if limit == NO_LIMIT else limit,
            detail=f"{row.limit.detail} {used}".strip(),
        )


def _outcomes(seen: Sequence[Prospect]) -> tuple[ZoneOutcome, ...]:
    now = datetime.now(UTC)
    rows = sorted((row for one in seen for row in one.outcomes), key=lambda row: row.at)
    return tuple(
        ZoneOutcome(
            control_plane=SAID[row.place.plane],
            provisioning=row.provisioning,
            outcome=row.outcome,
            minutes_ago=row.minutes_ago(now),
            detail=row.detail[:300],
        )
        for row in reversed(rows[-_MOST_OUTCOMES:])
    )


def _verdict(seen: Sequence[Prospect]) -> str:
    """Say by which control plane nothing stands against it, and what does by the others."""
    open_by = [SAID[one.place.plane] for one in seen if one.good]
    said = [f"nothing that can be seen stands against {' or '.join(open_by)}"] if open_by else []
    for one in seen:
        if not one.good:
            why = "; ".join(one.against or one.unknown)
            word = "no" if one.against else "not known"
            said.append(f"{SAID[one.place.plane]}: {word}, {why}")
    said += [_BY_ASKING] if open_by else []
    sentence = ". ".join(f"{part[0].upper()}{part[1:].rstrip('.')}" for part in said)
    return f"{sentence}."


def _rank(row: Zone) -> tuple[int, int]:
    """Sort what is usable first; among equals, where a chip was given last."""
    order = {True: 0, None: 1, False: 2}
    given = any(one.outcome == store.GIVEN for one in row.outcomes[:1])
    return (order[row.usable], 0 if given else 1)
