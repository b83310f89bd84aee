"""Runs of a benchmark: found, read, reported and compared."""

import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
from pydantic import Field

from benchmark.advice import headline
from benchmark.compare import chips, comparable, file_name, load, names, write_comparison
from benchmark.folder import RunFolder, replace
from benchmark.records import CellState, Manifest, Progress, RunState, Worth
from benchmark.run import state_of
from core import waiting
from core.errors import InvalidArgument, NextStep, NotFound, OpsError
from core.records import SIMULATED, Answer, Record, valid
from core.reply import MAX_CHARACTERS, note
from operations.measurement import (
    Evidence,
    file_of,
    folder_of,
    folder_of_runs,
    folders,
    model_called,
    read_evidence,
)
from operations.resolve import find
from operations.runtime import Runtime
from planner.catalog import find as catalog_find
from planner.places import place

Tell = Callable[[str], Awaitable[None]]
_REFRESH_SECONDS: Final = 60.0
"""An identity token lasts an hour; a new one is there long before."""
_LOOK_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 40.0
_LISTED: Final = 30
_LISTED_SHORT: Final = 8
_DECISIONS_SHORT: Final = 3
_ACTIONS_SHORT: Final = 2
_TEXT: Final = 20_000
_TEXT_SHORT: Final = 2_400
"""Characters of a comparison that are told: 5,000 tokens, and those of a short answer."""
_FILES: Final = 8
"""Names of files in an error."""
_CHIPS: Final = re.compile(r"\b(v\d+[ep]?)[ _]?-?(\d+)\b")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,118}\.md")


def _cells(number: int) -> str:
    return f"{number} cell" + "s" * (number != 1)


async def _keep_fresh(runtime: Runtime, folder: RunFolder) -> None:
    """Renew the credential of a run while it is measured and this server lives."""
    known = folder.manifest().provenance
    while folder.is_measured_now():
        await anyio.sleep(waiting.pause(_REFRESH_SECONDS))
        try:
            found = await find(runtime.stage, known.target, known.deployment)
            access = runtime.remember_credential(await found.backend.access(found.name))
        except OpsError:
            continue  # the run itself finds out, and says so
        if folder.is_measured_now() and access.certificate != folder.certificate():
            folder.keep_certificate(access.certificate)
        held = (access.api_key, access.identity_token)
        now = tuple(secret.get_secret_value() if secret else None for secret in held)
        changed = now != (folder.credential(), folder.identity())
        if any(now) and folder.is_measured_now() and changed:
            with suppress(OpsError):  # a full disk is the run's to tell
                folder.keep_credential(*held)
    folder.forget_credential()  # it may have ended while this was written


