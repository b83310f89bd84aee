"""The figures of cells by name, and Markdown tables that say with each what must be known of it."""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmark.records import (
    Arrivals,
    CellResult,
    CellState,
    Code,
    Manifest,
    Worth,
    figure,
    percent,
    usd,
)
from core.records import listed
from core.reply import fenced

TEMPLATES: Final = Path(__file__).parent / "templates"
Value = Callable[[CellResult], Any]
RUN_WIDE: Final = (Code.SIMULATED, Code.ARTICLE_METHOD)
"""Said once of a whole run, not at every figure, where they are true of every measured cell."""
_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_FORMS: Final = {Worth.SPOILED: "~~{}~~", Worth.RELATIVE: "({})"}
_SHORT: Final = 28
"""Characters of a reason in a cell; the whole of it stands elsewhere in a report."""


def known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def at(path: str) -> Value:
    """Make the reader of what a cell has at a path, such as `e2el.mean`; None where it has none."""
    names = path.split(".")

    def read(cell: CellResult) -> Any:
        found: Any = cell
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        return found

    return read


class Metric(NamedTuple):
    """A figure that a table, a heat map or a chart shows."""

    key: str
    title: str
    unit: str
    path: str
    """Of its value, in the unit of the record; `scale` times it is in `unit`."""
    scale: float = 1.0
    more_is_better: bool = False

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})"

    def shown(self, cell: CellResult) -> float | None:
        value = known(at(self.path)(cell))
        return None if value is None else value * self.scale


def _latency(name: str, point: str, unit: str = "ms") -> Metric:
    scale = 1000.0 if unit == "ms" else 1.0
    return Metric(f"{name}_{point}", f"{name.upper()} {point}", unit, f"{name}.{point}", scale)


METRICS: Final[Mapping[str, Metric]] = {
    metric.key: metric
    for metric in (
        Metric("output", "Output throughput", "tokens/s", "output_token_throughput", 1.0, True),  # noqa: FBT003
        Metric("requests", "Request throughput", "requests/s", "request_throughput", 1.0, True),  # noqa: FBT003
        *(_latency("ttft", point) for point in ("p50", "p95", "p99")),
        *(_latency("tpot", point) for point in ("p50", "p99")),
        _latency("itl", "p99"),
        *(_latency("e2el", point, "s") for point in ("mean", "p50", "p95")),
        Metric("goodput", "Goodput", "requests/s", "goodput", 1.0, True),  # noqa: FBT003
        Metric("usd", "Price", "$ per million tokens, prompts + answers", "usd_per_million_tokens"),
    )
}
"""By key, in the order in which a report shows them."""


def known_of(metrics: Iterable[Metric], cells: Sequence[CellResult]) -> list[Metric]:
    """Give the figures that some cell has."""
    return [each for each in metrics if any(each.shown(cell) is not None for cell in cells)]


def throughput(manifest: Manifest, cells: Iterable[CellResult]) -> Metric:
    """Return the rate that a run is about: tokens, or requests where an answer is one token."""
    tokens = any(METRICS["output"].shown(cell) for cell in cells)
    return METRICS["output" if tokens and manifest.plan.workload.output_tokens > 1 else "requests"]


def escaped(text: object) -> str:
    """Make any text harmless in Markdown, tables included: it is shown as it is."""
    plain = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))", r"\\\1", plain)


def environment(*, html: bool) -> Environment:
    """Make what renders the templates, of HTML or of Markdown."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=html,  # noqa: S701  Markdown: the filter `md` escapes
    )
    made.filters.update(
        md=escaped,
        fenced=fenced,
        figure=figure,
        percent=percent,
        usd=usd,
        few=lambda ids: listed(tuple(dict.fromkeys(ids))),
        words=lambda kind: kind.replace("_", " "),
    )
    return made


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> str:
    """Lay out a table whose first columns, `texts` of them, are text and whose others are figures.

    Head and rows are Markdown already.
    """
    ruler = ["---" if number < texts else "---:" for number in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ruler, *rows))


def by_arrivals(cells: Iterable[CellResult]) -> dict[Arrivals, tuple[CellResult, ...]]:
    kinds: dict[Arrivals, tuple[CellResult, ...]] = {}
    for cell in cells:
        arrivals = cell.spec.load.arrivals
        kinds[arrivals] = (*kinds.get(arrivals, ()), cell)
    return kinds


def _codes(cell: CellResult) -> tuple[Code, ...]:
    found = {verdict.code for verdict in cell.verdicts}
    return tuple(code for code in Code if code in found)


def run_wide(cells: Iterable[CellResult]) -> tuple[Code, ...]:
    measured = [_codes(cell) for cell in cells if cell.state is CellState.MEASURED]
    return tuple(code for code in RUN_WIDE if measured and all(code in each for each in measured))


def numbers(cells: Sequence[CellResult]) -> dict[Code, int]:
    """Number the codes that figures are footnoted with."""
    used = {code for cell in cells for code in _codes(cell)} - set(run_wide(cells))
    return {code: number for number, code in enumerate((c for c in Code if c in used), start=1)}


def legend(cells: Sequence[CellResult]) -> str:
    """Say what the footnotes of tables of these cells mean; nothing where there are none."""
    worths, every = {cell.worth for cell in cells}, ", ".join(run_wide(cells))
    parts = (
        (Worth.SPOILED in worths, "Struck out: not for decisions."),
        (
            Worth.RELATIVE in worths,
            "In brackets: relative only, to be compared with runs of the same method.",
        ),
        (every, f"Every cell: {every}."),
    )
    notes = ", ".join(f"{number} {code}" for code, number in numbers(cells).items())
    notes = notes.translate(_SUPERSCRIPTS)
    return " ".join((*(words for holds, words in parts if holds), notes)).strip()


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
    loads = sorted({load for _, load in last}, key=lambda load: load.order)
    rows = [
        [label, *(in_cell(last.get((lengths, load)), value, notes=notes) for load in loads)]
        for lengths, label in sorted(labels.items())
    ]
    return table([corner, *(load.label for load in loads)], rows)


def in_cell(cell: CellResult | None, value: Value, *, notes: Mapping[Code, int]) -> str:
    """Show one figure with what must be known of it."""
    if cell is None:
        return ""
    told = ",".join(str(notes[code]) for code in _codes(cell) if code in notes)
    marks = told.translate(_SUPERSCRIPTS)
    if cell.state is CellState.MEASURED:
        number = known(value(cell))
        form = "-" if number is None else _FORMS.get(cell.worth, "{}")
        return form.format("" if number is None else figure(number)) + marks
    if marks:
        return f"{cell.state} {marks}"
    words = " ".join((cell.reason or "").split())
    short = words if len(words) <= _SHORT else words[:_SHORT].rsplit(" ", 1)[0] + " …"
    return f"{cell.state}: {escaped(short)}" if short else str(cell.state)
