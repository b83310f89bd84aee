"""How many chips Google lets the project have, pool by pool, as Cloud Quotas says."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import anyio

from backends.common.concurrency import side_by_side
from backends.google.errors import reading, translated, why_unread
from backends.tpu.chip import PlaneKind, Provisioning
from backends.tpu.names import region_of
from backends.tpu.site import Site
from core.cloud_errors import CloudError
from core.record import Record

if TYPE_CHECKING:
    from google.cloud.cloudquotas_v1 import DimensionsInfo, QuotaInfo

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


class Read(NamedTuple):
    """What was read of one quota."""

    info: "QuotaInfo | None"
    """None where the project has no such quota, or it could not be read."""
    why: str = ""
    """It could not be read."""


class Limits:
    """Every pool, as it was read."""

    def __init__(self, found: Mapping[str, Read]) -> None:
        self._found = found

    def of(self, plane: PlaneKind, provisioning: Provisioning, zone: str) -> tuple[Limit, ...]:
        """Give those that chips of a kind are counted in; all must have room."""
        wanted = (one for one in data().pools if one.plane == plane and provisioning in one.counts)
        return tuple(limit for one in wanted for limit in self._limit(one, zone))

    def instead(self, plane: PlaneKind, provisioning: Provisioning, zone: str) -> tuple[Limit, ...]:
        """Give those that they are counted in where their own are empty."""
        wanted = (
            one for one in data().pools if one.plane == plane and provisioning in one.stands_in_for
        )
        return tuple(limit for one in wanted for limit in self._limit(one, zone))

    @property
    def shut(self) -> bool:
        """Whether the quota of GPUs in all regions is 0, which may let no TPU through either."""
        info = self._found[data().gate.id].info
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
def data() -> Pools:
    """Read the pools, once."""
    text = Path(__file__).with_name("quotas.toml").read_text(encoding="utf-8")
    return Pools.model_validate(tomllib.loads(text))


async def read(site: Site) -> Limits:
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


@cache
def _shared(_folder: Path, _project: str) -> _Last:
    return _Last()


async def _read(site: Site) -> Limits:
    wanted: tuple[Pool | Gate, ...] = (*data().pools, data().gate)
    found = await side_by_side([partial(_one, site, one.service, one.id) for one in wanted])
    return Limits({one.id: row for one, row in zip(wanted, found, strict=True)})


async def _one(site: Site, service: str, quota: str) -> Read:
    from google.api_core.exceptions import NotFound

    place = f"projects/{site.clients.project}/locations/global/services/{service}"
    try:
        client = await site.clients.quotas()
        with translated(f"read the quota {quota}"):
            info = await client.get_quota_info(name=f"{place}/quotaInfos/{quota}", **reading())
    except NotFound:
        return Read(None)
    except CloudError as exc:
        return Read(None, why_unread(exc))
    return Read(info)


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
