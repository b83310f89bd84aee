"""The client's fleet without its processes: the same cell, the same workers, in this loop."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from benchmark.client import CellRun
from benchmark.loads import Job
from benchmark.records import Load, Measured, Slice, StopRule, Workload
from benchmark.run import OF_THE_RULE
from benchmark.samples import Outcome
from benchmark.worker import Order, Report, work
from tests.benchmark import faulty
from tests.benchmark.faulty import HEAD, Behaviour, chunk, token
from tests.soon import HANGS

SHORT = StopRule(max_seconds=0.25, warmup_max_seconds=0.1, request_timeout_seconds=5)


def a_job(
    base_url: str,
    folder: Path,
    *,
    load: Load = Load(concurrency=4),  # noqa: B008  frozen
    workload: Workload = Workload(output_tokens=3),  # noqa: B008  the same
    stop: StopRule = SHORT,
    **fields: Any,
) -> Job:
    """A short cell: 4 requests at a time, 0.1 s of warm-up and 0.25 s of window."""
    made: dict[str, Any] = {
        "cell": "a-cell",
        "path": "/v1/completions",
        "context": 8,
        "model": "a-model",
        "token_ids": tuple(range(100, 164)),
        "ramp_seconds": 0.05,
        "slice_seconds": 0.05,
        "patience_seconds": 0.3,
        **load.model_dump(mode="json"),
        **workload.model_dump(),
        **stop.model_dump(include=OF_THE_RULE),
        **fields,
    }
    return Job(base_url=base_url, samples_file=str(folder), **made)


def outcomes(result: Measured) -> dict[Outcome, int]:
    """Count the rows of each class."""
    values, counts = np.unique(result.samples.outcome, return_counts=True)
    return {Outcome(int(v)): int(n) for v, n in zip(values, counts, strict=True)}


def paced(seconds: float = 0.005) -> Behaviour:
    """Answer two tokens, so far apart, and rest as long."""
    last = chunk(faulty.completion(2)) + faulty.END
    return faulty.raw(HEAD + chunk(token()), last, pause_seconds=seconds)


async def measured(
    job: Job,
    *,
    workers: int = 1,
    enough: Callable[[Sequence[Slice]], bool] = lambda _slices: False,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _doing: None,
) -> Measured:
    """Measure with so many workers, all of them in this process."""
    run = CellRun(job, workers=workers, enough=enough, tell=tell)
    say, reports = anyio.create_memory_object_stream[tuple[int, Report]](float("inf"))
    pipes = [anyio.create_memory_object_stream[Order](float("inf")) for _ in range(workers)]

    def give(orders: dict[int, Order]) -> None:
        for number, order in orders.items():
            pipes[number][0].send_nowait(order)

    async def serve(number: int) -> None:
        with pipes[number][1] as orders, contextlib.suppress(anyio.EndOfStream):
            await work(orders.receive, lambda report: say.send_nowait((number, report)))

    with anyio.fail_after(HANGS), say, reports:
        async with anyio.create_task_group() as group:
            for number in range(workers):
                group.start_soon(serve, number)
            give(run.prepare())
            while not run.over:
                number, report = await reports.receive()
                give(run.hear(number, report, stop=stop))
            for send, _ in pipes:
                send.close()
    return run.measured()
