"""All workers as one client: what is ordered of a cell, and what becomes of what they report."""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from benchmark import worker
from benchmark.folder import room
from benchmark.loads import Job
from benchmark.records import ClientView, Measured, Slice
from benchmark.samples import HELD_ROWS, Samples, load, merged
from benchmark.wire import Rows
from benchmark.worker import Health, Order, Part, Report
from core.environment import ROOT, inherited_environment
from core.errors import DiskFull

_MOST_LINE_BYTES: Final = 2**20
_END_SECONDS: Final = 3.0
"""For a worker whose stdin was closed; then it is killed."""
_ALONE: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""A worker has a core to itself, and no matrices: NumPy starts faster without threads for them."""


Said = tuple[int, Report | None]
"""Who made a report; None when that worker is gone."""


class Fleet:
    """So many worker processes; what they print to stderr is in the log file."""

    def __init__(self, workers: int, log_file: Path) -> None:
        self._count = workers
        self._log_file = log_file
        self._stack = AsyncExitStack()
        self._processes: dict[int, Process] = {}
        self._reports: MemoryObjectReceiveStream[Said]
        self._say: MemoryObjectSendStream[Said]

    async def __aenter__(self) -> Self:
        self._say, self._reports = anyio.create_memory_object_stream[Said](1024)
        await self._stack.__aenter__()
        self._stack.enter_context(self._say)
        self._stack.enter_context(self._reports)
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            for process in tuple(self._processes.values()):
                await ended(process, _END_SECONDS)
        self._group.cancel_scope.cancel()
        await self._stack.__aexit__(kind, error, trace)

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> Measured:
        """Measure one cell: warm up, a window, and the drain of what began in it, under load.

        `enough` is asked after each slice of the window; `stop` ends the cell now. An endpoint
        that is gone, or a worker that dies, is told in `Measured.failed`, with what there is.

        Raises:
            DiskFull: A worker could not write its samples.
        """
        for number in range(self._count):
            if number not in self._processes:
                await self._start(number)
        run = CellRun(job, workers=self._count, enough=enough, tell=tell)
        await self._send(run.prepare())
        async for number, report in self._reports:
            if report is None:
                await self._send(run.died(number, last_words(self._log_file)))
            else:
                await self._send(run.hear(number, report, stop=stop))
            if run.over:
                break
        return run.measured()

    async def _start(self, number: int) -> None:
        with self._log_file.open("ab") as log:
            process = await anyio.open_process(
                [sys.executable, "-m", "benchmark.worker"],
                stderr=log,
                cwd=ROOT,
                env={**inherited_environment(), **_ALONE},
            )
        self._processes[number] = process
        self._group.start_soon(self._listen, number, process)

    async def _listen(self, number: int, process: Process) -> None:
        assert process.stdout
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                line = await lines.receive_until(b"\n", _MOST_LINE_BYTES)
                await self._say.send((number, worker.report(line)))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            self._processes.pop(number, None)
            await ended(process, _END_SECONDS)
            await self._say.send((number, None))

    async def _send(self, orders: dict[int, Order]) -> None:
        for number, order in orders.items():
            process = self._processes.get(number)
            if process and process.stdin:
                # `_listen` tells of its end.
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await process.stdin.send(worker.line(order))


def last_words(log_file: Path) -> str:
    """Give the last line of a log."""
    tail = log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    return tail.splitlines()[-1] if tail else "it said nothing"


async def ended(process: Process, seconds: float) -> None:
    """Close its stdin, which ends it, and wait; one that does not end is killed."""
    if process.stdin:
        await process.stdin.aclose()
    with anyio.move_on_after(seconds):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()


LEAD_SECONDS: Final = 0.1
"""From the order to start until the common moment."""
_LOG_TAIL_BYTES: Final = 2000

SETTLED_SHARE: Final = 0.1
"""How far apart the medians of two successive groups may be."""


class Settling:
    """Puts answers into groups of a size, in the order in which they came."""

    def __init__(self, group: int) -> None:
        self._size = group
        self._count = 0
        self._values: list[float] = []
        self._last: float | None = None
        self.settled = False

    def add(self, requests: int, latencies: Sequence[float]) -> None:
        """Take the answers of one slice, of whose latencies, in seconds, some are given."""
        self._count += requests
        self._values += latencies
        if self._count < self._size or not self._values:
            return
        now = median(self._values)
        if self._last is not None:
            self.settled = abs(now - self._last) <= SETTLED_SHARE * self._last
        self._last = now
        self._count = 0
        self._values = []


Orders = dict[int, Order]


class Phase(StrEnum):
    """Where a cell is; the first three as people read them."""

    WARMING = "warming up"
    MEASURING = "measuring"
    DRAINING = "draining"
    ENDING = "ending"


class CellRun:
    """Knows nothing of processes: it hears reports and gives orders."""

    def __init__(
        self,
        job: Job,
        *,
        workers: int,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str], None],
        lead_seconds: float = LEAD_SECONDS,
    ) -> None:
        self._job = job
        self._workers = workers
        self._lead_seconds = lead_seconds
        self._enough = enough
        self._tell = tell
        self._once = job.arrivals == "once"
        self._phase = Phase.MEASURING if self._once else Phase.WARMING
        self._settling = Settling(job.concurrency or max(round(job.requests_per_second or 1), 1))
        self._started_at = datetime.now(UTC)
        self._began = perf_counter()
        self._at = self._begin = self._end = self._began
        self._ready: set[int] = set()
        self._drained: set[int] = set()
        self._living = set(range(workers))
        self._parts: dict[int, list[Part]] = defaultdict(list)
        self._slices: list[Slice] = []
        self._samples: list[Samples] = []
        self._files: list[Path] = []
        self.health: dict[int, Health] = {}
        self._failed: str | None = None
        self._disk_full = False

    @property
    def over(self) -> bool:
        return not self._living

    def prepare(self) -> Orders:
        return {
            number: Order(
                do="prepare", job=replace(self._job, worker=number, workers=self._workers)
            )
            for number in range(self._workers)
        }

    def died(self, worker: int, last_words: str) -> Orders:
        """Give the cell up: a part of its load, and of its samples, is gone."""
        self._living.discard(worker)
        return self._give_up(f"Worker {worker} died: {last_words}")

    def lost(self, workers: Sequence[int], because: str) -> Orders:
        """End the cell without them; what the others measured until then is kept."""
        self._living.difference_update(workers)
        if self._phase is Phase.WARMING:
            return self._give_up(because)
        if self._phase is Phase.ENDING:
            return {}
        self._end = max(self._end, self._begin)
        return self._cut()

    def hear(self, worker: int, report: Report, *, stop: Callable[[], bool]) -> Orders:
        if report.is_ in {"done", "failed"}:
            return self._handed_over(worker, report)
        if self._phase is Phase.ENDING:
            return {}
        if stop():
            return self._stopped()
        if report.part is not None:
            return self._slice(report.part)
        if report.is_ == "dead":
            return {} if self._phase is Phase.DRAINING else self._give_up(report.because)
        return self._together(worker, drained=report.is_ == "drained")

    def _together(self, worker: int, *, drained: bool) -> Orders:
        there = self._drained if drained else self._ready
        there.add(worker)
        if there != self._living:
            return {}
        return self._cut() if drained else self._start()

    def _start(self) -> Orders:
        self._at = self._begin = perf_counter() + self._lead_seconds
        return self._all(Order(do="start", at=self._at))

    def _all(self, order: Order) -> Orders:
        return dict.fromkeys(self._living, order)

    def _slice(self, part: Part) -> Orders:
        parts = self._parts[part.place]
        parts.append(part)
        if len(parts) < self._workers:
            return {}
        del self._parts[part.place]
        one = Slice(
            begin=self._at + part.place * self._job.slice_seconds,
            seconds=self._job.slice_seconds,
            requests=sum(p.requests for p in parts),
            failed=sum(p.failed for p in parts),
            output_tokens=round(sum(p.tokens for p in parts)),
            ttft_sum=sum(p.ttft_sum for p in parts),
            e2el_sum=sum(p.e2el_sum for p in parts),
        )
        if self._phase is Phase.WARMING:
            return self._warmed(one, [e2el for p in parts for e2el in p.latencies])
        return self._seen(one, idle=all(p.idle for p in parts))

    def _warmed(self, one: Slice, latencies: Sequence[float]) -> Orders:
        self._slices.append(one)
        self._tell(Phase.WARMING)
        ramped = self._at + self._job.ramp_seconds
        end = one.begin + one.seconds
        if one.begin >= ramped:
            self._settling.add(one.requests, latencies)
        if self._settling.settled or end >= ramped + self._job.warmup_max_seconds:
            self._phase = Phase.MEASURING
            self._begin = end
            self._slices = []
        return {}

    def _may_end(self) -> bool:
        """Whether requests began in the window: a slot begins one only when it has an answer.

        So where answers take longer than warm-up and window, the window waits for them.
        """
        job, ended = self._job, sum(one.requests + one.failed for one in self._slices)
        if job.requests_per_second is None and ended < min(job.concurrency or 1, job.min_requests):
            return False
        return self._end - self._begin >= job.max_seconds or self._enough(self._slices)

    def _seen(self, one: Slice, *, idle: bool) -> Orders:
        if self._phase is Phase.MEASURING:
            self._slices.append(one)
            self._end = one.begin + one.seconds
        self._tell(self._phase)
        if self._phase is Phase.DRAINING:
            return {}
        if self._once:
            return self._cut() if idle else {}
        if self._may_end():
            self._phase = Phase.DRAINING
            return self._all(Order(do="end", begin=self._begin, end=self._end))
        return {}

    def _stopped(self) -> Orders:
        if self._phase is Phase.WARMING:
            return self._give_up("It was stopped before its window began.")
        return self._cut()

    def _give_up(self, because: str) -> Orders:
        self._failed = self._failed or because
        return self._cut()

    def _cut(self) -> Orders:
        if self._phase is Phase.WARMING:
            self._end = self._begin
        self._phase = Phase.ENDING
        return self._all(Order(do="cut", begin=self._begin, end=self._end))

    def _handed_over(self, worker: int, report: Report) -> Orders:
        self._living.discard(worker)
        self._disk_full |= report.disk_full
        if report.health is None:
            return self._give_up(report.because)
        file = Path(report.file)
        part = load(file)
        if report.ahead_seconds:
            part = part.on_our_clock(report.ahead_seconds)
        if sum(map(len, (*self._samples, part))) > HELD_ROWS:
            if report.ahead_seconds:
                with room(file):
                    part.save(file)
            self._files.append(file)
        else:
            self._samples.append(part)
            file.unlink()
        self.health[worker] = report.health
        return {}

    def measured(self) -> Measured:
        """Give what was measured, once it is over.

        Raises:
            DiskFull: A worker could not write its samples.
        """
        if self._disk_full:
            raise DiskFull(
                f"There is no room for the samples of {self._job.cell}.",
                fix="Free some space, then resume the run.",
                cause=self._failed or str(self._job.samples_file),
            )
        return Measured(
            samples=merged(self._samples or [Rows().samples(0)]),
            window_begin=self._begin,
            window_end=max(self._end, self._begin),
            settled=self._settling.settled,
            client=view(tuple(self.health.values())),
            slices=() if self._begin == self._end else tuple(self._slices),
            started_at=self._started_at,
            wall_seconds=perf_counter() - self._began,
            failed=self._failed,
            files=tuple(self._files),
        )


def view(health: Sequence[Health]) -> ClientView:
    """Of several workers the worst counts; their memory is added up."""
    names = dict.fromkeys(name for one in health for name in one.error_bounds)
    lags = ("loop_lag_p99_5_seconds", "send_lateness_p99_seconds", "cpu_wait_p99_5_seconds")
    fields = ("cpu_share", *lags)
    return ClientView(
        workers=len(health),
        error_bounds={n: max(h.error_bounds.get(n, 0.0) for h in health) for n in names},
        **{name: max((getattr(h, name) for h in health), default=0.0) for name in fields},
        memory_mib=sum(h.memory_mib for h in health),
        clock_step_seconds=max((h.clock_step_seconds for h in health), key=abs, default=0.0),
    )
