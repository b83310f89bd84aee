"""What the workers hand over: of one cell whole, and of every short slice of it while it runs."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from benchmark.records import ClientView
from benchmark.samples import Samples


class Slice(NamedTuple):
    """What ended in one short stretch of the window, all workers together."""

    begin: float
    """On the monotonic clock, as every time of `Samples`."""
    seconds: float
    requests: int
    """Whole answers."""
    failed: int
    output_tokens: int
    """That arrived, of whichever request."""
    ttft_sum: float
    e2el_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cell as it was measured, before anything is computed from it."""

    samples: Samples
    """Every request, those of warm-up and ramps among them; measured ones are those with
    `window_begin <= intended < window_end`."""
    window_begin: float
    window_end: float
    """When load was steady no more by our own doing: measured requests were waited for under load
    beyond it."""
    settled: bool
    """Whether warm-up ended because latency had settled, and not because its time was over."""
    client: ClientView
    slices: tuple[Slice, ...]
    started_at: datetime
    wall_seconds: float
    failed: str | None = None
    """Why it was given up, such as an endpoint that is gone."""