def _forget_credentials(runtime: Runtime, runs: Iterable[RunFolder]) -> None:
    """Take away what killed runs have left; a server that only looks says that it is there."""
    for folder in runs:
        run = folder.path.name
        if not runtime.settings.read_only:
            try:
                folder.forget_credential()
            except (OpsError, OSError) as exc:
                note(f"{run} was killed and its credential could not be removed: {exc}")
        elif folder.credential_files() and not folder.is_measured_now():
            note(
                f"{run} was killed and left its credential in {folder.path}: a server that may"
                " write removes it as soon as it starts."
            )


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
    sentence: str = Field(exclude=True)
    """The answer in one line."""
    anew: Mapping[str, Any] = Field({}, exclude=True)
    """Measures it again, for longer, where no cell was valid."""

    def summary(self) -> str:
        where = f" on {self.target}" if self.target else ""
        done = f"{self.cells_done}{self._total()} cells"
        if self.state is RunState.RUNNING:
            eta = "" if self.eta_seconds is None else f", about {self.eta_seconds:.0f} s to go"
            return f"Measuring {self.model}{where}: {done} ({self.doing or 'beginning'}){eta}."
        ended = ""
        if self.state is not RunState.DONE:
            why = f" {self.reason}" if self.reason else ""
            ended = f"{self.state} after {done}.{why} "
        return f"{self.model}{where}: {ended}{self.sentence}"

    def _total(self) -> str:
        return "" if self.cells_total is None else f" of {self.cells_total}"

    def facts(self) -> Mapping[str, Any]:
        failed = f", {self.failed_cells} failed" if self.failed_cells else ""
        measured = f"{self.measured_cells} measured, {self.valid_cells} valid{failed}"
        known: dict[str, Any] = {
            "run": self.run,
            "state": self.state,
            "accelerator": self.accelerator,
            "usd_per_hour": self.usd_per_hour,
            "usd_so_far": self.usd_so_far or None,
            "cells": f"{self.cells_done}{self._total()} decided, {measured}",
        }
        codes = ", ".join(f"{code} {n}" for code, n in self.said_of_cells.items())
        if self.state is RunState.RUNNING:
            return {**known, "best": self.best, "codes": codes}
        page = "report.html"
        return {
            **known,
            "price": self.price,
            "codes": codes,
            "key_decisions": self.key_decisions[:_DECISIONS_SHORT],
            "action_items": self.action_items[:_ACTIONS_SHORT],
            "page": f"{self.folder}/{page}" if page in self.files else None,
        }

    def warnings(self) -> tuple[str, ...]:
        said = {
            f"{_cells(self.spoiled_cells)} must not be used: codes say why.": self.spoiled_cells,
            f"{_cells(self.failed_cells)} failed: the report says why.": self.failed_cells,
            SIMULATED: self.simulated,
        }
        return tuple(words for words, true in said.items() if true)

    def next_steps(self) -> tuple[NextStep, ...]:
        resume = NextStep("run_benchmark", {"resume": self.run})
        match self.state:
            case RunState.RUNNING:
                return (NextStep("get_benchmark", {"run": self.run, "wait_s": 40}),)
            case RunState.INTERRUPTED | RunState.STOPPED if self.name:
                return (resume,)
            case RunState.FAILED if self.name:
                where = {"target": self.target, "name": self.name}
                look = NextStep("status_vllm", {k: v for k, v in where.items() if v})
                return (look, resume)
            case _:
                anew = (NextStep("run_benchmark", self.anew),) if self.anew else ()
                return (*anew, NextStep("list_benchmarks"))


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
    comparable: tuple[str, ...] = Field((), exclude=True)
    """The two newest that are done and measured some cells alike, the older one first."""

    def summary(self) -> str:
        if not self.runs:
            return "No benchmark was run here yet."
        running = sum(row.state is RunState.RUNNING for row in self.runs)
        count, newest = len(self.runs) + self.left_out, self.runs[0]
        head = f"{count} benchmark run{'' if count == 1 else 's'}, {running} of them running."
        where = f" on {newest.target}" if newest.target else ""
        return f"{head} Newest: {newest.model}{where}, {newest.best or 'no figure can be used'}."

    def facts(self) -> Mapping[str, Any]:
        fields = {"run", "state", "model", "target", "best"}
        rows = [row.model_dump(include=fields) for row in self.runs[:_LISTED_SHORT]]
        older = len(self.runs) - len(rows) + self.left_out
        return {"runs": rows, "older": older or None}

    def next_steps(self) -> tuple[NextStep, ...]:
        if any(row.state is RunState.RUNNING for row in self.runs[:1]):
            return (NextStep("get_benchmark", {"run": self.runs[0].run}),)
        compare = NextStep("compare_benchmarks", {"benchmarks": list(self.comparable)})
        return (compare if self.comparable else NextStep("run_benchmark"),)


async def watch(
    runtime: Runtime, folder: RunFolder, *, deadline: float, tell: Tell
) -> BenchmarkRun:
    """Wait for its end, at most until the deadline on anyio's clock; say what is there then."""
    if state_of(folder).state is RunState.RUNNING and not runtime.settings.read_only:
        work = f"credential of {folder.path.name}"
        runtime.background.start(work, lambda: _keep_fresh(runtime, folder))
    _forget_credentials(runtime, [folder])
    return await _wait_for_end(folder, deadline, tell)


