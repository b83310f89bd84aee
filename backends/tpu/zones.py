"""Every zone that may have the target's chips: hardware, quotas, how requests ended there."""

import re
import tomllib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from google.api_core.exceptions import NotFound
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaInfo
from pydantic import ValidationError

from backends.base import Quota, Zone, ZoneOutcome, ZoneQuota
from backends.common import concurrency
from backends.common.concurrency import side_by_side, write_whole
from backends.google.errors import reading, strictly, translated, why_unread
from backends.tpu.chips import list_chips
from backends.tpu.compute import read_call
from backends.tpu.planes import SAID, Chip, Offer, Place, PlaneKind, Provisioning
from backends.tpu.site import Site, region_of
from backends.tpu.vm import generation_of
from core.errors import CloudError, NoCapacity, ZoneRefused
from core.records import Record
from core.reply import note

GIVEN: Final = "GIVEN"
TIMED_OUT: Final = "TIMED_OUT"
NO_LIMIT: Final = float("inf")
_HERE: Final = Path(__file__).parent
_EACH: Final = 3
"""How many outcomes of one place are remembered."""
_MOST_REMEMBERED: Final = 600
"""Of all: nine targets in twenty zones of two control planes, and some more."""
_LOCK_SECONDS: Final = 2.0
_POOLS_SECONDS: Final = 3.0
_OFFERS_SECONDS: Final = 20.0
"""Hardware comes and goes in months."""


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
        """Return its age."""
        return max(0, int((now - self.at).total_seconds() // 60))


class _File(Record):
    outcomes: tuple[Outcome, ...] = ()


async def remember_outcome(site: Site, place: Place, outcome: str, detail: str = "") -> None:
    """Write down how a request ended; of each place the newest are kept."""
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
        seen: dict[tuple[str, str, str, Place], int] = {}
        rows = []
        for one in (row, *_remembered(site)):
            key = (one.project, one.accelerator, one.provisioning, one.place)
            seen[key] = seen.get(key, 0) + 1
            rows += [one] if seen[key] <= _EACH else []
        text = _File(outcomes=tuple(rows[:_MOST_REMEMBERED])).model_dump_json(exclude_defaults=True)
        write_whole(site.shared / "zones.json", text)


def outcomes_of(site: Site, place: Place | None = None) -> Sequence[Outcome]:
    """Return those of the site's project, accelerator and way of giving, newest first.

    Of one place, or of all.
    """
    wanted = (site.clients.project, site.accelerator, site.provisioning)
    return tuple(
        one
        for one in _remembered(site)
        if (one.project, one.accelerator, one.provisioning) == wanted and place in {None, one.place}
    )


def _remembered(site: Site) -> tuple[Outcome, ...]:
    """Return all, newest first; what cannot be read is not known."""
    try:
        return _File.model_validate_json((site.shared / "zones.json").read_bytes()).outcomes
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return ()


class Gate(Record):
    """A quota that had better not be 0."""

    id: str
    service: str


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
    twin: bool = False


class Pools(Record):
    """Everything of `quotas.toml`."""

    pools: tuple[Pool, ...]
    gate: Gate


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
        used = "" if self.used is None else f", {self.used} in use"
        said = "no limit" if self.limit == NO_LIMIT else f"{self.limit or 0:g}"
        figures = self.detail if self.limit is None else f"{said}{used}"
        return f"{self.pool.id} in {self.where}: {figures}"


class Room(NamedTuple):
    """What all pools of one place come to."""

    rows: tuple[Row, ...]
    """Those that count."""
    enough: bool | None
    """For so many chips as were asked about; None is not known."""
    why: str = ""
    """There is not enough, or nobody knows, or other pools count than usually."""

    @property
    def free(self) -> float | None:
        """Chips that the tightest pool has left; None is not known."""
        known = [row.free for row in self.rows if row.free is not None]
        return min(known) if len(known) == len(self.rows) and known else None


class Counting(NamedTuple):
    """What is to be held against the pools."""

    read: Mapping[str, QuotaInfo | str | None]
    """By pool: None where the project has no such quota, else why it could not be read."""
    chips: Sequence[Chip] | None
    """All that there are; None where they could not be looked at."""
    without: str = ""
    """A deployment whose own chips go before new ones are asked for."""

    @property
    def shut(self) -> bool:
        """Whether the quota of GPUs in all regions is 0, which may let no TPU through either."""
        info = self.read[pool_data().gate.id]
        values = (
            [one.details.value for one in info.dimensions_infos]
            if isinstance(info, QuotaInfo)
            else []
        )
        return bool(values) and max(values) == 0

    def rows(self, pools: Iterator[Pool], zone: str) -> tuple[Row, ...]:
        """Return what these pools allow, and have given, where a zone is counted."""
        return tuple(row for pool in pools if (row := self._row(pool, zone)))

    def _row(self, pool: Pool, zone: str) -> Row | None:
        where, info = zone if pool.per == "zone" else region_of(zone), self.read[pool.id]
        used = used_chips(self, pool, where)
        if info is None:
            missing = Row(pool, where, None, "The project has no such quota.", used)
            return None if pool.twin else missing
        if isinstance(info, str):
            return Row(pool, where, None, info, used)
        entry = _entry(info, pool, where)
        if entry is not None:
            value = entry.details.value
            return Row(
                pool,
                where,
                NO_LIMIT if value < 0 else value,
                "No limit." if value < 0 else "",
                used,
            )
        if pool.unlisted is None:
            return Row(pool, where, None, f"The quota says nothing of {where}.", used)
        return Row(pool, where, pool.unlisted, f"Google's own where {where} has no entry.", used)


@cache
def pool_data() -> Pools:
    """Read the pools, once."""
    return Pools.model_validate(tomllib.loads((_HERE / "quotas.toml").read_text(encoding="utf-8")))


async def count_chips(site: Site, *, without: str = "") -> Counting:
    """Read the limits and what is counted against them, side by side."""
    project = site.clients.project

    async def read_one(one: Pool | Gate) -> QuotaInfo | str | None:
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
        wanted: tuple[Pool | Gate, ...] = (*pool_data().pools, pool_data().gate)
        found = await side_by_side([partial(read_one, one) for one in wanted])
        return {one.id: info for one, info in zip(wanted, found, strict=True)}

    async def chips() -> Sequence[Chip] | None:
        try:
            return await list_chips(site)
        except CloudError:
            return None

    works: list[Callable[[], Awaitable[Any]]] = [
        partial(site.inventory.read, "limits", _POOLS_SECONDS, limits),
        chips,
    ]
    read, there = await side_by_side(works)
    return Counting(read, there, without)


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


_SHUT_WHY: Final = (
    "GPUS-ALL-REGIONS-per-project is 0: one guide of Google's says that TPUs wait for it as well,"
    " which nobody has seen here; if no place ever gives a chip, ask for 1 or more"
)
_INSTEAD: Final = "standard quota counts where there is no preemptible"


def room_for(counting: Counting, place: Place, provisioning: Provisioning, chips: int) -> Room:
    """Say whether so many more chips may be had at a place."""
    pools = [one for one in pool_data().pools if one.plane == place.plane]
    own = _judged(
        counting.rows((one for one in pools if provisioning in one.counts), place.zone), chips
    )
    if own.enough is False:
        others = (one for one in pools if provisioning in one.stands_in_for)
        instead = _judged(counting.rows(others, place.zone), chips)
        if instead.enough:
            own = Room(instead.rows, enough=True, why=f"{own.why}; {_INSTEAD}")
    if own.enough and counting.shut:
        why = "; ".join(part for part in (own.why, _SHUT_WHY) if part)
        return Room(own.rows, enough=None, why=why)
    return own


def used_chips(counting: Counting, pool: Pool, where: str) -> int | None:
    """Count the chips of a pool."""
    if counting.chips is None:
        return None
    return sum(
        chip.chips
        for chip in counting.chips
        if chip.place.plane == pool.plane
        and chip.provisioning in pool.counts
        and where in {chip.place.zone, region_of(chip.place.zone)}
        and not (counting.without and chip.deployment == counting.without)
    )


def _judged(rows: tuple[Row, ...], chips: int) -> Room:
    tight = [row for row in rows if row.free is not None and row.free < chips]
    if tight:
        said = "; ".join(str(row) for row in tight)
        return Room(rows, enough=False, why=f"{said}; {chips} asked for")
    unknown = [str(row) for row in rows if row.free is None]
    if unknown or not rows:
        return Room(rows, enough=None, why="; ".join(unknown) or "no quota of it is known")
    return Room(rows, enough=True)


_SHUT: Final = (
    "It is 0. It counts GPUs, but one guide of Google's says that TPUs wait for it as well: nobody"
    " has seen that here. If no zone ever gives a chip, ask for 1 or more."
)


async def read_quotas(site: Site) -> Sequence[Quota]:
    """Return every pool that chips of this target are counted in, the one that counts first.

    Either control plane can give them: the plane with more room goes first, and of its pools the
    tightest. What cannot be read has no limit and says why; a pool without a limit is left out.
    """
    counting = await count_chips(site)
    order = {True: 0, False: 1, None: 2}

    def room(kind: PlaneKind) -> Room:
        place = Place(site.clients.region, kind)
        return room_for(counting, place, site.provisioning, site.offered.count)

    planes = sorted(
        ((kind, room(kind)) for kind in site.planes),
        key=lambda row: (order[row[1].enough], -(row[1].free or 0)),
    )
    more = {"accelerator": site.target.accelerator or ""}
    found = [
        Quota(
            quota=row.pool.id,
            region=row.where,
            limit=row.limit,
            in_use=row.used,
            detail=" ".join(
                part
                for part in (
                    f"Chips by {SAID[kind]}.",
                    row.detail,
                    "" if row.used is not None else "What is in use is not known.",
                )
                if part
            ),
            **more,
        )
        for kind, one in planes
        for row in sorted(one.rows, key=lambda row: NO_LIMIT if row.free is None else row.free)
        if row.limit != NO_LIMIT
    ]
    if planes[0][1].enough is not False and counting.shut:
        gate = pool_data().gate.id
        found.insert(0, Quota(quota=gate, region="all regions", limit=None, detail=_SHUT, **more))
    return found


_REFUSED: Final = ZoneRefused.code
_TRUSTED_MINUTES: Final = 7 * 24 * 60
"""A refusal that is older says nothing any more: zones open."""
_ADDRESS: Final = re.compile(r"\b[A-Z]+ https?://\S+: ")
_TAKEN: Final = frozenset({GIVEN, TIMED_OUT, NoCapacity.code})
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
            offers[place],
            is_accepted(site, place, [one for one in seen if one.place == place]),
            room_for(counting, place, site.provisioning, site.offered.count),
            [one for one in seen if one.place == place],
        )
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
    asked = (place.plane, site.provisioning)
    fitting = (
        one
        for one in reports()
        if (one.plane, one.provisioning) == asked and place.zone in one.zones
    )
    row = next(fitting, None)
    if row is None:
        why = f"whether it gives {site.provisioning} shows only when it is asked"
        return Accepted(yes=None, why=why)
    why = "" if row.accepts else f"it does not give {site.provisioning} ({row.source})"
    return Accepted(yes=row.accepts, why=why)


@cache
def reports() -> tuple[Report, ...]:
    """Read them, once."""
    text = (_HERE / "zones.toml").read_text(encoding="utf-8")
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


_SECONDS: Final = 18.0
"""For the answers of all zones together."""
_LISTING_SECONDS: Final = 6.0
_MOST: Final = 30
_MOST_OUTCOMES: Final = 3
_BY_ASKING: Final = "whether a chip is free shows only when one is asked for"


async def list_zones(site: Site) -> Sequence[Zone]:
    """Return every zone that is known or that Google lists, the most promising first.

    Nothing is asked for and nothing changed. What cannot be read is not known and says why.
    """
    _named = site.clients.project
    _caller = await site.clients.credentials()
    reported = (
        zone
        for row in reports()
        for zone in row.zones
        if row.provisioning == site.provisioning and row.accepts
    )
    asked = (one.place.zone for one in outcomes_of(site))
    known = (site.clients.region, *site.offered.regions, *reported, *asked)
    names = tuple(dict.fromkeys((*known, *await _listed(site))))[:_MOST]
    places = [Place(zone, kind) for zone in names for kind in site.planes]
    found = await prospects_of(site, places, await count_chips(site), _SECONDS)
    rows = [_zone([one for one in found if one.place.zone == zone]) for zone in names]
    order = {row.zone: number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: (_rank(row), order[row.zone]))


async def zones_not_asked(site: Site, asked: Collection[str]) -> Sequence[str]:
    """Name the other zones in which Google lists the machine; none where it does not say."""
    return tuple(zone for zone in await _listed(site) if zone not in asked)


async def _listed(site: Site) -> Sequence[str]:
    """Ask Compute Engine which zones have the machine; none where it does not say."""
    machine = generation_of(site.offered).machine_type.format(count=site.offered.count)
    request = {"project": site.clients.project, "filter": f'name = "{machine}"'}
    what, found = f"list the zones that have {machine}", list[str]()
    with anyio.move_on_after(_LISTING_SECONDS):
        try:
            client = await site.clients.machine_types()

            def zones(**limits: Any) -> list[str]:
                return sorted(
                    scope.removeprefix("zones/")
                    for scope, row in client.aggregated_list(request=request, **limits)
                    if any(one.name == machine for one in row.machine_types)
                )

            with strictly(what):
                found = await read_call(what, zones)
        except CloudError as exc:
            note(f"Which zones there are besides those known here is not known: {why_unread(exc)}")
    return found


def _zone(seen: Sequence[Prospect]) -> Zone:
    now = datetime.now(UTC)
    outcomes = sorted((row for one in seen for row in one.outcomes), key=lambda row: row.at)
    return Zone(
        zone=seen[0].place.zone,
        hardware=_either([one.offer.hardware for one in seen]),
        quotas=tuple(row for one in seen for row in _quotas(one)),
        accepts=_either([one.accepted.yes for one in seen]),
        outcomes=tuple(
            ZoneOutcome(
                control_plane=SAID[row.place.plane],
                provisioning=row.provisioning,
                outcome=row.outcome,
                minutes_ago=row.minutes_ago(now),
                detail=row.detail[:300],
            )
            for row in reversed(outcomes[-_MOST_OUTCOMES:])
        ),
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
        used = "" if row.used is None else f"{row.used} in use in {row.where}."
        yield ZoneQuota(
            pool=row.pool.id,
            control_plane=SAID[seen.place.plane],
            limit=None if row.limit == NO_LIMIT else row.limit,
            detail=f"{row.detail} {used}".strip(),
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
    given = any(one.outcome == GIVEN for one in row.outcomes[:1])
    return (order[row.usable], 0 if given else 1)
