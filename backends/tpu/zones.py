"""Every zone that may have the target's chips: hardware, quotas, how requests ended there."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

import anyio
from google.api_core.exceptions import NotFound
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaInfo
from pydantic import ValidationError

from backends.base import Quota, Zone, ZoneOutcome, ZoneQuota
from backends.common import concurrency
from backends.common.concurrency import side_by_side, write_whole
from backends.google.errors import reading, translated, why_unread
from backends.tpu import compute
from backends.tpu.site import (
    GIVEN,
    SAID,
    TIMED_OUT,
    Chip,
    Offer,
    Place,
    PlaneKind,
    Provisioning,
    Site,
    region_of,
)
from backends.tpu.vm import generation_of
from core.errors import CloudError, NoCapacity, ZoneRefused
from core.records import Record
from core.reply import note

NO_LIMIT: Final = float("inf")
_HERE: Final = Path(__file__).parent
_LOCK_SECONDS: Final = 2.0
_POOLS_SECONDS: Final = 3.0
_OFFERS_SECONDS: Final = 20.0
"""Hardware comes and goes in months."""


class Outcome(Record):
    """How the last request for chips at one place ended."""

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
        """Return its age."""
        return max(0, int((now - self.at).total_seconds() // 60))


class _File(Record):
    outcomes: tuple[Outcome, ...] = ()


async def remember_outcome(site: Site, place: Place, outcome: str, detail: str = "") -> None:
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


def outcomes_of(site: Site) -> Mapping[Place, Outcome]:
    """Return those of the site's project, accelerator and way of giving."""
    wanted = (site.clients.project, site.accelerator, site.provisioning)
    return {
        one.place: one
        for one in _remembered(site)
        if (one.project, one.accelerator, one.provisioning) == wanted
    }


def _remembered(site: Site) -> tuple[Outcome, ...]:
    """Return all; what cannot be read is not known."""
    try:
        return _File.model_validate_json((site.shared / "zones.json").read_bytes()).outcomes
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ()


class Pool(Record):
    """One quota of chips."""

    id: str
    service: str
    plane: PlaneKind
    per: Literal["zone", "region"]
    counts: tuple[Provisioning, ...]
    """Which chips are counted in it."""
    stands_in_for: tuple[Provisioning, ...] = ()
    """Which are counted in it where their own pool is empty."""
    dimensions: Mapping[str, str] = {}
    """That an entry must have beside its place."""
    unlisted: int | None = None


@cache
def pools() -> tuple[Pool, ...]:
    """Read `quotas.toml`, once."""
    rows = tomllib.loads((_HERE / "quotas.toml").read_text(encoding="utf-8"))["pools"]
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
        """Chips that are left; None is not known."""
        return None if self.limit is None else self.limit - (self.used or 0)

    def __str__(self) -> str:
        """Name it with its figures."""
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

    @property
    def free(self) -> float:
        """Chips that the tightest pool has left, 0 where that is not known."""
        return min((row.free or 0 for row in self.rows), default=0)


class Counting(NamedTuple):
    """What is to be held against the pools."""

    read: Mapping[str, QuotaInfo | str | None]
    """By pool: None where the project has no such quota, else why it could not be read."""
    chips: Sequence[Chip] | None
    """All that there are; None where they could not be looked at."""
    without: str = ""
    """A deployment whose own chips go before new ones are asked for."""

    def rows(self, counted: Iterable[Pool], zone: str) -> tuple[Row, ...]:
        """Return what these pools allow, and have given; one that the project has not is none."""
        there = (pool for pool in counted if self.read[pool.id] is not None)
        return tuple(self._row(pool, zone) for pool in there)

    def _row(self, pool: Pool, zone: str) -> Row:
        where, info = zone if pool.per == "zone" else region_of(zone), self.read[pool.id]
        used = self._used(pool, where)
        if not isinstance(info, QuotaInfo):
            return Row(pool, where, None, str(info), used)
        entry = _entry(info, pool, where)
        if entry is None and pool.unlisted is None:
            return Row(pool, where, None, f"The quota says nothing of {where}.", used)
        if entry is None:
            words = f"Google's own where {where} has no entry."
            return Row(pool, where, pool.unlisted, words, used)
        if entry.details.value < 0:
            return Row(pool, where, NO_LIMIT, "No limit.", used)
        return Row(pool, where, entry.details.value, "", used)

    def _used(self, pool: Pool, where: str) -> int | None:
        if self.chips is None:
            return None
        here = [
            chip
            for chip in self.chips
            if chip.place.plane == pool.plane
            and where in {chip.place.zone, region_of(chip.place.zone)}
            and not (self.without and chip.deployment == self.without)
        ]
        if any(chip.provisioning is None for chip in here):
            return None
        return sum(chip.chips for chip in here if chip.provisioning in pool.counts)


