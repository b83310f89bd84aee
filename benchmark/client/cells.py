"""One cell through all workers: what is ordered when, and what becomes of what they report."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Final

from benchmark.client.jobs import Job
from benchmark.client.rows import Rows
from benchmark.client.settling import Settling
from benchmark.client.words import Health, Order, Part, Report
from benchmark.measured import Measured, Slice
from benchmark.records import Arrivals, ClientView
from benchmark.samples import Samples, load, merged
from core.errors import DiskFull

_LEAD_SECONDS: Final = 0.1
"""From the order to start until the common moment."""
_LOG_TAIL_BYTES: Final = 2000

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
        tell: Callable[[str, Sequence[Slice]], None],
    ) -> None:
        self._job = job
        self._workers = workers
        self._enough = enough
        self._tell = tell
        self._once = job.load.arrivals is Arrivals.ONCE
        self._phase = Phase.MEASURING if self._once else Phase.WARMING
        self._settling = Settling(job.load.concurrency or max(round(_rate(job)), 1))
        self._started_at = datetime.now(UTC)
        self._began = perf_counter()
        self._at = self._begin = self._end = self._began
        self._ready: set[int] = set()
        self._drained: set[int] = set()
        self._living = set(range(workers))
        self._parts: dict[int, list[Part]] = defaultdict(list)
        self._slices: list[Slice] = []
        self._samples: list[Samples] = []
        self._health: list[Health] = []
        self._failed: str | None = None
        self._disk_full = False

    @property
    def over(self) -> bool:
        """Whether every worker has handed over, or is gone."""
        return not self._living

    def prepare(self) -> Orders:
        """Give the first orders."""
        return {
            number: Order(do="prepare", share=self._job.share(number, self._workers))
            for number in range(self._workers)
        }

    def died(self, worker: int, log_file: Path) -> Orders:
        """Give the cell up: a part of its load, and of its samples, is gone."""
        self._living.discard(worker)
        tail = log_file.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        last = tail.splitlines()[-1] if tail else "it said nothing"
        return self._give_up(f"Worker {worker} died: {last}")

    def hear(self, worker: int, report: Report, *, stop: Callable[[], bool]) -> Orders:
        """Give what follows from a report."""
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
        """Go on when all workers have come so far."""
        there = self._drained if drained else self._ready
        there.add(worker)
        if there != self._living:
            return {}
        return self._cut() if drained else self._start()

    def _start(self) -> Orders:
        self._at = self._begin = perf_counter() + _LEAD_SECONDS
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
        self._tell(Phase.WARMING, self._slices)
        ramped = self._at + self._job.ramp_seconds
        end = one.begin + one.seconds
        if one.begin >= ramped:
            self._settling.add(one.requests, latencies)
        if self._settling.settled or end >= ramped + self._job.stop.warmup_max_seconds:
            self._phase = Phase.MEASURING
            self._begin = end
            self._slices = []
        return {}

    def _may_end(self) -> bool:
        """Whether requests began in the window: a slot begins one only when it has an answer.

        So where answers take longer than warm-up and window, the window waits for them.
        """
        load, stop = self._job.load, self._job.stop
        ended = sum(one.requests + one.failed for one in self._slices)
        if load.requests_per_second is None and ended < min(
            load.concurrency or 1, stop.min_requests
        ):
            return False
        return self._end - self._begin >= stop.max_seconds or self._enough(self._slices)

    def _seen(self, one: Slice, *, idle: bool) -> Orders:
        if self._phase is Phase.MEASURING:
            self._slices.append(one)
            self._end = one.begin + one.seconds
        self._tell(self._phase, self._slices)
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
        self._samples.append(load(file))
        file.unlink()
        self._health.append(report.health)
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
                cause=str(self._job.samples_file),
            )
        return Measured(
            samples=merged(self._samples or [Rows().samples(0)]),
            window_begin=self._begin,
            window_end=max(self._end, self._begin),
            settled=self._settling.settled,
            client=_view(self._health),
            slices=() if self._begin == self._end else tuple(self._slices),
            started_at=self._started_at,
            wall_seconds=perf_counter() - self._began,
            failed=self._failed,
        )


def _rate(job: Job) -> float:
    return job.load.requests_per_second or 1.0


def _view(health: Sequence[Health]) -> ClientView:
    """Of several workers the worst counts."""
    return ClientView(
        workers=len(health),
        error_bounds={
            name: max(h.error_bounds.get(name, 0.0) for h in health)
            for name in dict.fromkeys(name for h in health for name in h.error_bounds)
        },
        cpu_share=max((h.cpu_share for h in health), default=0.0),
        loop_lag_p99_5_seconds=max((h.loop_lag_p99_5_seconds for h in health), default=0.0),
        send_lateness_p99_seconds=max((h.send_lateness_p99_seconds for h in health), default=0.0),
        cpu_wait_p99_5_seconds=max((h.cpu_wait_p99_5_seconds for h in health), default=0.0),
        memory_mib=sum(h.memory_mib for h in health),
        clock_step_seconds=max((h.clock_step_seconds for h in health), key=abs, default=0.0),
    )
