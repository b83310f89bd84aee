"""A run from wherever it is to its end: cell after cell, whatever comes in between.

The folder is the truth: what is decided is in `cells.jsonl`, and the next cell is a pure function
of it. So a run that was killed goes on where it was.
"""

import contextlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import anyio
from pydantic import SecretStr

from benchmark.client.fleet import Fleet
from benchmark.folder import RunFolder
from benchmark.measured import Slice
from benchmark.records import CellResult, CellSpec, CellState
from benchmark.reporting import report
from benchmark.running import capacity, grid
from benchmark.running.accounts import Accounts
from benchmark.running.cell import Bench, Crew, Said, opened
from benchmark.running.ending import Ending
from benchmark.running.live import Live
from benchmark.runs import Manifest, Progress, RunState
from benchmark.server.subject import Seen, look
from core.errors import Busy, DiskFull, EndpointError, OpsError, Unauthorized, WaitedTooLong

PATIENCE_SECONDS: Final = 120.0
"""For an endpoint that has stopped answering between two cells: a small engine boots in less."""
_START_PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 1.0
_TRIES: Final = 10
_LOCK_SECONDS: Final = 0.03
_RATE_SLICES: Final = 8
_log = logging.getLogger(__name__)


class End(NamedTuple):
    """How a sweep came to its end."""

    state: RunState
    reason: str | None = None
    error: OpsError | None = None
    """Why it failed."""


async def sweep(folder: RunFolder, *, show: Live | None = None) -> RunState:
    """Measure what is left of a run, and write its reports.

    It ends cleanly when the stop file is there, at the first SIGINT or SIGTERM and when a budget
    is used up; at a second signal at once.

    Raises:
        NotFound: This is no run's folder.
        Busy: Another process measures it.
    """
    return (await conclude(folder, show=show)).state


async def conclude(
    folder: RunFolder,
    *,
    show: Live | None = None,
    key: SecretStr | None = None,
    crew: Crew = Fleet,
    patience_seconds: float = PATIENCE_SECONDS,
) -> End:
    """As `sweep`, and say why it ended; `key` is left for the workers once the run is ours."""
    manifest = folder.manifest()
    async with contextlib.AsyncExitStack() as held:
        await _lock(folder, held)
        if key is not None:
            folder.keep_credential(key)
        run = _Sweep(folder, manifest, crew=crew, patience_seconds=patience_seconds)
        run.show = show
        return await run.end()


async def _lock(folder: RunFolder, held: contextlib.AsyncExitStack) -> None:
    """Take the run; whoever only asks whether it is measured holds the lock for an instant."""
    for attempt in range(1, _TRIES + 1):
        try:
            held.enter_context(folder.locked())
        except Busy:
            if attempt == _TRIES:
                raise
            await anyio.sleep(_LOCK_SECONDS)
        else:
            return


