"""What a comparison means, in sentences with their figures."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.comparing.comparison import (
    ARTICLE_WARNING,
    CellRatio,
    Comparison,
    RowBest,
    Scaling,
    Side,
)
from benchmark.runs import Finding
from benchmark.wording import PRICED, figure, listed, percent, usd

_MOST: Final = 10


def comparison_findings(made: Comparison) -> tuple[Finding, ...]:
    """Say what to conclude, the most important first."""
    base = made.runs[0]
    found: list[Finding] = []
    for side in made.runs[1:]:
        ratios = [each for each in made.cells if each.run == side.name]
        if not ratios:
            found.append(_nothing(base, side))
            continue
        found.append(_overall(base, side, ratios))
        found += _latency(base, side, ratios)
        found += _prices(base, side)
        found += _crossing(made, side)
        found += _scaling(base, side, [each for each in made.scaling if each.run == side.name])
    found += _saturations(made.runs)
    found += _excluded(made)
    return tuple(sorted(found, key=lambda each: each.kind != "compare")[:_MOST])


def _nothing(base: Side, side: Side) -> Finding:
    return Finding(
        kind="distrust",
        text=f"{side.name} and {base.name} have no usable cell in common.",
        cells=(),
    )


def _overall(base: Side, side: Side, ratios: Sequence[CellRatio]) -> Finding:
    values = [each.throughput.value for each in ratios]
    least = min(ratios, key=lambda each: each.throughput.value)
    most = max(ratios, key=lambda each: each.throughput.value)
    return Finding(
        kind="compare",
        text=f"{side.name} gives {figure(_mean(values))} times the throughput of {base.name} over "
        f"{len(ratios)} common cells, from {figure(least.throughput.value)} at {least.cell} to "
        f"{figure(most.throughput.value)} at {most.cell}; {_sure(ratios)}.",
        cells=(least.cell, most.cell),
    )


def _sure(ratios: Sequence[CellRatio]) -> str:
    known = [each for each in ratios if each.deciding.significant is not None]
    if not known:
        return "the files hold no spread, so no difference is tested"
    sure = [each for each in known if each.deciding.significant]
    better = sum(each.better > 1 for each in sure)
    return (
        f"of {len(known)} cells with an interval it is better in {better} and worse in "
        f"{len(sure) - better} at 95 %"
    )


def _latency(base: Side, side: Side, ratios: Sequence[CellRatio]) -> Iterator[Finding]:
    known = {
        name.upper(): [(each, found.value) for each in ratios if (found := getattr(each, name))]
        for name in ("ttft", "tpot", "e2el")
    }
    words = [
        f"{name} is {figure(_mean([value for _, value in pairs]))} times"
        for name, pairs in known.items()
        if pairs
    ]
    if words:
        yield Finding(
            kind="compare",
            text=f"Of {side.name} the mean {listed(words)} that of {base.name} (geometric mean "
            f"over the common cells).",
            cells=tuple(each.cell for each in ratios[:3]),
        )


def _prices(base: Side, side: Side) -> Iterator[Finding]:
    pairs = [
        (one, two, one.usd_per_million_tokens, two.usd_per_million_tokens)
        for one, two in _common(base, side)
        if one.usd_per_million_tokens and two.usd_per_million_tokens
    ]
    if not pairs:
        return
    ratios = sorted(
        (second / first, two.context, second, first)
        for one, two, first, second in pairs
        if first and second
    )
    ends = [ratios[0]] if ratios[0][0] == ratios[-1][0] else [ratios[0], ratios[-1]]
    words = " and ".join(
        f"{figure(times)} times as much at {context:,} prompt tokens "
        f"({usd(second)} against {usd(first)})"
        for times, context, second, first in ends
    )
    yield Finding(
        kind="compare",
        text=f"At the best load of each, a {PRICED} costs on {side.name}, held against "
        f"{base.name}, {words}.",
        cells=(),
    )


def _crossing(made: Comparison, side: Side) -> Iterator[Finding]:
    mine = [each for each in made.crossovers if each.run == side.name]
    if mine:
        words = [
            f"at {each.context:,} prompt tokens between {each.below} and {each.above} (about "
            f"{figure(each.at)}) from {each.better_below} to {each.better_above}"
            for each in mine
        ]
        yield Finding(
            kind="compare", text=f"The better one changes {listed(words, most=3)}.", cells=()
        )


def _scaling(base: Side, side: Side, scaling: Sequence[Scaling]) -> Iterator[Finding]:
    if not scaling or scaling[0].efficiency is None:
        return
    first, last = scaling[0], scaling[-1]
    best = max(scaling, key=lambda each: each.factor)
    yield Finding(
        kind="compare",
        text=f"From {base.name} to {side.name} throughput scales {figure(first.factor)} times at "
        f"{first.load} and {figure(last.factor)} times at {last.load}, at most "
        f"{figure(best.factor)} times at {best.load}: {percent(best.efficiency or 0)} of what the "
        f"number of accelerators promises.",
        cells=(),
    )


def _saturations(sides: Sequence[Side]) -> Iterator[Finding]:
    shared = {row.context for row in sides[0].best}
    shared = shared.intersection(*({row.context for row in side.best} for side in sides))
    reached = [
        (side.name, row)
        for side in sides
        for row in side.best
        if row.saturated and shared and row.context == max(shared)
    ]
    if reached:
        words = "; ".join(f"{name} with {row.saturation}" for name, row in reached)
        yield Finding(
            kind="saturation",
            text=f"At {max(shared):,} prompt tokens 95 % of the best throughput is reached by "
            f"{words}.",
            cells=(),
        )


def _excluded(made: Comparison) -> Iterator[Finding]:
    spoiled = [side for side in made.runs if side.cells_spoiled]
    if spoiled:
        words = "; ".join(
            f"{side.cells_spoiled} of {side.name} ("
            + listed([f"{code} {count}" for code, count in side.spoiled_by.items()])
            + ")"
            for side in spoiled
        )
        yield Finding(kind="distrust", text=f"Spoiled cells are left out: {words}.", cells=())
    if made.article_method:
        yield Finding(kind="distrust", text=ARTICLE_WARNING, cells=())


def _common(base: Side, side: Side) -> Iterator[tuple[RowBest, RowBest]]:
    known = {row.context: row for row in base.best}
    for row in side.best:
        if row.context in known:
            yield known[row.context], row


def _mean(values: Sequence[float]) -> float:
    """Of ratios, so geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))
