"""A run as Markdown for people: what is valid first, then what to do, then the figures."""

import html
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmark.advice import Headline, findings, headline
from benchmark.judge import reconciled
from benchmark.records import (
    Arrivals,
    CellResult,
    CellState,
    ClientView,
    Code,
    Finding,
    Limits,
    Load,
    Manifest,
    ServerView,
    Verdict,
    Worth,
    figure,
    listed,
    percent,
    seconds,
)

_NUMBER: Final = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)\s*(ms)?")
_SECONDS: Final = {"ms": 1e-3}


class Tally(NamedTuple):
    """Cells of a run by what they are worth."""

    planned: int | None
    """None where the next cell depends on the last, or no length is known."""
    decided: int
    measured: int
    valid: int
    """Marked ones among them."""
    marked: int
    """Valid, with something to know about them."""
    relative: int
    """To be compared with runs of the same method, and nothing else."""
    spoiled: int
    skipped: int
    failed: int


class CodeRow(NamedTuple):
    """One code over a whole run."""

    code: Code
    spoils: bool
    cells: tuple[str, ...]
    worst: str
    """Of its cells, in the verdict's own words."""
    worst_cell: str

    @property
    def effect(self) -> str:
        """What the code does to a cell that has no other."""
        if self.code is Code.ARTICLE_METHOD:
            return Worth.RELATIVE.value
        return "spoils" if self.spoils else "marks"


def tally(manifest: Manifest, cells: Sequence[CellResult]) -> Tally:
    """Count a run's cells."""
    plan = manifest.plan
    valid = [cell for cell in cells if cell.valid]
    states = [cell.state for cell in cells]
    measured = states.count(CellState.MEASURED)
    return Tally(
        planned=None
        if plan.profile == "find-capacity" or not plan.contexts
        else len(set(plan.contexts)) * len(set(plan.loads)),
        decided=len(cells),
        measured=measured,
        valid=len(valid),
        marked=sum(bool(cell.verdicts) for cell in valid),
        relative=sum(cell.worth is Worth.RELATIVE for cell in cells),
        spoiled=sum(cell.worth is Worth.SPOILED for cell in cells),
        skipped=states.count(CellState.SKIPPED),
        failed=states.count(CellState.FAILED),
    )


def code_rows(cells: Sequence[CellResult]) -> tuple[CodeRow, ...]:
    """Give every code that was earned, those that spoil first, each with its worst figure."""
    rows = [_row(code, cells) for code in Code]
    return tuple(sorted((row for row in rows if row.cells), key=lambda row: not row.spoils))


def _row(code: Code, cells: Sequence[CellResult]) -> CodeRow:
    found = [(cell, v) for cell in cells for v in cell.verdicts if v.code is code]
    if not found:
        return CodeRow(code, spoils=False, cells=(), worst="", worst_cell="")
    cell, verdict = max(found, key=lambda pair: _distance(pair[1]))
    return CodeRow(
        code,
        spoils=verdict.spoils,
        cells=tuple(dict.fromkeys(cell.id for cell, _ in found)),
        worst=verdict.because,
        worst_cell=cell.id,
    )


def _distance(verdict: Verdict) -> float:
    """Say how bad a verdict is among those of its code, by the figures in its words."""
    words = verdict.because
    figures = [
        float(number.replace(",", "")) * _SECONDS.get(unit, 1.0)
        for number, unit in _NUMBER.findall(words)
    ]
    if len(figures) < 2:
        return figures[0] if figures else 0.0
    if "times" in words:
        return figures[0] / figures[1] if figures[1] else math.inf
    if not re.search(r"limit|wanted", words):
        return figures[0] / figures[1] if " of " in words and figures[1] else figures[-1]
    least, most = sorted((figures[0], figures[-1]))
    return most / least if least else math.inf


_NOT_KNOWN: Final = "not known"
_TOOL_ONLY: Final = frozenset({"target", "name"})


