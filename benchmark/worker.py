"""One process of load: `python -m benchmark.worker`, spoken to over its pipes."""

import asyncio
import errno
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final, Literal, NamedTuple

import numpy as np
import orjson
import uvloop

from benchmark.loads import Alarm, Arriving, Closed, Job, Open, Wire, raise_file_limit
from benchmark.samples import Floats, Outcome, Samples
from benchmark.wire import Rows
from core.errors import OpsError
from core.redaction import one_line, redact

LATENCIES: Final = 256
"""Of one slice, at most, for telling whether latency has settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Fleet to worker."""

    do: Literal["prepare", "start", "end", "cut"]
    job: Job | None = None
    """Of `prepare`."""
    at: float = 0.0
    """Of `start`: the common moment, on the monotonic clock."""
    begin: float = 0.0
    """Of `end`: the window."""
    end: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One worker's part of a slice."""

    place: int
    """Of the slice, from 0 at the start."""
    requests: int
    failed: int
    tokens: float
    ttft_sum: float
    e2el_sum: float
    latencies: Sequence[float]
    """A few E2EL of it, in seconds, evenly chosen."""
    idle: bool
    """Whether nothing is under way that was due before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How well one worker was over the window."""

    error_bounds: dict[str, float]
    """See `ClientView.error_bounds`."""
    cpu_share: float
    loop_lag_p99_5_seconds: float
    send_lateness_p99_seconds: float
    cpu_wait_p99_5_seconds: float
    memory_mib: float
    clock_step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Worker to fleet."""

    is_: Literal["ready", "slice", "drained", "dead", "done", "failed"]
    part: Part | None = None
    because: str = ""
    """Of `dead` and `failed`."""
    disk_full: bool = False
    health: Health | None = None
    """Of `done`."""
    file: str = ""
    ahead_seconds: float = 0.0
    """How far the clock of the file's times is ahead of ours: it is a node's."""


def line(said: Order | Report) -> bytes:
    return orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)


def order(text: bytes) -> Order:
    said = orjson.loads(text)
    job = said.pop("job")
    return Order(**said, job=job and Job(**job))


def report(text: bytes) -> Report:
    said = orjson.loads(text)
    part, health = said.pop("part"), said.pop("health")
    return Report(**said, part=part and Part(**part), health=health and Health(**health))


Delay = Callable[[Floats], Floats]
_DRAINED_SECONDS: Final = 0.004
"""After a stall, within which the loop has stamped what waited: one round over its sockets, by
when the next ring tells whether that was stalled as well."""
_PERCENTILES: Final = (50, 90, 95, 99)
"""As a `Distribution` has them; its own module would load pydantic into every worker."""


def delays(rang: Floats, stalled: Floats) -> Delay:
    """Return the function that bounds how late a stamp is, by the pulse around it.

    Whatever came since the last ring can have waited no longer than since then, and no longer than
    the stall that the next ring tells of. What came before that ring is stamped in the
    round after the stall, and has waited through the ring's own stall as well.
    """
    after = np.append(stalled, 0.0)
    before = np.insert(stalled, 0, 0.0)
    rings = np.insert(rang, 0, -np.inf)

    def of(stamps: Floats) -> Floats:
        place = np.searchsorted(rang, stamps)
        since = stamps - rings[place]
        right_after = since <= after[place] + _DRAINED_SECONDS
        waited = np.minimum(after[place], since) + np.where(right_after, before[place], 0.0)
        return np.asarray(waited, dtype=np.float64)

    return of


def error_bounds(
    samples: Samples, delay: Delay, *, begin: float, end: float, scheduled: bool = False
) -> dict[str, float]:
    """Return for each figure, such as `ttft_p50`, how many seconds the client may have moved it.

    Each stamp is at most so late as `delay` says, so the figure lies between those of the earliest
    and of the latest times that the stamps allow. Where a schedule does not wait for a connection
    (`scheduled`), opening one is no lateness of the client's.
    """
    begun = (begin <= samples.intended) & (samples.intended < end)
    rows = samples.rows(begun & (samples.outcome == Outcome.OK))
    late = rows.sent - rows.intended
    if scheduled:
        late = late - np.nan_to_num(rows.connect_seconds)
    first, last = delay(rows.first_token), delay(rows.last_token)
    several = rows.output_tokens > 1
    steps = (rows.output_tokens - 1)[several]
    ends = _event_ends(rows)
    gaps = rows.gaps.astype(np.float64)
    never = np.zeros(len(rows))
    times = {
        "ttft": (rows.first_token - rows.intended, first + late, never),
        "e2el": (rows.last_token - rows.intended, last + late, never),
        "tpot": (
            (rows.last_token - rows.first_token)[several] / steps,
            last[several] / steps,
            first[several] / steps,
        ),
        "itl": (gaps, delay(ends), delay(ends - gaps)),
    }
    return {
        f"{name}_{point}": seconds
        for name, (claimed, over, under) in times.items()
        for point, seconds in _moved(claimed, over, under).items()
    }


def _event_ends(rows: Samples) -> Floats:
    """Return when each event came that ended a gap."""
    total = np.cumsum(rows.gaps, dtype=np.float64)
    before = np.concatenate([[0.0], total])[np.cumsum(rows.gap_counts) - rows.gap_counts]
    return np.asarray(total + np.repeat(rows.first_token - before, rows.gap_counts))


def _moved(claimed: Floats, over: Floats, under: Floats) -> Mapping[str, float]:
    """Return how far each point of a distribution may be off, above or below."""
    if not len(claimed):
        return {}
    least, most = _points(claimed - over), _points(claimed + under)
    return {
        name: max(value - least[name], most[name] - value)
        for name, value in _points(claimed).items()
    }


def _points(values: Floats) -> Mapping[str, float]:
    found = np.percentile(values, _PERCENTILES, method="inverted_cdf")
    points = {f"p{each}": float(value) for each, value in zip(_PERCENTILES, found, strict=True)}
    return {"mean": float(values.mean()), **points}


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


class Clocks(NamedTuple):
    """The wall clock, read between two readings of the monotonic clock."""

    before: float
    wall: float
    after: float


def step_seconds(readings: Sequence[Clocks]) -> float:
    """Return how far the wall clock surely stepped: what no delay between two readings explains.

    A process that stands still between two readings, as on a busy machine, makes them less exact;
    it never makes a step.

    >>> step_seconds([Clocks(1.0, 51.0, 1.0), Clocks(2.0, 52.125, 2.125), Clocks(3.0, 53.0, 3.0)])
    0.0
    >>> step_seconds([Clocks(1.0, 51.0, 1.0), Clocks(2.0, 50.0, 2.5), Clocks(3.0, 51.0, 3.0)])
    -2.0
    """
    high = max(readings, key=lambda one: one.wall - one.after)
    low = min(readings, key=lambda one: one.wall - one.before)
    step = (high.wall - high.after) - (low.wall - low.before)
    if step <= 0:
        return 0.0
    return step if low.before < high.before else -step


class _Look(NamedTuple):
    at: float
    cpu_seconds: float
    clocks: Clocks
    memory_bytes: int


class _RunQueue:
    """How long this process stood ready to run while others had the CPU, as Linux counts it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/proc/self/schedstat", os.O_RDONLY)
        except OSError:
            self._fd = -1

    def waited_seconds(self) -> float:
        return 0.0 if self._fd < 0 else int(os.pread(self._fd, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
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
        self._due = self._rang = at
        self._waited = self._queue.waited_seconds()
        self._alarm.set(at)

    def close(self) -> None:
        self._alarm.close()
        self._queue.close()

    def look(self) -> None:
        at, used = perf_counter(), time.process_time()
        clocks = Clocks(perf_counter(), time.time(), perf_counter())
        self._looks.append(_Look(at, used, clocks, _memory_bytes()))

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
        answer = _nearest(stamps - samples.intended[inside], 50)
        # What began in the window is stamped after it too, as long as the last of it streams.
        over = float(np.nanmax(stamps, initial=end))
        # A stall across that end is known by the first ring after it.
        rings = [one for one in self._rings if begin < one.at <= over + one.late]
        # That is no more time to be exact in: of a window W and answers of length A, as many
        # stamps as come in max(W, A) at full load are spread over W + A.
        most = STALLED_SHARE * max(end - begin, answer)
        delay = delays(
            np.array([one.at for one in self._rings]),
            np.array([one.longest_stall for one in self._rings]),
        )
        return Health(
            error_bounds=error_bounds(samples, delay, begin=begin, end=end, scheduled=scheduled),
            cpu_share=(last.cpu_seconds - first.cpu_seconds) / max(last.at - first.at, 1e-9),
            loop_lag_p99_5_seconds=_exceeded([(r.late, r.seconds) for r in rings], most),
            send_lateness_p99_seconds=_nearest(late, 99),
            cpu_wait_p99_5_seconds=_exceeded([(r.cpu_wait, r.seconds) for r in rings], most),
            memory_mib=max(one.memory_bytes for one in looks) / 2**20,
            clock_step_seconds=step_seconds([one.clocks for one in looks]),
        )


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


def _nearest(values: Floats, percent: int) -> float:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, percent, method="inverted_cdf")) if len(known) else 0.0


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


