"""A run, and a comparison of runs, as one picture: throughput and latency against load."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmark.advice import rows
from benchmark.records import Arrivals, CellResult, CellState, Manifest, Worth
from benchmark.tables import METRICS, Metric, by_arrivals, known_of, throughput

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind people, without the yellow that is too pale on white;
markers and dashes say it again."""
_MARKERS: Final = "osD^vPX<>ph*"
_DASHES: Final[tuple[Literal["-", "--", ":"], ...]] = ("-", "--", ":")
_MOST_BANDS: Final = 3
"""More bands than these hide the lines: then only the shortest and the longest prompts have one."""
_MOST_TICKS: Final = 16
_MOST_COLUMNS: Final = 3
_INCHES: Final = (16.0, 6.8)
_LONGEST_LINE: Final = 120
_FACES: Final = (
    ({Worth.VALID, Worth.MARKED}, None, 3, ""),
    ({Worth.RELATIVE}, "#a0a0a0", 4, "grey: relative only"),
    ({Worth.SPOILED}, "white", 4, "hollow: not for decisions"),
)
"""What a marker is filled with, how high it lies and what the legend says of it."""
_LOADS: Final = {Arrivals.CLOSED: "Requests in flight", Arrivals.ONCE: "Requests at once"}


class _Line(NamedTuple):
    """Cells by load, as they are drawn."""

    name: str
    cells: Sequence[CellResult]
    number: int
    band: bool = False

    @property
    def style(self) -> dict[str, str]:
        colours, number = len(_COLOURS), self.number
        return {
            "color": _COLOURS[number % colours],
            "linestyle": _DASHES[number // colours % len(_DASHES)],
            "marker": _MARKERS[number % len(_MARKERS)],
        }

    def points(self, *metrics: Metric) -> list[tuple[Any, ...]]:
        """Give load, figures and worth of the cells that have them all."""
        shown = ((cell, [metric.shown(cell) for metric in metrics]) for cell in self.cells)
        return [
            (cell.spec.load.size, *values, cell.worth)
            for cell, values in shown
            if None not in values
        ]

    def draw(self, axes: Axes, metric: Metric, **style: Any) -> None:
        points = [point for point in self.points(metric) if point[1] > 0]
        axes.plot([point[0] for point in points], [point[1] for point in points], **style)


def png(manifest: Manifest, cells: Sequence[CellResult]) -> bytes:
    """Draw the figures that the measured cells have, 1,600 pixels wide; without any it says so.

    Where requests came in several ways, the one with the most cells is drawn.
    """
    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(title(manifest), fontsize=14, parse_math=False)
    kinds = by_arrivals(cell for cell in cells if cell.state is CellState.MEASURED)
    arrivals, most = max(kinds.items(), key=lambda kind: len(kind[1]), default=(None, ()))
    shown, made = panels(manifest, most), lines(most)
    if arrivals and shown:
        across = figure.subplots(1, len(shown), squeeze=False)[0]
        for axes, (middle, high) in zip(across, shown, strict=True):
            _panel(axes, made, middle, high)
            _log(axes)
            axes.set_xlabel(_LOADS.get(arrivals, "Requests per second, as meant"), fontsize=12)
            loads = sorted({cell.spec.load.size for cell in most})
            if len(loads) <= _MOST_TICKS:
                turned = 45 if len(loads) > _MOST_TICKS / 4 else 0
                axes.set_xticks(loads, [f"{load:g}" for load in loads], rotation=turned)
            axes.set_xticks([], minor=True)
        _legend(figure, made)
    else:
        figure.text(0.5, 0.5, "No cell was measured.", ha="center", fontsize=16)
    return _drawn(figure, 100)


def panels(manifest: Manifest, cells: Sequence[CellResult]) -> list[tuple[Metric, Metric | None]]:
    """Choose the figures that are known, each with its tail; E2EL stands in for TTFT or TPOT."""
    known = {metric.key: metric for metric in known_of(METRICS.values(), cells)}
    wanted = (
        (throughput(manifest, cells).key, ""),
        ("ttft_p50", "ttft_p99"),
        ("tpot_p50", "tpot_p99"),
        ("e2el_p50", "e2el_p95"),
        ("e2el_mean", "e2el_p95"),
    )
    found = [(known[key], known.get(high)) for key, high in wanted if key in known]
    return found[:3] if "e2el_p50" in known else found


def title(manifest: Manifest) -> str:
    """Name the run, and below it what must be known before any figure is read."""
    ground = manifest.provenance
    place = ", ".join(part for part in (ground.accelerator, ground.target) if part)
    head = f"Benchmark of {manifest.subject.model}" + (f" on {place}" if place else "")
    words = [" ".join(line.split()) for line in (head, manifest.caveats) if line]
    short = (textwrap.shorten(line, _LONGEST_LINE, placeholder=" ...") for line in words)
    # The font at hand has no more than Western letters.
    return "\n".join(short).encode("latin-1", "replace").decode("latin-1")


def lines(cells: Sequence[CellResult]) -> list[_Line]:
    labels = {cell.spec.lengths: cell.spec.length_label for cell in cells}
    lengths = sorted(labels)
    bands = lengths if len(lengths) <= _MOST_BANDS else [lengths[0], lengths[-1]]
    return [
        _Line(
            labels[each],
            sorted((c for c in cells if c.spec.lengths == each), key=lambda c: c.spec.load.size),
            number,
            band=each in bands,
        )
        for number, each in enumerate(lengths)
    ]


def draw(called: Sequence[str], used: Sequence[Sequence[CellResult]]) -> bytes:
    """Draw the picture of the cells that were compared: columns are prompt lengths."""
    by_run = [{row.context: row.cells for row in rows(cells)} for cells in used]
    shared = [set(by_run[0]) & set(other) for other in by_run[1:]]
    contexts = sorted(set.intersection(*shared) or set.union(*shared))
    if len(contexts) > _MOST_COLUMNS:
        contexts = [contexts[0], contexts[len(contexts) // 2], contexts[-1]]
    every = [cell for cells in used for cell in cells]
    known = known_of((METRICS["requests"], METRICS["e2el_mean"]), every)
    size = (4.2 * len(contexts) + 0.8, 0.8 + 3.0 * len(known))
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(len(known), len(contexts), squeeze=False, sharex="col")
    for column, context in enumerate(contexts):
        for row, metric in enumerate(known):
            axis = axes[row][column]
            for number, (name, run) in enumerate(zip(called, by_run, strict=True)):
                line = _Line(name, run.get(context, ()), number)
                line.draw(axis, metric, label=name, **line.style)
            _log(axis)
            axes[row][0].set_ylabel(metric.heading)
        axes[0][column].set_title(f"{context:,} prompt tokens")
        axes[-1][column].set_xlabel("load (requests in flight, or per second)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(called)))
    return _drawn(figure, 120)


def _drawn(figure: Figure, dpi: int) -> bytes:
    figure.savefig(image := io.BytesIO(), format="png", dpi=dpi)
    return image.getvalue()


def _log(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", color="#d0d0d0", linewidth=0.7)
    axes.set_axisbelow(True)


def _panel(axes: Axes, made: Sequence[_Line], middle: Metric, high: Metric | None) -> None:
    for line in made:
        colour, dashes = line.style["color"], line.style["linestyle"]
        line.draw(axes, middle, color=colour, linestyle=dashes, linewidth=1.6, zorder=2)
        for worths, face, height, _ in _FACES:
            some = [point for point in line.points(middle) if point[-1] in worths]
            axes.scatter(
                [point[0] for point in some],
                [point[1] for point in some],
                marker=line.style["marker"],
                # Of lines that coincide the lower ones show as rings.
                s=100 - 5 * min(line.number, 11),
                facecolors=face or colour,
                edgecolors=colour,
                linewidths=1.5,
                zorder=height,
            )
        if high and line.band and (both := line.points(middle, high)):
            loads, lows, tops = ([point[n] for point in both] for n in range(3))
            axes.fill_between(loads, lows, tops, color=colour, alpha=0.14, linewidth=0)
    some_bands = "" if all(line.band for line in made) else " for shortest and longest"
    band = f", band to {high.title.split()[-1]}{some_bands}" if high else ""
    axes.set_title(f"{middle.heading.rstrip(')')}{band})", fontsize=12)


def _legend(figure: Figure, made: Sequence[_Line]) -> None:
    entries = [Line2D([], [], label=line.name, **line.style) for line in made]  # type: ignore[arg-type]
    worths = {cell.worth for line in made for cell in line.cells}
    for those, face, _, words in reversed(_FACES):
        if words and those & worths:
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