def imported_from(manifest: Manifest) -> str | None:
    """Name the tool whose results these are; None where we measured."""
    return manifest.host.versions.get("tool")


def name(manifest: Manifest) -> str:
    """Name the run; what must be known before any figure is in it."""
    said = caveats(manifest)
    return f"Benchmark of {manifest.subject.model}" + (f": {said}" if said else "")


def caveats(manifest: Manifest) -> str:
    """Say what must be known before any figure is read; nothing of a run like any other."""
    tool = imported_from(manifest)
    kinds = (
        (tool, f"imported from {tool}, not measured here"),
        (manifest.subject.simulated, "SIMULATED ENGINE, no hardware was measured"),
        (manifest.plan.profile == "article", "THE ARTICLES' METHOD, which no decision can rest on"),
    )
    return "; ".join(words for holds, words in kinds if holds)


def validity(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Say in one sentence how much of the run may be believed."""
    found = tally(manifest, cells)
    planned = "" if found.planned is None else f" of {found.planned:,} planned"
    others = f"{found.skipped:,} skipped, {found.failed:,} failed"
    if not found.measured:
        return f"No cell was measured: {found.decided:,}{planned} decided, {others}."
    relative = f"{found.relative:,} relative only, " if found.relative else ""
    return (
        f"{found.valid:,} of {found.measured:,} measured cells are valid "
        f"({found.marked:,} of them marked), {relative}{found.spoiled:,} spoiled; {others}; "
        f"{found.decided:,}{planned} decided."
    )


def answer(manifest: Manifest, said: Headline) -> tuple[tuple[str, str], ...]:
    """Return what a reader wants first, by name: what was found, on what and for how much."""
    ground = manifest.provenance
    count = f"{ground.accelerator_count} x " if ground.accelerator_count else ""
    hourly = f"${ground.usd_per_hour:g} per hour" if ground.usd_per_hour is not None else ""
    rows = (
        ("Latency there", said.latency),
        ("Recommended load", said.recommended),
        ("How far to trust it", said.trust[0].upper() + said.trust[1:]),
        ("Model", manifest.subject.model),
        ("Accelerator", f"{count}{ground.accelerator}" if ground.accelerator else _NOT_KNOWN),
        ("Target", ground.target or _NOT_KNOWN),
        ("Price", ", ".join(part for part in (hourly, said.price) if part) or _NOT_KNOWN),
    )
    return tuple((name, words) for name, words in rows if words)


def limits_in_words(limits: Limits) -> str:
    """Say what was good enough; nothing where nothing was said."""
    said = ((word, getattr(limits, f"{word.lower()}_seconds")) for word in ("TTFT", "TPOT", "E2EL"))
    return ", ".join(f"{word} ≤ {seconds(value)}" for word, value in said if value is not None)


def facts(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Give everything of the manifest that is known, as names and plain text."""
    ours = () if imported_from(manifest) else (*_method(manifest), *_host(manifest))
    rows = (*_subject(manifest), *_ground(manifest), *_plan(manifest), *ours)
    return tuple((title, said) for title, said in rows if said)


def _subject(manifest: Manifest) -> Iterator[tuple[str, str]]:
    subject = manifest.subject
    yield "Run", f"{manifest.run_id}, {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}"
    yield "Model", subject.model
    yield (
        "Engine",
        f"vLLM {subject.vllm_version or 'of unknown version'}"
        + (", simulated" if subject.simulated else ""),
    )
    yield "Longest request", f"{subject.max_model_len:,} tokens" if subject.max_model_len else ""
    if subject.cache:
        known = subject.cache.model_dump(exclude_none=True)
        yield "KV cache", ", ".join(f"{key} {value}" for key, value in known.items())


def _ground(manifest: Manifest) -> Iterator[tuple[str, str]]:
    ground = manifest.provenance
    yield "Endpoint", manifest.base_url
    yield "Target", ground.target or ""
    yield (
        "Deployment",
        " ".join(
            part
            for part in (
                ground.deployment,
                f"revision {ground.revision}" if ground.revision else "",
            )
            if part
        ),
    )
    count = f"{ground.accelerator_count} x " if ground.accelerator_count else ""
    yield "Accelerator", f"{count}{ground.accelerator}" if ground.accelerator else ""
    if ground.usd_per_hour is not None:
        source = f", {ground.price_source}" if ground.price_source else ", source not stated"
        yield "Price", f"${ground.usd_per_hour:g} per hour{source}"


def _plan(manifest: Manifest) -> Iterator[tuple[str, str]]:
    plan, work = manifest.plan, manifest.plan.workload
    length = "exactly" if work.fixed_output else "up to"
    yield "Measured by", imported_from(manifest) or ""
    yield "Profile", plan.profile
    yield "Request", f"{work.api}, {length} {work.output_tokens:,} output tokens"
    yield "Limits", limits_in_words(plan.limits)


def _method(manifest: Manifest) -> Iterator[tuple[str, str]]:
    work, stop = manifest.plan.workload, manifest.plan.stop
    prompts = work.dataset or "made token by token"
    same = percent(work.prefix_share)
    yield "Prompts", f"{prompts}, {same} the same for all, seed {work.seed}"
    least, most = figure(stop.min_seconds), figure(stop.max_seconds)
    width = percent(stop.relative_half_width)
    yield "A cell ends", f"after {least} to {most} s, when the 95 % interval is within ± {width}"
    yield "A request is given up", f"after {figure(stop.request_timeout_seconds)} s"


def _host(manifest: Manifest) -> Iterator[tuple[str, str]]:
    host = manifest.host
    yield (
        "Client",
        (
            f"{host.system}, {host.cpu}, {host.cores} cores, {figure(host.memory_gib)} GiB, "
            f"Python {host.python}"
        ),
    )
    yield "Client's versions", ", ".join(f"{key} {value}" for key, value in host.versions.items())


def arguments(manifest: Manifest) -> dict[str, object]:
    """Give what to call `run_benchmark` with for the same run."""
    plan, ground = manifest.plan, manifest.provenance
    loads = sorted(plan.loads, key=load_order)
    wanted: dict[str, object | None] = {
        "profile": plan.profile,
        "target": ground.target,
        "name": ground.deployment,
        "contexts": list(plan.contexts),
        **_loads(loads),
        "output_tokens": plan.workload.output_tokens,
        "dataset": plan.workload.dataset,
        "cell_seconds": plan.stop.max_seconds,
        "workers": plan.workers,
        "max_cost_usd": plan.max_cost_usd,
        "max_minutes": plan.max_minutes,
    }
    for word in ("ttft", "tpot", "e2el"):
        limit = getattr(plan.limits, f"{word}_seconds")
        wanted[f"{word}_ms"] = None if limit is None else limit * 1000
    return {key: value for key, value in wanted.items() if value is not None}


def _loads(loads: Sequence[Load]) -> dict[str, object | None]:
    users = [load.concurrency for load in loads if load.concurrency]
    rates = [load.requests_per_second for load in loads if load.requests_per_second]
    arrivals = loads[0].arrivals if loads else Arrivals.CLOSED
    closed = arrivals in {Arrivals.CLOSED, Arrivals.ONCE}
    return {
        "concurrencies": users or None,
        "requests_per_second": rates or None,
        "arrivals": None if closed else arrivals.value,
    }


def again(manifest: Manifest) -> str:
    """Write the call that does the run again, as one line."""
    if imported_from(manifest):
        return f"import_benchmark(file=...)  # {manifest.base_url}"
    words = (f"{key}={json.dumps(value)}" for key, value in arguments(manifest).items())
    return f"run_benchmark({', '.join(words)})"


def again_rows(manifest: Manifest) -> tuple[tuple[str, str | None], ...]:
    """Return how an agent and how a person does the run again."""
    return (
        ("Again, by an agent", again(manifest)),
        ("Again, from a shell", command(manifest)),
    )


def command(manifest: Manifest) -> str | None:
    """Write the command that does it again from a shell; None for what was imported."""
    if imported_from(manifest):
        return None
    work, ground = manifest.plan.workload, manifest.provenance
    wanted = {
        "url": manifest.base_url,
        "model": manifest.subject.model,
        **{key: value for key, value in arguments(manifest).items() if key not in _TOOL_ONLY},
        "api": work.api,
        "prefix_share": work.prefix_share,
        "seed": work.seed,
        "accelerator": ground.accelerator,
        "accelerator_count": ground.accelerator_count,
        "usd_per_hour": ground.usd_per_hour,
    }
    words = (_option(key, value) for key, value in wanted.items() if value is not None)
    return shlex.join(["python", "-m", "benchmark", "run", *chain.from_iterable(words)])


def _option(key: str, value: object) -> tuple[str, str]:
    several = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"--{key.replace('_', '-')}", several


Value = Callable[[CellResult], float | None]

RUN_WIDE: Final = (Code.SIMULATED, Code.ARTICLE_METHOD)
"""Said once of a whole run, not at every figure, where they are true of every measured cell."""
_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_FORMS: Final = {Worth.SPOILED: "~~{}~~", Worth.RELATIVE: "({})"}
_SHORT: Final = 28
"""Characters of a reason in a cell; the whole of it stands elsewhere in a report."""


class Metric(NamedTuple):
    """A figure that a table, a heat map or a chart shows."""

    key: str
    title: str
    unit: str
    value: Value
    """In the unit of the record; `scale` times it is in `unit`."""
    scale: float = 1.0
    more_is_better: bool = False

    @property
    def heading(self) -> str:
        """Title with unit."""
        return f"{self.title} ({self.unit})"

    def shown(self, cell: CellResult) -> float | None:
        """Give the figure in `unit`; None where there is none."""
        value = known(self.value(cell))
        return None if value is None else value * self.scale


def known(value: float | None) -> float | None:
    """Give the number; None where there is none or it is not finite."""
    return None if value is None or not math.isfinite(value) else value


def point(distribution: str, name: str) -> Value:
    """Make the reader of one point of one distribution of a cell, in seconds."""

    def read(cell: CellResult) -> float | None:
        found = getattr(cell, distribution)
        return None if found is None else known(getattr(found, name))

    return read


def _rate(key: str, title: str, unit: str, value: Value) -> Metric:
    return Metric(key, title, unit, value, more_is_better=True)


def _milliseconds(distribution: str, name: str) -> Metric:
    title = f"{distribution.upper()} {name}"
    return Metric(f"{distribution}_{name}", title, "ms", point(distribution, name), 1000)


METRICS: Final[Mapping[str, Metric]] = {
    metric.key: metric
    for metric in (
        _rate("output", "Output throughput", "tokens/s", lambda c: c.output_token_throughput),
        _rate("requests", "Request throughput", "requests/s", lambda c: c.request_throughput),
        *(_milliseconds("ttft", name) for name in ("p50", "p95", "p99")),
        *(_milliseconds("tpot", name) for name in ("p50", "p99")),
        _milliseconds("itl", "p99"),
        Metric("e2el_mean", "E2EL mean", "s", point("e2el", "mean")),
        Metric("e2el_p50", "E2EL p50", "s", point("e2el", "p50")),
        Metric("e2el_p95", "E2EL p95", "s", point("e2el", "p95")),
        _rate("goodput", "Goodput", "requests/s", lambda c: c.goodput),
        Metric(
            "usd",
            "Price",
            "$ per million tokens, prompts + answers",
            lambda c: c.usd_per_million_tokens,
        ),
    )
}
"""By key, in the order in which a report shows them."""


def throughput(manifest: Manifest, cells: Iterable[CellResult]) -> Metric:
    """Return the rate that a run is about: tokens, or requests where an answer is one token."""
    tokens = any(METRICS["output"].shown(cell) for cell in cells)
    return METRICS["output" if tokens and manifest.plan.workload.output_tokens > 1 else "requests"]


def escaped(text: object) -> str:
    """Make any text harmless in Markdown, tables included: it is shown as it is."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", plain)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Lay out a table whose first columns, `texts` of them, are text and whose others are figures.

    Head and rows are Markdown already.
    """
    ruler = ["---" if number < texts else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *rows))


