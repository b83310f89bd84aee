"""Benchmark runs read: progress, report and list."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio

from benchmark.advice import Headline, headline
from benchmark.folder import RunFolder
from benchmark.records import CellResult, CellState, Manifest, Progress, RunState, Worth
from benchmark.run import state_of
from core.errors import NextStep, NotFound
from core.records import SIMULATED, Answer, Record
from core.reply import note
from operations.benchmarks.credentials import forget_credentials, keep_credential_fresh
from operations.benchmarks.kept import folder_of_runs, folders
from operations.runtime import Runtime

Tell = Callable[[str], Awaitable[None]]
_LOOK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 40.0
_LISTED: Final = 30
_MOST_DECISIONS: Final = 3
_MOST_ACTIONS: Final = 2
_MOST_ROWS: Final = 8
"""Of a short answer."""


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
    relative_cells: int = 0
    """To be compared with runs of the same method, and nothing else."""
    spoiled_cells: int = 0
    failed_cells: int = 0
    said_of_cells: dict[str, int] = {}
    """Codes, each with the number of its cells."""
    accelerator: str | None = None
    usd_per_hour: float | None = None
    best: str | None = None
    """The highest throughput that may be shown, and where."""
    latency: str | None = None
    """At that load."""
    price: str | None = None
    """At that load."""
    recommended: str | None = None
    """The load to run at."""
    trust: str = ""
    """How far the figures may be trusted."""
    key_decisions: tuple[str, ...] = ()
    """What limits, at which load, and where to run: from valid cells alone."""
    action_items: tuple[str, ...] = ()
    """What to change, and what to measure anew."""
    report: str | None = None
    """The main tables as Markdown; the whole report is in the folder."""
    folder: str
    files: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        return Headline(self.best, self.latency, self.price, self.recommended, self.trust).sentence

    def summary(self) -> str:
        """Say the best figures, the load to run at and how far to trust it; or how far it is."""
        where = f" on {self.target}" if self.target else ""
        total = "" if self.cells_total is None else f" of {self.cells_total}"
        if self.state is RunState.RUNNING:
            eta = "" if self.eta_seconds is None else f", about {self.eta_seconds:.0f} s to go"
            head = f"Measuring {self.model}{where}: {self.cells_done}{total} cells"
            return f"{head} ({self.doing or 'beginning'}){eta}."
        head = f"{self.model}{where}: "
        if self.state is not RunState.DONE:
            why = f" {self.reason}" if self.reason else ""
            head = f"{head}{self.state} after {self.cells_done}{total} cells.{why} "
        return f"{head}{self.sentence}"

    def facts(self) -> Mapping[str, Any]:
        """Return what the answer rests on, decisions and actions, and where the page is."""
        known: dict[str, Any] = {
            "run": self.run,
            "state": self.state,
            "accelerator": self.accelerator,
            "usd_per_hour": self.usd_per_hour,
            "usd_so_far": self.usd_so_far or None,
            "cells": self._cells(),
        }
        if self.state is RunState.RUNNING:
            return {**known, "best": self.best}
        page = "report.html"
        return {
            **known,
            "price": self.price,
            "codes": ", ".join(f"{code} {n}" for code, n in self.said_of_cells.items()),
            "key_decisions": self.key_decisions[:_MOST_DECISIONS],
            "action_items": self.action_items[:_MOST_ACTIONS],
            "page": f"{self.folder}/{page}" if page in self.files else None,
        }

    def _cells(self) -> str:
        total = "" if self.cells_total is None else f" of {self.cells_total}"
        failed = f", {self.failed_cells} failed" if self.failed_cells else ""
        measured = f"{self.measured_cells} measured, {self.valid_cells} valid{failed}"
        return f"{self.cells_done}{total} decided, {measured}"

    def warnings(self) -> tuple[str, ...]:
        """Warn of figures that are not what they seem."""
        said = (
            f"{self.spoiled_cells} cells must not be used: see said_of_cells."
            if self.spoiled_cells
            else "",
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
    best: str | None = None
    """The highest throughput that may be shown, and where."""


class BenchmarkRuns(Answer):
    """The runs that are kept here."""

    runs: tuple[RunRow, ...]
    """Newest first."""
    left_out: int = 0
    folder: str

    def summary(self) -> str:
        """Say how many, and what the newest one found."""
        running = sum(row.state is RunState.RUNNING for row in self.runs)
        count = len(self.runs) + self.left_out
        head = f"{count} benchmark run{'' if count == 1 else 's'}, {running} of them running."
        if not self.runs:
            return "No benchmark was run here yet."
        newest = self.runs[0]
        where = f" on {newest.target}" if newest.target else ""
        return f"{head} Newest: {newest.model}{where}, {newest.best or 'no figure can be used'}."

    def facts(self) -> Mapping[str, Any]:
        """Return the newest runs, a line each."""
        rows = [
            {"run": row.run, "state": row.state, "model": row.model, "target": row.target}
            | {"best": row.best}
            for row in self.runs[:_MOST_ROWS]
        ]
        older = len(self.runs) - len(rows) + self.left_out
        return {"runs": rows, "older": older or None}

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
    forget_credentials(runtime, [folder])
    return await _over(folder, deadline, tell)


def list_all(runtime: Runtime) -> BenchmarkRuns:
    """Give every run, newest first."""
    known = folders(runtime)
    forget_credentials(runtime, known)
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
        folder.forget_credential()
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
    manifest, cells, progress = folder.manifest(), folder.cells(), state_of(folder)
    found = headline(manifest, cells)
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
        relative_cells=sum(cell.worth is Worth.RELATIVE for cell in cells),
        spoiled_cells=sum(cell.worth is Worth.SPOILED for cell in cells),
        accelerator=manifest.provenance.accelerator,
        usd_per_hour=manifest.provenance.usd_per_hour,
        best=found.best,
        latency=found.latency,
        price=found.price,
        recommended=found.recommended,
        trust=found.trust,
        **(_told(manifest, cells) if over and cells else {}),
        folder=str(folder.path),
        files=_files(folder) if over else (),
        simulated=manifest.subject.simulated,
    )


def _told(manifest: Manifest, cells: Sequence[CellResult]) -> dict[str, Any]:
    """Say what a run that is over means; its tables get the room that the words leave."""
    from benchmark import report_text
    from benchmark.advice import findings
    from benchmark.report import actions

    found = findings(manifest, cells)
    decisions = tuple(each.text for each in found if each.kind != "flag")  # they are actions
    items = actions(manifest, cells)
    room = report_text.MAX_CHARACTERS - sum(map(len, (*decisions, *items)))
    report = report_text.tables(cells, room)
    return {"key_decisions": decisions, "action_items": items, "report": report or None}


def _row(folder: RunFolder) -> RunRow | None:
    try:
        manifest = folder.manifest()
        found = headline(manifest, folder.cells())
        return RunRow(**_about(folder, manifest, state_of(folder)), best=found.best)
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


def _files(folder: RunFolder) -> tuple[str, ...]:
    made = (folder.report_file, folder.csv_file, folder.chart_file, folder.page_file)
    return tuple(path.name for path in made if path.exists())
