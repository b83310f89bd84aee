"""The nouns of a comparison: runs, ratios, crossovers."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from benchmark.comparing.bootstrap import Ratio
from benchmark.records import Arrivals, Load
from benchmark.runs import Finding
from core.errors import NextStep
from core.records import Answer, Record

_SHORT_ROWS: Final = 3
_SHORT_LIST: Final = 6
_SHORT_FINDINGS: Final = 6

T = TypeVar("T")


class RowBest(Record):
    """What a run reaches at one prompt length."""

    context: int
    saturation: str
    """The smallest load with 95 % of the best throughput."""
    saturated: bool
    """A greater load was measured and gave no more."""
    load: str
    """Of the best throughput."""
    throughput: float
    unit: str
    usd_per_million_tokens: float | None


class Side(Record):
    """One run of a comparison."""

    run_id: str
    name: str
    axes: dict[str, str]
    cells_used: int
    cells_spoiled: int
    """Measured, but not to be used; they are in no figure here."""
    spoiled_by: dict[str, int]
    """How many cells each code spoils."""
    simulated: bool = False
    best: tuple[RowBest, ...]
    """By prompt length."""


class CellRatio(Record):
    """One run over the first one, in one cell."""

    cell: str
    context: int
    load: Load
    run: str
    throughput: Ratio
    """Above 1 the run is better than the first."""
    ttft: Ratio | None
    """Of the means, as all latencies; below 1 the run is better than the first."""
    tpot: Ratio | None
    e2el: Ratio | None
    usd_per_million_tokens: Ratio | None

    @property
    def deciding(self) -> Ratio:
        """What decides which is better: a rate that was set says nothing, its latency does."""
        closed = self.load.arrivals in {Arrivals.CLOSED, Arrivals.ONCE}
        return self.throughput if closed or self.e2el is None else self.e2el

    @property
    def better(self) -> float:
        """Above 1 the run is better than the first."""
        deciding = self.deciding
        return deciding.value if deciding is self.throughput else 1 / deciding.value


class Scaling(Record):
    """How much more a run does at one load, over all prompt lengths."""

    run: str
    load: str
    factor: float
    """Geometric mean of the ratios of throughput."""
    lengths: int
    efficiency: float | None = None
    """Of the factor that the number of accelerators would promise."""


class Crossover(Record):
    """Where the better one changes."""

    run: str
    """That is held against the first one."""
    context: int
    below: str
    """The last load before it."""
    above: str
    """The first load after it."""
    at: float
    """Between them, where the interpolated ratio is 1; in the unit of the load."""
    better_below: str
    better_above: str


class Comparison(Answer):
    """Every run against the first one."""

    axes: tuple[str, ...]
    """What differs between the runs."""
    article_method: bool
    runs: tuple[Side, ...]
    cells: tuple[CellRatio, ...]
    """Cells that are usable in both; in the short form none."""
    scaling: tuple[Scaling, ...]
    crossovers: tuple[Crossover, ...]
    findings: tuple[Finding, ...] = ()
    file: str | None = None
    """The Markdown, with every cell."""
    chart: str | None = None

    def summary(self) -> str:
        """Say what matters most."""
        if self.findings:
            return self.findings[0].text
        return f"{len(self.runs)} runs are compared in {len(self.cells)} cells."

    def facts(self) -> Mapping[str, Any]:
        """Return the findings and the files; the first finding is the summary."""
        return {
            "runs": [f"{side.name}: {side.run_id}" for side in self.runs[:_SHORT_LIST]],
            "findings": [each.text for each in self.findings[1:_SHORT_FINDINGS]],
            "file": self.file,
            "chart": self.chart,
        }

    def warnings(self) -> tuple[str, ...]:
        """Say what is not real, and what a method cannot say."""
        simulated = [side.name for side in self.runs if side.simulated]
        return (
            *((f"Simulated: {', '.join(simulated)}.",) if simulated else ()),
            *((ARTICLE_WARNING,) if self.article_method else ()),
        )

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer a run where something was spoiled."""
        worst = max(self.runs, key=lambda side: side.cells_spoiled)
        return (NextStep("run_benchmark"),) if worst.cells_spoiled > worst.cells_used else ()

    def short(self) -> "Comparison":
        """Give what an agent reads, at most 2,000 tokens; the file has the rest."""
        sides = tuple(_short(side, self.axes) for side in self.runs)
        return self.model_copy(
            update={
                "runs": sides[:_SHORT_LIST],
                "cells": (),
                "scaling": _spread(self.scaling, _SHORT_LIST),
                "crossovers": _spread(self.crossovers, _SHORT_LIST),
                "findings": tuple(
                    each.model_copy(update={"cells": each.cells[:_SHORT_ROWS]})
                    for each in self.findings
                ),
            }
        )


ARTICLE_WARNING: Final = (
    "Every run is one burst of requests and its drain: the ratios say nothing of decoding and of "
    "serving under a steady load."
)


def _short(side: Side, differing: tuple[str, ...]) -> Side:
    axes = {name: value for name, value in side.axes.items() if name in differing}
    best = _spread(side.best, _SHORT_ROWS)
    return side.model_copy(update={"axes": axes, "best": best})


def _spread(values: tuple[T, ...], most: int) -> tuple[T, ...]:
    """Keep some, from the first to the last."""
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return tuple(values[round(number * step)] for number in range(most))
