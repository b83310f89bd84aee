"""A run, and a comparison of runs, as one picture: throughput and latency against load."""

import io
import textwrap
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmark import report_text
from benchmark.advice import Row, rows, size
from benchmark.records import Arrivals, CellResult, CellState, Manifest, Worth
from benchmark.report_text import METRICS, Metric, by_arrivals, throughput

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, without the yellow that is too pale on white."""
_MARKERS: Final = "osD^vPX<>ph*"
_DASHES: Final[tuple[Literal["-", "--", ":"], ...]] = ("-", "--", ":")
_MOST_BANDS: Final = 3
"""More bands than these hide the lines: then only the shortest and the longest prompts have one."""
_MOST_TICKS: Final = 16
_INCHES: Final = (16.0, 6.8)
_DPI: Final = 100
_LONGEST_LINE: Final = 120
_GREY: Final = "#a0a0a0"


class _Line(NamedTuple):
    """The cells of one prompt length, by load."""

    length: str
    cells: tuple[CellResult, ...]
    colour: str
    marker: str
    dashes: Literal["-", "--", ":"]
    size: float
    """Of a marker, in square points: of lines that coincide the lower ones show as rings."""
    band: bool


class _Panel(NamedTuple):
    """One figure against load, from its middle to its tail where the run has one."""

    middle: Metric
    high: Metric | None


def png(manifest: Manifest, cells: Sequence[CellResult]) -> bytes:
    """Draw the figures that the measured cells have, 1,600 pixels wide; without any it says so.

    Where requests came in several ways, the one with the most cells is drawn.
    """
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(manifest), fontsize=14, parse_math=False)
    kinds = by_arrivals(cell for cell in cells if cell.state is CellState.MEASURED)
    arrivals, most = max(kinds.items(), key=lambda kind: len(kind[1]), default=(None, ()))
    panels = _panels(manifest, most)
    if arrivals and panels:
        _draw(figure, _lines(most), arrivals, panels)
    else:
        figure.text(0.5, 0.5, "No cell was measured.", ha="center", fontsize=16)
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def _panels(manifest: Manifest, cells: Sequence[CellResult]) -> list[_Panel]:
    """Choose the figures that are known; E2EL stands in for TTFT or TPOT."""

    def known(key: str) -> Metric | None:
        metric = METRICS[key]
        return metric if any(metric.shown(cell) for cell in cells) else None

    wanted = (
        (throughput(manifest, cells).key, None),
        ("ttft_p50", "ttft_p99"),
        ("tpot_p50", "tpot_p99"),
        ("e2el_p50", "e2el_p95"),
        ("e2el_mean", "e2el_p95"),
    )
    found = [
        _Panel(middle, known(high) if high else None)
        for key, high in wanted
        if (middle := known(key))
    ]
    return found[:3] if known("e2el_p50") else found


def _title(manifest: Manifest) -> str:
    """Name the run, and below it what must be known before any figure is read."""
    ground = manifest.provenance
    place = ", ".join(part for part in (ground.accelerator, ground.target) if part)
    head = f"Benchmark of {manifest.subject.model}" + (f" on {place}" if place else "")
    lines = [" ".join(line.split()) for line in (head, report_text.caveats(manifest)) if line]
    short = (textwrap.shorten(line, _LONGEST_LINE, placeholder=" ...") for line in lines)
    # The font at hand has no more than Western letters.
    return "\n".join(short).encode("latin-1", "replace").decode("latin-1")


def _lines(cells: Sequence[CellResult]) -> list[_Line]:
    labels = {cell.spec.lengths: cell.spec.length_label for cell in cells}
    rows = sorted(labels)
    few = len(rows) <= _MOST_BANDS
    return [
        _Line(
            labels[lengths],
            tuple(sorted((c for c in cells if c.spec.lengths == lengths), key=_load)),
            _COLOURS[number % len(_COLOURS)],
            _MARKERS[number % len(_MARKERS)],
            _DASHES[number // len(_COLOURS) % len(_DASHES)],
            size=100 - 5 * min(number, 11),
            band=few or lengths in {rows[0], rows[-1]},
        )
        for number, lengths in enumerate(rows)
    ]


def _load(cell: CellResult) -> float:
    load = cell.spec.load
    return load.requests_per_second or float(load.concurrency or 0)


def _draw(
    figure: Figure, lines: Sequence[_Line], arrivals: Arrivals, panels: Sequence[_Panel]
) -> None:
    every = all(line.band for line in lines)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for line in lines:
            _line(axes, line, panel.middle)
            if panel.high and line.band:
                _band(axes, line, panel.middle, panel.high)
        some = "" if every else " for shortest and longest"
        band = f", band to {panel.high.title.split()[-1]}{some}" if panel.high else ""
        axes.set_title(f"{panel.middle.heading.rstrip(')')}{band})", fontsize=12)
        _load_axis(axes, lines, arrivals)
        _figure_axis(axes)
    _legend(figure, lines)


def _points(line: _Line, metric: Metric) -> list[tuple[float, float, Worth]]:
    return [
        (_load(cell), value, cell.worth) for cell in line.cells if (value := metric.shown(cell))
    ]


def _line(axes: Axes, line: _Line, metric: Metric) -> None:
    points = _points(line, metric)
    loads, values = [p[0] for p in points], [p[1] for p in points]
    axes.plot(loads, values, color=line.colour, linestyle=line.dashes, linewidth=1.6, zorder=2)
    for worths, face, height in (
        ({Worth.VALID, Worth.MARKED}, line.colour, 3),
        ({Worth.RELATIVE}, _GREY, 4),
        ({Worth.SPOILED}, "white", 4),
    ):
        some = [(load, value) for load, value, worth in points if worth in worths]
        axes.scatter(
            [load for load, _ in some],
            [value for _, value in some],
            marker=line.marker,
            s=line.size,
            facecolors=face,
            edgecolors=line.colour,
            linewidths=1.5,
            zorder=height,
        )


def _band(axes: Axes, line: _Line, middle: Metric, high: Metric) -> None:
    both = [
        (_load(cell), low, top)
        for cell in line.cells
        if (low := middle.shown(cell)) and (top := high.shown(cell))
    ]
    if both:
        loads, lows, tops = ([point[n] for point in both] for n in range(3))
        axes.fill_between(loads, lows, tops, color=line.colour, alpha=0.14, linewidth=0)


def _load_axis(axes: Axes, lines: Sequence[_Line], arrivals: Arrivals) -> None:
    closed = arrivals in {Arrivals.CLOSED, Arrivals.ONCE}
    counted = "Requests at once" if arrivals is Arrivals.ONCE else "Requests in flight"
    words = counted if closed else "Requests per second, as meant"
    axes.set_xlabel(words, fontsize=12)
    axes.set_xscale("log", base=2)
    loads = sorted({_load(cell) for line in lines for cell in line.cells})
    if len(loads) <= _MOST_TICKS:
        turned = 45 if len(loads) > _MOST_TICKS / 4 else 0
        axes.set_xticks(loads, [f"{load:g}" for load in loads], rotation=turned)
    else:
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, which="major", color="#d0d0d0", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)


def _figure_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, lines: Sequence[_Line]) -> None:
    entries = [
        Line2D([], [], color=e.colour, linestyle=e.dashes, marker=e.marker, label=e.length)
        for e in lines
    ]
    worths = {cell.worth for line in lines for cell in line.cells}
    for worth, face, words in (
        (Worth.SPOILED, "white", "hollow: not for decisions"),
        (Worth.RELATIVE, _GREY, "grey: relative only"),
    ):
        if worth in worths:
            sign = Line2D([], [], color="#444444", marker="o", markerfacecolor=face)
            sign.set(linestyle="none", label=words)
            entries.append(sign)
    figure.legend(
        handles=entries,
        title="Prompt tokens",
        loc="outside lower center",
        ncols=min(len(entries), 13),
        fontsize=11,
        frameon=False,
    )


_COMPARISON_CHART_COLOURS: Final = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Okabe and Ito's, told apart by colour-blind people; markers and dashes say it again."""
_COMPARISON_CHART_MARKERS: Final = "osD^vP*"
_COMPARISON_CHART_DASHES: Final = ("-", "--", "-.", ":")
_MOST_COLUMNS: Final = 3


