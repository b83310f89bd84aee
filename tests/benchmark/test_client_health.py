"""What the client says of itself."""

import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter

import anyio
import numpy as np
import pytest

from benchmark.client import health as client_health
from benchmark.client.health import Pulse, _RunQueue
from benchmark.client.words import Health
from benchmark.records import Code
from tests.benchmark.flaws import SOUND
from tests.benchmark.made import some_samples

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


async def _pulsed(
    during: Callable[[], Awaitable[None]], after: Callable[[], Awaitable[None]]
) -> tuple[Pulse, Health]:
    """Let one thing happen in a window and another after it, while its answer still streams."""
    pulse = Pulse()
    pulse.look()
    begin = perf_counter()
    pulse.start(begin)
    await during()
    end = perf_counter()
    await after()
    pulse.look()
    pulse.close()
    answer = replace(
        some_samples(1),
        intended=np.array([begin]),
        sent=np.array([begin]),
        last_token=np.array([perf_counter()]),
    )
    return pulse, pulse.over(answer, begin=begin, end=end)


async def _rest() -> None:
    await anyio.sleep(0.05)


async def _stall() -> None:
    """Keep the loop for a tenth of a second."""
    until = perf_counter() + 0.1
    while perf_counter() < until:
        pass
    await anyio.sleep(0.02)


async def test_a_stall_counts_for_as_long_as_it_lasted() -> None:
    """Whatever came in that tenth of a second was late, not only what came at its beginning."""
    pulse, health = await _pulsed(_stall, _rest)
    assert health.loop_lag_p99_5_seconds > 0.09
    assert sum(ring.seconds for ring in pulse._rings if ring.late > 0.09) > 0.09


async def test_a_stall_after_the_window_counts_while_its_answers_stream() -> None:
    """They are measured, and their last tokens are stamped then."""
    _, health = await _pulsed(_rest, _stall)
    assert health.loop_lag_p99_5_seconds > 0.09


class _Clock:
    """A clock and the alarm that goes by it, in a loop that stalls when it is told to."""

    def __init__(self, stalls: Sequence[tuple[float, float]]) -> None:
        self._stalls = stalls
        self.now = self._due = 0.0

    def __call__(self, _ring: Callable[[], None]) -> "_Clock":
        return self

    def set(self, at: float) -> None:
        self._due = at

    def close(self) -> None:
        self._due = 0.0

    def go_on(self) -> float:
        """Come to the alarm, or to the end of the stall that it lies in."""
        ends = [begin + long for begin, long in self._stalls if begin <= self._due < begin + long]
        self.now = max(ends, default=self._due)
        return self.now


def _stalled(
    monkeypatch: pytest.MonkeyPatch,
    *stalls: tuple[float, float],
    window: float = 1.0,
    answer: float = 0.5,
) -> set[Code]:
    """Judge a window with stalls, as moments from its begin and lengths in seconds."""
    clock = _Clock(stalls)
    monkeypatch.setattr(client_health, "Alarm", clock)
    monkeypatch.setattr(client_health, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(_RunQueue, "waited_seconds", lambda _queue: 0.0)
    pulse = Pulse()
    pulse.look()
    pulse.start(0.0)
    while clock.go_on() < window + answer + 1:
        pulse._ring()
    pulse.close()
    begun = np.linspace(0, window, 100, endpoint=False)
    answers = replace(some_samples(100), intended=begun, sent=begun, last_token=begun + answer)
    lag = pulse.over(answers, begin=0.0, end=window).loop_lag_p99_5_seconds
    run = SOUND.with_client(loop_lag_p99_5_seconds=lag)
    return {verdict.code for verdict in run.judged().verdicts}


@pytest.mark.parametrize("moment", [0.5 + n / 3000 for n in range(13)] + [0.9985, 1.2])
def test_one_stall_of_six_milliseconds_spoils_a_second(
    monkeypatch: pytest.MonkeyPatch, moment: float
) -> None:
    """Wherever it lies between two rings, across the window's end, or while answers stream."""
    assert _stalled(monkeypatch, (moment, 0.006)) == {Code.CLIENT_SATURATED}


def test_what_is_stalled_after_the_last_stamp_spoils_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _stalled(monkeypatch, (1.6, 0.1)) == set()


@pytest.mark.parametrize("stalls", [[(n + 0.3, 0.001) for n in range(10)], [(3.0, 0.006)]])
def test_ten_seconds_bear_single_lags(
    monkeypatch: pytest.MonkeyPatch, stalls: Sequence[tuple[float, float]]
) -> None:
    """Short ones are below the limit however many they are, a longer one is rare."""
    assert _stalled(monkeypatch, *stalls, window=10) == set()


def test_a_short_window_of_long_answers_bears_as_much_as_its_answers_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their stamps are spread over as much time."""
    assert _stalled(monkeypatch, (4.0, 0.006), answer=10) == set()


async def test_waiting_for_a_cpu_is_known_though_no_ring_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What others took between two rings delays what comes there; what was before does not."""
    waited = itertools.chain([7.0], itertools.count(7.003, 0.003))
    monkeypatch.setattr(_RunQueue, "waited_seconds", lambda _queue: next(waited))
    pulse, health = await _pulsed(_rest, _rest)
    assert pulse._rings
    assert health.cpu_wait_p99_5_seconds == pytest.approx(0.003)


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux counts it.")
async def test_what_another_process_takes_of_our_core_is_time_waited() -> None:
    """Two that want the same core wait for each other."""
    cores = os.sched_getaffinity(0)
    queue = _RunQueue()
    os.sched_setaffinity(0, {min(cores)})
    try:
        async with await anyio.open_process([sys.executable, "-c", "while True: pass"]) as other:
            before = queue.waited_seconds()
            with anyio.fail_after(10):
                while queue.waited_seconds() < before + 0.002:
                    await _stall()
            other.kill()
    finally:
        os.sched_setaffinity(0, cores)
        queue.close()


def test_where_nobody_counts_the_wait_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system, or a container without /proc."""

    def missing(_path: str, _flags: int) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    queue = _RunQueue()
    assert queue.waited_seconds() == 0
    queue.close()