async def count_chips(site: Site, *, without: str = "") -> Counting:
    """Read the limits and what is counted against them, side by side."""
    project = site.clients.project
    chips: list[Chip] | None = None
    read: Mapping[str, QuotaInfo | str | None] | None = None

    async def read_one(one: Pool) -> QuotaInfo | str | None:
        place = f"projects/{project}/locations/global/services/{one.service}"
        try:
            client = await site.clients.quotas()
            with translated(f"read the quota {one.id}"):
                name = f"{place}/quotaInfos/{one.id}"
                return await client.get_quota_info(name=name, **reading())
        except NotFound:
            return None
        except CloudError as exc:
            return why_unread(exc)

    async def limits() -> Mapping[str, QuotaInfo | str | None]:
        found = await side_by_side([partial(read_one, one) for one in pools()])
        return {one.id: info for one, info in zip(pools(), found, strict=True)}

    async def look() -> None:
        nonlocal chips
        try:
            chips = [*await site.chips()]
        except CloudError:
            chips = None

    async def ask() -> None:
        nonlocal read
        read = await site.inventory.read("limits", _POOLS_SECONDS, limits)

    await side_by_side([ask, look])
    assert read is not None  # else that was raised
    return Counting(read, chips, without)


def _entry(info: QuotaInfo, pool: Pool, where: str) -> DimensionsInfo | None:
    """Choose the place's own entry, else the one that is said to apply to it."""
    fitting = [
        entry
        for entry in info.dimensions_infos
        if all(entry.dimensions.get(name) == said for name, said in pool.dimensions.items())
    ]
    own = (one for one in fitting if one.dimensions.get(pool.per) == where)
    general = (
        one
        for one in fitting
        if pool.per not in one.dimensions and where in one.applicable_locations
    )
    return next(own, None) or next(general, None)


_INSTEAD: Final = "standard quota counts where there is no preemptible"


def room_for(counting: Counting, place: Place, provisioning: Provisioning, chips: int) -> Room:
    """Say whether so many more chips may be had at a place."""

    def judged(counted: Iterable[Pool]) -> Room:
        rows = counting.rows(counted, place.zone)
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
            return Room(instead.rows, enough=True, why=f"{own.why}; {_INSTEAD}")
    return own


async def read_quotas(site: Site) -> Sequence[Quota]:
    """Return every pool that chips of this target are counted in, the one that counts first.

    Either control plane can give them: the plane with more room goes first, and of its pools the
    tightest. What cannot be read has no limit and says why; a pool without a limit is left out.
    """
    counting = await count_chips(site)
    order = {True: 0, False: 1, None: 2}
    rooms = [
        room_for(counting, Place(site.clients.region, kind), site.provisioning, site.offered.count)
        for kind in site.planes
    ]
    rooms.sort(key=lambda room: (order[room.enough], -room.free))
    found = []
    for room in rooms:
        for row in sorted(room.rows, key=lambda row: NO_LIMIT if row.free is None else row.free):
            used = "" if row.used is not None else "What is in use is not known."
            detail = f"Chips by {SAID[row.pool.plane]}. {row.detail} {used}"
            if row.limit != NO_LIMIT:
                found.append(
                    Quota(
                        quota=row.pool.id,
                        region=row.where,
                        limit=row.limit,
                        in_use=row.used,
                        detail=" ".join(detail.split()),
                        accelerator=site.target.accelerator or "",
                    )
                )
    return found


_TRUSTED_MINUTES: Final = 7 * 24 * 60
"""A refusal that is older says nothing any more: zones open."""
_ADDRESS: Final = re.compile(r"\b[A-Z]+ https?://\S+: ")
"""It stands before Google's words on an instance."""
_TAKEN: Final = frozenset({GIVEN, TIMED_OUT, NoCapacity.code})
"""Outcomes of requests that were let wait, so that the way of giving was accepted."""


class Prospect(NamedTuple):
    """One place, with what can be seen of it: True, False, or None where nobody knows."""

    place: Place
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
    site: Site, places: Sequence[Place], counting: Counting, seconds: float
) -> Sequence[Prospect]:
    """Look at places side by side, for so many seconds at most; in their order."""
    offers = dict.fromkeys(places, Offer(None, f"no answer within {seconds:.0f} s"))

    async def look(place: Place) -> None:
        what, ask = ("offer", site.accelerator, place), site.planes[place.plane].offer
        try:
            offers[place] = await site.inventory.read(
                what, _OFFERS_SECONDS, partial(ask, place.zone, site.accelerator)
            )
        except CloudError as exc:
            offers[place] = Offer(None, why_unread(exc))

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(look, place)
    seen = outcomes_of(site)
    return tuple(
        Prospect(
            place,
            (offers[place].hardware, _ADDRESS.sub("", offers[place].detail).rstrip(".")),
            is_accepted(site, place, seen.get(place)),
            room_for(counting, place, site.provisioning, site.offered.count),
            seen.get(place),
        )
        for place in places
    )


