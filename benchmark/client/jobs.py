"""What a cell asks of the client, and which part of it each worker does."""

from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Final

import numpy as np

from benchmark.records import Arrivals, Load, StopRule, Workload
from core.records import Record

MOST_CONNECTIONS: Final = 8192
"""Of all workers, in open loops; what comes beyond waits, and its latency counts."""
_BLOCK: Final = 1024


class Job(Record):
    """One cell."""

    cell: str
    base_url: str
    path: str
    """Of the API, such as /v1/completions."""
    credential_file: Path | None = None
    """Holds the bearer token; read again when it changes."""
    ca_file: Path | None = None
    """Certificates to trust beside the system's."""
    load: Load
    context: int
    workload: Workload
    model: str
    token_ids: tuple[int, ...]
    """What prompts are made of."""
    words: tuple[str, ...] = ()
    """What a chat's prompts are made of."""
    template_tokens: int = 0
    stop: StopRule = StopRule()
    ramp_seconds: float = 1.0
    slice_seconds: float = 0.25
    """How often the workers report."""
    patience_seconds: float = 3.0
    """Without an answer, and with nothing under way, the endpoint is gone after so long."""
    first_request: int = 0
    """The number of the first prompt, so that no cell of a run repeats one."""
    samples_file: Path
    """A folder for what the workers hand over."""


class Share(Record):
    """The part of one worker: every `workers`-th slot, arrival and prompt, from `worker` on."""

    job: Job
    worker: int = 0
    workers: int = 1

    @property
    def slots(self) -> int:
        """Give how many requests this worker keeps in flight."""
        return len(range(self.worker, self.job.load.concurrency or 0, self.workers))

    def slot_delay(self, slot: int) -> float:
        """Give when a slot begins in the ramp, in seconds from its start: all workers' evenly."""
        place = self.worker + slot * self.workers
        return self.job.ramp_seconds * place / max(self.job.load.concurrency or 1, 1)

    def numbers(self) -> Iterator[int]:
        """Give this worker's prompts, without end."""
        return count(self.job.first_request + self.worker, self.workers)

    def arrivals(self) -> Iterator[float]:
        """Give when this worker's requests are due, in seconds from the start, without end."""
        every = _arrivals(self.job.load, self.job.workload.seed)
        return (due for place, due in enumerate(every) if place % self.workers == self.worker)

    @property
    def most_connections(self) -> int:
        """Give this worker's part of the cap."""
        return max(MOST_CONNECTIONS // self.workers, 1)

    @property
    def connections_ahead(self) -> int:
        """Give how many connections to open before the first request."""
        load = self.job.load
        expected = load.concurrency or round(min(load.requests_per_second or 1, 64))
        return max(-(-expected // self.workers), 1)


def _arrivals(load: Load, seed: int) -> Iterator[float]:
    """All workers make the same times and take their own."""
    gap = 1 / (load.requests_per_second or 1)
    if load.arrivals is Arrivals.POISSON:
        yield from _poisson(gap, seed)
    elif load.arrivals is Arrivals.BURSTS:
        size = load.concurrency or 1
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
