"""Whole cells against a server that does wrong: everything is counted, nothing hangs.

A cell takes about 0.5 s: connecting, a short warm-up, a window, the drain.
"""

import os
import socket
from pathlib import Path

import anyio
import numpy as np
import pytest

from benchmark.loads import Job
from benchmark.records import Arrivals, Load, Measured, StopRule
from benchmark.samples import Outcome, Samples
from core.errors import DiskFull
from tests.benchmark import faulty
from tests.benchmark.driven import a_job, measured, outcomes, paced
from tests.benchmark.faulty import HEAD, Behaviour, Served, chunk

pytestmark = pytest.mark.anyio

ENDLESS = StopRule(max_seconds=60)


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


def _all_told(samples: Samples, server: Served) -> bool:
    """The last ones may have been cut before the server read them."""
    cut = int((samples.outcome == Outcome.CUT).sum())
    return len(samples) - cut <= len(server.heads) <= len(samples)


async def test_a_closed_loop_keeps_its_requests_in_flight_and_counts_all(tmp_path: Path) -> None:
    """Every request is a row; nothing that began in the window is cut."""
    async with faulty.faulty(lambda _: paced()) as server:
        result = await measured(a_job(server.base_url, tmp_path))
    samples = result.samples
    assert result.failed is None
    assert _all_told(samples, server)
    assert len(server.connections) == 4
    assert set(outcomes(result)) <= {Outcome.OK, Outcome.CUT}
    inside = (samples.intended >= result.window_begin) & (samples.intended < result.window_end)
    assert inside.any()
    assert set(samples.outcome[inside].tolist()) == {Outcome.OK}
    assert result.window_end - result.window_begin >= 0.2499  # later on a machine that is busy
    done = (samples.done >= result.window_begin) & (samples.done < result.window_end)
    assert sum(one.requests for one in result.slices) == pytest.approx(done.sum(), abs=8)
    assert samples.gap_counts.sum() == len(samples.gaps)
    assert not [*os.scandir(tmp_path)]


async def test_answers_longer_than_warm_up_and_window_are_measured(tmp_path: Path) -> None:
    """The window waits for answers: without them no request would begin in it. Two
    answers of 0.45 s follow each other.
    """
    async with faulty.faulty(lambda _: paced(0.45)) as server:
        result = await measured(a_job(server.base_url, tmp_path))
    assert not result.settled
    begun = (result.samples.intended >= result.window_begin) & (
        result.samples.intended < result.window_end
    )
    assert begun.sum() >= 4
    assert set(result.samples.outcome[begun].tolist()) == {Outcome.OK}


async def test_workers_share_the_load_and_no_prompt_is_used_twice(tmp_path: Path) -> None:
    async with faulty.faulty(lambda _: paced()) as server:
        job = a_job(server.base_url, tmp_path, load=Load(concurrency=5), first_request=1000)
        result = await measured(job, workers=2)
    assert len(server.connections) == 5
    assert result.client.workers == 2
    assert set(result.samples.worker.tolist()) == {0, 1}
    assert len(set(result.samples.request.tolist())) == len(result.samples)
    assert result.samples.request.min() == 1000


async def test_an_endpoint_that_dies_ends_the_cell(tmp_path: Path) -> None:
    """What was under way is a reset, what follows finds nobody, and then it is given up."""
    result: list[Measured] = []
    dying = faulty.faulty(lambda _: paced())
    async with anyio.create_task_group() as group, dying as server:
        job = a_job(server.base_url, tmp_path, stop=ENDLESS)

        async def run() -> None:
            result.append(await measured(job))

        group.start_soon(run)
        while len(server.heads) < 100:
            await anyio.lowlevel.checkpoint()
    assert result[0].failed
    assert "connect" in result[0].failed
    found = outcomes(result[0])
    assert 0 < found.get(Outcome.RESET, 0) + found.get(Outcome.BROKEN_STREAM, 0) <= 4
    assert found[Outcome.CONNECT] >= 4
    # One whose connection was just closed under it goes again, and finds nobody.
    assert found[Outcome.OK] <= len(server.heads) <= len(result[0].samples)


