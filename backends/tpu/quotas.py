"""How many chips Google lets the project have, pool by pool, and what room is left."""

import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from google.api_core.exceptions import NotFound
from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaInfo

from backends.base import Quota
from backends.common.concurrency import side_by_side
from backends.google.errors import reading, translated, why_unread
from backends.tpu.chips import list_chips
from backends.tpu.site import SAID, Chip, Place, PlaneKind, Provisioning, Site, region_of
from core.errors import CloudError
from core.records import Record

NO_LIMIT: Final = float("inf")
_FRESH_SECONDS: Final = 3.0
"""Nine targets that are asked together read once."""


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

    def where(self, zone: str) -> str:
        """Give what it is counted in: the zone or its region."""
        return zone if self.per == "zone" else region_of(zone)


class Pools(Record):
    """Everything of `quotas.toml`."""

    pools: tuple[Pool, ...]
    gate: Gate


class Limit(NamedTuple):
    """What one pool allows in one place."""

    pool: Pool
    where: str
    limit: float | None
    """None is not known; `NO_LIMIT` is none."""
    detail: str = ""


class PoolReading(NamedTuple):
    """What was read of one quota."""

    info: "QuotaInfo | None"
    """None where the project has no such quota, or it could not be read."""
    why: str = ""
    """It could not be read."""


class Limits:
    """Every pool, as it was read."""

    def __init__(self, found: Mapping[str, PoolReading]) -> None:
        self._found = found

    def of(self, plane: PlaneKind, provisioning: Provisioning, zone: str) -> tuple[Limit, ...]:
        """Give those that chips of a kind are counted in; all must have room."""
        wanted = (
            one for one in pool_data().pools if one.plane == plane and provisioning in one.counts
        )
        return tuple(limit for one in wanted for limit in self._limit(one, zone))

    def instead(self, plane: PlaneKind, provisioning: Provisioning, zone: str) -> tuple[Limit, ...]:
        """Give those that they are counted in where their own are empty."""
        wanted = (
            one
            for one in pool_data().pools
            if one.plane == plane and provisioning in one.stands_in_for
        )
        return tuple(limit for one in wanted for limit in self._limit(one, zone))

    @property
    def shut(self) -> bool:
        """Whether the quota of GPUs in all regions is 0, which may let no TPU through either."""
        info = self._found[pool_data().gate.id].info
        values = [entry.details.value for entry in info.dimensions_infos] if info else []
        return bool(values) and max(values) == 0

    def _limit(self, pool: Pool, zone: str) -> Iterator[Limit]:
        read, where = self._found[pool.id], pool.where(zone)
        if read.why:
            yield Limit(pool, where, None, read.why)
        elif read.info is None:
            if not pool.twin:
                yield Limit(pool, where, None, "The project has no such quota.")
        else:
            yield _allowed(read.info, pool, where)


@cache
def pool_data() -> Pools:
    """Read the pools, once."""
    text = Path(__file__).with_name("quotas.toml").read_text(encoding="utf-8")
    return Pools.model_validate(tomllib.loads(text))


async def read_pools(site: Site) -> Limits:
    """Read every pool side by side; what cannot be read says why.

    Raises:
        NotConfigured: No project is named.
    """
    return await _shared(site.shared, site.clients.project).read(site)