def load_label(load: Load) -> str:
    """Say a load in a column's heading.

    >>> load_label(Load(concurrency=64)), load_label(Load(requests_per_second=2))
    ('64', '2/s')
    """
    rate = f"{load.requests_per_second:g}/s" if load.requests_per_second else ""
    return " at ".join(part for part in (str(load.concurrency or ""), rate) if part)


def load_order(load: Load) -> tuple[str, float, int]:
    """Sort loads of one kind by their size."""
    return load.arrivals.value, load.requests_per_second or 0.0, load.concurrency or 0


def by_arrivals(cells: Iterable[CellResult]) -> dict[Arrivals, tuple[CellResult, ...]]:
    """Keep apart what came in different ways."""
    kinds: dict[Arrivals, list[CellResult]] = {}
    for cell in cells:
        kinds.setdefault(cell.spec.load.arrivals, []).append(cell)
    return {arrivals: tuple(kind) for arrivals, kind in kinds.items()}


def run_wide(cells: Iterable[CellResult]) -> tuple[Code, ...]:
    """Give the codes that a report says once, because every measured cell has them."""
    measured = [_codes_tables(cell) for cell in cells if cell.state is CellState.MEASURED]
    return tuple(code for code in RUN_WIDE if measured and all(code in each for each in measured))


