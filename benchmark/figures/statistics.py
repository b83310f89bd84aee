"""Figures from columns of samples: percentiles that were measured, and cuts at a window's edges."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmark.records import Distribution
from benchmark.samples import UNKNOWN, Floats, Ints, Samples

Mask = npt.NDArray[np.bool_]
PERCENTILES: Final = (50, 90, 95, 99)


def distribution(values: npt.NDArray[np.floating[Any]]) -> Distribution | None:
    """Sum values up; None where there is none.

    Percentiles are nearest-rank, which is NumPy's `inverted_cdf`: each is one of the values.
    """
    count = len(values)
    if not count:
        return None
    ranks = [_rank(percent, count) for percent in PERCENTILES]
    p50, p90, p95, p99 = (float(v) for v in np.partition(values, sorted(set(ranks)))[ranks])
    return Distribution(
        count=count,
        mean=float(values.mean(dtype=np.float64)),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
    )


def percentile(values: npt.NDArray[np.floating[Any]], percent: int) -> float:
    """Give the nearest-rank percentile of values, of which there must be one at least."""
    rank = _rank(percent, len(values))
    return float(np.partition(values, rank)[rank])


def _rank(percent: int, count: int) -> int:
    # In whole numbers: 0.95 * count can fall on the wrong side of a whole number.
    return -(-percent * count // 100) - 1


def within(times: Floats, *, begin: float, end: float) -> Mask:
    """Say which times are in the window: its begin is, its end is not; NaN never is."""
    return (begin <= times) & (times < end)


def known_tokens(samples: Samples) -> Floats:
    """Give the output tokens of each request.

    Where the engine did not say, as of a request that was cut, it is the request's events times
    the tokens of an event in those requests where it did say.
    """
    known = samples.output_tokens != UNKNOWN
    ratio = _ratio(samples.output_tokens[known], samples.events[known])
    return np.where(known, samples.output_tokens, samples.events * (ratio or 1.0))


def tokens_per_event(samples: Samples) -> float | None:
    """Give the mean number of tokens that one streamed event carried."""
    known = (samples.output_tokens != UNKNOWN) & (samples.events > 0)
    return _ratio(samples.output_tokens[known], samples.events[known])


def _ratio(above: Ints, below: Ints) -> float | None:
    total = int(below.sum())
    return float(above.sum()) / total if total else None


def tokens_arrived(samples: Samples, *, begin: float, end: float) -> float:
    """Count the output tokens that arrived in the window, of whichever request.

    Events come at the first token and after each gap; those of one request carry the same number
    of tokens each, output_tokens / events.
    """
    tokens = known_tokens(samples)
    inside = (samples.first_token >= begin) & (samples.last_token < end)
    touching = ~inside & (samples.first_token < end) & ~(samples.last_token < begin)
    return float(tokens[inside].sum()) + _arrived_partly(
        samples.rows(touching), tokens[touching], begin=begin, end=end
    )


def _arrived_partly(samples: Samples, tokens: Floats, *, begin: float, end: float) -> float:
    cuts = np.cumsum(samples.gap_counts)[:-1]
    total = 0.0
    for row, gaps in enumerate(np.split(samples.gaps, cuts) if len(samples) else ()):
        times = samples.first_token[row] + np.cumsum(np.append(0.0, gaps))
        total += tokens[row] * float(within(times, begin=begin, end=end).mean())
    return total


def in_flight(samples: Samples, *, begin: float, end: float) -> float | None:
    """Give the mean number of requests between sent and done over the window, by time.

    One whose end is not known was in flight to the end; None for a window of no length.
    """
    if end <= begin:
        return None
    done = np.where(np.isnan(samples.done), end, samples.done)
    overlap = np.minimum(done, end) - np.maximum(samples.sent, begin)
    return float(np.nansum(np.clip(overlap, 0.0, None))) / (end - begin)
