"""How much of each figure may be the client's own doing: late sends, and stalls before a stamp."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from benchmark.errors import Outcome
from benchmark.samples import Floats, Samples

Delay = Callable[[Floats], Floats]
_DRAINED_SECONDS: Final = 0.004
"""After a stall, within which the loop has stamped what waited: one round over its sockets, by
when the next ring tells whether that was stalled as well."""
_PERCENTILES: Final = (50, 90, 95, 99)
"""As a `Distribution` has them; its own module would load pydantic into every worker."""


def delays(rang: Floats, stalled: Floats) -> Delay:
    """Return the function that bounds how late a stamp is, by the pulse around it.

    Whatever came since the last ring can have waited no longer than since then, and no longer than
    the stall that the next ring tells of. What came before that ring is stamped in the
    round after the stall, and has waited through the ring's own stall as well.
    """
    after = np.append(stalled, 0.0)
    before = np.insert(stalled, 0, 0.0)
    rings = np.insert(rang, 0, -np.inf)

    def of(stamps: Floats) -> Floats:
        place = np.searchsorted(rang, stamps)
        since = stamps - rings[place]
        right_after = since <= after[place] + _DRAINED_SECONDS
        waited = np.minimum(after[place], since) + np.where(right_after, before[place], 0.0)
        return np.asarray(waited, dtype=np.float64)

    return of


def error_bounds(
    samples: Samples, delay: Delay, *, begin: float, end: float, scheduled: bool = False
) -> dict[str, float]:
    """Return for each figure, such as `ttft_p50`, how many seconds the client may have moved it.

    Each stamp is at most so late as `delay` says, so the figure lies between those of the earliest
    and of the latest times that the stamps allow. Where a schedule does not wait for a connection
    (`scheduled`), opening one is no lateness of the client's.
    """
    begun = (begin <= samples.intended) & (samples.intended < end)
    rows = samples.rows(begun & (samples.outcome == Outcome.OK))
    late = rows.sent - rows.intended
    if scheduled:
        late = late - np.nan_to_num(rows.connect_seconds)
    first, last = delay(rows.first_token), delay(rows.last_token)
    several = rows.output_tokens > 1
    steps = (rows.output_tokens - 1)[several]
    ends = _event_ends(rows)
    gaps = rows.gaps.astype(np.float64)
    never = np.zeros(len(rows))
    times = {
        "ttft": (rows.first_token - rows.intended, first + late, never),
        "e2el": (rows.last_token - rows.intended, last + late, never),
        "tpot": (
            (rows.last_token - rows.first_token)[several] / steps,
            last[several] / steps,
            first[several] / steps,
        ),
        "itl": (gaps, delay(ends), delay(ends - gaps)),
    }
    return {
        f"{name}_{point}": seconds
        for name, (claimed, over, under) in times.items()
        for point, seconds in _moved(claimed, over, under).items()
    }


def _event_ends(rows: Samples) -> Floats:
    """Return when each event came that ended a gap."""
    total = np.cumsum(rows.gaps, dtype=np.float64)
    before = np.concatenate([[0.0], total])[np.cumsum(rows.gap_counts) - rows.gap_counts]
    return np.asarray(total + np.repeat(rows.first_token - before, rows.gap_counts))


def _moved(claimed: Floats, over: Floats, under: Floats) -> Mapping[str, float]:
    """Return how far each point of a distribution may be off, above or below."""
    if not len(claimed):
        return {}
    least, most = _points(claimed - over), _points(claimed + under)
    return {
        name: max(value - least[name], most[name] - value)
        for name, value in _points(claimed).items()
    }


def _points(values: Floats) -> Mapping[str, float]:
    found = np.percentile(values, _PERCENTILES, method="inverted_cdf")
    points = {f"p{each}": float(value) for each, value in zip(_PERCENTILES, found, strict=True)}
    return {"mean": float(values.mean()), **points}
