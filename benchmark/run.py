"""A run from wherever it is to its end: which cell comes next, how it is measured."""

import logging
import math
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import anyio
from pydantic import SecretStr

from benchmark import cluster, figures, profiles, report, samples
from benchmark.advice import Row
from benchmark.client import Fleet
from benchmark.folder import RunFolder
from benchmark.loads import Job
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Load,
    Manifest,
    Measured,
    Progress,
    RunPlan,
    RunState,
    Slice,
    Subject,
    Verdict,
    figure,
    percent,
    usd,
)
from benchmark.server import Seen, Watch, look, read_look, view_of
from benchmark.workload import read, refused_fields, sha256
from core.endpoint import Endpoint
from core.errors import (
    Busy,
    DiskFull,
    EndpointError,
    InvalidArgument,
    OpsError,
    Unauthorized,
    WaitedTooLong,
)
from core.records import Access
from core.waiting import wait_until


class Accounts:
    """Of one run; what earlier processes spent on it counts as well, as far as they told.

    Times are seconds on `clock`. Looks, pauses, reports and cells that were lost are paid for like
    those that were measured.
    """

    def __init__(
        self,
        manifest: Manifest,
        done: Sequence[CellResult],
        told: Progress | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manifest = manifest
        spent = sum(cell.wall_seconds or 0.0 for cell in done)
        self._before = max(spent, told.elapsed_seconds if told else 0.0)
        self._clock: Final = clock
        self._began = clock()

    @property
    def elapsed_seconds(self) -> float:
        return self._before + self._clock() - self._began

    @property
    def usd_so_far(self) -> float | None:
        """By the first source; None where no price is known."""
        price = self._manifest.provenance.usd_per_hour
        return None if price is None else price * self.elapsed_seconds / 3600

    def over_budget(self, more_seconds: float = 0.0) -> str | None:
        """Say which budget is used up, or would be by so much more; None while there is room."""
        plan, seconds = self._manifest.plan, self.elapsed_seconds + more_seconds
        would = "would be" if more_seconds else "is"
        known = self._manifest.provenance
        hourly = known.usd_per_hour_highest or known.usd_per_hour
        cost = None if hourly is None else hourly * seconds / 3600
        spent = used_up(plan.max_minutes, seconds, plan.max_cost_usd, cost)
        return spent and f"The budget of {spent} {would} used up."

    def next_cell_seconds(self, done: Sequence[CellResult]) -> float:
        """Guess how long the next cell takes: as its neighbour, else the least it can."""
        return next(_walls(reversed(done)), self._manifest.plan.stop.min_seconds)

    def foresee(
        self, done: Sequence[CellResult], *, in_cell_seconds: float
    ) -> tuple[int | None, float | None]:
        """Give how many cells there are and the seconds left, `in_cell_seconds` into the present
        one; None where one depends on the other.
        """
        plan, subject, stop = self._manifest.plan, self._manifest.subject, self._manifest.plan.stop
        if plan.profile == "find-capacity":
            return None, None
        specs = list(grid_specs(plan))
        decided = {cell.spec for cell in done}
        left = [s for s in specs if s not in decided and not too_long(plan, subject, s)]
        measured = list(_walls(done))
        guess = (stop.min_seconds + stop.max_seconds + stop.warmup_max_seconds) / 2
        each = sum(measured) / len(measured) if measured else guess
        return len(specs), max(0.0, len(left) * each - min(in_cell_seconds, each))


def used_up(
    minutes: float | None, seconds: float, most: float | None, cost: float | None
) -> str | None:
    """Say which limit, of minutes or of dollars, is reached; None while there is room."""
    if minutes is not None and seconds >= minutes * 60:
        return f"{figure(minutes)} minutes"
    return usd(most) if most is not None and cost is not None and cost >= most else None


def _walls(done: Iterable[CellResult]) -> Iterator[float]:
    return (c.wall_seconds for c in done if c.wall_seconds and c.state is not CellState.SKIPPED)


_STATE_TRIES: Final = 40


def state_of(folder: RunFolder) -> Progress:
    """Say how far a run is; one whose process is gone is interrupted, whatever it wrote last.

    Raises:
        NotFound: This is no run's folder.
    """
    seen = folder.progress()
    for _ in range(_STATE_TRIES):
        measured, before, seen = folder.is_measured_now(), seen, folder.progress()
        if seen == before:  # else it began or ended while we looked
            break
    known = seen or Progress(
        state=RunState.RUNNING,
        cells_done=len(folder.cells()),
        elapsed_seconds=0.0,
        updated_at=folder.manifest().created_at,
    )
    if measured:
        return known.model_copy(update={"state": RunState.RUNNING, "reason": None})
    if known.state is not RunState.RUNNING:
        return known
    lost = {"state": RunState.INTERRUPTED, "doing": None, "eta_seconds": None}
    return known.model_copy(update={**lost, "reason": "Its process is gone; `resume` goes on."})


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """Asked between cells and, a few times a second, within them."""

    def __init__(self, folder: RunFolder, over_budget: Callable[..., str | None]) -> None:
        self._folder = folder
        self._over_budget = over_budget
        self.reason: str | None = None
        """The first one; None while nobody asked."""
        self.at_once = False
        """Asked twice: not even a report is wanted."""

    def asked(self) -> bool:
        """Whether the sweep is to end now."""
        if self.reason is None and self._folder.stop_file.exists():
            self.reason = "It was asked to stop."
        if self.reason is None:
            self.reason = self._over_budget()
        return self.reason is not None

    def foresees(self, cell_seconds: float) -> bool:
        """Whether a cell of so many seconds would use up a budget."""
        if not self.asked():
            self.reason = self._over_budget(cell_seconds)
        return self.reason is not None

    async def listen(self, order: Callable[[], object]) -> None:
        """Take the first signal as a request, every further one as an order."""
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            async for number in signals:
                if self.reason is not None:
                    self.at_once = True
                    order()
                self.reason = self.reason or f"It was ended by {signal.Signals(number).name}."


GAIN: Final = 0.03
"""Less is within what a cell's interval leaves open."""
_STEPS: Final = 2
"""One flat step may be chance."""
_GROWTH: Final = 4.0
"""Over both steps: two doublings."""


def next_grid_cell(
    plan: RunPlan, subject: Subject, done: Sequence[CellResult]
) -> CellSpec | CellResult | None:
    """Say what comes next: a cell to measure, one decided without measuring, None at the end."""
    decided = {cell.spec for cell in done}
    spec = next((spec for spec in grid_specs(plan) if spec not in decided), None)
    if spec is None:
        return None
    return too_long(plan, subject, spec) or _saturated(plan, done, spec) or spec


def grid_specs(plan: RunPlan) -> Iterator[CellSpec]:
    for context in sorted(set(plan.contexts)):
        for load in sorted(set(plan.loads), key=lambda load: load.order):
            yield CellSpec(context=context, load=load)


def too_long(plan: RunPlan, subject: Subject, spec: CellSpec) -> CellResult | None:
    """Give the skipped cell where one request alone is longer than the engine allows."""
    wanted, longest = plan.workload.output_tokens, subject.max_model_len
    if longest is None or plan.workload.dataset or spec.context + wanted <= longest:
        return None
    because = (
        f"{spec.context:,} prompt tokens and {wanted:,} output tokens are more than "
        f"max_model_len {longest:,}"
    )
    return _skipped(spec, Code.LENGTH_CAPPED, because)


def _saturated(plan: RunPlan, done: Sequence[CellResult], spec: CellSpec) -> CellResult | None:
    if not plan.stop_saturated or spec.load.arrivals is not Arrivals.CLOSED:
        return None
    measured = [
        cell
        for cell in done
        if cell.spec.context == spec.context
        and cell.spec.load.arrivals is spec.load.arrivals
        and cell.state is not CellState.SKIPPED
    ][-1 - _STEPS :]
    row = Row(spec.context, spec.load.arrivals, tuple(measured))
    rates = [row.throughput(cell) for cell in row.cells]
    # The throughput of a spoiled cell, such as a slow client's, is not the engine's.
    if len(rates) <= _STEPS or not all(rates) or not all(cell.valid for cell in row.cells):
        return None
    base, last = row.cells[0], row.cells[-1]
    grown, size = last.spec.load.size / base.spec.load.size, spec.load.size
    best = max(rates[1:])
    if grown < _GROWTH or size <= last.spec.load.size or best > (1 + GAIN) * rates[0]:
        return None
    because = (
        f"throughput grew by {percent(max(0.0, best / rates[0] - 1))} from "
        f"{base.spec.load.label} to {last.spec.load.label} users, limit {percent(GAIN)}; "
        f"{last.id} stands for it with {figure(rates[-1])} {row.unit}"
    )
    return _skipped(spec, Code.SATURATED_ROW, because)


def _skipped(spec: CellSpec, code: Code, because: str) -> CellResult:
    return CellResult(
        spec=spec,
        state=CellState.SKIPPED,
        reason=f"{because[0].upper()}{because[1:]}.",
        verdicts=(Verdict(code=code, because=because),),
    )


RESOLUTION: Final = 0.05
"""Of the answer; single users are told apart as well."""
MOST_USERS: Final = 16_384
MOST_PER_SECOND: Final = 100_000.0
_DEPTH: Final = 2.0**-8
"""How far below the first rate it is looked for, as a share of it."""
_DIGITS: Final = 4
"""Of a rate: loads that are 5 % apart stay apart, and ids stay short."""


class Bracket(NamedTuple):
    """Where the answer lies."""

    holds: float | None
    """The highest load within the limits, below every one that was not."""
    fails: float | None
    """The lowest load that was not."""


def next_search_cell(
    plan: RunPlan, subject: Subject, done: Sequence[CellResult]
) -> CellSpec | CellResult | None:
    """Say what comes next: a cell to measure, one decided without measuring, None at the end."""
    first = plan.loads[0]
    counted = "concurrency" if first.requests_per_second is None else "requests_per_second"
    for context in sorted(set(plan.contexts)):
        row = [cell for cell in done if cell.spec.context == context]
        if any(cell.state is CellState.SKIPPED for cell in row):
            continue
        if row and _missed_cold(plan, row):
            return row[-1].spec
        size = _next_size(plan, row)
        if size is not None:
            load = first.model_copy(update={counted: size})
            spec = CellSpec(context=context, load=load)
            return too_long(plan, subject, spec) or spec
    return None


_ONLY_WORSE: Final = frozenset({Code.TOO_FEW_SAMPLES, Code.COLD, Code.OTHER_LOAD})
"""What leaves a cell's latencies no better than they are: limits that it keeps are kept."""


def _keeps_limits(plan: RunPlan, cell: CellResult) -> bool:
    return cell.goodput_share is not None and cell.goodput_share >= plan.attainment


def _missed_cold(plan: RunPlan, row: Sequence[CellResult]) -> bool:
    """Whether the last load missed the limits while the engine was cold: it is asked once more.

    Of open loops that is the first alone: above what an engine can serve, latency never settles.
    """
    last = row[-1]
    cold = any(verdict.code is Code.COLD for verdict in last.verdicts)
    may_settle = last.spec.load.arrivals is Arrivals.CLOSED or len(row) == 1
    once = sum(cell.spec == last.spec for cell in row) == 1
    return cold and may_settle and once and not _keeps_limits(plan, last)


def bracket(plan: RunPlan, row: Sequence[CellResult]) -> Bracket:
    def holds(cell: CellResult) -> bool:
        spoiled = any(v.spoils and v.code not in _ONLY_WORSE for v in cell.verdicts)
        return not spoiled and _keeps_limits(plan, cell)

    tried = {cell.spec.load.size: holds(cell) for cell in row}
    fails = min((size for size, held in tried.items() if not held), default=None)
    below = (s for s, held in tried.items() if held and (fails is None or s < fails))
    return Bracket(max(below, default=None), fails)


def _next_size(plan: RunPlan, row: Sequence[CellResult]) -> float | int | None:
    """Double until one fails, halve until one holds, then look between them; users are whole."""
    first, (holds, fails) = plan.loads[0], bracket(plan, row)
    by_users = first.requests_per_second is None
    most = MOST_USERS if by_users else MOST_PER_SECOND
    if not row:
        size = first.size
    elif fails is None:
        if (holds or 1.0) >= most:
            return None
        size = min(2 * (holds or 1.0), most)
    elif holds is None:
        lowest = min(row, key=lambda cell: cell.spec.load.size)
        few = any(verdict.code is Code.TOO_FEW_SAMPLES for verdict in lowest.verdicts)
        if few and _keeps_limits(plan, lowest):
            return None  # what spoils so low a load is not the load
        if fails <= (1.0 if by_users else first.size * _DEPTH):
            return None
        size = fails / 2
    else:
        if fails <= holds * (1 + RESOLUTION) or (by_users and fails - holds <= 1):
            return None
        size = (holds + fails) / 2
    if by_users:
        return int(size)
    return size if fails is None else float(f"{size:.{_DIGITS}g}")


CONNECTIONS_PER_WORKER: Final = 512
REQUESTS_PER_SECOND_OF_A_WORKER: Final = 5_000
"""An eighth of what one core can begin: open loops are judged by how late they send."""
PATIENCE_SECONDS: Final = 120.0
"""For an endpoint that has stopped answering between two cells: a small engine boots in less."""
_START_PATIENCE_SECONDS: Final = 10.0
_MOST_WORKERS: Final = 65_536
"""Of a cluster, whose nodes have as many as they have cores."""
_IDLE_SECONDS: Final = 15.0
_IDLE_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 1.0
_WAITING: Final = "waiting for the endpoint"
_LOCK_TRIES: Final = 10
_LOCK_SECONDS: Final = 0.03
OF_THE_RULE: Final = {
    "min_requests",
    "max_seconds",
    "warmup_max_seconds",
    "request_timeout_seconds",
}
_PATHS: Final = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
_log = logging.getLogger(__name__)


class Measures(Protocol):
    """What puts the load on: `benchmark.client.Fleet`."""

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> Measured:
        """Measure one cell until it is enough or the stop is wanted."""


Crew = Callable[[int, Path], AbstractAsyncContextManager[Measures]]
"""Workers by their number and the file that they log to."""
Show = Callable[[CellResult, Progress], None]
"""Told of each cell that is over."""


class End(NamedTuple):
    """How a sweep came to its end."""

    state: RunState
    reason: str | None = None
    error: OpsError | None = None
    """Why it failed."""


@asynccontextmanager
async def opened(folder: RunFolder, base_url: str) -> AsyncIterator[Endpoint]:
    key, identity = folder.credential(), folder.identity()
    access = Access(
        base_url=base_url,
        api_key=SecretStr(key) if key else None,
        identity_token=SecretStr(identity) if identity else None,
        certificate=folder.certificate(),
        protection="as its owner set it",
    )
    async with aclosing(Endpoint(access)) as endpoint:
        yield endpoint


async def _idle(endpoint: Endpoint) -> Endpoint:
    """Wait until what an earlier cell has cut has left the engine; who stays there is another."""

    async def at_work() -> float:
        try:
            look = read_look(await endpoint.metrics_text(), at=0.0)
        except EndpointError:
            return 0
        return sum(look.gauges.get(name, 0) for name in ("running", "waiting")) if look else 0

    with suppress(WaitedTooLong):
        await wait_until(
            at_work,
            lambda requests: requests == 0,
            waiting_for="the engine to have nothing to do",
            every=_IDLE_LOOK_SECONDS,
            timeout=_IDLE_SECONDS,
        )
    return endpoint


def workers_for(load: Load, wanted: int | None, *, cores: int) -> int:
    """Say how many processes put a load on.

    >>> [workers_for(Load(concurrency=c), None, cores=2) for c in (1, 512, 513, 2048)]
    [1, 1, 2, 2]
    """
    if wanted is not None:
        return wanted
    users = math.ceil((load.concurrency or 1) / CONNECTIONS_PER_WORKER)
    rate = math.ceil((load.requests_per_second or 1) / REQUESTS_PER_SECOND_OF_A_WORKER)
    return max(1, min(cores, max(users, rate)))


async def conclude(
    folder: RunFolder,
    *,
    show: Show | None = None,
    say: Callable[[str], object] = _log.warning,
    key: SecretStr | None = None,
    crew: Crew = Fleet,
    patience_seconds: float = PATIENCE_SECONDS,
) -> End:
    """Measure what is left of a run, write its reports, and say why it ended.

    It ends cleanly when the stop file is there, at the first SIGINT or SIGTERM and when a budget
    is used up; at a second signal at once. `key` is left for the workers once the run is ours.
    `say` is told what it waits for.

    Raises:
        NotFound: This is no run's folder.
        Busy: Another process measures it.
    """
    manifest = folder.manifest()
    async with AsyncExitStack() as held:
        for attempt in range(1, _LOCK_TRIES + 1):
            try:
                held.enter_context(folder.locked())
                break
            except Busy:  # whoever only asks whether it is measured holds it for an instant
                if attempt == _LOCK_TRIES:
                    raise
                await anyio.sleep(_LOCK_SECONDS)
        if key is not None:
            folder.keep_credential(key)
        return await _Sweep(folder, manifest, crew, patience_seconds, show, say).end()


class _Sweep:
    """Measures cell after cell, with the same workers as long as their number suits."""

    def __init__(
        self,
        folder: RunFolder,
        manifest: Manifest,
        crew: Crew,
        patience_seconds: float,
        show: Show | None,
        say: Callable[[str], object],
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._crew = crew
        self._patience = patience_seconds
        self._show = show
        self._say = say
        self._cells = list(folder.every_cell())
        self._accounts = Accounts(manifest, self._cells, folder.progress())
        self._ending = Ending(folder, self._accounts.over_budget)
        self._cell: CellSpec | None = None
        self._cell_began = 0.0
        self._doing: str | None = None
        self._hired = AsyncExitStack()
        self._workers = 0
        self._fleet: Measures
        self._joined: cluster.ClusterFleet | None = None

    async def end(self) -> End:
        self._tell(RunState.RUNNING)
        end = End(RunState.INTERRUPTED, "It was ended at once.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ending.listen, tasks.cancel_scope.cancel)
            tasks.start_soon(self._tell_on)
            end = await self._ended()
            tasks.cancel_scope.cancel()
        if not self._ending.at_once:
            self._folder.keep_credential(None)
            self._tell(end.state, end.reason)
        return end

    async def _ended(self) -> End:
        try:
            try:
                end = await self._go_on()
            finally:
                await self._hired.aclose()
                shutil.rmtree(self._folder.parts, ignore_errors=True)
        except OpsError as exc:
            end = _failed(exc)
        self._now(None, "reporting")
        try:
            await anyio.to_thread.run_sync(report.write_all, self._folder)
        except OpsError as exc:
            return end if end.error else _failed(exc)
        return end

    async def _go_on(self) -> End:
        plan, subject = self._manifest.plan, self._manifest.subject
        next_cell = next_search_cell if plan.profile == "find-capacity" else next_grid_cell
        await anyio.to_thread.run_sync(_require_dataset, plan)
        seen: Seen | None = None
        while (step := next_cell(plan, subject, self._cells)) is not None:
            if self._ending.asked():
                return End(RunState.STOPPED, self._ending.reason)
            if isinstance(step, CellResult):
                self._add(step)
            elif self._ending.foresees(self._accounts.next_cell_seconds(self._cells)):
                return End(RunState.STOPPED, self._ending.reason)
            else:
                seen = seen or await self._seen()
                await self._measure(step, seen)
                if any(map(_may_be_another, self._cells[-1:])):
                    seen = None
        return End(RunState.DONE)

    async def _measure(self, spec: CellSpec, seen: Seen) -> None:
        """Measure a cell and keep its samples; nothing where the stop came before it was enough."""
        self._now(spec, "beginning")
        self._folder.renew_parts()
        await self._until_it_answers()
        job = await self._in_its_terms(self._job(spec, seen))
        plan, subject = self._manifest.plan, self._manifest.subject
        measured, watch = await self._watched(job, spec.load)
        cell = figures.compute(
            spec,
            measured,
            server=view_of(
                watch.looks,
                begin=measured.window_begin,
                end=measured.window_end,
                sent=sum(map(len, measured.parts())),
            ),
            plan=plan,
            usd_per_hour=self._manifest.provenance.usd_per_hour,
        )
        if not self._ending.asked() or self._suffices(cell):
            samples.write(self._folder.samples_file(spec.id), measured.parts(), cell=spec.id)
            cell = figures.judged(
                cell, measured=measured, plan=plan, subject=subject, before=self._cells
            )
            if cell.state is CellState.FAILED:
                _log.warning("%s failed: %s", cell.id, cell.reason)
                # An engine that is gone for good fails the run; `resume` measures the cell again.
                await self._until_it_answers()
            self._add(cell)
        self._now(None, None)

    async def _watched(self, job: Job, load: Load) -> tuple[Measured, Watch]:
        plan = self._manifest.plan
        workers = workers_for(
            load, plan.workers, cores=profiles.cores() if plan.cluster is None else _MOST_WORKERS
        )
        if plan.cluster is not None:
            if self._joined is None:
                joining = cluster.joined(
                    plan.cluster,
                    self._manifest.base_url,
                    self._folder.log_file,
                    patience_seconds=self._patience,
                    say=self._say,
                )
                self._doing = "joining the cluster"
                self._joined = await self._hired.enter_async_context(joining)
            self._doing = "placing workers on the cluster"
            await self._joined.hire(workers)
            self._fleet = self._joined
        elif workers != self._workers:
            await self._hired.aclose()
            self._workers = 0
            crew = self._crew(workers, self._folder.log_file)
            self._fleet = await self._hired.enter_async_context(crew)
            self._workers = workers
        if load.arrivals is Arrivals.ONCE:
            # One burst is over before it could settle: one request goes before it, in no figure.
            await self._loaded(replace(job, concurrency=1))
        async with (
            opened(self._folder, self._manifest.base_url) as endpoint,
            Watch(await _idle(endpoint)) as watch,
        ):
            return await self._loaded(job), watch

    async def _loaded(self, job: Job) -> Measured:
        enough = figures.enough(self._manifest.plan.stop)
        return await self._fleet.measure(
            job, enough=enough, tell=self._heard, stop=self._ending.asked
        )

    def _job(self, spec: CellSpec, seen: Seen) -> Job:
        plan = self._manifest.plan
        ramp = plan.stop.ramp_seconds if spec.load.arrivals is Arrivals.CLOSED else 0.0
        key, certificate = self._folder.credential_file, self._folder.certificate_file
        return Job(
            cell=spec.id,
            base_url=self._manifest.base_url,
            path=_PATHS[plan.workload.api],
            credential_file=str(key) if key.exists() else None,
            ca_file=str(certificate) if certificate.exists() else None,
            **spec.load.model_dump(mode="json"),
            **plan.workload.model_dump(),
            **plan.stop.model_dump(include=OF_THE_RULE),
            context=spec.context,
            model=seen.subject.model,
            token_ids=seen.token_ids,
            words=seen.words,
            template_tokens=seen.subject.template_tokens,
            ramp_seconds=ramp,
            # By the clock, in microseconds: no request of an earlier cell, of an attempt that was
            # killed or of another run has the number, so none of their prompts comes again.
            first_request=time.time_ns() // 1000,
            samples_file=str(self._folder.parts),
        )

    def _suffices(self, cell: CellResult) -> bool:
        """Whether a cell that was broken off was long enough all the same."""
        rule, counts = self._manifest.plan.stop, cell.counts
        enough = (cell.window_seconds or 0.0) >= rule.min_seconds
        return enough and counts is not None and counts.succeeded >= rule.min_requests

    async def _seen(self) -> Seen:
        """Look at what is measured: it must be what it was, and may have been started anew."""
        patience = min(self._patience, _START_PATIENCE_SECONDS)
        deadline = anyio.current_time() + patience
        before = self._manifest.subject
        while True:
            try:
                async with opened(self._folder, self._manifest.base_url) as endpoint:
                    seen = await look(endpoint, before.model)
                break
            except EndpointError as exc:
                if not exc.retryable or anyio.current_time() >= deadline:
                    raise
                self._wait_for(exc, patience)
            await anyio.sleep(_LOOK_SECONDS)
        for name in ("max_model_len", "vllm_version"):
            was, now = getattr(before, name), getattr(seen.subject, name)
            if None not in {was, now} and was != now:
                raise InvalidArgument(
                    f"The endpoint is not what was measured so far: {name} is {now}, was {was}.",
                    fix="Begin a new run; what was measured is kept.",
                )
        began = seen.subject.process_start_time
        if began != before.process_start_time:
            self._note(process_start_time=began)
        return seen

    async def _in_its_terms(self, job: Job) -> Job:
        """Leave out what the endpoint does not take, which it is asked once in a run."""
        if self._manifest.subject.refuses is None:
            async with opened(self._folder, self._manifest.base_url) as endpoint:
                refuses = await refused_fields(endpoint, job)
            if refuses:
                self._say(f"The endpoint refuses {', '.join(refuses)}; it is asked without.")
            if refuses is not None:
                self._note(refuses=refuses)
        return replace(job, refuses=self._manifest.subject.refuses or ())

    def _note(self, **learned: object) -> None:
        """Keep in the manifest what was learned of the endpoint."""
        subject = self._manifest.subject.model_copy(update=learned)
        self._manifest = self._manifest.model_copy(update={"subject": subject})
        self._folder.create(self._manifest)

    async def _until_it_answers(self) -> None:
        """Wait for an endpoint that restarts, or for a credential that is renewed."""
        deadline = anyio.current_time() + self._patience
        while not self._ending.asked():
            try:
                async with opened(self._folder, self._manifest.base_url) as endpoint:
                    await endpoint.models()
            except EndpointError as exc:
                if not (exc.retryable or isinstance(exc, Unauthorized)):
                    raise
                if anyio.current_time() >= deadline:
                    raise _gone(exc, self._patience, self._cell) from exc
                self._wait_for(exc, self._patience)
                await anyio.sleep(_LOOK_SECONDS)
            else:
                return

    def _wait_for(self, error: EndpointError, seconds: float) -> None:
        if self._doing != _WAITING:
            self._doing = _WAITING
            self._say(f"Waiting {seconds:.0f} s at most for the endpoint. {error.summary}")

    def _add(self, cell: CellResult) -> None:
        self._folder.add(cell)
        self._cells.append(cell)
        progress = self._tell(RunState.RUNNING)
        if self._show:
            self._show(cell, progress)

    def _heard(self, doing: str) -> None:
        self._doing = doing
        self._tell(RunState.RUNNING)

    def _now(self, spec: CellSpec | None, doing: str | None) -> None:
        self._cell, self._doing = spec, doing
        self._cell_began = self._accounts.elapsed_seconds
        self._tell(RunState.RUNNING)

    async def _tell_on(self) -> None:
        while True:
            await anyio.sleep(_TELL_SECONDS)
            self._tell(RunState.RUNNING)

    def _tell(self, state: RunState, reason: str | None = None) -> Progress:
        elapsed = self._accounts.elapsed_seconds
        in_cell = elapsed - self._cell_began if self._cell else 0.0
        total, eta = self._accounts.foresee(self._cells, in_cell_seconds=in_cell)
        running = state is RunState.RUNNING
        progress = Progress(
            state=state,
            reason=reason,
            cells_done=len(self._cells),
            cells_total=total,
            cell=self._cell.id if self._cell else None,
            doing=self._doing if running else None,
            elapsed_seconds=elapsed,
            eta_seconds=eta if running else None,
            usd_so_far=self._accounts.usd_so_far,
            updated_at=datetime.now(UTC),
        )
        # Whether there is room is found out where it matters: by the cell, and by the report.
        with suppress(DiskFull):
            self._folder.tell(progress)
        return progress


def _require_dataset(plan: RunPlan) -> None:
    """Refuse to go on where cells of two datasets would stand in one table.

    Raises:
        InvalidArgument: The file holds other prompts than when the run began, or cannot be read.
    """
    file, known = plan.workload.dataset, plan.dataset_sha256
    if file and known and sha256(read(Path(file))) != known:
        raise InvalidArgument(
            f"{file} holds other prompts than when this run began.",
            fix="Put the file back, or begin a new run; what was measured is kept.",
        )


def _may_be_another(cell: CellResult) -> bool:
    """Whether the engine may have been started anew in a cell: the next ones are judged by that."""
    changed = any(verdict.code is Code.SERVER_CHANGED for verdict in cell.verdicts)
    return changed or cell.state is CellState.FAILED


def _failed(error: OpsError) -> End:
    parts = (error.summary, error.cause, error.fix)
    words = " ".join(part if part.endswith(".") else f"{part}." for part in parts if part)
    return End(RunState.FAILED, words, error)


def _gone(error: EndpointError, seconds: float, cell: CellSpec | None) -> WaitedTooLong:
    where = f" The cell being measured was {cell.id}." if cell else ""
    return WaitedTooLong(
        f"The endpoint has not answered for {seconds:.0f} s.{where}",
        fix="See that it serves the model again, then `resume` goes on with this cell.",
        cause=f"{error.summary} {error.cause}".strip(),
    )