def numbers(cells: Sequence[CellResult]) -> dict[Code, int]:
    """Number the codes that figures are footnoted with."""
    used = {code for cell in cells for code in _codes_tables(cell)} - set(run_wide(cells))
    return {code: number for number, code in enumerate((c for c in Code if c in used), start=1)}


def legend(cells: Sequence[CellResult]) -> str:
    """Say what the footnotes of tables of these cells mean; nothing where there are none."""
    notes = [f"{_raised(number)} {code}" for code, number in numbers(cells).items()]
    worths = {cell.worth for cell in cells}
    struck = "Struck out: not for decisions." if Worth.SPOILED in worths else ""
    relative = (
        "In brackets: relative only, to be compared with runs of the same method."
        if Worth.RELATIVE in worths
        else ""
    )
    every = ", ".join(run_wide(cells))
    whole = f"Every cell: {every}." if every else ""
    return " ".join(part for part in (struck, relative, whole, ", ".join(notes)) if part)


def matrix(cells: Sequence[CellResult], value: Value, *, corner: str = "Prompt tokens") -> str:
    """Lay out one figure: prompt lengths down, loads across, footnotes as `legend` has them.

    A spoiled figure is struck out, one that is relative only is in brackets; a cell without one
    says why in a few words; one that was not reached is empty. Of several results of one cell the
    last counts.

    Args:
        cells: Of one run; those of other arrivals get columns of their own.
        value: The figure in the unit of the table's heading; None where there is none.
        corner: The first column's heading.
    """
    notes = numbers(cells)
    last = {(cell.spec.lengths, cell.spec.load): cell for cell in cells}
    labels = {cell.spec.lengths: cell.spec.length_label for cell in cells}
    loads = sorted({load for _, load in last}, key=load_order)
    rows = [
        [
            labels[lengths],
            *(in_cell(last.get((lengths, load)), value, notes=notes) for load in loads),
        ]
        for lengths in sorted(labels)
    ]
    return table([corner, *map(load_label, loads)], rows)


