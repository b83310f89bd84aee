"""Cells of one prompt length in the order of their load: where throughput stops growing."""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from benchmark.records import Arrivals, CellResult, Load
from benchmark.wording import figure

SATURATED_FROM: Final = 0.95
"""Of the best throughput of a row: the smallest load that reaches it is its saturation point."""


class Row(NamedTuple):
    """What was measured at one prompt length, by growing load."""

    context: int
    arrivals: Arrivals
    cells: tuple[CellResult, ...]

    @property
    def label(self) -> str:
        """Its lengths, as at the head of a table's row."""
        return self.cells[0].spec.length_label

    @property
    def unit(self) -> str:
        """Of its throughput."""
        return "output tokens/s" if self._has_tokens else "requests/s"

    @property
    def best(self) -> CellResult:
        """The one of the greatest throughput, the smallest load of equals."""
        return max(self.cells, key=self.throughput)

    @property
    def saturation(self) -> CellResult:
        """The smallest load that gives 95 % of the best."""
        enough = SATURATED_FROM * self.throughput(self.best)
        return next(cell for cell in self.cells if self.throughput(cell) >= enough)

    @property
    def saturated(self) -> bool:
        """Whether a greater load was measured and gave no more."""
        return self.saturation is not self.cells[-1]

    @property
    def strongest(self) -> CellResult:
        """The one of the greatest throughput for its latency: Kleinrock's power."""
        return max(self.cells, key=lambda cell: self.throughput(cell) / _latency(cell))

    def throughput(self, cell: CellResult) -> float:
        """In the row's unit."""
        value = cell.output_token_throughput if self._has_tokens else cell.request_throughput
        return value or 0.0

    @property
    def _has_tokens(self) -> bool:
        return all(cell.output_token_throughput is not None for cell in self.cells)


def rows(cells: Iterable[CellResult]) -> tuple[Row, ...]:
    """Sort cells that have a throughput into rows."""
    kinds: dict[tuple[tuple[int, int], Arrivals], list[CellResult]] = defaultdict(list)
    for cell in cells:
        if cell.request_throughput:
            kinds[cell.spec.lengths, cell.spec.load.arrivals].append(cell)
    return tuple(
        Row(lengths[0], arrivals, tuple(sorted(row, key=_size)))
        for (lengths, arrivals), row in sorted(kinds.items())
    )


def load_in_words(load: Load) -> str:
    """Say a load with its unit.

    >>> load_in_words(Load(concurrency=32))
    '32 in flight'
    >>> load_in_words(Load(arrivals="poisson", requests_per_second=2))
    '2 requests/s'
    """
    if load.requests_per_second:
        return f"{figure(load.requests_per_second)} requests/s"
    how = "at once" if load.arrivals is Arrivals.ONCE else "in flight"
    return f"{load.concurrency} {how}"


def size(load: Load) -> float:
    """Give what a load is ordered by."""
    return load.requests_per_second or float(load.concurrency or 0)


def _size(cell: CellResult) -> float:
    return size(cell.spec.load)


def _latency(cell: CellResult) -> float:
    known = cell.e2el.mean if cell.e2el else math.nan
    return known if known > 0 else math.inf
