"""A comparison as a Markdown file with its chart beside it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmark.compare import CellRatio, Comparison, Loaded, Ratio, Side, compare, usable
from benchmark.folder import replace
from benchmark.records import PRICED, CellResult, figure, percent, usd
from benchmark.tables import METRICS, escaped, matrix, table
from core.errors import DiskFull

_RATIOS: Final[tuple[tuple[str, Callable[[CellRatio], Ratio | None]], ...]] = (
    ("throughput (requests/s, above 1 is better)", lambda each: each.throughput),
    ("mean TTFT (below 1 is better)", lambda each: each.ttft),
    ("mean TPOT (below 1 is better)", lambda each: each.tpot),
    ("mean E2EL (below 1 is better)", lambda each: each.e2el),
    (f"$ per {PRICED}; below 1 is better", lambda each: each.usd_per_million_tokens),
)


def write_comparison(runs: Sequence[Loaded], path: Path) -> Comparison:
    """Compare runs and write the file `path`, such as tpu_v6e4_vs_v6e1_comparison.md, and a chart.

    Raises:
        InvalidArgument: Workload or method differ, or no cell is usable in all runs' grids.
        DiskFull: The files cannot be written.
    """
    from benchmark.chart import draw

    made = compare(runs)
    chart = path.with_suffix(".png")
    used = [tuple(usable(run).values()) for run in runs]
    made = made.model_copy(update={"file": str(path), "chart": str(chart)})
    try:
        draw(chart, [side.name for side in made.runs], used)
        replace(path, "\n".join(_document(made, used, chart.name)) + "\n")
    except OSError as exc:
        raise DiskFull(
            f"{path.name} cannot be written.",
            fix="Make room there, or name another.",
            cause=str(exc),
        ) from exc
    return made


def _document(made: Comparison, used: Sequence[Sequence[CellResult]], chart: str) -> Iterator[str]:
    first, *others = made.runs
    yield f"# {' against '.join(escaped(side.name) for side in made.runs)}\n"
    yield f"{escaped(made.summary())}\n"
    yield from (f"> {escaped(warning)}\n" for warning in made.warnings())
    yield f"![Throughput and latency against load]({chart})\n"
    yield "## Findings\n"
    yield from (f"* {escaped(finding.text)}" for finding in made.findings)
    yield "\n## Runs\n"
    yield _runs(made)
    yield "\n## Throughput (requests/s)\n"
    for side, cells in zip(made.runs, used, strict=True):
        yield f"### {escaped(side.name)}\n"
        yield f"{matrix(cells, METRICS['requests'].shown)}\n"
    for side in others:
        yield f"## {escaped(side.name)} over {escaped(first.name)}\n"
        yield "A ratio in **bold** differs from 1 at 95 %; in brackets its interval.\n"
        yield from _ratio_tables(made, side)
    yield from _lists(made)
    yield from _method(made)


def _runs(made: Comparison) -> str:
    names = list(made.runs[0].axes)
    rows = [
        [name, *(escaped(side.axes[name]) for side in made.runs)]
        for name in names
        if name in made.axes
    ]
    alike = [name for name in names if name not in made.axes]
    same = ", ".join(f"{name} {made.runs[0].axes[name]}" for name in alike)
    rows.append(["run", *(escaped(side.run_id) for side in made.runs)])
    rows.append(["cells used", *(str(side.cells_used) for side in made.runs)])
    rows.append(["cells left out", *(_spoiled(side) for side in made.runs)])
    head = ["", *(escaped(side.name) for side in made.runs)]
    return f"{table(head, rows)}\n\nAlike: {escaped(same)}."


def _spoiled(side: Side) -> str:
    codes = ", ".join(f"{code} {count}" for code, count in side.spoiled_by.items())
    return f"{side.cells_spoiled} ({codes})" if codes else "0"


def _ratio_tables(made: Comparison, side: Side) -> Iterator[str]:
    mine = [each for each in made.cells if each.run == side.name]
    for title, of in _RATIOS:
        known = [(each, found) for each in mine if (found := of(each)) is not None]
        if known:
            yield f"### {title}\n"
            yield f"{_ratio_matrix(known)}\n"


def _ratio_matrix(known: Sequence[tuple[CellRatio, Ratio]]) -> str:
    """Lay ratios out by hand: they carry intervals that one figure does not."""
    loads = sorted({each.load for each, _ in known}, key=lambda load: load.order)
    found = {(each.context, each.load): _ratio(value) for each, value in known}
    rows = [
        [f"{context:,}", *(found.get((context, load), "") for load in loads)]
        for context in sorted({each.context for each, _ in known})
    ]
    return table(["Prompt tokens", *(load.label for load in loads)], rows)


def _ratio(value: Ratio) -> str:
    shown = f"**{figure(value.value)}**" if value.significant else figure(value.value)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure(value.low)} to {figure(value.high)})"


def _lists(made: Comparison) -> Iterator[str]:
    yield "## Saturation and price\n"
    head = [
        "Run",
        "Prompt tokens",
        "95 % of the best at",
        "Best at",
        "Throughput",
        f"$ per {PRICED}",
    ]
    yield table(head, (row for side in made.runs for row in _best(side)))
    yield "\n## Scaling by load\n"
    rows = (
        [
            escaped(each.run),
            each.load,
            figure(each.factor),
            str(each.lengths),
            "" if each.efficiency is None else percent(each.efficiency),
        ]
        for each in made.scaling
    )
    yield table(["Run", "Load", "Times the throughput", "Lengths", "Of ideal scaling"], rows)
    yield "\n## Crossovers\n"
    if not made.crossovers:
        yield "None: one run is the better one at every load of a prompt length.\n"
        return
    crossed = (
        [
            f"{each.context:,}",
            f"{each.below} to {each.above}",
            figure(each.at),
            escaped(each.better_below),
            escaped(each.better_above),
        ]
        for each in made.crossovers
    )
    yield table(["Prompt tokens", "Between", "About", "Better below", "Better above"], crossed)


def _best(side: Side) -> Iterator[list[str]]:
    for row in side.best:
        price = row.usd_per_million_tokens
        yield [
            escaped(side.name),
            f"{row.context:,}",
            row.saturation if row.saturated else "not reached",
            row.load,
            f"{figure(row.throughput)} {row.unit}",
            "" if price is None else usd(price),
        ]


def _method(made: Comparison) -> Iterator[str]:
    yield "\n## Method\n"
    yield (
        "Workload and method are the same in all runs; spoiled cells are left out of every figure. "
        "Intervals are 95 %, from 1,000 resamples of stretches of the window that are each at "
        "least as long as a request, and from the cells' own intervals where requests were not "
        f"kept. Of {len(made.cells)} ratios tested so, about {len(made.cells) / 20:.0f} would "
        "look significant by chance alone."
    )
