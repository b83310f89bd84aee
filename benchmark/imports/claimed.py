"""Published cells held against what the hardware can do: prompts read, tokens written."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.advising.hardware import Known, known_by
from benchmark.imports.claims import Claims
from benchmark.records import Arrivals, CellResult, Code, Verdict
from benchmark.wording import figure, seconds
from core.errors import OpsError
from planner import speed as planner_speed
from planner.flags import Flags
from planner.speed import Work, decode, prefill

Found = tuple[int, Verdict]
"""The place of a cell in its file, and what is said of it."""
_ROUNDING: Final = 1.05
"""A figure this little above a roof may be the roof, rounded."""
_IN_FLIGHT: Final = 1.2
"""Requests in flight over those allowed, that figures of two digits can show by rounding."""


def ground_of(claims: Claims) -> Known | None:
    """Give what is said to have been measured, as the planner knows it."""
    if not claims.model:
        return None
    return known_by(
        (claims.model,),
        accelerator=claims.accelerator,
        target=claims.target,
        count=claims.accelerator_count,
        flags=Flags(max_model_len=claims.max_model_len),
    )


def prompts_not_read(cells: Sequence[CellResult], claims: Claims) -> Iterator[Found]:
    """Find cells that would have read prompts faster than all arithmetic allows."""
    ground = ground_of(claims)
    for place, cell in enumerate(cells):
        roof = prefill_roof(ground, cell.spec.context) if ground else None
        if not ground or not roof or not cell.spec.context:
            continue
        rate = (cell.request_throughput or 0.0) * cell.spec.context
        least = cell.spec.context / roof
        if rate > roof * _ROUNDING:
            yield place, _verdict(Code.PREFIX_CACHED, _prefill_words(ground, rate, roof))
        elif cell.ttft and 0 < cell.ttft.mean * _ROUNDING < least:
            yield (
                place,
                _verdict(
                    Code.PREFIX_CACHED,
                    f"mean TTFT is {seconds(cell.ttft.mean)}; {_device(ground)} cannot read "
                    f"{cell.spec.context:,} tokens of this model in less than {seconds(least)}: "
                    f"most prompts were found in the prefix cache",
                ),
            )


def honest_seconds(ground: Known, cell: CellResult, tokens: float) -> float | None:
    """Give the longest a request takes that waits for all others' prompts; None: not known.

    All prompts of the load are read one after another, none from a cache, at the low end of the
    planner's speeds; then `tokens` are decoded.
    """
    users, context = cell.spec.load.concurrency, cell.spec.context
    if not users or not context:
        return None
    try:
        read = prefill(*ground, prompt_tokens=context).seconds.high
        step = decode(*ground, concurrency=users, context=context)
    except OpsError:
        return None
    return users * read + max(0.0, tokens - 1) / step.tokens_per_second_per_user.low


def prefill_roof(ground: Known, prompt_tokens: int) -> float | None:
    """Give prompt tokens per second if every promised FLOP were spent on them; None: unknown."""
    work = Work(ground.model, ground.accelerator, ground.flags)
    flops = work.flops_per_token(prompt_tokens // 2, output=False)
    return work.tflops * 1e12 / flops if work.tflops else None


def impossible(cells: Sequence[CellResult], claims: Claims) -> Iterator[Found]:
    """Find cells that wrote tokens faster than memory is read, or had too many in flight."""
    ground = ground_of(claims)
    for place, cell in enumerate(cells):
        words = _too_many(cell) or (_too_fast(ground, cell) if ground else None)
        if words:
            yield place, _verdict(Code.IMPOSSIBLE_SPEED, words)


def _too_many(cell: CellResult) -> str | None:
    """Little's law: rate times time is what is in flight, and no more than was allowed can be."""
    rate, allowed, load = cell.request_throughput, cell.spec.load.concurrency, cell.spec.load
    if not rate or not allowed or cell.e2el is None or load.requests_per_second:
        return None
    if math.isnan(cell.e2el.mean):
        return None
    if rate * cell.e2el.mean <= allowed * _IN_FLIGHT:
        return None
    return (
        f"{figure(rate)} requests/s of {seconds(cell.e2el.mean)} each are "
        f"{figure(rate * cell.e2el.mean)} in flight, {allowed} were sent"
    )


def _too_fast(ground: Known, cell: CellResult) -> str | None:
    allowed = cell.spec.load.concurrency
    single = cell.tpot and cell.tpot.mean > 0 and allowed == 1
    try:
        if single and cell.tpot:
            said = planner_speed.judge(1 / cell.tpot.mean, *ground)
            return said.reason if said.verdict == "impossible" else None
        return _too_fast_together(ground, cell)
    except OpsError:
        return None


def _too_fast_together(ground: Known, cell: CellResult) -> str | None:
    """Only tokens after the first are decoded, by at most as many requests as were sent."""
    requests, tokens = cell.request_throughput, cell.output_token_throughput
    if not requests or not tokens or not cell.spec.load.concurrency:
        return None
    decoded = tokens - requests
    if decoded <= 0:
        return None
    roof = decode(
        *ground, concurrency=cell.spec.load.concurrency, context=cell.spec.context
    ).roof_tokens_per_second
    if decoded <= roof * _ROUNDING:
        return None
    return (
        f"{figure(decoded)} decoded tokens/s; {_device(ground)} can give at most {figure(roof)} to "
        f"{cell.spec.load.concurrency} requests of {cell.spec.context:,} tokens"
    )


def _prefill_words(ground: Known, rate: float, roof: float) -> str:
    return (
        f"{figure(rate)} prompt tokens/s are claimed; {_device(ground)} can read at most "
        f"{figure(roof)} of this model, {figure(rate / roof)} times fewer: most prompts were found "
        f"in the prefix cache"
    )


def _device(ground: Known) -> str:
    return f"{ground.flags.tensor_parallel_size} x {ground.accelerator.title}"


def _verdict(code: Code, because: str) -> Verdict:
    return Verdict(code=code, because=because)


def is_burst(cell: CellResult) -> bool:
    """Whether it is one burst and its drain."""
    return cell.spec.load.arrivals is Arrivals.ONCE
