"""What fleet and worker say to each other, and what a worker needs of it."""

from pathlib import Path

import pytest

from benchmark import worker
from benchmark.records import Arrivals, Load, Workload
from benchmark.worker import Health, Order, Part, Report
from tests.benchmark.driven import a_job


@pytest.mark.parametrize("arrivals", Arrivals)
def test_a_share_says_all_that_its_job_asks_for(tmp_path: Path, arrivals: Arrivals) -> None:
    load = Load(arrivals=arrivals, concurrency=3, requests_per_second=2.5)
    workload = Workload(api="chat", seed=7, prefix_share=0.1, dataset="prompts.jsonl")
    job = a_job(
        "http://127.0.0.1:1", tmp_path, load=load, workload=workload, words=(" é", ' "'), cell="x"
    )
    order = Order(do="prepare", share=job.share(1, 2))
    heard = worker.order(worker.line(order))
    assert heard == order
    assert heard.share
    assert heard.share.samples_file == str(tmp_path)
    assert (heard.share.worker, heard.share.workers, heard.share.arrivals) == (1, 2, arrivals)
    assert heard.share.request_timeout_seconds == job.stop.request_timeout_seconds
    assert Workload.model_validate({n: getattr(heard.share, n) for n in Workload.model_fields}) == (
        workload
    )


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
    health = Health(
        error_bounds={"ttft_p50": 1 / 3},
        cpu_share=0.1,
        loop_lag_p99_5_seconds=1e-5,
        send_lateness_p99_seconds=0.0,
        cpu_wait_p99_5_seconds=0.0,
        memory_mib=60.5,
        clock_step_seconds=-1e-7,
    )
    for said in (
        Report(is_="slice", part=part),
        Report(is_="done", health=health, file="/x"),
        Report(is_="failed", because="two\nlines", disk_full=True),
    ):
        line = worker.line(said)
        assert line.count(b"\n") == 1
        assert worker.report(line) == said
