"""How well the client itself is: what it says of the server is worth no more than that."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
import psutil

from benchmark.client.clock import Alarm
from benchmark.samples import Samples

PULSE_SECONDS: Final = 0.01


class Health(NamedTuple):
    """Of one worker over the window."""

    cpu_share: float
    loop_lag_p99_seconds: float
    send_lateness_p99_seconds: float
    memory_mib: float
    clock_step_seconds: float


class _Look(NamedTuple):
    at: float
    cpu_seconds: float
    clock_offset: float
    memory_bytes: int


class Pulse:
    """Rings every 10 ms to see how late the loop is, and looks at the process with each slice."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._due = 0.0
        self._rings: list[tuple[float, float]] = []
        self._looks: list[_Look] = []
        self._alarm = Alarm(self._ring)

    def start(self, at: float) -> None:
        """Begin at that moment."""
        self._due = at
        self._alarm.set(at)

    def close(self) -> None:
        """Ring no more."""
        self._alarm.close()

    def look(self) -> None:
        """Remember how things stand."""
        at = perf_counter()
        memory = self._process.memory_info().rss
        self._looks.append(_Look(at, time.process_time(), time.time() - at, memory))

    def _ring(self) -> None:
        """Count every ring that was due: one stall of 100 ms has made ten of them late."""
        now = perf_counter()
        while self._due <= now:
            self._rings.append((now, now - self._due))
            self._due += PULSE_SECONDS
        self._alarm.set(self._due)

    def over(self, samples: Samples, *, begin: float, end: float) -> Health:
        """Sum up the time between two moments."""
        looks = [one for one in self._looks if begin - 0.3 <= one.at <= end + 0.3] or self._looks
        first, last = looks[0], looks[-1]
        rings = [late for at, late in self._rings if begin <= at <= end]
        inside = (samples.intended >= begin) & (samples.intended < end)
        late = (samples.sent - samples.intended)[inside]
        return Health(
            cpu_share=(last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9),
            loop_lag_p99_seconds=_p99(np.array(rings)),
            send_lateness_p99_seconds=_p99(late[~np.isnan(late)]),
            memory_mib=max(one.memory_bytes for one in looks) / 2**20,
            clock_step_seconds=max((o.clock_offset - first.clock_offset for o in looks), key=abs),
        )


def _p99(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float:
    if not len(values):
        return 0.0
    return float(np.percentile(values, 99, method="inverted_cdf"))


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from stopping the loop; nothing here makes cycles per request."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
