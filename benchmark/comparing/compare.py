"""Runs side by side: which is better at which load, by how much, and whether that is sure."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmark.advising.rows import load_in_words, rows, size
from benchmark.comparing import sampled
from benchmark.comparing.bootstrap import Ratio, from_half_widths, ratio
from benchmark.comparing.comparison import (
    CellRatio,
    Comparison,
    Crossover,
    RowBest,
    Scaling,
    Side,
)
from benchmark.comparing.comparison_findings import comparison_findings
from benchmark.comparing.sides import Loaded, axes, check_method, chips, is_article, names
from benchmark.records import OF_BURSTS, Arrivals, CellResult, CellState, Distribution
from core.errors import InvalidArgument

_TELLS: Final = 0.05
"""Where nothing is known of the spread, a smaller difference decides nothing."""


def compare(runs: Sequence[Loaded]) -> Comparison:
    """Hold every run against the first one, cell by cell.

    Raises:
        InvalidArgument: Workload or method differ, or no cell is usable in all runs' grids.
    """
    check_method(runs)
    called = names(runs)
    used = [usable(run) for run in runs]
    ratios = tuple(
        each
        for name, run, cells in zip(called[1:], runs[1:], used[1:], strict=True)
        for each in _ratios(name, (runs[0], used[0]), (run, cells))
    )
    if not ratios:
        raise InvalidArgument(
            "These runs have no usable cell in common.",
            fix="Measure the same contexts and loads on both, then compare.",
            cause="; ".join(_why_none(run, cells) for run, cells in zip(runs, used, strict=True)),
        )
    sides = tuple(map(_side, called, runs, used))
    differing = [n for n in sides[0].axes if len({side.axes[n] for side in sides}) > 1]
    made = Comparison(
        axes=tuple(differing),
        article_method=is_article(runs[0].manifest),
        runs=sides,
        cells=ratios,
        scaling=tuple(_scaling(runs, called, ratios)),
        crossovers=tuple(_crossovers(called, ratios)),
    )
    return made.model_copy(update={"findings": comparison_findings(made)})


def usable(run: Loaded) -> dict[str, CellResult]:
    """Give the cells that may be compared, by id.

    Of runs by the articles' method that method spoils nothing: it is the same in all.
    """
    allowed = OF_BURSTS if is_article(run.manifest) else frozenset()
    return {
        cell.id: cell
        for cell in run.cells
        if cell.state is CellState.MEASURED
        and cell.request_throughput
        and not any(v.spoils and v.code not in allowed for v in cell.verdicts)
    }


def _why_none(run: Loaded, used: Mapping[str, CellResult]) -> str:
    codes = ", ".join(f"{code} {count}" for code, count in _codes(_spoiled(run, used)).items())
    head = f"{run.manifest.run_id}: {len(used)} usable of {len(run.cells)}"
    return f"{head} ({codes})" if codes else head


def _spoiled(run: Loaded, used: Mapping[str, CellResult]) -> list[CellResult]:
    return [cell for cell in run.cells if cell.state is CellState.MEASURED and cell.id not in used]


def _codes(spoiled: Sequence[CellResult]) -> dict[str, int]:
    codes = Counter(v.code.value for cell in spoiled for v in cell.verdicts if v.spoils)
    return dict(codes.most_common())


def _side(name: str, run: Loaded, used: Mapping[str, CellResult]) -> Side:
    spoiled = _spoiled(run, used)
    return Side(
        run_id=run.manifest.run_id,
        name=name,
        axes=axes(run.manifest),
        cells_used=len(used),
        cells_spoiled=len(spoiled),
        spoiled_by=_codes(spoiled),
        simulated=run.manifest.subject.simulated,
        best=tuple(
            RowBest(
                context=row.context,
                saturation=load_in_words(row.saturation.spec.load),
                saturated=row.saturated,
                load=load_in_words(row.best.spec.load),
                throughput=row.throughput(row.best),
                unit=row.unit,
                usd_per_million_tokens=row.best.usd_per_million_tokens,
            )
            for row in rows(used.values())
        ),
    )


def _ratios(
    name: str,
    first: tuple[Loaded, Mapping[str, CellResult]],
    other: tuple[Loaded, Mapping[str, CellResult]],
) -> Iterator[CellRatio]:
    for cell_id, one in first[1].items():
        two = other[1].get(cell_id)
        if two is None:
            continue
        blocks_one = sampled.blocks(first[0].samples, one)
        blocks_two = sampled.blocks(other[0].samples, two)
        throughput = _throughput(one, two, (blocks_one, blocks_two))
        yield CellRatio(
            cell=cell_id,
            context=one.spec.context,
            load=one.spec.load,
            run=name,
            throughput=throughput,
            **{
                figure: _latency(figure, (one, two), (blocks_one, blocks_two))
                for figure in ("ttft", "tpot", "e2el")
            },
            usd_per_million_tokens=_price(one, two, throughput),
        )


def _throughput(one: CellResult, two: CellResult, blocks: tuple[sampled.Cut, sampled.Cut]) -> Ratio:
    value = (two.request_throughput or 0) / (one.request_throughput or 1)
    first, other = (cut.get("throughput") for cut in blocks)
    if first is not None and other is not None:
        return ratio(value, first, other)
    if one.spec.load.arrivals is Arrivals.ONCE:
        return Ratio(value=value)
    return from_half_widths(value, one.relative_half_width, two.relative_half_width)


def _latency(
    figure: str,
    cells: tuple[CellResult, CellResult],
    blocks: tuple[sampled.Cut, sampled.Cut],
) -> Ratio | None:
    spreads: list[Distribution | None] = [getattr(cell, figure) for cell in cells]
    one, two = spreads
    if one is None or two is None or not one.mean > 0 or not two.mean > 0:
        return None
    first, other = (cut.get(figure) for cut in blocks)
    value = two.mean / one.mean
    if first is None or other is None:
        return Ratio(value=value)
    return ratio(value, first, other)


def _price(one: CellResult, two: CellResult, throughput: Ratio) -> Ratio | None:
    """A token's price has the spread of the throughput that it is computed from."""
    if not one.usd_per_million_tokens or not two.usd_per_million_tokens:
        return None
    value = two.usd_per_million_tokens / one.usd_per_million_tokens
    if throughput.low is None or throughput.high is None:
        return Ratio(value=value)
    scale = value * throughput.value
    return Ratio(value=value, low=scale / throughput.high, high=scale / throughput.low)