_DRAIN_LOOK_SECONDS: Final = 0.02
_WORDS: Final = 200
"""Characters of what an endpoint says when it refuses."""
REFRESH_SECONDS: Final = 1.0
"""How often the credential's file is looked at, at most."""


Tell = Callable[[Report], None]


Orders = Callable[[], Awaitable[Order]]
"""Waits for the fleet's next order; EOFError: it is gone."""


def say(report: Report) -> None:
    sys.stdout.buffer.write(line(report))
    sys.stdout.buffer.flush()


class Cell:
    """This worker's part of one cell."""

    def __init__(self, job: Job, tell: Tell) -> None:
        self._tell = tell
        self._job = job
        self._rows = Rows()
        self._wire = Wire(job)
        kind = Closed if job.arrivals in {"closed", "once"} else Open
        self._load: Arriving = kind(job, self._rows, self._wire)
        self._pulse = Pulse()
        self._told = (0, 0, 0.0, 0.0, 0.0)

    async def run(self, orders: Orders) -> None:
        await self._load.prepare()
        self._tell(Report(is_="ready"))
        order = await orders()
        with no_collection():
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._ticking(order.at))
                if order.do == "start":
                    self._load.start(order.at)
                    self._pulse.start(order.at)
                    order = await self._until_cut(orders)
                ticking.cancel()
            await self._load.cut()
            self._pulse.look()
            self._pulse.close()
        self._hand_over(order)

    async def _until_cut(self, orders: Orders) -> Order:
        while (order := await orders()).do != "cut":
            self._load.pool.spawn(self._drain(order.begin, order.end))
        return order

    async def _drain(self, begin: float, end: float) -> None:
        """Wait for what is measured; what an overloaded engine has let lie since before is not."""
        while self._load.unended(end, begin):  # noqa: ASYNC110  an event would cost every request
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        self._tell(Report(is_="drained"))

    async def _ticking(self, start: float) -> None:
        index = 0
        every = self._job.slice_seconds
        refreshed = start
        while True:
            await asyncio.sleep(start + index * every - perf_counter())
            now = perf_counter()
            self._pulse.look()
            self._load.sweep(now)
            if index:
                self._tell(Report(is_="slice", part=self._part(index - 1, now)))
                self._look_for_death(now)
            if now >= refreshed + REFRESH_SECONDS:
                self._wire.refresh()
                refreshed = now
            index += 1

    def _part(self, index: int, now: float) -> Part:
        rows, before = self._rows, self._told
        flying = sum(len(c.times) for c in self._load.pool.connections if c.busy)
        tokens = rows.tokens + rows.tokens_of(flying)
        self._told = (rows.requests, rows.failed, tokens, rows.ttft_sum, rows.e2el_sum)
        requests, failed, made, ttft, e2el = (
            a - b for a, b in zip(self._told, before, strict=True)
        )
        latencies = rows.latencies[:: len(rows.latencies) // LATENCIES + 1]
        rows.latencies.clear()
        return Part(
            place=index,
            requests=int(requests),
            failed=int(failed),
            tokens=made,
            ttft_sum=ttft,
            e2el_sum=e2el,
            latencies=latencies,
            idle=not self._load.unended(now),
        )

    def _look_for_death(self, now: float) -> None:
        load = self._load
        waited = now - load.last_answer
        if waited < self._job.patience_seconds or not self._rows.failed:
            return
        if any(
            c.busy and c.intended < now - self._job.slice_seconds for c in load.pool.connections
        ):
            return
        said = self._rows.last_words.decode(errors="replace")
        words = f', which says "{redact(one_line(said, _WORDS))}"' if said else ""
        last = load.last_words or f"{self._rows.last_failure} of {self._job.path}{words}"
        because = f"No request was answered for {waited:.1f} s ({last})."
        self._tell(Report(is_="dead", because=because))

    def _hand_over(self, window: Order) -> None:
        job = self._job
        samples = self._rows.samples(job.worker)
        file = Path(job.samples_file) / f"{job.cell}.{job.worker}.npz"
        samples.save(file)
        health = self._pulse.over(
            samples,
            begin=window.begin,
            end=window.end,
            scheduled=job.arrivals not in {"closed", "once"},
        )
        self._tell(Report(is_="done", health=health, file=str(file)))


async def work(orders: Orders, tell: Tell) -> None:
    while True:
        order = await orders()
        if order.do != "prepare" or order.job is None:
            continue
        try:
            await Cell(order.job, tell).run(orders)
        except OpsError as exc:
            tell(Report(is_="failed", because=f"{exc.summary} {exc.fix}"))
        except OSError as exc:
            full = exc.errno in {errno.ENOSPC, errno.EDQUOT}
            tell(Report(is_="failed", because=str(exc), disk_full=full))


async def main() -> None:
    """Read orders from stdin until it ends."""
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def next_order() -> Order:
        line = await reader.readline()
        if not line:
            raise EOFError
        return order(line)

    with suppress(EOFError):
        await work(next_order, say)


if __name__ == "__main__":
    # Ctrl-C is for the sweep, which ends its cell and then us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    uvloop.run(main())
    os._exit(0)  # taking the interpreter apart takes 15 ms, and nothing is left to be written