def list_all(runtime: Runtime) -> BenchmarkRuns:
    """Return every run, newest first."""
    known = folders(runtime)
    _forget_credentials(runtime, known)
    rows, done = [], []
    for folder in known[:_LISTED]:
        try:
            run = load(folder)
            best = headline(*run).best
            row = RunRow(**_about(folder, run.manifest, state_of(folder)), best=best)
        except NotFound as exc:
            note(exc.summary)
            continue
        rows.append(row)
        if row.state is RunState.DONE:
            done.append((row.run, run))
    pairs = itertools.combinations(done, 2)
    alike = next(((a, b) for (b, newer), (a, older) in pairs if comparable(older, newer)), ())
    return BenchmarkRuns(
        runs=tuple(rows),
        left_out=max(0, len(known) - _LISTED),
        folder=str(folder_of_runs(runtime)),
        comparable=alike,
    )


async def stop(folder: RunFolder, tell: Tell) -> BenchmarkRun:
    """Ask it to end with what there is, and wait until it has.

    Raises:
        DiskFull: It cannot be told.
    """
    if state_of(folder).state is not RunState.RUNNING:
        folder.forget_credential()
        return look(folder)
    replace(folder.stop_file, "")
    seen = await _wait_for_end(folder, anyio.current_time() + _STOP_SECONDS, tell)
    if seen.state is RunState.RUNNING:
        note("It was asked to stop and is still at it: look again with get_benchmark.")
    return seen


async def _wait_for_end(folder: RunFolder, deadline: float, tell: Tell) -> BenchmarkRun:
    while True:
        seen = look(folder)
        left = deadline - anyio.current_time()
        if seen.state is not RunState.RUNNING or left <= 0:
            return seen
        await tell(seen.summary())
        await anyio.sleep(min(waiting.pause(_LOOK_SECONDS), left))


def look(folder: RunFolder) -> BenchmarkRun:
    """Read a run's files."""
    manifest, cells, progress = folder.manifest(), folder.cells(), state_of(folder)
    found, over = headline(manifest, cells), progress.state is not RunState.RUNNING
    codes = Counter(verdict.code.value for cell in cells for verdict in cell.verdicts)
    written = (folder.report_file, folder.csv_file, folder.chart_file, folder.page_file)
    eta, usd = progress.eta_seconds, progress.usd_so_far
    means: dict[str, Any] = {}
    if over and cells:
        from benchmark import report
        from benchmark.advice import findings

        # What only changes a flag is an action; the tables get the room that the words leave.
        said = findings(manifest, cells)
        decisions = tuple(each.text for each in said if each.kind != "flag")
        items = report.actions(manifest, cells)
        room = report.MAX_CHARACTERS - sum(map(len, (*decisions, *items)))
        tables = report.main_tables(cells, room) or None
        if manifest.provenance.deployment and not any(cell.valid for cell in cells):
            again = report.arguments(manifest)
            longer = {"cell_seconds": 4 * again["cell_seconds"]} if "cell_seconds" in again else {}
            means = {"anew": again | longer}
        means |= {"key_decisions": decisions, "action_items": items, "report": tables}
    return BenchmarkRun(
        **_about(folder, manifest, progress),
        **means,
        reason=progress.reason,
        doing=" ".join(part for part in (progress.doing, progress.cell) if part) or None,
        elapsed_seconds=round(progress.elapsed_seconds, 1),
        eta_seconds=None if eta is None else round(eta),
        usd_so_far=None if usd is None else round(usd, 4),
        measured_cells=sum(cell.state is CellState.MEASURED for cell in cells),
        valid_cells=sum(cell.valid for cell in cells),
        failed_cells=sum(cell.state is CellState.FAILED for cell in cells),
        said_of_cells=dict(codes),
        relative_cells=sum(cell.worth is Worth.RELATIVE for cell in cells),
        spoiled_cells=sum(cell.worth is Worth.SPOILED for cell in cells),
        accelerator=manifest.provenance.accelerator,
        usd_per_hour=manifest.provenance.usd_per_hour,
        **found._asdict(),
        sentence=found.sentence,
        folder=str(folder.path),
        files=tuple(path.name for path in written if over and path.exists()),
        simulated=manifest.subject.simulated,
    )


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


