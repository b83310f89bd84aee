"""A run as Markdown for people: what is valid first, then what to do, then the figures."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmark.advising.headline import headline
from benchmark.records import Arrivals, CellResult, CellState
from benchmark.reporting import health, run_facts
from benchmark.reporting.tables import (
    METRICS,
    by_arrivals,
    escaped,
    in_cell,
    legend,
    load_label,
    load_order,
    matrix,
    numbers,
    table,
)
from benchmark.reporting.tally import code_rows
from benchmark.runs import Finding, Manifest
from benchmark.wording import figure, listed

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
            title=run_facts.name(manifest),
            tool=run_facts.imported_from(manifest),
            best=said.best or "no figure can be used",
            answer=run_facts.answer(manifest, said),
            validity=run_facts.validity(manifest, cells),
            codes=_codes(cells),
            findings=findings,
            groups=tuple(_groups(cells)),
            unmeasured=_unmeasured(cells),
            tokens_per_event=_tokens_per_event(cells),
            limits=run_facts.limits_in_words(manifest.plan.limits),
            client=health.client_table(cells),
            server=[Table(*each) for each in health.server_tables(cells)],
            reconciliation=health.reconciliation(cells),
            facts=run_facts.facts(manifest),
            deployment=_spec(manifest),
            again=run_facts.again(manifest),
            command=run_facts.command(manifest),
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