def is_accepted(site: Site, place: Place, last: Outcome | None) -> tuple[bool | None, str]:
    """Say whether a place gives chips in the target's way: by what was seen, else as documented."""
    if last and last.outcome in _TAKEN:
        return True, ""
    minutes = last.minutes_ago(datetime.now(UTC)) if last else 0
    if last and last.outcome == ZoneRefused.code and minutes <= _TRUSTED_MINUTES:
        return False, f"refused {ago(minutes)}: {last.detail}"
    if place.zone in site.offered.regions:
        return True, ""
    return None, f"whether it gives {site.provisioning} shows only when it is asked"


def ago(minutes: int) -> str:
    """Say how long ago something was.

    >>> ago(5), ago(200), ago(5000)
    ('5 min ago', '3 h ago', '3 d ago')
    """
    if minutes < 120:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 2880 else f"{minutes // 1440} d ago"


_SECONDS: Final = 18.0
"""For the answers of all zones together."""
_LISTING_SECONDS: Final = 6.0
_MOST: Final = 30
_BY_ASKING: Final = "whether a chip is free shows only when one is asked for"


async def list_zones(site: Site) -> Sequence[Zone]:
    """Return every zone that is known or that Google lists, the most promising first.

    Nothing is asked for and nothing changed. What cannot be read is not known and says why.
    """
    _caller = await site.clients.credentials()
    asked = (place.zone for place in outcomes_of(site))
    known = (site.clients.region, *site.offered.regions, *asked)
    names = tuple(dict.fromkeys((*known, *await zones_with_machine(site))))[:_MOST]
    places = [Place(zone, kind) for zone in names for kind in site.planes]
    found = await prospects_of(site, places, await count_chips(site), _SECONDS)
    rows = [_zone([one for one in found if one.place.zone == zone]) for zone in names]
    order = {True: 0, None: 1, False: 2}

    def is_given(row: Zone) -> bool:
        return any(one.outcome == GIVEN for one in row.outcomes[:1])

    return sorted(rows, key=lambda row: (order[row.usable], not is_given(row)))


async def zones_with_machine(site: Site) -> Sequence[str]:
    """Ask Compute Engine which zones have the machine; none where it does not say."""
    machine = generation_of(site.offered).machine_type.format(count=site.offered.count)
    with anyio.move_on_after(_LISTING_SECONDS):
        try:
            return await compute.zones_with(site, machine)
        except CloudError as exc:
            note(f"Which zones there are besides those known here is not known: {why_unread(exc)}")
    return ()


def _zone(seen: Sequence[Prospect]) -> Zone:
    now = datetime.now(UTC)
    outcomes = sorted((one.outcome for one in seen if one.outcome), key=lambda row: row.at)
    return Zone(
        zone=seen[0].place.zone,
        hardware=_either([one.hardware[0] for one in seen]),
        quotas=tuple(row for one in seen for row in _quotas(one)),
        accepts=_either([one.accepted[0] for one in seen]),
        outcomes=tuple(
            ZoneOutcome(
                control_plane=SAID[row.place.plane],
                provisioning=row.provisioning,
                outcome=row.outcome,
                minutes_ago=row.minutes_ago(now),
                detail=row.detail[:300],
            )
            for row in reversed(outcomes)
        ),
        verdict=_verdict(seen),
        usable=_either([one.verdict[0] for one in seen]),
    )


def _either(seen: Sequence[bool | None]) -> bool | None:
    """Say whether it is so by one control plane at least."""
    if True in seen:
        return True
    return None if None in seen else False


def _quotas(seen: Prospect) -> Iterator[ZoneQuota]:
    for row in seen.room.rows:
        used = "" if row.used is None else f"{row.used} in use in {row.where}."
        yield ZoneQuota(
            pool=row.pool.id,
            control_plane=SAID[seen.place.plane],
            limit=None if row.limit == NO_LIMIT else row.limit,
            detail=f"{row.detail} {used}".strip(),
        )


def _verdict(seen: Sequence[Prospect]) -> str:
    """Say by which control plane nothing stands against it, and what does by the others."""
    open_by = [SAID[one.place.plane] for one in seen if one.verdict[0]]
    said = [f"nothing that can be seen stands against {' or '.join(open_by)}"] if open_by else []
    for one in seen:
        good, why = one.verdict
        if not good:
            word = "not known" if good is None else "no"
            said.append(f"{SAID[one.place.plane]}: {word}, {why}")
    said += [_BY_ASKING] if open_by else []
    sentence = ". ".join(f"{part[0].upper()}{part[1:].rstrip('.')}" for part in said)
    return f"{sentence}."
