"""What the client says of itself."""

import itertools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import perf_counter

import anyio
import numpy as np
import pytest

from benchmark import worker as client_worker
from benchmark.worker import Clocks, Health, Pulse, _RunQueue, step_seconds
from tests.benchmark.made import some_samples
from tests.soon import HANGS

pytestmark = pytest.mark.anyio


Figs = dict[str, float]
POINTS: dict[str, Callable[[np.ndarray[tuple[int], np.dtype[np.float64]]], float]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50, method="inverted_cdf")),
    "p99": lambda values: float(np.percentile(values, 99, method="inverted_cdf")),
}


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


def _stalled(monkeypatch: pytest.MonkeyPatch, begin: float, length: float) -> tuple[Health, Figs]:
    """Measure a second of answers of half a second with one stall; give how far it moved what."""
    clock = _Clock([(begin, length)])
    monkeypatch.setattr(client_worker, "Alarm", clock)
    monkeypatch.setattr(client_worker, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(_RunQueue, "waited_seconds", lambda _queue: 0.0)
    pulse = Pulse()
    pulse.look()
    pulse.start(0.0)
    while clock.go_on() < 2.5:
        pulse._ring()
    pulse.close()
    made = some_samples(100, tokens=2)
    begun = np.linspace(0, 1, 100, endpoint=False)
    first, last = (
        np.where((begin <= true) & (true < begin + length), begin + length, true)
        for true in (begun + 0.05, begun + 0.5)
    )
    told = replace(
        made, intended=begun, sent=begun, first_token=first, last_token=last,
        gaps=(last - first).astype(np.float32),
    )  # fmt: skip
    moved = {
        "ttft": (first - begun, np.full(100, 0.05)),
        "e2el": (last - begun, np.full(100, 0.5)),
        "itl": (last - first, np.full(100, 0.45)),
    }
    return pulse.over(told, begin=0.0, end=1.0), {
        f"{name}_{point}": abs(float(of(claimed)) - float(of(true)))
        for name, (claimed, true) in moved.items()
        for point, of in POINTS.items()
    }


@pytest.mark.parametrize("moment", [0.5 + n / 3000 for n in range(13)] + [0.9985, 1.2])
@pytest.mark.parametrize("length", [0.006, 0.1])
def test_no_figure_is_moved_further_than_the_client_says(
    monkeypatch: pytest.MonkeyPatch, moment: float, length: float
) -> None:
    """Wherever a stall lies between two rings, across the window's end, or while answers stream."""
    health, moved = _stalled(monkeypatch, moment, length)
    assert max(moved.values()) > 0
    for name, seconds in moved.items():
        assert seconds <= health.error_bounds[name] + 1e-6, name


def test_a_stall_moves_what_it_may_have_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last stamp nothing; a rare one a tail and no median, so a busy machine's cell
    keeps what decisions rest on.
    """
    health, _ = _stalled(monkeypatch, 1.6, 0.1)
    assert not any(health.error_bounds.values())
    health, _ = _stalled(monkeypatch, 0.5, 0.1)
    assert health.error_bounds["ttft_p50"] < 1e-6
    assert health.error_bounds["ttft_p99"] > 0.05


async def test_late_sends_are_in_the_bound_but_not_connecting_by_a_schedule() -> None:
    """A schedule does not wait for a connection, which is opened in the request's own time."""
    begun = np.zeros(3)
    late = replace(
        some_samples(3, tokens=2), intended=begun, sent=begun + 0.05,
        connect_seconds=np.full(3, 0.0495), first_token=begun + 0.1, last_token=begun + 0.2,
    )  # fmt: skip
    pulse = Pulse()
    pulse.look()
    for scheduled, moved in ((False, 0.05), (True, 0.0005)):
        bounds = pulse.over(late, begin=0.0, end=1.0, scheduled=scheduled).error_bounds
        assert [bounds["ttft_p50"], bounds["e2el_mean"]] == pytest.approx([moved] * 2)
        assert bounds["tpot_mean"] == 0
    pulse.close()


async def test_waiting_for_a_cpu_is_known_though_no_ring_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What others took between two rings delays what comes there; what was before does not."""
    waited = itertools.chain([7.0], itertools.count(7.003, 0.003))
    monkeypatch.setattr(_RunQueue, "waited_seconds", lambda _queue: next(waited))
    pulse, health = await _pulsed(_rest, _rest)
    assert pulse._rings
    assert health.cpu_wait_p99_5_seconds == pytest.approx(0.003)


async def test_a_busy_machine_looks_like_no_step_of_the_clock() -> None:
    """Wherever others take the CPU while the clocks are read; a step as short is seen."""
    clocks = ("time", "perf_counter")

    def others_take_the_cpu(_frame: object, event: str, called: object) -> None:
        if event == "c_call" and getattr(called, "__name__", "") in clocks:
            until = time.monotonic() + 0.03
            while time.monotonic() < until:
                pass

    pulse = Pulse()
    pulse.look()
    sys.setprofile(others_take_the_cpu)
    pulse.look()
    sys.setprofile(None)
    pulse.look()
    pulse.close()
    assert pulse.over(some_samples(1), begin=0.0, end=1.0).clock_step_seconds == 0.0
    sound, stepped = Clocks(1.0, 51.0, 1.0), Clocks(2.0, 52.02, 2.0)
    assert step_seconds([sound, stepped]) == pytest.approx(0.02)
    assert step_seconds([stepped, Clocks(3.0, 53.0, 3.0)]) == pytest.approx(-0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux counts it.")
async def test_what_another_process_takes_of_our_core_is_time_waited() -> None:
    """Two that want the same core wait for each other."""
    cores = os.sched_getaffinity(0)
    queue = _RunQueue()
    os.sched_setaffinity(0, {min(cores)})
    try:
        async with await anyio.open_process([sys.executable, "-c", "while True: pass"]) as other:
            before = queue.waited_seconds()
            with anyio.fail_after(HANGS):
                while queue.waited_seconds() < before + 0.002:
                    await _stall()
            other.kill()
    finally:
        os.sched_setaffinity(0, cores)
        queue.close()