class _Sweep:
    def __init__(
        self, folder: RunFolder, manifest: Manifest, *, crew: Crew, patience_seconds: float
    ) -> None:
        self.show: Live | None = None
        self._folder = folder
        self._manifest = manifest
        self._crew = crew
        self._patience = patience_seconds
        self._cells = list(folder.cells())
        self._accounts = Accounts(manifest, self._cells)
        self._ending = Ending(folder, self._accounts)
        self._cell: CellSpec | None = None
        self._cell_began = 0.0
        self._doing: str | None = None
        self._rate: float | None = None

    async def end(self) -> End:
        self._tell(RunState.RUNNING)
        end = End(RunState.INTERRUPTED, "It was ended at once.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ending.listen, tasks.cancel_scope)
            tasks.start_soon(self._tell_on)
            end = await self._ended()
            tasks.cancel_scope.cancel()
        if not self._ending.at_once:
            self._folder.keep_credential(None)
            self._tell(end.state, end.reason)
        return end

    async def _ended(self) -> End:
        end = await self._measured_all()
        self._now(None, "reporting")
        try:
            await anyio.to_thread.run_sync(report.write_all, self._folder)
        except OpsError as exc:
            return end if end.error else _failed(exc)
        return end

    async def _measured_all(self) -> End:
        try:
            async with Bench(self._folder, self._manifest, crew=self._crew) as bench:
                return await self._go_on(bench)
        except OpsError as exc:
            return _failed(exc)

    async def _go_on(self, bench: Bench) -> End:
        plan, subject = self._manifest.plan, self._manifest.subject
        course = capacity if plan.profile == "find-capacity" else grid
        seen: Seen | None = None
        while (step := course.next_cell(plan, subject, self._cells)) is not None:
            if self._ending.asked():
                return End(RunState.STOPPED, self._ending.reason)
            if isinstance(step, CellResult):
                self._add(step)
            elif self._ending.foresees(self._accounts.next_cell_seconds(self._cells)):
                return End(RunState.STOPPED, self._ending.reason)
            else:
                seen = seen or await self._seen()
                await self._measure(bench, step, seen)
        return End(RunState.DONE)

    async def _measure(self, bench: Bench, spec: CellSpec, seen: Seen) -> None:
        self._now(spec, "beginning")
        await self._until_it_answers()
        said = Said(tell=self._heard, stop=self._ending.asked)
        cell = await bench.measure(spec, seen=seen, said=said, before=self._cells)
        if cell is not None and cell.state is CellState.FAILED:
            _log.warning("%s failed: %s", cell.id, cell.reason)
            # An engine that is gone for good fails the run, and `resume` measures the cell again.
            await self._until_it_answers()
        if cell is not None:
            self._add(cell)
        self._now(None, None)

    async def _seen(self) -> Seen:
        """Look at what is measured, when a run begins or goes on: it must be the same model."""
        deadline = anyio.current_time() + min(self._patience, _START_PATIENCE_SECONDS)
        while True:
            try:
                async with opened(self._folder, self._manifest.base_url) as endpoint:
                    return await look(endpoint, self._manifest.subject.model)
            except EndpointError as exc:
                if not exc.retryable or anyio.current_time() >= deadline:
                    raise
            await anyio.sleep(_LOOK_SECONDS)

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
                self._doing = "waiting for the endpoint"
                await anyio.sleep(min(_LOOK_SECONDS, self._patience))
            else:
                return

    def _add(self, cell: CellResult) -> None:
        self._folder.add(cell)
        self._cells.append(cell)
        if self.show:
            self.show.decided(cell)
        self._tell(RunState.RUNNING)

    def _heard(self, doing: str, slices: Sequence[Slice]) -> None:
        self._doing = doing
        last = slices[-_RATE_SLICES:]
        seconds = sum(part.seconds for part in last)
        self._rate = sum(part.output_tokens for part in last) / seconds if seconds else None

    def _now(self, spec: CellSpec | None, doing: str | None) -> None:
        self._cell, self._doing, self._rate = spec, doing, None
        self._cell_began = self._accounts.elapsed_seconds
        self._tell(RunState.RUNNING)

    async def _tell_on(self) -> None:
        while True:
            await anyio.sleep(_TELL_SECONDS)
            self._tell(RunState.RUNNING)

    def _tell(self, state: RunState, reason: str | None = None) -> None:
        elapsed = self._accounts.elapsed_seconds
        in_cell = elapsed - self._cell_began if self._cell else 0.0
        foreseen = self._accounts.foresee(self._cells, in_cell_seconds=in_cell)
        running = state is RunState.RUNNING
        progress = Progress(
            state=state,
            reason=reason,
            cells_done=len(self._cells),
            cells_total=foreseen.cells_total,
            cell=self._cell.id if self._cell else None,
            doing=self._doing if running else None,
            elapsed_seconds=elapsed,
            eta_seconds=foreseen.eta_seconds if running else None,
            usd_so_far=self._accounts.usd_so_far,
            updated_at=datetime.now(UTC),
        )
        # Whether there is room is found out where it matters: by the cell, and by the report.
        with contextlib.suppress(DiskFull):
            self._folder.tell(progress)
        if self.show:
            self.show.tell(progress, self._rate)


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
