"""Benchmark runs read: progress, report and list."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import anyio

from benchmark.folder import RunFolder
from benchmark.records import CellResult, CellState
from benchmark.running.state import state_of
from benchmark.runs import Manifest, Progress, RunState
from core.errors import NextStep, NotFound
from core.records import SIMULATED, Answer, Record
from core.reply import note
from operations.benchmarks.credentials import keep_credential_fresh
from operations.benchmarks.kept import folder_of_runs, folders
from operations.runtime import Runtime

Tell = Callable[[str], Awaitable[None]]
_LOOK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 40.0
_LISTED: Final = 30


class BenchmarkRun(Answer):
    """One run, as its files say."""

    run: str
    target: str | None = None
    name: str | None = None
    model: str
    profile: str
    state: RunState
    reason: str | None = None
    """Why it stopped or failed."""
    cells_done: int
    cells_total: int | None = None
    doing: str | None = None
    elapsed_seconds: float
    eta_seconds: float | None = None
    usd_so_far: float | None = None
    measured_cells: int = 0
    valid_cells: int = 0
    """Measured, and nothing said against them."""
    failed_cells: int = 0
    said_of_cells: dict[str, int] = {}
    """Codes, each with the number of its cells."""
    best: str | None = None
    """The highest valid output throughput, and where."""
    key_decisions: tuple[str, ...] = ()
    """What limits, at which load, and where to run: from valid cells alone."""
    action_items: tuple[str, ...] = ()
    """What to change, and what to measure anew."""
    report: str | None = None
    """The main tables as Markdown; the whole report is in the folder."""
    folder: str
    files: tuple[str, ...] = ()
    simulated: bool = False

    def summary(self) -> str:
        """Say state, progress and, when it is over, what the figures are worth."""
        total = "" if self.cells_total is None else f" of {self.cells_total}"
        where = f" on {self.target}" if self.target else ""
        head = f"Benchmark {self.run} of {self.model}{where} is {self.state}: "
        head += f"{self.cells_done}{total} cells"
        if self.state is RunState.RUNNING:
            eta = "" if self.eta_seconds is None else f", about {self.eta_seconds:.0f} s to go"
            return f"{head} ({self.doing or 'beginning'}){eta}."
        why = f" {self.reason}" if self.reason else ""
        valid = f", {self.valid_cells} of {self.measured_cells} measured ones valid"
        return f"{head}{valid}.{why}{f' Best: {self.best}' if self.best else ''}"

    def warnings(self) -> tuple[str, ...]:
        """Warn of figures that are not what they seem."""
        spoiled = self.measured_cells - self.valid_cells
        said = (
            f"{spoiled} cells must not be used: see said_of_cells." if spoiled else "",
            f"{self.failed_cells} cells failed: the report says why." if self.failed_cells else "",
            SIMULATED if self.simulated else "",
        )
        return tuple(words for words in said if words)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Wait, go on, or compare."""
        match self.state:
            case RunState.RUNNING:
                return (NextStep("get_benchmark", {"run": self.run, "wait_s": 40}),)
            case RunState.INTERRUPTED | RunState.STOPPED:
                return (NextStep("run_benchmark", {"resume": self.run}),)
            case RunState.FAILED:
                where = {"target": self.target, "name": self.name}
                look = NextStep("status_vllm", {k: v for k, v in where.items() if v})
                return (look, NextStep("run_benchmark", {"resume": self.run}))
            case _:
                return (NextStep("list_benchmarks"),)


class RunRow(Record):
    """One run in a list."""

    run: str
    state: RunState
    target: str | None
    name: str | None
    model: str
    profile: str
    cells_done: int
    cells_total: int | None


class BenchmarkRuns(Answer):
    """The runs that are kept here."""

    runs: tuple[RunRow, ...]
    """Newest first."""
    left_out: int = 0
    folder: str

    def summary(self) -> str:
        """Say how many."""
        running = sum(row.state is RunState.RUNNING for row in self.runs)
        return f"{len(self.runs) + self.left_out} benchmark runs, {running} of them running."

    def next_steps(self) -> tuple[NextStep, ...]:
        """Show the newest, or make the first."""
        if not self.runs:
            return (NextStep("run_benchmark"),)
        return (NextStep("get_benchmark", {"run": self.runs[0].run}),)