async def test_nobody_there_is_said_soon(tmp_path: Path) -> None:
    """A port where nobody listens, a name that does not exist."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        for where, outcome in ((url, Outcome.CONNECT), ("http://nobody.invalid", Outcome.DNS)):
            result = await measured(a_job(where, tmp_path, stop=ENDLESS))
            assert result.failed
            assert outcome.name.lower() in result.failed
            assert set(outcomes(result)) == {outcome}


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error"])
async def test_an_endpoint_that_refuses_all_is_said_with_its_status(
    tmp_path: Path, status: str
) -> None:
    """And with the path, as an endpoint may have chats alone; with its own words, but no secret."""
    key, words = "hf_" + "a" * 34, b"The model `e4b`\ndoes not exist: "
    body = words + key.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with faulty.faulty(lambda _: faulty.raw(head + body)) as server:
        result = await measured(
            a_job(server.base_url, tmp_path, stop=ENDLESS, patience_seconds=0.5)
        )
    assert result.failed
    assert f"HTTP {status[:3]} of /v1/completions, which says" in result.failed
    assert '"The model `e4b` does not exist: ' in result.failed
    assert key not in result.failed


async def test_a_server_that_asks_to_wait_is_obeyed(tmp_path: Path) -> None:
    """Each slot waits as long as it was told; the cell, of a second, goes on."""
    throttle = faulty.status(429, b"", b"retry-after: 0.2")
    long = StopRule(max_seconds=1, warmup_max_seconds=0.1, request_timeout_seconds=5)
    async with faulty.faulty(lambda n: throttle if n < 4 else paced()) as server:
        result = await measured(a_job(server.base_url, tmp_path, stop=long))
    samples = result.samples
    late = samples.outcome == Outcome.THROTTLED
    assert result.failed is None
    assert late.sum() == 4
    assert samples.intended[~late].min() - samples.done[late].min() >= 0.199


async def test_a_connection_closed_while_idle_is_no_error(tmp_path: Path) -> None:
    """The request goes again on a new one; nothing had been received."""
    answer = HEAD + chunk(faulty.completion()) + faulty.END
    async with faulty.faulty(lambda _: faulty.closing(answer)) as server:
        result = await measured(a_job(server.base_url, tmp_path))
    assert set(outcomes(result)) <= {Outcome.OK, Outcome.CUT}
    assert len(server.connections) >= len(result.samples) - 4
    assert len(result.samples) > 8


async def test_answers_that_trickle_are_ended_in_time(tmp_path: Path) -> None:
    """A byte now and then postpones nothing."""
    drip = faulty.raw(HEAD, *[b"1\r\n:\r\n"] * 1000, pause_seconds=0.01)
    stop = StopRule(max_seconds=0.25, warmup_max_seconds=0.1, request_timeout_seconds=0.2)
    async with faulty.faulty(lambda _: drip) as server:
        result = await measured(a_job(server.base_url, tmp_path, stop=stop))
    found = outcomes(result)
    assert found[Outcome.TIMEOUT] >= 4
    assert set(found) <= {Outcome.TIMEOUT, Outcome.CUT}
    assert _all_told(result.samples, server)


async def test_a_cell_that_is_asked_to_stop_ends_with_what_there_is(tmp_path: Path) -> None:
    seen: list[str] = []
    async with faulty.faulty(lambda _: paced()) as server:
        job = a_job(
            server.base_url, tmp_path, stop=StopRule(max_seconds=60, warmup_max_seconds=0.1)
        )
        result = await measured(
            job,
            tell=seen.append,
            stop=lambda: seen.count("measuring") == 2,
        )
    assert result.failed is None
    assert len(result.slices) == 2
    assert _all_told(result.samples, server)


async def test_a_window_ends_when_enough_is_known(tmp_path: Path) -> None:
    """Load stays up until what began in the window has ended."""
    seen: list[str] = []
    async with faulty.faulty(lambda _: paced()) as server:
        job = a_job(server.base_url, tmp_path, stop=StopRule(max_seconds=60))
        result = await measured(
            job,
            enough=lambda slices: sum(one.requests for one in slices) > 30,
            tell=seen.append,
        )
    assert result.settled
    assert seen[0] == "warming up"
    assert result.samples.intended.max() >= result.window_end


async def test_the_key_is_read_again_when_it_changes_and_said_nowhere(tmp_path: Path) -> None:
    """Identity tokens last an hour, sweeps longer. Takes a second: it looks once in that time."""
    key = tmp_path / "key"
    key.write_text("first-key\nfirst-identity\n")

    def script(number: int) -> Behaviour:
        if number == 10:
            key.write_text("second-key")
        return paced(0.02)

    stop = StopRule(max_seconds=1.2, warmup_max_seconds=0)
    async with faulty.faulty(script) as server:
        job = a_job(server.base_url, tmp_path, credential_file=str(key), stop=stop)
        await measured(job)
    assert b"\r\nauthorization: Bearer first-key\r\n" in server.heads[0]
    assert b"\r\nx-serverless-authorization: Bearer first-identity\r\n" in server.heads[0]
    assert b"\r\nauthorization: Bearer second-key\r\n" in server.heads[-1]
    assert b"x-serverless" not in server.heads[-1]
    assert "first-key" not in repr(job)


async def test_a_full_disk_is_said_as_such(tmp_path: Path) -> None:
    """The worker lives on; whoever asked can stop."""
    (tmp_path / "a-cell.0.npz").symlink_to("/dev/full")
    async with faulty.faulty(lambda _: paced()) as server:
        with pytest.raises(DiskFull):
            await measured(a_job(server.base_url, tmp_path))


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


async def test_what_is_under_way_when_an_open_loop_is_cut_is_a_row_each(tmp_path: Path) -> None:
    """And its connections are closed: the server would else answer into the next cell."""
    seen: list[str] = []
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_second=100)
    async with faulty.faulty(lambda _: paced(0.2)) as server:
        stop = StopRule(max_seconds=60, warmup_max_seconds=0.1)
        job = a_job(server.base_url, tmp_path, load=load, stop=stop)
        result = await measured(job, tell=seen.append, stop=lambda: seen.count("measuring") == 2)
    assert outcomes(result)[Outcome.CUT] > 0
    assert _all_told(result.samples, server)


def _all_arrivals(job: Job) -> list[float]:
    due = job.due()
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
