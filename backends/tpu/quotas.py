"""The quota of a target's chips in its own zone, by either control plane."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from backends.base import Quota
from backends.common.concurrency import side_by_side
from backends.tpu import pools
from backends.tpu.chip import SAID, Chip, Place, PlaneKind
from backends.tpu.finding import everything
from backends.tpu.pools import NO_LIMIT
from backends.tpu.room import Counting, Room, Row, room
from backends.tpu.site import Site
from core.cloud_errors import CloudError

_SHUT: Final = (
    "It is 0. It counts GPUs, but one guide of Google's says that TPUs wait for it as well: nobody"
    " has seen that here. If no zone ever gives a chip, ask for 1 or more."
)


async def read(site: Site) -> Sequence[Quota]:
    """Give every pool that chips of this target are counted in, the one that counts first.

    Either control plane can give them: the plane with more room goes first, and of its pools the
    tightest. What cannot be read has no limit and says why; a pool without a limit is left out.

    Raises:
        NotConfigured: No project is named.
    """
    counting = await counted(site)
    planes = [(kind, _room(site, counting, kind)) for kind in site.planes]
    planes.sort(key=lambda row: _rank(row[1]))
    shut = (_gate(site),) if planes[0][1].enough is not False and counting.limits.shut else ()
    return (*shut, *(quota for kind, found in planes for quota in _quotas(site, kind, found)))


async def counted(site: Site, *, without: str = "") -> Counting:
    """Read the limits and what is counted against them, side by side.

    Raises:
        NotConfigured: No project is named.
    """
    _named = site.clients.project
    works: list[Callable[[], Awaitable[Any]]] = [partial(pools.read, site), partial(_chips, site)]
    limits, chips = await side_by_side(works)
    return Counting(limits, chips, without)


async def _chips(site: Site) -> Sequence[Chip] | None:
    try:
        return await everything(site)
    except CloudError:
        return None


def _room(site: Site, counting: Counting, kind: PlaneKind) -> Room:
    place = Place(site.clients.region, kind)
    return room(counting, place, site.provisioning, site.offered.count)


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
        quota=pools.data().gate.id,
        region="all regions",
        accelerator=site.target.accelerator or "",
        limit=None,
        detail=_SHUT,
    )