def in_cell(cell: CellResult | None, value: Value, *, notes: Mapping[Code, int]) -> str:
    """Show one figure with what must be known of it."""
    if cell is None:
        return ""
    marks = ",".join(_raised(notes[code]) for code in _codes_tables(cell) if code in notes)
    if cell.state is not CellState.MEASURED:
        return f"{cell.state.value} {marks}" if marks else _why(cell)
    number = known(value(cell))
    shown = "-" if number is None else figure(number)
    form = _FORMS.get(cell.worth, "{}") if number is not None else "{}"
    return form.format(shown) + marks


def _why(cell: CellResult) -> str:
    words = " ".join((cell.reason or "").split())
    short = words if len(words) <= _SHORT else words[:_SHORT].rsplit(" ", 1)[0] + " …"
    return f"{cell.state.value}: {escaped(short)}" if short else cell.state.value


def _codes_tables(cell: CellResult) -> tuple[Code, ...]:
    found = {verdict.code for verdict in cell.verdicts}
    return tuple(code for code in Code if code in found)


def _raised(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)


_MOST: Final = 10
"""Cells whose two views differ are told of."""


class _Line(NamedTuple):
    title: str
    field: str
    words: Callable[[float], str]


_CLIENT: Final = (
    _Line("CPU of the busiest worker, of one core", "cpu_share", percent),
    _Line("Lateness of timers, p99.5", "loop_lag_p99_5_seconds", seconds),
    _Line("Lateness of timers, p99", "loop_lag_p99_seconds", seconds),
    _Line("Lateness of sending, p99", "send_lateness_p99_seconds", seconds),
    _Line("Waiting for a CPU in 4 ms, p99.5", "cpu_wait_p99_5_seconds", seconds),
    _Line("Waiting for a CPU in 10 ms, p99", "cpu_wait_p99_seconds", seconds),
    *(
        _Line(f"May have moved {name.upper()} {point} by", f"error_bounds.{name}_{point}", seconds)
        for name, point in (("ttft", "p50"), ("tpot", "p50"), ("itl", "p99"), ("e2el", "mean"))
    ),
    _Line("Memory of all workers", "memory_mib", lambda value: f"{figure(value)} MiB"),
    _Line("Step of the wall clock", "clock_step_seconds", seconds),
)
_SERVER: Final = (
    _Line("Requests waiting, mean", "requests_waiting_mean", figure),
    _Line("Requests running, mean", "requests_running_mean", figure),
    _Line("KV cache in use, most (%)", "kv_cache_usage_max", percent),
)
_SERVER_WORST: Final = (
    _Line("Prefix cache hit rate", "prefix_cache_hit_rate", percent),
    _Line("Preemptions", "preemptions", figure),
    _Line("Requests of others", "other_requests", figure),
)


