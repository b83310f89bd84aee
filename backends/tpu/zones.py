"""Every zone that may have the target's chips: hardware, quotas, how requests ended there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from google.cloud.cloudquotas_v1 import QuotaInfo
from pydantic import ValidationError

from backends.base import Quota, Zone, ZoneOutcome, ZoneQuota
from backends.common import concurrency
from backends.common.concurrency import or_note, side_by_side, write_whole
from backends.google.errors import why_unread
from backends.google.setup import limit_in, read_quota
from backends.tpu import compute
from backends.tpu import site as tpu
from backends.tpu.vm import is_known_to_give
from core.environment import read_toml
from core.errors import CloudError, NextStep, NoCapacity, ZoneRefused
from core.records import Record

NO_LIMIT: Final = float("inf")
_HERE: Final = Path(__file__).parent
_LOCK_SECONDS: Final = 2.0
_POOLS_SECONDS: Final = 3.0
_OFFERS_SECONDS: Final = 20.0
"""Hardware comes and goes in months."""
_EARLY_SECONDS: Final = 5.0
"""For what is looked at before a question is put."""
_ORDER: Final = {True: 0, None: 1, False: 2}


class Outcome(Record):
    """How the last request for chips at one place ended."""

    project: str
    accelerator: str
    """Such as v6e-4."""
    provisioning: str
    place: tpu.Place
    outcome: str
    """`GIVEN`, `TIMED_OUT`, or the code of what stood against it."""
    detail: str = ""
    """Google's words."""
    at: datetime

    def minutes_ago(self, now: datetime) -> int:
        return max(0, int((now - self.at).total_seconds() // 60))


class _File(Record):
    outcomes: tuple[Outcome, ...] = ()


async def remember_outcome(
    site: tpu.Site, place: tpu.Place, outcome: str, detail: str = ""
) -> None:
    """Write down how a request ended, in place of the former one of that place."""
    row = Outcome(
        project=site.clients.project,
        accelerator=site.accelerator,
        provisioning=site.provisioning,
        place=place,
        outcome=outcome,
        detail=detail,
        at=site.now(),
    )
    lock = site.shared / ".zones.lock"
    async with concurrency.locked(lock, "what is remembered of zones", seconds=_LOCK_SECONDS):
        rows = {
            (one.project, one.accelerator, one.provisioning, one.place): one
            for one in (*_remembered(site), row)
        }
        text = _File(outcomes=tuple(rows.values())).model_dump_json(exclude_defaults=True)
        write_whole(site.shared / "zones.json", text)


def outcomes_of(site: tpu.Site) -> Mapping[tpu.Place, Outcome]:
    """Return those of the site's project, accelerator and way of giving."""
    wanted = (site.clients.project, site.accelerator, site.provisioning)
    return {
        one.place: one
        for one in _remembered(site)
        if (one.project, one.accelerator, one.provisioning) == wanted
    }


def _remembered(site: tpu.Site) -> tuple[Outcome, ...]:
    """Return all; what cannot be read is not known."""
    try:
        return _File.model_validate_json((site.shared / "zones.json").read_bytes()).outcomes
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ()


class Pool(Record):
    """One quota of chips."""

    id: str
    service: str
    plane: tpu.PlaneKind
    per: Literal["zone", "region"]
    counts: tuple[tpu.Provisioning, ...]
    """Which chips are counted in it."""
    stands_in_for: tuple[tpu.Provisioning, ...] = ()
    """Which are counted in it where their own pool is empty."""
    dimensions: Mapping[str, str] = {}
    """That an entry must have beside its place."""
    unlisted: int | None = None


@cache
def pools() -> tuple[Pool, ...]:
    rows = read_toml(_HERE / "quotas.toml")["pools"]
    return tuple(map(Pool.model_validate, rows))


class Row(NamedTuple):
    """What one pool allows in one place."""

    pool: Pool
    where: str
    """The zone or region that it counts in."""
    limit: float | None
    """None is not known; `NO_LIMIT` is none."""
    detail: str
    used: int | None
    """Chips that are counted in it now, leftovers among them; None is not known."""

    @property
    def free(self) -> float | None:
        return None if self.limit is None else self.limit - (self.used or 0)

    def __str__(self) -> str:
        figures = self.detail if self.limit is None else f"{self.limit:g}"
        used = f", {self.used} in use" if self.limit is not None and self.used is not None else ""
        return f"{self.pool.id} in {self.where}: {figures}{used}"


class Room(NamedTuple):
    """What all pools of one place come to."""

    rows: tuple[Row, ...]
    """Those that count."""
    enough: bool | None
    """For so many chips as were asked about; None is not known."""
    why: str = ""
    """There is not enough, or nobody knows, or other pools count than usually."""


class Counting(NamedTuple):
    """What is to be held against the pools."""

    read: Mapping[str, QuotaInfo | str | None]
    """By pool: None where the project has no such quota, else why it could not be read."""
    chips: Sequence[tpu.Chip] | None
    """All that there are; None where they could not be looked at."""
    without: str = ""
    """A deployment whose own chips go before new ones are asked for."""

    def row(self, pool: Pool, zone: str) -> Row:
        where, info = zone if pool.per == "zone" else tpu.region_of(zone), self.read[pool.id]
        limit: float | None = None
        detail = str(info)
        if isinstance(info, QuotaInfo):
            limit, detail = limit_in(info, where, per=pool.per, said=pool.dimensions), ""
            if limit is None:
                own = pool.unlisted is not None
                limit, detail = pool.unlisted, f"The quota says nothing of {where}."
                detail = f"Google's own where {where} has no entry." if own else detail
            elif limit < 0:
                limit, detail = NO_LIMIT, "No limit."
        return Row(pool, where, limit, detail, self._used(pool, where))

    def _used(self, pool: Pool, where: str) -> int | None:
        here = [
            chip
            for chip in self.chips or ()
            if chip.place.plane == pool.plane
            and where in {chip.place.zone, tpu.region_of(chip.place.zone)}
            and not (self.without and chip.deployment == self.without)
        ]
        if self.chips is None or any(chip.provisioning is None for chip in here):
            return None
        return sum(chip.chips for chip in here if chip.provisioning in pool.counts)


async def count_chips(site: tpu.Site, *, without: str = "") -> Counting:
    """Read the limits and what is counted against them, side by side."""

    async def limits() -> Mapping[str, QuotaInfo | str | None]:
        looks = [partial(read_quota, site, one.service, one.id) for one in pools()]
        found = await side_by_side(looks)
        return {one.id: info for one, info in zip(pools(), found, strict=True)}

    async def look() -> Sequence[tpu.Chip] | None:
        try:
            return await site.chips()
        except CloudError:
            return None

    reading = partial(site.inventory.read, "limits", _POOLS_SECONDS, limits)
    looks: list[Any] = [reading, look]
    read, chips = await side_by_side(looks)
    return Counting(read, chips, without)


def room_for(
    counting: Counting, place: tpu.Place, provisioning: tpu.Provisioning, chips: int
) -> Room:
    """Say whether so many more chips may be had at a place."""

    def judged(counted: Iterable[Pool]) -> Room:
        there = [pool for pool in counted if counting.read[pool.id] is not None]
        rows = tuple(counting.row(pool, place.zone) for pool in there)
        tight = [row for row in rows if row.free is not None and row.free < chips]
        if tight:
            said = "; ".join(str(row) for row in tight)
            return Room(rows, enough=False, why=f"{said}; {chips} asked for")
        unknown = [str(row) for row in rows if row.free is None]
        if unknown or not rows:
            return Room(rows, enough=None, why="; ".join(unknown) or "no quota of it is known")
        return Room(rows, enough=True)

    here = [one for one in pools() if one.plane == place.plane]
    own = judged(one for one in here if provisioning in one.counts)
    if own.enough is False:
        instead = judged(one for one in here if provisioning in one.stands_in_for)
        if instead.enough:
            other = "standard quota counts where there is no preemptible"
            return Room(instead.rows, enough=True, why=f"{own.why}; {other}")
    return own


async def read_quotas(site: tpu.Site) -> Sequence[Quota]:
    """Return every pool that chips of this target are counted in, the one that counts first.

    Either control plane can give them: the plane with more room goes first, and of its pools the
    tightest. What cannot be read has no limit and says why; a pool without a limit is left out.
    """
    counting, zone = await count_chips(site), site.clients.region
    rooms = [
        room_for(counting, tpu.Place(zone, kind), site.provisioning, site.offered.count)
        for kind in site.planes
    ]
    known = {True: 0, False: 1, None: 2}
    rooms.sort(
        key=lambda room: (known[room.enough], -min((one.free or 0 for one in room.rows), default=0))
    )
    rows = [
        row
        for room in rooms
        for row in sorted(room.rows, key=lambda row: NO_LIMIT if row.free is None else row.free)
        if row.limit != NO_LIMIT
    ]
    return [
        Quota(
            quota=row.pool.id,
            region=row.where,
            limit=row.limit,
            in_use=row.used,
            detail=" ".join(
                f"Chips by {tpu.SAID[row.pool.plane]}. {row.detail}"
                f" {'' if row.used is not None else 'What is in use is not known.'}".split()
            ),
            accelerator=site.target.accelerator or "",
        )
        for row in rows
    ]


_TRUSTED_MINUTES: Final = 7 * 24 * 60
"""A refusal that is older says nothing any more: zones open."""
_TAKEN: Final = frozenset({tpu.GIVEN, tpu.TIMED_OUT, NoCapacity.code})
"""Outcomes of requests that were let wait, so that the way of giving was accepted."""


class Prospect(NamedTuple):
    """One place, with what can be seen of it: True, False, or None where nobody knows."""

    place: tpu.Place
    hardware: tuple[bool | None, str]
    accepted: tuple[bool | None, str]
    room: Room
    outcome: Outcome | None

    @property
    def verdict(self) -> tuple[bool | None, str]:
        """Whether nothing stands against it, and what does, or is not known."""
        seen = (self.hardware, self.accepted, (self.room.enough, self.room.why))
        for good in (False, None):
            if any(each is good for each, _ in seen):
                return good, "; ".join(why for each, why in seen if each is good)
        return True, ""


async def prospects_of(
    site: tpu.Site, places: Sequence[tpu.Place], counting: Counting, seconds: float
) -> Sequence[Prospect]:
    """Look at places side by side, for so many seconds at most; in their order."""
    offers = dict.fromkeys(places, tpu.Offer(None, f"no answer within {seconds:.0f} s"))

    async def look(place: tpu.Place) -> None:
        what, ask = ("offer", site.accelerator, place), site.planes[place.plane].offer
        try:
            offers[place] = await site.inventory.read(
                what, _OFFERS_SECONDS, partial(ask, place.zone, site.accelerator)
            )
        except CloudError as exc:
            offers[place] = tpu.Offer(None, why_unread(exc))

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(look, place)
    seen = outcomes_of(site)
    return tuple(
        Prospect(
            place,
            (offers[place].hardware, offers[place].detail.rstrip(".")),
            is_accepted(site, place, seen.get(place)),
            room_for(counting, place, site.provisioning, site.offered.count),
            seen.get(place),
        )
        for place in places
    )


def verdict_words(found: Sequence[Prospect]) -> str:
    """Say what is seen of places; what is the same of several is said once."""
    groups: dict[str, list[str]] = {}
    for one in found:
        good, why = one.verdict
        words = "Yes" if good else f"{'Not known' if good is None else 'No'}, {why}"
        groups.setdefault(words, []).append(str(one.place))
    return " ".join(f"{words}: {', '.join(where)}." for words, where in groups.items())


async def refuse_without_chips(site: tpu.Site, places: Sequence[tpu.Place]) -> Sequence[str]:
    """Return what stands against all of some places; nothing where one of them may give chips.

    Raises:
        ZoneRefused: No chips of this kind stand in any of them.
    """
    found = await prospects_of(site, places, await count_chips(site), _EARLY_SECONDS)
    if any(one.verdict[0] is not False for one in found):
        return ()
    if any(one.hardware[0] is not False for one in found):
        return (f"no place gives chips as it looks now. {verdict_words(found)}".rstrip("."),)
    where = ", ".join(dict.fromkeys(one.place.zone for one in found))
    raise ZoneRefused(
        f"There is no {site.accelerator} in {where}.",
        cause=verdict_words(found),
        fix=f"Give others in zones or GOOGLE_CLOUD_ZONE: {', '.join(site.offered.regions)}.",
        next_steps=(NextStep("get_zones_with_available_quota", {"target": site.target.name}),),
    )


def is_accepted(site: tpu.Site, place: tpu.Place, last: Outcome | None) -> tuple[bool | None, str]:
    """Say whether a place gives chips in the target's way: where it was seen to, or documented."""
    if last and last.outcome in _TAKEN:
        return True, ""
    minutes = last.minutes_ago(datetime.now(UTC)) if last else 0
    if last and last.outcome == ZoneRefused.code and minutes <= _TRUSTED_MINUTES:
        return False, f"refused {minutes} min ago: {last.detail}"
    if is_known_to_give(site, place):
        return True, ""
    return None, f"whether it gives {site.provisioning} shows only when it is asked"


_SECONDS: Final = 18.0
"""For the answers of all zones together."""
_LISTING_SECONDS: Final = 6.0
_MOST: Final = 30
_BY_ASKING: Final = "whether a chip is free shows only when one is asked for"


async def list_zones(site: tpu.Site) -> Sequence[Zone]:
    """Return every zone that is known or that Google lists, the most promising first.

    Nothing is asked for and nothing changed. What cannot be read is not known and says why.
    """
    _caller = await site.clients.credentials()
    asked = (place.zone for place in outcomes_of(site))
    known = (site.clients.region, *site.offered.regions, *asked)
    listed: Sequence[str] = ()  # where Compute Engine does not say in time
    with anyio.move_on_after(_LISTING_SECONDS):
        listed = await or_note(partial(compute.zones_with_machine, site), ())
    names = tuple(dict.fromkeys((*known, *listed)))[:_MOST]
    places = [tpu.Place(zone, kind) for zone in names for kind in site.planes]
    found = await prospects_of(site, places, await count_chips(site), _SECONDS)
    rows = [_zone([one for one in found if one.place.zone == zone]) for zone in names]

    def is_given(row: Zone) -> bool:
        return any(one.outcome == tpu.GIVEN for one in row.outcomes[:1])

    return sorted(rows, key=lambda row: (_ORDER[row.usable], not is_given(row)))


def _zone(seen: Sequence[Prospect]) -> Zone:
    now = datetime.now(UTC)
    outcomes = sorted((one.outcome for one in seen if one.outcome), key=lambda row: row.at)
    return Zone(
        zone=seen[0].place.zone,
        hardware=_either(one.hardware[0] for one in seen),
        quotas=tuple(row for one in seen for row in _quotas(one)),
        accepts=_either(one.accepted[0] for one in seen),
        outcomes=tuple(
            ZoneOutcome(
                control_plane=tpu.SAID[row.place.plane],
                provisioning=row.provisioning,
                outcome=row.outcome,
                minutes_ago=row.minutes_ago(now),
                detail=row.detail[:300],
            )
            for row in reversed(outcomes)
        ),
        verdict=_verdict(seen),
        usable=_either(one.verdict[0] for one in seen),
    )


def _either(seen: Iterable[bool | None]) -> bool | None:
    """Say whether it is so by one control plane at least."""
    return min(seen, key=_ORDER.__getitem__)


def _quotas(seen: Prospect) -> Iterator[ZoneQuota]:
    for row in seen.room.rows:
        used = "" if row.used is None else f"{row.used} in use in {row.where}."
        yield ZoneQuota(
            pool=row.pool.id,
            control_plane=tpu.SAID[seen.place.plane],
            limit=None if row.limit == NO_LIMIT else row.limit,
            detail=f"{row.detail} {used}".strip(),
        )


def _verdict(seen: Sequence[Prospect]) -> str:
    """Say by which control plane nothing stands against it, and what does by the others."""
    open_by = [tpu.SAID[one.place.plane] for one in seen if one.verdict[0]]
    said = [f"nothing that can be seen stands against {' or '.join(open_by)}"] if open_by else []
    for one in seen:
        good, why = one.verdict
        if not good:
            word = "not known" if good is None else "no"
            said.append(f"{tpu.SAID[one.place.plane]}: {word}, {why}")
    said += [_BY_ASKING] if open_by else []
    sentence = ". ".join(f"{part[0].upper()}{part[1:].rstrip('.')}" for part in said)
    return f"{sentence}."