def report(runtime: Runtime, run: str) -> str:
    """Return its report, or how far it is; the end of a very long one is left out.

    Raises:
        NotFound: There is no such run, or its files cannot be read.
    """
    folder = folder_of(runtime, run)
    file, cause = folder.report_file, "It leads out of the run's folder."
    if not file.exists():
        return f"# Benchmark {run}\n\n{look(folder).summary()} Its report is written at its end.\n"
    text = None
    try:
        if file.resolve().parent == folder.path.resolve():
            text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        cause = str(exc)[:300]
    if text is None:
        raise NotFound(
            f"The report of {run} cannot be read.",
            fix="Call get_benchmark, which reads what was measured.",
            cause=cause,
        )
    left = len(text) - MAX_CHARACTERS
    if left <= 0:
        return text
    shown = text[:MAX_CHARACTERS].rpartition("\n")[0]
    return f"{shown}\n\n[… {left} characters left out: get_benchmark names the folder.]\n"


def runs_meant(runtime: Runtime, words: Sequence[str]) -> list[RunFolder]:
    """Return for each of these the run of that id, else the newest of that model or target.

    For the name of a campaign, the runs that it has begun.

    Raises:
        NotFound: Nothing that is kept is meant by one of them.
    """
    from benchmark.campaign import runs_of

    there = folder_of_runs(runtime)
    words = [run for word in words for run in (runs_of(word, there) or (word,))]
    runs = read_evidence(runtime)
    ids = {folder.path.name: folder for folder in folders(runtime)}
    found: list[RunFolder] = []
    missing: list[str] = []
    like: str | None = None
    for each in words:
        newest = None if each in ids else _newest(runs, each, like)
        if newest:
            like = like or newest.model
            found.append(newest.folder)
        elif each in ids:
            found.append(ids[each])
        else:
            missing.append(each)
    if missing:
        raise _not_kept(runs, words, missing)
    return found


def _newest(runs: Sequence[Evidence], words: str, like: str | None) -> Evidence | None:
    """Return the newest run that is meant; first those of the model `like`, with valid cells."""
    model, _, where = words.partition(" on ")
    fitting = [run for run in runs if _is(run, model.strip(), where.strip())]
    alike = [run for run in fitting if like in {None, run.model}] or fitting
    return next((run for run in alike if run.valid_cells()), next(iter(alike), None))


def _is(run: Evidence, words: str, where: str) -> bool:
    if where:
        return run.model == model_called(words) and _is_on(run, where)
    if catalog_find(words) or run.model == words:
        return run.model == model_called(words)
    return _is_on(run, words)


def _is_on(run: Evidence, words: str) -> bool:
    try:
        return run.is_at(place(words))
    except InvalidArgument:
        return run.manifest.provenance.target == words


def _not_kept(runs: Sequence[Evidence], words: Sequence[str], missing: Sequence[str]) -> NotFound:
    there = "; ".join(
        f"{run.run} ({run.model} on {run.manifest.provenance.target or 'no known target'})"
        for run in runs[:6]
    )
    models = [each.partition(" on ")[0] for each in words]
    foresee = (NextStep("compare_targets", {"models": models}),) * all(map(catalog_find, models))
    return NotFound(
        f"No run is kept of {', '.join(repr(each[:60]) for each in missing)}.",
        fix=(f"There are: {there}. " if there else "No run is kept at all. ")
        + "compare_targets predicts what nobody measured; run_benchmark measures it.",
        next_steps=(*foresee, NextStep("list_benchmarks" if runs else "run_benchmark")),
    )


async def compare(runtime: Runtime, benchmarks: Sequence[str], file: str | None) -> Answer:
    """Compare runs and write the comparison down beside them; the first run is the reference.

    Without runs, a comparison that was made before is given back by its file's name.

    Raises:
        NotFound: One of the runs, or the file, is not there.
        InvalidArgument: They were measured in different ways, or the name is none.
    """
    if file is not None and not _FILE_NAME.fullmatch(file):
        raise InvalidArgument(
            f"{file[:60]!r} is no name for the file.",
            fix="Give a plain name that ends in .md; it is kept beside the runs.",
        )
    if not benchmarks:
        return await anyio.to_thread.run_sync(_printed, runtime, file)
    loaded = [load(folder) for folder in runs_meant(runtime, benchmarks)]
    path = folder_of_runs(runtime) / (file or file_name(names(loaded)))
    made = await anyio.to_thread.run_sync(write_comparison, loaded, path)
    return made.short()


