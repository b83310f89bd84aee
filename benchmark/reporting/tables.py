"""Cells as Markdown tables: prompt lengths down, loads across, every doubt at its figure."""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from benchmark.records import Arrivals, CellResult, CellState, Code, Load, Worth
from benchmark.runs import Manifest
from benchmark.wording import figure

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
    measured = [_codes(cell) for cell in cells if cell.state is CellState.MEASURED]
    return tuple(code for code in RUN_WIDE if measured and all(code in each for each in measured))


def numbers(cells: Sequence[CellResult]) -> dict[Code, int]:
    """Number the codes that figures are footnoted with."""
    used = {code for cell in cells for code in _codes(cell)} - set(run_wide(cells))
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
    marks = ",".join(_raised(notes[code]) for code in _codes(cell) if code in notes)
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


def _codes(cell: CellResult) -> tuple[Code, ...]:
    found = {verdict.code for verdict in cell.verdicts}
    return tuple(code for code in Code if code in found)


def _raised(number: int) -> str:
    return str(number).translate(_SUPERSCRIPTS)