def draw(path: Path, called: Sequence[str], used: Sequence[Sequence[CellResult]]) -> None:
    """Write the picture of the cells that were compared."""
    by_run = [{row.context: row for row in rows(cells)} for cells in used]
    shared = [set(by_run[0]) & set(other) for other in by_run[1:]]
    contexts = _some(sorted(set.intersection(*shared) or set.union(*shared)))
    known = [
        (words, value)
        for words, value in (("requests/s", _throughput), ("mean E2EL (s)", _latency))
        if any(value(cell) for cells in used for cell in cells)
    ]
    height = 0.8 + 3.0 * len(known)
    figure = Figure(figsize=(4.2 * len(contexts) + 0.8, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(len(known), len(contexts), squeeze=False, sharex="col")
    for row, (words, value) in enumerate(known):
        for column, context in enumerate(contexts):
            _panel(axes[row][column], called, [run.get(context) for run in by_run], value)
        axes[row][0].set_ylabel(words)
    for column, context in enumerate(contexts):
        axes[0][column].set_title(f"{context:,} prompt tokens")
        axes[-1][column].set_xlabel("load (requests in flight, or per second)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(called)))
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    path.write_bytes(image.getvalue())


def _panel(
    axis: Any,
    called: Sequence[str],
    each: Sequence[Row | None],
    value: Callable[[CellResult], float | None],
) -> None:
    for number, (name, row) in enumerate(zip(called, each, strict=True)):
        cells = row.cells if row else ()
        points = [(size(cell.spec.load), value(cell)) for cell in cells]
        known = [(load, height) for load, height in points if height]
        axis.plot(
            [load for load, _ in known],
            [height for _, height in known],
            color=_COMPARISON_CHART_COLOURS[number % len(_COMPARISON_CHART_COLOURS)],
            marker=_COMPARISON_CHART_MARKERS[number % len(_COMPARISON_CHART_MARKERS)],
            linestyle=_COMPARISON_CHART_DASHES[number % len(_COMPARISON_CHART_DASHES)],
            label=name,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(_plain))
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(_plain))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(visible=True, which="major", alpha=0.3)


def _plain(value: float, _position: int) -> str:
    return f"{value:,g}"


def _throughput(cell: CellResult) -> float | None:
    return cell.request_throughput


def _latency(cell: CellResult) -> float | None:
    return cell.e2el.mean if cell.e2el and cell.e2el.mean > 0 else None


def _some(contexts: Sequence[int]) -> Sequence[int]:
    if len(contexts) <= _MOST_COLUMNS:
        return contexts
    return [contexts[0], contexts[len(contexts) // 2], contexts[-1]]
