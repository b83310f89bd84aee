"""The part of one worker in a cell, as plain values: pydantic would be half of a worker's start."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Final, Literal

import numpy as np

MOST_CONNECTIONS: Final = 8192
"""Of all workers, in open loops; what comes beyond waits, and its latency counts."""
_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Every `workers`-th slot, arrival and prompt of a `Job`, from `worker` on.

    The other fields are those of the job, its load, its workload and its stop rule.
    """

    worker: int
    workers: int
    cell: str
    base_url: str
    path: str
    credential_file: str | None
    ca_file: str | None
    arrivals: Literal["closed", "constant", "poisson", "bursts", "once"]
    concurrency: int | None
    requests_per_second: float | None
    context: int
    model: str
    api: Literal["completion", "chat"]
    output_tokens: int
    fixed_output: bool
    prefix_share: float
    dataset: str | None
    seed: int
    token_ids: Sequence[int]
    words: Sequence[str]
    template_tokens: int
    request_timeout_seconds: float
    ramp_seconds: float
    slice_seconds: float
    patience_seconds: float
    first_request: int
    samples_file: str

    @property
    def slots(self) -> int:
        """Give how many requests this worker keeps in flight."""
        return len(range(self.worker, self.concurrency or 0, self.workers))

    def slot_delay(self, slot: int) -> float:
        """Give when a slot begins in the ramp, in seconds from its start: all workers' evenly."""
        place = self.worker + slot * self.workers
        return self.ramp_seconds * place / max(self.concurrency or 1, 1)

    def numbers(self) -> Iterator[int]:
        """Give this worker's prompts, without end."""
        return count(self.first_request + self.worker, self.workers)

    def due(self) -> Iterator[float]:
        """Give when this worker's requests are due, in seconds from the start, without end."""
        every = self._due_of_all()
        return (due for place, due in enumerate(every) if place % self.workers == self.worker)

    @property
    def most_connections(self) -> int:
        """Give this worker's part of the cap."""
        return max(MOST_CONNECTIONS // self.workers, 1)

    @property
    def connections_ahead(self) -> int:
        """Give how many connections to open before the first request."""
        expected = self.concurrency or round(min(self.requests_per_second or 1, 64))
        return max(-(-expected // self.workers), 1)

    def _due_of_all(self) -> Iterator[float]:
        """All workers make the same times and take their own."""
        gap = 1 / (self.requests_per_second or 1)
        if self.arrivals == "poisson":
            yield from _poisson(gap, self.seed)
        elif self.arrivals == "bursts":
            size = self.concurrency or 1
            for burst in count():
                yield from repeat(burst * size * gap, size)
        else:
            for place in count():
                yield place * gap


def _poisson(gap: float, seed: int) -> Iterator[float]:
    random = np.random.default_rng((seed % 2**64, 1))
    now = 0.0
    while True:
        times = now + np.cumsum(random.exponential(gap, _BLOCK))
        now = float(times[-1])
        yield from times.tolist()
