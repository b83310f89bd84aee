"""A comparison's picture: throughput and latency of every run against load."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmark.advising.rows import Row, rows, size
from benchmark.records import CellResult

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart by colour-blind people; markers and dashes say it again."""
_MARKERS: Final = "osD^vP*"
_DASHES: Final = ("-", "--", "-.", ":")
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
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle=_DASHES[number % len(_DASHES)],
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