def client_table(cells: Sequence[CellResult]) -> str:
    """Give the worst of the client's own figures with the cell; nothing where none are known."""
    return _worst("client", _CLIENT, cells)


def server_tables(cells: Sequence[CellResult]) -> Iterator[tuple[str, str]]:
    """Give headings and tables of what /metrics said in the cells' windows."""
    worst = _worst("server", _SERVER_WORST, cells)
    if worst:
        yield "Over the run", worst
    for title, field, _ in _SERVER:
        value = _reader("server", field, 100 if "%" in title else 1)
        if any(value(cell) is not None for cell in cells):
            yield title, matrix(cells, value)


def reconciliation(cells: Sequence[CellResult]) -> str:
    """Hold our TTFT against the engine's own; nothing where it did not tell one."""
    told = [cell for cell in cells if cell.ttft and cell.server and cell.server.ttft_mean]
    apart = [(cell.id, said) for cell in told if (said := reconciled(cell))]
    if not told:
        return ""
    head = f"Mean TTFT agrees in {len(told) - len(apart)} of {len(told)} cells."
    more = [f"- and {len(apart) - _MOST} more"] if len(apart) > _MOST else []
    lines = [f"- {cell_id}: {escaped(said)}" for cell_id, said in apart[:_MOST]]
    return "\n".join([head, *([""] if lines else []), *lines, *more])