class KeptComparison(Answer):
    """A comparison's own text."""

    file: str
    chart: str | None
    text: str
    """Its Markdown: findings, runs, matrices, saturation, scaling by load, crossovers."""
    characters_left_out: int
    """Of its end."""
    made_now: bool
    """From the runs that its name speaks of, for nobody had written it."""

    def summary(self) -> str:
        title, _, rest = self.text.lstrip("# ").partition("\n")
        first = next((line for line in rest.splitlines() if line.strip()), "")
        return f"{title}: {first}"

    def facts(self) -> Mapping[str, Any]:
        head = self.text.partition("\n## Runs")[0]
        return {"file": self.file, "chart": self.chart, "text": head[:_TEXT_SHORT]}

    def warnings(self) -> tuple[str, ...]:
        left = f"{self.characters_left_out:,} characters more are in {self.file}."
        return (left,) if self.characters_left_out else ()


def _printed(runtime: Runtime, name: str | None) -> KeptComparison:
    """Return a comparison by its file's name, or the newest; one that is not there is made.

    Raises:
        NotFound: There is none, and no two runs are what its name speaks of.
    """
    files = folder_of_runs(runtime).glob("*.md")
    there = sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found = next((each for each in there if name in {None, each.name}), None)
    path = found or _made(runtime, name, there)
    text, chart = path.read_text(encoding="utf-8"), path.with_suffix(".png")
    return KeptComparison(
        file=str(path),
        chart=str(chart) if chart.exists() else None,
        text=text[:_TEXT],
        characters_left_out=max(0, len(text) - _TEXT),
        made_now=found is None,
    )


def _made(runtime: Runtime, name: str | None, there: Sequence[Path]) -> Path:
    known = ", ".join(path.name for path in there[:_FILES])
    error = NotFound(
        f"There is no comparison {name!r}." if name else "No comparison was made yet.",
        fix=f"There are: {known}." if known else "Make one of two runs or more.",
        next_steps=(NextStep("list_benchmarks"),),
    )
    sides = sides_of(name or "")
    if name is None or sides is None:
        raise error
    try:
        loaded = [load(folder) for folder in runs_meant(runtime, sides)]
    except NotFound as exc:
        words, fix = f"{error.summary} {exc.summary}", f"{error.fix} {exc.fix}"
        raise NotFound(words, fix=fix, next_steps=exc.next_steps) from exc
    # Scaling is told from fewer accelerators to more, whichever the name puts first.
    loaded.sort(key=lambda each: chips(each.manifest) or 0)
    path = folder_of_runs(runtime) / name
    write_comparison(loaded, path)
    return path


def sides_of(file: str) -> tuple[str, str] | None:
    """Return the two that a file's name compares, None where it names none.

    >>> sides_of("tpu_v6e4_vs_v6e1_comparison.md")
    ('tpu v6e-4', 'v6e-1')
    """
    stem = file.removesuffix(".md").removesuffix("_comparison").lower()
    first, _, second = stem.partition("_vs_")
    one, two = (_CHIPS.sub(r"\1-\2", side.replace("_", " ")).strip() for side in (first, second))
    return (one, two) if first and second else None


async def import_file(runtime: Runtime, file: str, claims: Mapping[str, Any]) -> BenchmarkRun:
    """Read another tool's results, audit them, and keep them as a run with a report.

    Raises:
        InvalidArgument: It is of no form that is read here.
        DiskFull: It cannot be kept.
    """
    from benchmark import import_audit, imports, report

    path, said = file_of(file), valid(import_audit.Claims, claims)

    def read_and_keep() -> tuple[RunFolder, Sequence[str]]:
        others = list(imports.earlier(folders(runtime)))
        imported = imports.import_file(path, claims=said, others=others)
        folder = RunFolder(folder_of_runs(runtime) / imported.manifest.run_id)
        imports.save_import(imported, folder)
        report.write_all(folder)
        return folder, imported.notes

    folder, notes = await anyio.to_thread.run_sync(read_and_keep)
    for warning in notes:
        note(warning)
    return look(folder)