class _Last:
    """What was read last, and when."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._limits = Limits({})
        self._at: float | None = None

    async def read(self, site: Site) -> Limits:
        async with self._lock:
            now = anyio.current_time()
            if self._at is None or now - self._at > _FRESH_SECONDS:
                self._limits = await _read(site)
                self._at = anyio.current_time()
            return self._limits


async def _read(site: Site) -> Limits:
    wanted: tuple[Pool | Gate, ...] = (*pool_data().pools, pool_data().gate)
    found = await side_by_side([partial(_one, site, one.service, one.id) for one in wanted])
    return Limits({one.id: row for one, row in zip(wanted, found, strict=True)})


def _allowed(info: "QuotaInfo", pool: Pool, where: str) -> Limit:
    entry = _entry(info, pool, where)
    if entry is not None:
        value = entry.details.value
        return Limit(pool, where, NO_LIMIT, "No limit.") if value < 0 else Limit(pool, where, value)
    if pool.unlisted is None:
        return Limit(pool, where, None, f"The quota says nothing of {where}.")
    return Limit(pool, where, pool.unlisted, f"Google's own where {where} has no entry.")


def _entry(info: "QuotaInfo", pool: Pool, where: str) -> "DimensionsInfo | None":
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


async def _one(site: Site, service: str, quota: str) -> PoolReading:

    place = f"projects/{site.clients.project}/locations/global/services/{service}"
    try:
        client = await site.clients.quotas()
        with translated(f"read the quota {quota}"):
            info = await client.get_quota_info(name=f"{place}/quotaInfos/{quota}", **reading())
    except NotFound:
        return PoolReading(None)
    except CloudError as exc:
        return PoolReading(None, why_unread(exc))
    return PoolReading(info)


@cache
def _shared(_folder: Path, _project: str) -> _Last:
    return _Last()


_ROOM_SHUT: Final = (
    "GPUS-ALL-REGIONS-per-project is 0: one guide of Google's says that TPUs wait for it as well,"
    " which nobody has seen here; if no place ever gives a chip, ask for 1 or more"
)
_INSTEAD: Final = "standard quota counts where there is no preemptible"


class Row(NamedTuple):
    """One pool in one place."""

    limit: Limit
    used: int | None
    """Chips that are counted in it now, leftovers among them; None is not known."""

    @property
    def free(self) -> float | None:
        """Chips that are left; None is not known."""
        return None if self.limit.limit is None else self.limit.limit - (self.used or 0)

    @property
    def figures(self) -> str:
        """What it says, in a few words."""
        said, used = self.limit.limit, "" if self.used is None else f", {self.used} in use"
        if said is None:
            return self.limit.detail
        return f"no limit{used}" if said == NO_LIMIT else f"{said:g}{used}"

    def __str__(self) -> str:
        """Name it with its figures."""
        return f"{self.limit.pool.id} in {self.limit.where}: {self.figures}"


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

    limits: Limits
    chips: Sequence[Chip] | None
    """All that there are; None where they could not be looked at."""
    without: str = ""
    """A deployment whose own chips go before new ones are asked for."""


def room_for(counting: Counting, place: Place, provisioning: Provisioning, chips: int) -> Room:
    """Say whether so many more chips may be had at a place."""
    rows = _rows(counting, counting.limits.of(place.plane, provisioning, place.zone))
    own = _judged(rows, chips)
    if own.enough is False:
        others = _rows(counting, counting.limits.instead(place.plane, provisioning, place.zone))
        instead = _judged(others, chips)
        if instead.enough:
            own = Room(others, enough=True, why=f"{own.why}; {_INSTEAD}")
    if own.enough and counting.limits.shut:
        return Room(
            own.rows, enough=None, why="; ".join(part for part in (own.why, _ROOM_SHUT) if part)
        )
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


def _rows(counting: Counting, limits: Sequence[Limit]) -> tuple[Row, ...]:
    return tuple(Row(limit, used_chips(counting, limit.pool, limit.where)) for limit in limits)


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
    """Give every pool that chips of this target are counted in, the one that counts first.

    Either control plane can give them: the plane with more room goes first, and of its pools the
    tightest. What cannot be read has no limit and says why; a pool without a limit is left out.

    Raises:
        NotConfigured: No project is named.
    """
    counting = await count_chips(site)
    planes = [(kind, _room(site, counting, kind)) for kind in site.planes]
    planes.sort(key=lambda row: _rank(row[1]))
    shut = (_gate(site),) if planes[0][1].enough is not False and counting.limits.shut else ()
    return (*shut, *(quota for kind, found in planes for quota in _quotas(site, kind, found)))


async def count_chips(site: Site, *, without: str = "") -> Counting:
    """Read the limits and what is counted against them, side by side.

    Raises:
        NotConfigured: No project is named.
    """
    _named = site.clients.project
    works: list[Callable[[], Awaitable[Any]]] = [partial(read_pools, site), partial(_chips, site)]
    limits, chips = await side_by_side(works)
    return Counting(limits, chips, without)


async def _chips(site: Site) -> Sequence[Chip] | None:
    try:
        return await list_chips(site)
    except CloudError:
        return None


def _room(site: Site, counting: Counting, kind: PlaneKind) -> Room:
    place = Place(site.clients.region, kind)
    return room_for(counting, place, site.provisioning, site.offered.count)


def _rank(found: Room) -> tuple[int, float]:
    """Sort what is enough first, what is not known last, and more room before less."""
    order = {True: 0, False: 1, None: 2}
    return (order[found.enough], -(found.free or 0))


def _quotas(site: Site, kind: PlaneKind, found: Room) -> Iterator[Quota]:
    limited = (row for row in found.rows if row.limit.limit != NO_LIMIT)
    for row in sorted(limited, key=lambda row: NO_LIMIT if row.free is None else row.free):
        yield _quota(site, kind, row)


def _quota(site: Site, kind: PlaneKind, row: Row) -> Quota:
    limit = row.limit
    unseen = "" if row.used is not None else "What is in use is not known."
    detail = (f"Chips by {SAID[kind]}.", limit.detail, unseen)
    return Quota(
        quota=limit.pool.id,
        region=limit.where,
        accelerator=site.target.accelerator or "",
        limit=limit.limit,
        in_use=row.used,
        detail=" ".join(part for part in detail if part),
    )


def _gate(site: Site) -> Quota:
    return Quota(
        quota=pool_data().gate.id,
        region="all regions",
        accelerator=site.target.accelerator or "",
        limit=None,
        detail=_SHUT,
    )
