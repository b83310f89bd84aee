"""Whether the pools of quota that a chip is counted in have room for it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from backends.tpu.chip import Chip, Place, Provisioning
from backends.tpu.names import region_of
from backends.tpu.pools import NO_LIMIT, Limit, Limits, Pool

_SHUT: Final = (
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


def room(counting: Counting, place: Place, provisioning: Provisioning, chips: int) -> Room:
    """Say whether so many more chips may be had at a place."""
    rows = _rows(counting, counting.limits.of(place.plane, provisioning, place.zone))
    own = _judged(rows, chips)
    if own.enough is False:
        others = _rows(counting, counting.limits.instead(place.plane, provisioning, place.zone))
        instead = _judged(others, chips)
        if instead.enough:
            own = Room(others, enough=True, why=f"{own.why}; {_INSTEAD}")
    if own.enough and counting.limits.shut:
        return Room(own.rows, enough=None, why="; ".join(part for part in (own.why, _SHUT) if part))
    return own


def used(counting: Counting, pool: Pool, where: str) -> int | None:
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
    return tuple(Row(limit, used(counting, limit.pool, limit.where)) for limit in limits)


def _judged(rows: tuple[Row, ...], chips: int) -> Room:
    tight = [row for row in rows if row.free is not None and row.free < chips]
    if tight:
        said = "; ".join(str(row) for row in tight)
        return Room(rows, enough=False, why=f"{said}; {chips} asked for")
    unknown = [str(row) for row in rows if row.free is None]
    if unknown or not rows:
        return Room(rows, enough=None, why="; ".join(unknown) or "no quota of it is known")
    return Room(rows, enough=True)
