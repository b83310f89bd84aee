"""A comparison's picture: throughput and latency of every run against load."""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

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
    contexts = _some(sorted(set(by_run[0]).intersection(*by_run[1:])))
    figure = Figure(figsize=(4.2 * max(1, len(contexts)) + 0.8, 6.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(2, max(1, len(contexts)), squeeze=False, sharex="col")
    for column, context in enumerate(contexts):
        _panel(axes[0][column], called, [run[context] for run in by_run], _throughput)
        _panel(axes[1][column], called, [run[context] for run in by_run], _latency)
        axes[0][column].set_title(f"{context:,} prompt tokens")
        axes[1][column].set_xlabel("load (requests in flight, or per second)")
    axes[0][0].set_ylabel("requests/s")
    axes[1][0].set_ylabel("mean E2EL (s)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(called)))
    image = BytesIO()
    figure.savefig(image, format="png", dpi=120)
    path.write_bytes(image.getvalue())


def _panel(
    axis: Any,
    called: Sequence[str],
    each: Sequence[Row],
    value: Callable[[CellResult], float | None],
) -> None:
    for number, (name, row) in enumerate(zip(called, each, strict=True)):
        points = [(size(cell.spec.load), value(cell)) for cell in row.cells]
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