async def watch(
    runtime: Runtime, folder: RunFolder, *, deadline: float, tell: Tell
) -> BenchmarkRun:
    """Wait for its end, at most until the deadline on anyio's clock; say what is there then."""
    if state_of(folder).state is RunState.RUNNING:
        keep_credential_fresh(runtime, folder)
    return await _over(folder, deadline, tell)


def list_all(runtime: Runtime) -> BenchmarkRuns:
    """Give every run, newest first."""
    known = folders(runtime)
    rows = [row for folder in known[:_LISTED] if (row := _row(folder))]
    return BenchmarkRuns(
        runs=tuple(rows),
        left_out=max(0, len(known) - _LISTED),
        folder=str(folder_of_runs(runtime)),
    )


async def stop(folder: RunFolder, tell: Tell) -> BenchmarkRun:
    """Ask it to end with what there is, and wait until it has.

    Raises:
        DiskFull: It cannot be told.
    """
    if state_of(folder).state is not RunState.RUNNING:
        folder.keep_credential(None)
        return look(folder)
    folder.write(folder.stop_file, "")
    seen = await _over(folder, anyio.current_time() + _STOP_SECONDS, tell)
    if seen.state is RunState.RUNNING:
        note("It was asked to stop and is still at it: look again with get_benchmark.")
    return seen


async def _over(folder: RunFolder, deadline: float, tell: Tell) -> BenchmarkRun:
    while True:
        seen = look(folder)
        left = deadline - anyio.current_time()
        if seen.state is not RunState.RUNNING or left <= 0:
            return seen
        await tell(seen.summary())
        await anyio.sleep(min(_LOOK_SECONDS, left))


def look(folder: RunFolder) -> BenchmarkRun:
    """Read a run's files."""
    from benchmark.reporting import brief

    manifest, cells, progress = folder.manifest(), folder.cells(), state_of(folder)
    over = progress.state is not RunState.RUNNING
    return BenchmarkRun(
        **_about(folder, manifest, progress),
        reason=progress.reason,
        doing=" ".join(part for part in (progress.doing, progress.cell) if part) or None,
        elapsed_seconds=round(progress.elapsed_seconds, 1),
        eta_seconds=_rounded(progress.eta_seconds, 0),
        usd_so_far=_rounded(progress.usd_so_far, 4),
        measured_cells=sum(cell.state is CellState.MEASURED for cell in cells),
        valid_cells=sum(cell.valid for cell in cells),
        failed_cells=sum(cell.state is CellState.FAILED for cell in cells),
        said_of_cells=_codes(cells),
        best=_best(brief.best(cells)),
        **(_told(manifest, cells) if over and cells else {}),
        folder=str(folder.path),
        files=_files(folder) if over else (),
        simulated=manifest.subject.simulated,
    )


def _told(manifest: Manifest, cells: Sequence[CellResult]) -> dict[str, Any]:
    """Say what a run that is over means; its tables get the room that the words leave."""
    from benchmark.advising.actions import actions
    from benchmark.advising.findings import findings
    from benchmark.reporting import brief

    found = findings(manifest, cells)
    decisions = tuple(each.text for each in found if each.kind != "flag")  # they are actions
    items = actions(manifest, cells)
    room = brief.MAX_CHARACTERS - sum(map(len, (*decisions, *items)))
    report = brief.tables(cells, room)
    return {"key_decisions": decisions, "action_items": items, "report": report or None}


def _row(folder: RunFolder) -> RunRow | None:
    try:
        return RunRow(**_about(folder, folder.manifest(), state_of(folder)))
    except NotFound as exc:
        note(exc.summary)
        return None


def _about(folder: RunFolder, manifest: Manifest, progress: Progress) -> dict[str, Any]:
    return {
        "run": folder.path.name,
        "state": progress.state,
        "target": manifest.provenance.target,
        "name": manifest.provenance.deployment,
        "model": manifest.subject.model,
        "profile": manifest.plan.profile,
        "cells_done": progress.cells_done,
        "cells_total": progress.cells_total,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _codes(cells: Sequence[CellResult]) -> dict[str, int]:
    return dict(Counter(verdict.code.value for cell in cells for verdict in cell.verdicts))


def _best(cell: CellResult | None) -> str | None:
    if cell is None:
        return None
    return f"{cell.output_token_throughput:.4g} output tokens/s in cell {cell.id}."


def _files(folder: RunFolder) -> tuple[str, ...]:
    made = (folder.report_file, folder.csv_file, folder.chart_file, folder.page_file)
    return tuple(path.name for path in made if path.exists())
