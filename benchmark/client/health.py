"""How well the client itself is: what it says of the server is worth no more than that."""

import gc
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from benchmark.client import stalls
from benchmark.client.clock import Alarm
from benchmark.client.words import Health
from benchmark.samples import Samples

PULSE_SECONDS: Final = 0.004
"""A stall of 6 ms is seen as 2 ms or more, wherever it lies between two rings."""
PUNCTUAL_SECONDS: Final = 0.0005
"""A ring so late has met no stall."""
STALLED_SHARE: Final = 0.005
"""Of the time. A stall spoils two gaps of every stream, so this much is 1 % of the gaps."""


class _Ring(NamedTuple):
    at: float
    late: float
    seconds: float
    """Since the ring before: a stall may have begun right after it."""
    cpu_wait: float
    """In that time."""

    @property
    def longest_stall(self) -> float:
        """That may lie before it: where no wait explains why it was late, all of the time."""
        explained = self.late - self.cpu_wait <= PUNCTUAL_SECONDS
        return max(self.late, self.cpu_wait) if explained else self.seconds


class _Look(NamedTuple):
    at: float
    cpu_seconds: float
    clock_offset: float
    memory_bytes: int


class _RunQueue:
    """How long this process stood ready to run while others had the CPU, as Linux counts it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1

    def waited_seconds(self) -> float:
        """Since its start; 0 where nobody counts."""
        return 0.0 if self._fd < 0 else int(os.pread(self._fd, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Count no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Pulse:
    """Rings every 4 ms to see how late the loop is, and looks at the process with each slice.

    A ring meets few of the delays that lie between two; what the process waited for a CPU is known
    of all the time.
    """

    def __init__(self) -> None:
        self._due = self._rang = 0.0
        self._queue = _RunQueue()
        self._waited = 0.0
        self._rings: list[_Ring] = []
        self._looks: list[_Look] = []
        self._alarm = Alarm(self._ring)

    def start(self, at: float) -> None:
        """Begin at that moment."""
        self._due = self._rang = at
        self._waited = self._queue.waited_seconds()
        self._alarm.set(at)

    def close(self) -> None:
        """Ring no more."""
        self._alarm.close()
        self._queue.close()

    def look(self) -> None:
        """Remember how things stand."""
        at = perf_counter()
        self._looks.append(_Look(at, time.process_time(), time.time() - at, _memory_bytes()))

    def _ring(self) -> None:
        now = perf_counter()
        waited = self._queue.waited_seconds()
        ring = _Ring(now, now - self._due, now - self._rang, waited - self._waited)
        self._rings.append(ring)
        self._rang, self._waited = now, waited
        self._due = now + PULSE_SECONDS
        self._alarm.set(self._due)

    def over(
        self, samples: Samples, *, begin: float, end: float, scheduled: bool = False
    ) -> Health:
        """Sum up the time between two moments; `scheduled` is that of an open loop."""
        looks = [one for one in self._looks if begin - 0.3 <= one.at <= end + 0.3] or self._looks
        first, last = looks[0], looks[-1]
        inside = (samples.intended >= begin) & (samples.intended < end)
        late = (samples.sent - samples.intended)[inside]
        stamps = samples.last_token[inside]
        answer = _median(stamps - samples.intended[inside])
        # What began in the window is stamped after it too, as long as the last of it streams.
        rings = self._between(begin, float(np.nanmax(stamps, initial=end)))
        # That is no more time to be exact in: of a window W and answers of length A, as many
        # stamps as come in max(W, A) at full load are spread over W + A.
        most = STALLED_SHARE * max(end - begin, answer)
        delay = stalls.delays(
            np.array([one.at for one in self._rings]),
            np.array([one.longest_stall for one in self._rings]),
        )
        return Health(
            error_bounds=stalls.error_bounds(
                samples, delay, begin=begin, end=end, scheduled=scheduled
            ),
            cpu_share=(last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9),
            loop_lag_p99_5_seconds=_exceeded([(r.late, r.seconds) for r in rings], most),
            send_lateness_p99_seconds=_p99(late[~np.isnan(late)]),
            cpu_wait_p99_5_seconds=_exceeded([(r.cpu_wait, r.seconds) for r in rings], most),
            memory_mib=max(one.memory_bytes for one in looks) / 2**20,
            clock_step_seconds=max((o.clock_offset - first.clock_offset for o in looks), key=abs),
        )

    def _between(self, begin: float, end: float) -> list[_Ring]:
        """Give the rings of that time; a stall across its end is known by the first one after."""
        return [one for one in self._rings if begin < one.at <= end + one.late]


def _exceeded(delays: Sequence[tuple[float, float]], seconds: float) -> float:
    """Give the delay that only longer ones, so many seconds of them, exceeded.

    >>> _exceeded([(0.0, 0.99), (0.002, 0.006), (0.001, 0.004)], 0.005)
    0.002
    >>> _exceeded([(0.0, 0.99), (0.002, 0.004), (0.001, 0.006)], 0.005)
    0.001
    """
    for delay, stood in sorted(delays, reverse=True):
        seconds -= stood
        if seconds < 0:
            return delay
    return 0.0


def _p99(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float:
    if not len(values):
        return 0.0
    return float(np.percentile(values, 99, method="inverted_cdf"))


def _median(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _memory_bytes() -> int:
    """Resident now, as Linux says it; elsewhere the most so far, which macOS counts in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  psutil and pathlib take longer
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
