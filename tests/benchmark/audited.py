"""Results to be audited, made by a known law, with flaws planted in them."""

import math
from collections.abc import Sequence

from benchmark.import_audit import Claims, Figures, ground_of, make_cell, prefill_roof, spread
from benchmark.records import Arrivals, CellResult, CellSpec, Code, Load

A100 = Claims(model="12b qat", accelerator="A100", output_tokens=1)
CONTEXTS = (8, 512, 4096)
BURSTS = (1, 16, 64, 256)


def burst(
    context: int,
    concurrency: int,
    rate: float,
    *,
    seconds: float | None = None,
    succeeded: int | None = None,
    wall: float | None = None,
) -> CellResult:
    """A row of an article's grid: a burst, its rate, the mean time of a request."""
    well = concurrency if succeeded is None else succeeded
    mean = well / rate * 0.6 if seconds is None and rate else seconds
    figures = Figures(
        succeeded=well,
        failed=concurrency - well,
        wall_seconds=wall if wall is not None else (well / rate if rate else 0.0),
        requests_per_second=rate,
        output_tokens_per_second=rate,
        times={"e2el": spread(well, {"mean": mean}) if mean else None},
    )
    load = Load(arrivals=Arrivals.ONCE, concurrency=concurrency)
    return make_cell(CellSpec(context=context, load=load), figures, A100)


def clean(
    most: float = 20.0,
    alone: float = 0.1,
    contexts: Sequence[int] = CONTEXTS,
    bursts: Sequence[int] = BURSTS,
) -> list[CellResult]:
    """A grid by a law: a fixed time for each request, and a share of what arithmetic allows."""
    ground = ground_of(A100)
    assert ground is not None
    made = []
    for context in contexts:
        roof = prefill_roof(ground, context)
        assert roof is not None
        best = min(most, 0.5 * roof / context)
        for users in bursts:
            chance = 1 + 0.004 * math.sin(context + 7 * users)  # no two measurements are equal
            rate = chance * users / (alone + users / best)
            made.append(burst(context, users, rate, seconds=0.8 * users / rate))
    return made


def codes(cells: Sequence[CellResult]) -> set[Code]:
    """What is said of any of them, but that they are bursts."""
    return {v.code for cell in cells for v in cell.verdicts} - {Code.ARTICLE_METHOD}


def because(cell: CellResult, code: Code) -> str:
    return next(verdict.because for verdict in cell.verdicts if verdict.code is code)


def timed_out(context: int, users: int, rate: float, *, patience: float) -> CellResult:
    """A burst of which only what ends in time succeeds."""
    well = min(users, int(patience * rate))
    return burst(context, users, well / patience, succeeded=well, wall=patience, seconds=20.0)


def refused(context: int) -> list[CellResult]:
    return [burst(context, users, 0.0, succeeded=0, wall=0.1) for users in BURSTS]


def closed(users: int, rate: float, *, tokens: int = 64, tpot: float = 0.02) -> CellResult:
    """A cell of another tool: a closed loop with streamed answers."""
    seconds = users / rate
    figures = Figures(
        succeeded=200,
        wall_seconds=200 / rate,
        requests_per_second=rate,
        output_tokens_per_second=rate * tokens,
        times={
            "tpot": spread(200, {"mean": tpot}),
            "e2el": spread(200, {"mean": seconds}),
        },
    )
    return make_cell(CellSpec(context=512, load=Load(concurrency=users)), figures, A100)
