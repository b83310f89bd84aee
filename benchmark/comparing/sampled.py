"""A cell's requests, cut into the stretches that a bootstrap draws from."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmark.comparing.bootstrap import Blocks, mean, number_of_blocks, rate
from benchmark.errors import Outcome
from benchmark.figures import parquet
from benchmark.folder import RunFolder
from benchmark.records import Arrivals, CellResult
from benchmark.samples import Samples
from core.errors import NotFound

Cut = Mapping[str, Blocks]
"""throughput, ttft, tpot and e2el, as far as they are known."""


def blocks(folder: Path | None, cell: CellResult) -> Cut:
    """Cut what was kept of a cell; nothing where its requests are not there to be read."""
    if folder is None or cell.spec.load.arrivals is Arrivals.ONCE:
        return {}
    try:
        samples = parquet.read(RunFolder(folder).samples_file(cell.id))
    except NotFound:
        return {}
    window = window_of(samples, cell)
    if window is None or cell.e2el is None:
        return {}
    return cut(samples, window, cell.e2el.mean)


def window_of(samples: Samples, cell: CellResult) -> tuple[float, float] | None:
    """Find the window again: the last stretch of its length that holds the measured requests."""
    if cell.counts is None or not cell.window_seconds or not cell.counts.measured:
        return None
    begun = np.sort(samples.intended[samples.outcome != Outcome.CUT])
    count, length = cell.counts.measured, cell.window_seconds
    if len(begun) < count:
        return None
    first, last = begun[: len(begun) - count + 1], begun[count - 1 :]
    fitting = np.flatnonzero(last - first <= length)
    begin = float(first[fitting[-1]] if len(fitting) else last[-1] - length)
    return begin, begin + length


def cut(samples: Samples, window: tuple[float, float], request_seconds: float) -> Cut:
    """Cut requests of a window, in seconds of their clock."""
    begin, end = window
    whole = samples.rows(samples.outcome == Outcome.OK)
    count = number_of_blocks(end - begin, request_seconds)
    measured = whole.rows((whole.intended >= begin) & (whole.intended < end))
    begins, e2el = measured.intended, measured.last_token - measured.intended
    ttft = measured.first_token - begins
    several = measured.output_tokens > 1
    tpot = (e2el - ttft)[several] / (measured.output_tokens[several] - 1)
    return {
        "throughput": rate(whole.last_token, begin, end, count),
        "ttft": mean(ttft, begins, window, count),
        "tpot": mean(tpot, begins[several], window, count),
        "e2el": mean(e2el, begins, window, count),
    }
