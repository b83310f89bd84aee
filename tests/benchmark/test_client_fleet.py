"""The fleet with its real processes; starting one takes most of a second."""

import signal
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from benchmark import worker
from benchmark.client import CellRun, Fleet, Settling
from benchmark.loads import Job
from benchmark.records import Arrivals, Load, Measured, StopRule, Workload
from benchmark.samples import Outcome, merged
from benchmark.wire import Row, Rows
from benchmark.worker import Health, Order, Part, Report
from core.environment import ROOT
from core.processes import run
from tests.benchmark import faulty
from tests.benchmark.driven import a_job
from tests.benchmark.made import known, some_samples
from tests.processes import load_workers
from tests.soon import HANGS

pytestmark = pytest.mark.anyio
HEALTH = Health(
    error_bounds={"ttft_p50": 1 / 3},
    cpu_share=0.1,
    loop_lag_p99_5_seconds=1e-5,
    send_lateness_p99_seconds=0.0,
    cpu_wait_p99_5_seconds=0.0,
    memory_mib=60.5,
    clock_step_seconds=-1e-7,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _measure(fleet: Fleet, job: Job, seen: list[str]) -> Measured:
    return await fleet.measure(job, enough=lambda _: False, tell=seen.append, stop=lambda: False)


async def test_a_worker_that_dies_fails_its_cell_and_not_the_next(tmp_path: Path) -> None:
    """Its process is started anew; every worker ends with the fleet."""
    results: list[Measured] = []
    async with faulty.faulty(lambda _: faulty.well()) as server:
        job = a_job(server.base_url, tmp_path)
        endless = a_job(server.base_url, tmp_path, stop=StopRule(max_seconds=60))
        async with Fleet(2, tmp_path / "log") as fleet:
            seen: list[str] = []

            async def run() -> None:
                results.append(await _measure(fleet, endless, seen))

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                while "measuring" not in seen:
                    await anyio.lowlevel.checkpoint()
                first = {one.pid for one in load_workers()}
                load_workers()[0].send_signal(signal.SIGKILL)
            results.append(await _measure(fleet, job, []))
            assert len(first & {one.pid for one in load_workers()}) == 1
    assert not load_workers()
    assert results[0].failed
    assert "died" in results[0].failed
    assert len(results[0].samples)
    assert results[1].failed is None
    assert results[1].client.workers == 2
    assert results[1].client.memory_mib > 20
    assert set(results[1].samples.worker.tolist()) == {0, 1}


async def test_workers_end_when_the_fleet_is_gone() -> None:
    """The end of stdin is the end, also in the middle of nothing."""
    async with await anyio.open_process([sys.executable, "-m", "benchmark.worker"]) as process:
        await known(process.stdin).aclose()
        with anyio.fail_after(HANGS):
            assert await process.wait() == 0


async def test_the_start_of_a_worker_pays_for_nothing_that_it_does_not_need() -> None:
    """Starting is a part of the client's CPU, and most of it is imports. Takes 0.3 s."""
    unneeded = {"core.records", "core.settings", "benchmark.records", "pydantic", "psutil"}
    code = f"import sys, benchmark.worker; print(*{unneeded!r} & set(sys.modules))"
    done = await run((sys.executable, "-c", code), cwd=ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_shares_are_the_whole_and_do_not_overlap(workers: int, tmp_path: Path) -> None:
    """Slots, prompts and arrivals of all workers together are those of one."""
    load = Load(arrivals=Arrivals.POISSON, requests_per_second=7, concurrency=13)
    job = a_job("http://127.0.0.1:1", tmp_path, load=load, first_request=5)
    shares = [replace(job, worker=n, workers=workers) for n in range(workers)]
    assert sum(one.slots for one in shares) == 13
    delays = [one.slot_delay(slot) for one in shares for slot in range(one.slots)]
    assert sorted(delays) == pytest.approx([job.ramp_seconds * n / 13 for n in range(13)])
    numbers = [next(many) for one in shares for many in [one.numbers()] for _ in range(4)]
    assert sorted(numbers) == list(range(5, 5 + 4 * workers))
    streams = [one.due() for one in shares]
    together = [next(stream) for _ in range(600) for stream in streams]
    alone = job.due()
    assert together == [next(alone) for _ in range(600 * workers)]


def test_open_loops_have_the_mean_rate_that_was_asked_for(tmp_path: Path) -> None:
    load = Load(arrivals=Arrivals.POISSON, requests_per_second=50)
    times = a_job("http://127.0.0.1:1", tmp_path, load=load).due()
    last = [next(times) for _ in range(20_000)][-1]
    assert last == pytest.approx(20_000 / 50, rel=0.03)
    load = Load(arrivals=Arrivals.BURSTS, requests_per_second=10, concurrency=5)
    times = a_job("http://127.0.0.1:1", tmp_path, load=load).due()
    assert [next(times) for _ in range(11)] == [0.0] * 5 + [0.5] * 5 + [1.0]


def test_rows_become_columns_without_loss() -> None:
    """Gaps are those within a request, whatever ends between them."""
    one, other = Rows(), Rows()
    one.add(
        Row(3, 1.0, first_token=1.1, last_token=1.5, events=3, output_tokens=4), [1.1, 1.2, 1.5]
    )
    one.add(Row(4, 1.0, outcome=Outcome.RESET))
    one.add(Row(5, 1.0, first_token=2.0, last_token=2.0, events=1, output_tokens=1), [2.0])
    other.add(Row(6, 1.0, first_token=3.0, last_token=3.5, events=2), [3.0, 3.5])
    samples = merged([one.samples(0), other.samples(1)])
    assert samples.request.tolist() == [3, 4, 5, 6]
    assert samples.worker.tolist() == [0, 0, 0, 1]
    assert samples.gap_counts.tolist() == [2, 0, 0, 1]
    assert samples.gaps.tolist() == pytest.approx([0.1, 0.3, 0.5])
    assert (one.requests, one.failed, one.tokens) == (2, 1, 5)


def test_warm_up_is_over_when_two_groups_agree() -> None:
    """Groups are of as many answers as there are slots."""
    settling = Settling(4)
    for value in (3.0, 2.0, 1.0, 1.3):
        settling.add(2, [value])
    assert not settling.settled
    settling.add(2, [1.1])
    assert not settling.settled
    settling.add(2, [1.1])
    assert settling.settled


@pytest.mark.parametrize("arrivals", Arrivals)
def test_an_order_is_heard_as_it_was_said(tmp_path: Path, arrivals: Arrivals) -> None:
    load = Load(arrivals=arrivals, concurrency=3, requests_per_second=2.5)
    workload = Workload(api="chat", seed=7, prefix_share=0.1, dataset="prompts.jsonl")
    job = a_job("http://127.0.0.1:1", tmp_path, load=load, workload=workload, words=[" é", ' "'])
    job = replace(job, worker=1, workers=2, token_ids=[*job.token_ids], refuses=["max_tokens"])
    assert worker.order(worker.line(Order(do="prepare", job=job))) == Order(do="prepare", job=job)


def test_a_report_is_heard_as_it_was_said() -> None:
    """A tenth is no exact binary number, and comes back the same."""
    part = Part(
        place=1,
        requests=2,
        failed=0,
        tokens=0.1,
        ttft_sum=1 / 3,
        e2el_sum=1e-9,
        latencies=[0.1, 0.2],
        idle=False,
    )
    for said in (
        Report(is_="slice", part=part),
        Report(is_="done", health=HEALTH, file="/x"),
        Report(is_="failed", because="two\nlines", disk_full=True),
    ):
        line = worker.line(said)
        assert line.count(b"\n") == 1
        assert worker.report(line) == said


def test_what_memory_does_not_hold_stays_in_the_workers_files(tmp_path: Path) -> None:
    """Every sample is there, though never more than a million at a time."""
    run = CellRun(
        a_job("http://x", tmp_path), workers=3, enough=lambda _: False, tell=lambda _: None
    )
    part = some_samples(400_000, tokens=1, every=1e-5)
    for number in range(3):
        file = tmp_path / f"{number}.npz"
        replace(part, worker=part.worker + number).save(file)
        done = Report(is_="done", health=HEALTH, file=str(file))
        run.hear(number, done, stop=lambda: False)
    assert run.over
    measured = run.measured()
    assert [file.name for file in tmp_path.glob("*.npz")] == ["2.npz"]
    assert [len(each) for each in measured.parts()] == [800_000, 400_000]
    assert {int(each.worker.max()) for each in measured.parts()} == {1, 2}
