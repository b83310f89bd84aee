"""Bursts and open loops: requests come when they are due, and their wait is told."""

import socket
from pathlib import Path

import numpy as np
import pytest

from benchmark.client import Job
from benchmark.records import Arrivals, Load, StopRule
from benchmark.samples import Outcome
from tests.benchmark import faulty
from tests.benchmark.driven import a_job, measured, outcomes, paced
from tests.benchmark.faulty import HEAD, chunk

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


async def test_one_burst_is_sent_together_and_waited_for(tmp_path: Path) -> None:
    """Its connections are there before; no request follows another."""
    load = Load(arrivals=Arrivals.ONCE, concurrency=7)
    async with faulty.faulty(lambda _: paced(0.1)) as server:
        result = await measured(a_job(server.base_url, tmp_path, load=load), workers=2)
    assert len(server.heads) == len(result.samples) == 7
    assert outcomes(result) == {Outcome.OK: 7}
    assert result.samples.intended.tolist() == [result.window_begin] * 7
    assert result.samples.done.max() <= result.window_end


async def test_one_burst_at_nobody_is_a_failure_of_each(tmp_path: Path) -> None:
    load = Load(arrivals=Arrivals.ONCE, concurrency=3)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        result = await measured(a_job(url, tmp_path, load=load))
    assert outcomes(result) == {Outcome.CONNECT: 3}
    assert (result.samples.intended >= result.window_begin).all()


@pytest.mark.parametrize("arrivals", [Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.BURSTS])
async def test_open_loops_keep_to_their_times(tmp_path: Path, arrivals: Arrivals) -> None:
    """Every request that was due is a row with the moment it was due."""
    size = 5 if arrivals is Arrivals.BURSTS else None
    load = Load(arrivals=arrivals, requests_per_second=100, concurrency=size)
    async with faulty.faulty(lambda _: paced(0.02)) as server:
        job = a_job(server.base_url, tmp_path, load=load)
        result = await measured(job, workers=2)
    samples = result.samples
    start = _start(job, samples.intended)
    assert result.failed is None
    due = np.sort(samples.intended) - start
    expected = [t for _, t in zip(due, _all_arrivals(job), strict=False)]
    assert due == pytest.approx(expected, abs=1e-6)
    assert (samples.sent >= samples.intended).all()


def _all_arrivals(job: Job) -> list[float]:
    due = job.share().due()
    return [next(due) for _ in range(1000)]


def _start(job: Job, intended: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    return float(intended.min()) - _all_arrivals(job)[0]


async def test_a_server_that_stalls_does_not_hide_the_wait(tmp_path: Path) -> None:
    """Requests come when due, although each answer takes twelve times as long as the next gap."""
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_second=40)
    stop = StopRule(max_seconds=0.5, warmup_max_seconds=0, request_timeout_seconds=5)
    answer = chunk(faulty.completion(2)) + faulty.END
    stalled = faulty.raw(HEAD, answer, pause_seconds=0.3)
    async with faulty.faulty(lambda _: stalled) as server:
        result = await measured(a_job(server.base_url, tmp_path, load=load, stop=stop))
    inside = (result.samples.intended >= result.window_begin) & (
        result.samples.intended < result.window_end
    )
    due = 40 * (result.window_end - result.window_begin)
    assert inside.sum() == pytest.approx(due, abs=1)
    assert (result.samples.outcome[inside] == Outcome.OK).all()
    assert (result.samples.first_token - result.samples.intended)[inside].min() > 0.299