def _reader(view: str, field: str, scale: float = 1) -> Value:
    def read(cell: CellResult) -> float | None:
        seen: ServerView | ClientView | None = getattr(cell, view)
        name, _, key = field.partition(".")
        found = None if seen is None else getattr(seen, name)
        number = known(found.get(key) if key and found is not None else found)
        return None if number is None else number * scale

    return read


def _worst(view: str, lines: Sequence[_Line], cells: Sequence[CellResult]) -> str:
    rows = []
    for title, field, words in lines:
        read = _reader(view, field)
        seen = [(abs(value), cell.id) for cell in cells if (value := read(cell)) is not None]
        if seen:
            value, cell_id = max(seen, key=lambda each: each[0])
            rows.append([title, words(value), cell_id])
    return table(["What", "Worst", "Cell"], rows) if rows else ""


TEMPLATES: Final = Path(__file__).parent / "templates"
_SHOWN: Final = (
    "output",
    "requests",
    "ttft_p50",
    "ttft_p99",
    "tpot_p50",
    "e2el_p95",
    "goodput",
    "usd",
)
_CLOSED: Final = (Arrivals.CLOSED, Arrivals.ONCE)
_TITLES: Final = {
    Arrivals.CLOSED: "Closed loop: columns are requests in flight",
    Arrivals.ONCE: "One burst: columns are requests sent at once",
    Arrivals.CONSTANT: "Open loop, requests at constant distances",
    Arrivals.POISSON: "Open loop, Poisson arrivals",
    Arrivals.BURSTS: "Open loop, bursts",
}


class Table(NamedTuple):
    """Markdown with its heading, which may be empty."""

    heading: str
    body: str


class Group(NamedTuple):
    """Tables of the cells whose requests came in one way."""

    title: str
    legend: str
    tables: tuple[Table, ...]


def text(manifest: Manifest, cells: Sequence[CellResult], findings: Sequence[Finding]) -> str:
    """Write the whole report; partial, empty and imported runs have one, too."""
    said = headline(manifest, cells)
    return (
        _environment()
        .get_template("report.md.j2")
        .render(
            title=name(manifest),
            tool=imported_from(manifest),
            best=said.best or "no figure can be used",
            answer=answer(manifest, said),
            validity=validity(manifest, cells),
            codes=_codes(cells),
            findings=findings,
            groups=tuple(_groups(cells)),
            unmeasured=_unmeasured(cells),
            tokens_per_event=_tokens_per_event(cells),
            limits=limits_in_words(manifest.plan.limits),
            client=client_table(cells),
            server=[Table(*each) for each in server_tables(cells)],
            reconciliation=reconciliation(cells),
            facts=facts(manifest),
            deployment=_spec(manifest),
            again=again(manifest),
            command=command(manifest),
        )
    )


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  Markdown: the filter `md` escapes
    )
    made.filters.update(
        md=escaped, fenced=_fenced, few=_few, words=lambda kind: kind.replace("_", " ")
    )
    return made


def _few(cells: Sequence[str]) -> str:
    return listed(tuple(dict.fromkeys(cells)))


def _codes(cells: Sequence[CellResult]) -> str:
    rows = [
        [
            row.code.value,
            row.effect,
            str(len(row.cells)),
            f"{escaped(row.worst)} ({row.worst_cell})",
        ]
        for row in code_rows(cells)
    ]
    return table(["Verdict", "Effect", "Cells", "Worst"], rows, texts=2) if rows else ""


def _groups(cells: Sequence[CellResult]) -> Iterator[Group]:
    for arrivals, kind in by_arrivals(cells).items():
        if any(cell.state is CellState.MEASURED for cell in kind):
            tables = _matrices(kind) if arrivals in _CLOSED else _by_rate(kind)
            yield Group(_TITLES[arrivals], legend(kind), tuple(tables))


