"""Whether two measurements differ: ratios with 95 % intervals from resampled blocks of requests.

Requests that run at the same time share what happens to them, so single requests are no
independent draws: stretches of the window are, as soon as each is longer than a request.
"""

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from core.records import Record

Floats = npt.NDArray[np.float64]

DRAWS: Final = 1000
"""Resamples: the ends of a 95 % interval then rest on 25 each."""
_MOST_BLOCKS: Final = 32
_LEAST_BLOCKS: Final = 6
_NORMAL: Final = 1.96


class Ratio(Record):
    """One figure of a run over the same figure of the first run."""

    value: float
    low: float | None = None
    """Of the 95 % interval; None where nothing is known of the spread."""
    high: float | None = None

    @property
    def significant(self) -> bool | None:
        """Whether 1 lies outside the interval; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high


class Blocks(NamedTuple):
    """A figure as sums over stretches of time: sum of numerators over sum of denominators."""

    numerators: Floats
    denominators: Floats

    def resampled(self, random: np.random.Generator) -> Floats:
        """Compute the figure from blocks drawn with replacement, many times."""
        count = len(self.numerators)
        drawn = random.integers(count, size=(DRAWS, count))
        sums = self.denominators[drawn].sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            figures: Floats = self.numerators[drawn].sum(axis=1) / sums
        return figures


def number_of_blocks(window_seconds: float, request_seconds: float) -> int:
    """Say into how many stretches a window is cut: each at least as long as a request."""
    longest = window_seconds / request_seconds if request_seconds > 0 else _MOST_BLOCKS
    return int(min(_MOST_BLOCKS, max(_LEAST_BLOCKS, longest)))


def rate(ends: Floats, begin: float, end: float, count: int) -> Blocks:
    """Cut what ended in a window into a rate per second of each stretch."""
    inside, edges = np.histogram(ends, bins=count, range=(begin, end))
    return Blocks(inside.astype(np.float64), np.diff(edges))


def mean(values: Floats, begins: Floats, window: tuple[float, float], count: int) -> Blocks:
    """Cut values into sums and counts of each stretch in which their requests began."""
    known = ~np.isnan(values)
    sums, _ = np.histogram(begins[known], bins=count, range=window, weights=values[known])
    counts, _ = np.histogram(begins[known], bins=count, range=window)
    return Blocks(sums.astype(np.float64), counts.astype(np.float64))


def ratio(value: float, first: Blocks, other: Blocks, *, seed: int = 1) -> Ratio:
    """Put a 95 % interval around a ratio; none where blocks say nothing.

    The interval is symmetric in the logarithm and widened as Student's t asks for so few blocks.
    """
    random = np.random.default_rng(seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.log(other.resampled(random)) - np.log(first.resampled(random))
    if not np.isfinite(drawn).all() or value <= 0:
        return Ratio(value=value)
    fewest = min(len(first.numerators), len(other.numerators))
    widened = _student(fewest - 1) * math.sqrt(fewest / (fewest - 1))
    return around(value, widened * float(drawn.std(ddof=1)))


def from_half_widths(value: float, first: float | None, other: float | None) -> Ratio:
    """Put an interval around a ratio of two figures whose relative half widths are known."""
    if first is None or other is None or value <= 0:
        return Ratio(value=value)
    return around(value, math.hypot(first, other))


def around(value: float, half: float) -> Ratio:
    """Make an interval whose half width is given in the logarithm."""
    return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half))


def _student(freedom: int) -> float:
    """Give the 97.5 % point of Student's t, by the first terms of its expansion.

    >>> round(_student(5), 2), round(_student(31), 2)
    (2.55, 2.04)
    """
    z = _NORMAL
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second
