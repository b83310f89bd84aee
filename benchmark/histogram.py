"""Values whose parts can be put together: all of them as long as there are few, then counted."""

from typing import Any, Final, Self

import numpy as np
from numpy import typing as npt

from benchmark.records import Distribution

PERCENTILES: Final = (50, 90, 95, 99)
MOST_EXACT: Final = 10**7
"""Of so many every percentile is one of the values; of more a histogram finds it."""
_BITS: Final = 10
RELATIVE_ERROR: Final = 2.0 ** -(_BITS + 1)
"""Of a percentile of the histogram, at most: three significant digits."""
_SHIFT: Final = np.finfo(np.float64).nmant - _BITS
_FIRST: Final = int(np.float64(2.0**-30).view(np.int64)) >> _SHIFT
_BUCKETS: Final = 50 << _BITS
"""From 1 ns, which what is less counts as, to 12 days: 1,024 for each power of two, 0.4 MB."""
_CHUNK: Final = 2**18
"""Values counted at a time."""


class Values:
    """Seconds of many requests; `+` puts two parts together, in any order with the same result.

    The histogram is HDR's: buckets of even width between each two powers of two, which are the
    leading bits of a float. Count, mean and maximum are exact however many there are.
    """

    def __init__(self, values: npt.NDArray[np.floating[Any]], most_exact: int = MOST_EXACT) -> None:
        self.count = len(values)
        self._most_exact = most_exact
        self._sum = float(values.sum(dtype=np.float64))
        self._max = float(values.max(initial=-np.inf))
        self._arrays = [values]
        self._buckets: npt.NDArray[np.int64] | None = None
        self._counted()

    def __add__(self, other: "Values") -> Self:
        both = type(self)(np.empty(0), self._most_exact)
        both.count = self.count + other.count
        both._sum = self._sum + other._sum
        both._max = max(self._max, other._max)
        both._arrays = self._arrays + other._arrays
        known = [each for each in (self._buckets, other._buckets) if each is not None]
        both._buckets = np.sum(known, axis=0) if known else None
        both._counted()
        return both

    def _counted(self) -> None:
        """Give the values up for their counts where there are too many of them."""
        if self.count <= self._most_exact:
            return
        counts = np.zeros(_BUCKETS, np.int64) if self._buckets is None else self._buckets
        for values in self._arrays:
            for at in range(0, len(values), _CHUNK):
                bits = values[at : at + _CHUNK].astype(np.float64).view(np.int64)
                places = np.clip((bits >> _SHIFT) - _FIRST, 0, _BUCKETS - 1)
                counts += np.bincount(places, minlength=_BUCKETS)
        self._arrays, self._buckets = [], counts

    def percentiles(self, *wanted: int) -> list[float]:
        """Give nearest-rank percentiles, NumPy's `inverted_cdf`; there must be a value at least."""
        # In whole numbers: 0.95 * count can fall on the wrong side of a whole number.
        ranks = [-(-percent * self.count // 100) - 1 for percent in wanted]
        if self._buckets is None:
            values = np.concatenate(self._arrays)
            values.partition(sorted(set(ranks)))
            return [float(value) for value in values[ranks]]
        places = np.searchsorted(np.cumsum(self._buckets), ranks, side="right") + _FIRST
        edges = (np.stack([places, places + 1]) << _SHIFT).view(np.float64)
        return [min(float(middle), self._max) for middle in edges.mean(axis=0)]

    @property
    def mean(self) -> float:
        return self._sum / self.count

    def distribution(self) -> Distribution | None:
        """Sum them up; None where there is none."""
        if not self.count:
            return None
        points = dict(
            zip(("p50", "p90", "p95", "p99"), self.percentiles(*PERCENTILES), strict=True)
        )
        error = None if self._buckets is None else RELATIVE_ERROR
        return Distribution(
            count=self.count, mean=self.mean, **points, max=self._max, percentile_error=error
        )
