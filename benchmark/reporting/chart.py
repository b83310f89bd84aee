"""A run as one picture: throughput, TTFT and TPOT against load, a line for each prompt length."""

import io
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmark.records import Arrivals, CellResult, CellState
from benchmark.reporting import run_facts
from benchmark.reporting.tables import METRICS, Metric, by_arrivals
from benchmark.runs import Manifest

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, without the yellow that is too pale on white."""
_MARKERS: Final = "osD^vPX<>ph*"
_DASHES: Final[tuple[Literal["-", "--", ":"], ...]] = ("-", "--", ":")
_MOST_BANDS: Final = 3
"""More bands than these hide the lines: then only the shortest and the longest prompts have one."""
_MOST_TICKS: Final = 16
_INCHES: Final = (16.0, 6.8)
_DPI: Final = 100
_LONGEST_TITLE: Final = 110


class _Line(NamedTuple):
    """The cells of one prompt length, by load."""

    context: int
    cells: tuple[CellResult, ...]
    colour: str
    marker: str
    dashes: Literal["-", "--", ":"]
    size: float
    """Of a marker, in square points: of lines that coincide the lower ones show as rings."""
    band: bool


def png(manifest: Manifest, cells: Sequence[CellResult]) -> bytes:
    """Draw the measured cells, 1,600 pixels wide; a run without any says so.

    Where requests came in several ways, the one with the most cells is drawn.
    """
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(manifest), fontsize=14, parse_math=False)
    kinds = by_arrivals(cell for cell in cells if cell.state is CellState.MEASURED)
    if kinds:
        arrivals, most = max(kinds.items(), key=lambda kind: len(kind[1]))
        _draw(figure, _lines(most), arrivals)
    else:
        figure.text(0.5, 0.5, "No cell was measured.", ha="center", fontsize=16)
    made = io.BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()


def _title(manifest: Manifest) -> str:
    ground = manifest.provenance
    place = ", ".join(part for part in (ground.accelerator, ground.target) if part)
    words = run_facts.name(manifest) + (f" on {place}" if place else "")
    # The font at hand has no more than Western letters.
    plain = " ".join(words.split()).encode("latin-1", "replace").decode("latin-1")
    return plain if len(plain) <= _LONGEST_TITLE else plain[:_LONGEST_TITLE] + " ..."


def _lines(cells: Sequence[CellResult]) -> list[_Line]:
    contexts = sorted({cell.spec.context for cell in cells})
    few = len(contexts) <= _MOST_BANDS
    return [
        _Line(
            context,
            tuple(sorted((c for c in cells if c.spec.context == context), key=_load)),
            _COLOURS[number % len(_COLOURS)],
            _MARKERS[number % len(_MARKERS)],
            _DASHES[number // len(_COLOURS) % len(_DASHES)],
            size=100 - 5 * min(number, 11),
            band=few or context in {contexts[0], contexts[-1]},
        )
        for number, context in enumerate(contexts)
    ]


def _load(cell: CellResult) -> float:
    load = cell.spec.load
    return load.requests_per_second or float(load.concurrency or 0)


def _draw(figure: Figure, lines: Sequence[_Line], arrivals: Arrivals) -> None:
    panels = figure.subplots(1, 3)
    band = "p50, band to p99"
    if not all(line.band for line in lines):
        band = "p50; band to p99 for shortest and longest"
    titles = ("Output throughput (tokens/s)", f"TTFT (ms, {band})", f"TPOT (ms, {band})")
    keys = (("output", None), ("ttft_p50", "ttft_p99"), ("tpot_p50", "tpot_p99"))
    for axes, title, (middle, high) in zip(panels, titles, keys, strict=True):
        for line in lines:
            _line(axes, line, METRICS[middle])
            if high and line.band:
                _band(axes, line, METRICS[middle], METRICS[high])
        axes.set_title(title, fontsize=12)
        _load_axis(axes, lines, arrivals)
        if any(_points(line, METRICS[middle]) for line in lines):
            _figure_axis(axes)
    _legend(figure, lines)


def _points(line: _Line, metric: Metric) -> list[tuple[float, float, bool]]:
    return [
        (_load(cell), value, cell.valid) for cell in line.cells if (value := metric.shown(cell))
    ]


def _line(axes: Axes, line: _Line, metric: Metric) -> None:
    points = _points(line, metric)
    loads, values = [p[0] for p in points], [p[1] for p in points]
    axes.plot(loads, values, color=line.colour, linestyle=line.dashes, linewidth=1.6, zorder=2)
    for valid, face, height in ((True, line.colour, 3), (False, "white", 4)):
        some = [(load, value) for load, value, good in points if good is valid]
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
    words = "Requests in flight" if closed else "Requests per second, as meant"
    axes.set_xlabel(words, fontsize=12)
    axes.set_xscale("log", base=2)
    loads = sorted({_load(cell) for line in lines for cell in line.cells})
    if len(loads) <= _MOST_TICKS:
        turned = 45 if len(loads) > _MOST_TICKS / 2 else 0
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
        Line2D([], [], color=e.colour, linestyle=e.dashes, marker=e.marker, label=f"{e.context:,}")
        for e in lines
    ]
    if any(not cell.valid for line in lines for cell in line.cells):
        hollow = Line2D([], [], color="#444444", marker="o", markerfacecolor="white")
        hollow.set(linestyle="none", label="hollow: not for decisions")
        entries.append(hollow)
    figure.legend(
        handles=entries,
        title="Prompt tokens",
        loc="outside lower center",
        ncols=min(len(entries), 13),
        fontsize=11,
        frameon=False,
    )