def _scaling(
    runs: Sequence[Loaded], called: Sequence[str], ratios: Sequence[CellRatio]
) -> Iterator[Scaling]:
    base = chips(runs[0].manifest)
    for name, run in zip(called[1:], runs[1:], strict=True):
        mine = [each for each in ratios if each.run == name]
        count = chips(run.manifest)
        times = count / base if base and count and count != base else None
        for load in sorted({each.load for each in mine}, key=size):
            logs = [math.log(each.throughput.value) for each in mine if each.load == load]
            factor = math.exp(sum(logs) / len(logs))
            yield Scaling(
                run=name,
                load=load_in_words(load),
                factor=factor,
                lengths=len(logs),
                efficiency=factor / times if times else None,
            )


def _crossovers(called: Sequence[str], ratios: Sequence[CellRatio]) -> Iterator[Crossover]:
    kinds = dict.fromkeys((each.run, each.context, each.load.arrivals) for each in ratios)
    for run, context, arrivals in kinds:
        row = sorted(
            (
                each
                for each in ratios
                if (each.run, each.context, each.load.arrivals) == (run, context, arrivals)
                and _decided(each)
            ),
            key=lambda each: size(each.load),
        )
        for below, above in itertools.pairwise(row):
            if (below.better > 1) != (above.better > 1):
                yield _crossover(called[0], below, above)


def _decided(each: CellRatio) -> bool:
    significant = each.deciding.significant
    return abs(each.better - 1) >= _TELLS if significant is None else significant


def _crossover(base: str, below: CellRatio, above: CellRatio) -> Crossover:
    low, high = math.log(below.better), math.log(above.better)
    share = low / (low - high)
    left, right = math.log(size(below.load)), math.log(size(above.load))
    return Crossover(
        run=below.run,
        context=below.context,
        below=load_in_words(below.load),
        above=load_in_words(above.load),
        at=math.exp(left + share * (right - left)),
        better_below=below.run if low > 0 else base,
        better_above=below.run if high > 0 else base,
    )