def _matrices(cells: Sequence[CellResult]) -> Iterator[Table]:
    for metric in map(METRICS.__getitem__, _SHOWN):
        if any(metric.shown(cell) is not None for cell in cells):
            yield Table(metric.heading, matrix(cells, metric.shown))


def _by_rate(cells: Sequence[CellResult]) -> Iterator[Table]:
    shown = [m for m in map(METRICS.__getitem__, _SHOWN) if any(map(m.shown, cells))]
    notes = numbers(cells)
    ordered = sorted(cells, key=lambda cell: (cell.spec.lengths, load_order(cell.spec.load)))
    rows = [
        [
            cell.spec.length_label,
            load_label(cell.spec.load),
            "" if cell.concurrency_mean is None else figure(cell.concurrency_mean),
            *(in_cell(cell, metric.shown, notes=notes) for metric in shown),
        ]
        for cell in ordered
    ]
    head = ["Prompt tokens", "Meant", "In flight, mean", *(metric.heading for metric in shown)]
    yield Table("", table(head, rows))


def _unmeasured(cells: Sequence[CellResult]) -> str:
    """Say each reason once, with its cells."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.state is not CellState.MEASURED:
            why = cell.reason or "; ".join(v.because for v in cell.verdicts) or "no reason is known"
            reasons.setdefault((cell.state.value, why), []).append(cell.id)
    return "\n".join(
        f"- {state}: {escaped(why)} ({len(ids)}: {listed(ids)})"
        for (state, why), ids in reasons.items()
    )


def _tokens_per_event(cells: Sequence[CellResult]) -> str:
    """Say the most tokens of one event, where there were several."""
    most = max((cell.tokens_per_event or 0 for cell in cells), default=0)
    return figure(most) if most > 1.005 else ""


def _spec(manifest: Manifest) -> str:
    spec = manifest.provenance.deployment_spec
    words = json.dumps(spec, indent=2, ensure_ascii=False, default=str)
    return _fenced(words, "json") if spec else ""


def _fenced(words: str, language: str = "") -> str:
    fence = "```"
    while fence in words:
        fence += "`"
    return f"{fence}{language}\n{words}\n{fence}"


MAX_CHARACTERS: Final = 7_500
"""Less than 2,000 tokens."""
_BRIEF_SHOWN: Final = ("output", "ttft_p50", "tpot_p50")


def brief(manifest: Manifest, cells: Sequence[CellResult]) -> str:
    """Give the answer, the findings and the main tables, as many as there is room for."""
    answer = f"Best: {headline(manifest, cells).sentence}"
    return _filled("\n".join([answer, "", "Findings:", *_findings(manifest, cells)]), cells)


def tables(cells: Sequence[CellResult], room: int) -> str:
    """Give the main tables alone, as many as so many characters hold."""
    return _filled("", cells, room)


def _filled(text: str, cells: Sequence[CellResult], room: int = MAX_CHARACTERS) -> str:
    for part in _tables(cells):
        if len(text) + len(part) > room:
            return f"{text}\n\nMore tables are in benchmark_report.md."[: room + 60].strip()
        text = f"{text}\n\n{part}"
    return text.strip()


def _findings(manifest: Manifest, cells: Sequence[CellResult]) -> Iterator[str]:
    for finding in findings(manifest, cells):
        yield f"- {finding.text}"


def _tables(cells: Sequence[CellResult]) -> Iterator[str]:
    if not any(cell.state is CellState.MEASURED for cell in cells):
        return
    for group in by_arrivals(cells).values():
        if said := legend(group):
            yield said
        for key in _BRIEF_SHOWN:
            metric = METRICS[key]
            rows = matrix(group, metric.shown, corner="Prompt tokens \\ load")
            yield f"{metric.heading}, by prompt tokens and load:\n\n{rows}"
