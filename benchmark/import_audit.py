"""Somebody else's figures as cells, and what those figures say against themselves."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, pairwise, product
from statistics import median
from typing import Final, NamedTuple

from pydantic import Field

from benchmark.advice import Known, Row, known_by, rows
from benchmark.figures import prices
from benchmark.records import (
    POINTS,
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Counts,
    Distribution,
    Load,
    Verdict,
    figure,
    percent,
    seconds,
)
from core.errors import OpsError
from core.records import Record
from planner.flags import Flags
from planner.speed import Work, decode, prefill

_MOST_COUNT: Final = 10**12


class Claims(Record):
    """What a person says of a file that does not say it; it is taken as said."""

    model: str | None = None
    """A Hub id or a name of the catalog, such as 12b qat."""
    accelerator: str | None = None
    accelerator_count: int | None = Field(default=None, ge=1)
    target: str | None = None
    usd_per_hour: float | None = Field(default=None, ge=0)
    """Of all replicas together."""
    max_model_len: int | None = Field(default=None, ge=1)
    output_tokens: int | None = Field(default=None, ge=1)
    """That each request asked for; the articles' scripts ask for one."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """After which the client gave a request up."""


class Figures(NamedTuple):
    """Of one cell, in seconds and per second; None is not in the file."""

    succeeded: int
    failed: int = 0
    wall_seconds: float | None = None
    requests_per_second: float | None = None
    output_tokens_per_second: float | None = None
    input_tokens_per_second: float | None = None
    total_tokens_per_second: float | None = None
    sent: int | None = None
    """Where the file says how many were sent beside how many succeeded and failed."""
    share: float | None = None
    """Of requests that succeeded, where the file says it beside their numbers."""
    input_tokens: float | None = None
    output_tokens: float | None = None
    """Of all successful requests together."""
    answer_tokens: float | None = None
    """Of one answer, where every one was asked to be exactly or up to so long."""
    concurrency_mean: float | None = None
    goodput: float | None = None
    times: Mapping[str, Distribution | None] = {}
    """ttft, tpot, itl and e2el, as far as they are given."""
    whole_run: bool = True
    """Whether rates are counts over the duration, not of a steady part of it."""
    recounted: bool = False
    """Whether the tool counts tokens anew from each piece of text, which may double them."""
    said: Sequence[Verdict] = ()
    """What the tool itself, and how the file was read, say of the cell."""


def number(value: object) -> float | None:
    """Read a number, whatever the file makes of it; NaN, infinity and blanks are none.

    >>> number("0.97"), number(""), number("nan"), number(True)
    (0.97, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if math.isfinite(read) else None


def whole(value: object) -> int | None:
    """Read a count.

    >>> whole("64"), whole(64.0), whole("6.5")
    (64, 64, None)
    """
    read = number(value)
    return int(read) if read is not None and 0 <= read <= _MOST_COUNT and read % 1 == 0 else None


def spread(count: int, values: Mapping[str, object]) -> Distribution | None:
    """Make a distribution of what is given of it by our names; None where all of it is 0."""
    known = {name: number(values.get(name)) for name in POINTS}
    if known["mean"] == 0 or not any(known.values()):
        return None
    return Distribution.model_validate({"count": count, **known})  # what is not known is NaN


def make_cell(spec: CellSpec, figures: Figures, claims: Claims) -> CellResult:
    """Put a cell together; where nothing succeeded it failed and has no figure.

    What cannot be, such as a negative rate, is left out and said.
    """
    said = [*figures.said]
    if against := list(contradictions(spec, figures)):
        said.append(Verdict(code=Code.CONTRADICTORY, because="; ".join(against[:3])))
    succeeded, total = figures.succeeded, figures.succeeded + figures.failed
    wall = _not_below(figures.wall_seconds)
    seen = {
        "spec": spec,
        "wall_seconds": wall,
        "counts": Counts(
            sent=total,
            measured=total,
            succeeded=succeeded,
            errors={"unknown": figures.failed} if figures.failed else {},
        ),
        "verdicts": tuple(said),
    }
    if not succeeded:
        reason = f"none of {total} requests succeeded"
        return CellResult.model_validate({**seen, "state": CellState.FAILED, "reason": reason})
    requests = _not_below(figures.requests_per_second) or (succeeded / wall if wall else None)
    given = _not_below(figures.input_tokens_per_second)
    if given is None and requests and spec.context:
        given = requests * spec.context
    rates = {
        "request_throughput": requests,
        "input_token_throughput": given,
        "output_token_throughput": _not_below(figures.output_tokens_per_second),
    }
    made = {
        **seen,
        "state": CellState.MEASURED,
        "window_seconds": wall,
        **{n: one for n, one in figures.times.items() if one and not _negative(one)},
        "concurrency_mean": _not_below(figures.concurrency_mean),
        "goodput": _not_below(figures.goodput),
        **rates,
        **prices(rates, claims.usd_per_hour),
    }
    return CellResult.model_validate(made)


def _negative(spread: Distribution) -> list[str]:
    return [point for point in POINTS if getattr(spread, point) < 0]


def _not_below(value: float | None) -> float | None:
    return value if value is not None and value >= 0 else None


_ROUNDED: Final = 1.03
"""Figures of two or three digits may be apart so far by rounding alone."""
_APART: Final = 1.1
"""Two ways to one figure, of which one is rounded or of a slightly other window."""
_SUM_APART: Final = 2.0
"""Mean TTFT and TPOT may miss mean E2EL so far where answers differ in length."""
_FIXED_APART: Final = 1.2
"""The same where all answers have one length: then the means add up exactly, but for rounding."""
_RECOUNTED: Final = 2.0
"""By how much TPOT may be too small beside E2EL where text was counted anew, one token more for
each piece: kubernetes-sigs/inference-perf issue 564 and pull request 566, read 2026-11-23."""
_COUNTED_APART: Final = 0.02
"""Between a share that is said and the counts beside it."""
_NEVER_NEGATIVE: Final = (
    "requests_per_second", "output_tokens_per_second", "input_tokens_per_second",
    "total_tokens_per_second", "wall_seconds", "output_tokens", "input_tokens", "succeeded",
    "failed",
)  # fmt: skip


def contradictions(spec: CellSpec, figures: Figures) -> Iterator[str]:
    for name in _NEVER_NEGATIVE:
        value = getattr(figures, name)
        if value is not None and value < 0:
            yield f"{name} is {figure(value)}"
    times = {name: each for name, each in figures.times.items() if each is not None}
    for name, each in times.items():
        if below := _negative(each):
            yield f"{name.upper()} {below[0]} is {seconds(getattr(each, below[0]))}"
    yield from _counted(figures)
    for name, each in times.items():
        yield from _falling(name.upper(), each)
    yield from _rated(figures)
    if figures.succeeded:
        yield from _timed(spec, figures, times)


def _counted(figures: Figures) -> Iterator[str]:
    well, sent, share = figures.succeeded, figures.sent, figures.share
    total = well + figures.failed
    if sent is not None and total > sent:
        yield f"{well:,} succeeded and {figures.failed:,} failed of {sent:,} requests"
    if share is not None and total and abs(share - well / total) > _COUNTED_APART + 1 / total:
        yield f"{percent(share)} of requests are said to succeed; {well:,} of {total:,} did"


def _falling(name: str, each: Distribution) -> Iterator[str]:
    values = ((point, getattr(each, point)) for point in POINTS[1:])
    known = [(point, value) for point, value in values if not math.isnan(value)]
    for (low, less), (high, more) in pairwise(known):
        if more < less / _ROUNDED:
            yield f"{name} {high} of {seconds(more)} is below {low} of {seconds(less)}"
    if each.mean > each.max * _ROUNDED:  # false where either is not known
        yield f"mean {name} of {seconds(each.mean)} is above its maximum {seconds(each.max)}"


def _rated(figures: Figures) -> Iterator[str]:
    """Hold each rate against the count and the duration that it is the quotient of."""
    wall = figures.wall_seconds if figures.whole_run else None
    for rate, count, what in (
        (figures.requests_per_second, figures.succeeded, "requests"),
        (figures.output_tokens_per_second, figures.output_tokens, "output tokens"),
        (figures.input_tokens_per_second, figures.input_tokens, "input tokens"),
    ):
        if not (rate and count and wall and wall > 0 and rate > 0 and count > 0):
            continue
        quotient = count / wall
        # A rate over a steady window may well be above the mean of a whole short run.
        slack = _APART + 2 / count if what == "requests" else _APART
        if not 1 / slack <= rate / quotient <= slack:
            yield (
                f"{figure(rate)} {what}/s are said; {figure(count)} in {seconds(wall)} are "
                f"{figure(quotient)}"
            )
    total, output = figures.total_tokens_per_second, figures.output_tokens_per_second
    if total and output and output > total * _ROUNDED:
        yield f"{figure(output)} output tokens/s are more than all {figure(total)} tokens/s"


def _timed(spec: CellSpec, figures: Figures, times: Mapping[str, Distribution]) -> Iterator[str]:
    """Hold the times of a request against one another and against the duration."""
    late, early, wall = times.get("e2el"), times.get("ttft"), figures.wall_seconds
    if late is None:
        return
    longest = max((v for point in POINTS if (v := getattr(late, point)) > 0), default=0.0)
    if wall and 0 < wall * _APART < longest and spec.load.arrivals is Arrivals.ONCE:
        yield f"requests of {seconds(longest)} in a run of {seconds(wall)}"
    if early is None:
        return
    for point in ("mean", "p50"):
        first, last = getattr(early, point), getattr(late, point)
        if last > 0 and first > last * _ROUNDED:
            yield f"{point} TTFT of {seconds(first)} is above {point} E2EL of {seconds(last)}"
            return
    tokens, fixed = _answer_tokens(figures)
    each = times.get("tpot")
    if each is None or tokens is None or tokens <= 1 or not (early.mean > 0 and late.mean > 0):
        return
    total = early.mean + each.mean * (tokens - 1)
    most = (_FIXED_APART if fixed else _SUM_APART) * (_RECOUNTED if figures.recounted else 1)
    if max(total / late.mean, late.mean / total) > most:
        yield (
            f"TTFT {seconds(early.mean)} and {figure(tokens - 1)} further tokens of "
            f"{seconds(each.mean)} make {seconds(total)}, mean E2EL is {seconds(late.mean)}"
        )


def _answer_tokens(figures: Figures) -> tuple[float | None, bool]:
    """Give the tokens of a usual answer, and whether all answers are as long."""
    count, wanted = figures.succeeded, figures.answer_tokens
    if figures.output_tokens and figures.output_tokens > 0 and count > 0:
        mean = figures.output_tokens / count
        return mean, count > 1 and mean == (wanted or int(mean))
    rate, output = figures.requests_per_second, figures.output_tokens_per_second
    return (output / rate if rate and output and rate > 0 else wanted), False


class Run(NamedTuple):
    """Other results that these may be a copy of."""

    name: str
    """With its model, as a person knows it."""
    cells: Sequence[CellResult]
    run_id: str = ""


class Grid(NamedTuple):
    """All that is held against one another."""

    cells: Sequence[CellResult]
    claims: Claims
    ground: Known | None
    """What is said to have been measured, as the planner knows it."""
    others: Sequence[Run]


Found = Iterator[tuple[int, Code, str]]
"""Places of cells in the file, and what is said of each."""


def audit(
    cells: Sequence[CellResult], claims: Claims, *, others: Sequence[Run] = ()
) -> tuple[CellResult, ...]:
    """Give the cells with what their figures say against them; clean ones get nothing."""
    grid = Grid(cells, claims, ground_of(claims), others)
    said: dict[int, list[Verdict]] = defaultdict(list)
    for place, cell in enumerate(cells):
        for code, rule in _OF_A_CELL.items():
            with suppress(OpsError):  # what the planner cannot reckon is not judged
                if because := rule(grid, cell):
                    said[place].append(Verdict(code=code, because=because))
    for of_grid in (_failures, _client, _copied, _copied_inside, _computed):
        for place, code, because in of_grid(grid):
            said[place].append(Verdict(code=code, because=because))
    return tuple(
        cell.model_copy(update={"verdicts": (*cell.verdicts, *said[place])})
        for place, cell in enumerate(cells)
    )


def ground_of(claims: Claims) -> Known | None:
    if not claims.model:
        return None
    return known_by(
        (claims.model,),
        accelerator=claims.accelerator,
        target=claims.target,
        count=claims.accelerator_count,
        flags=Flags(max_model_len=claims.max_model_len),
    )


def _device(ground: Known) -> str:
    return f"{ground.flags.tensor_parallel_size} x {ground.accelerator.title}"


def _mean(cell: CellResult, name: str) -> float | None:
    found = getattr(cell, name)
    return None if found is None or math.isnan(found.mean) else float(found.mean)


def _is_burst(cell: CellResult) -> bool:
    return cell.spec.load.arrivals is Arrivals.ONCE


_ROUNDING: Final = 1.05
"""A figure this little above a roof may be the roof, rounded."""
_ROUNDED_SPEED: Final = 1.005
"""The same of the speed of one request, which is given with three digits."""
_IN_FLIGHT: Final = 1.2
"""Requests in flight over those allowed, that figures of two digits can show by rounding."""
FEWEST: Final = 30
"""Answers, as of our own cells."""


def _burst(_grid: Grid, cell: CellResult) -> str | None:
    said = f"one burst of {cell.spec.load.concurrency} requests and its drain: no steady state"
    return f"{said}, so no serving rate" if _is_burst(cell) else None


def _too_few(_grid: Grid, cell: CellResult) -> str | None:
    got = cell.counts.succeeded if cell.counts else 0
    said = any(verdict.code is Code.TOO_FEW_SAMPLES for verdict in cell.verdicts)
    if said or cell.state is not CellState.MEASURED or _is_burst(cell) or got >= FEWEST:
        return None
    return f"{got} answers, {FEWEST} wanted"


def prefill_roof(ground: Known, prompt_tokens: int) -> float | None:
    """Give prompt tokens per second if every promised FLOP were spent on them; None: unknown."""
    work = Work(ground.model, ground.accelerator, ground.flags)
    flops = work.flops_per_token(prompt_tokens // 2, output=False)
    return work.tflops * 1e12 / flops if work.tflops else None


def _prompts_not_read(grid: Grid, cell: CellResult) -> str | None:
    """Say where prompts would have been read faster than all arithmetic allows."""
    ground, context = grid.ground, cell.spec.context
    roof = prefill_roof(ground, context) if ground and context else None
    if not ground or not roof:
        return None
    rate, first = (cell.request_throughput or 0.0) * context, _mean(cell, "ttft") or 0.0
    if rate > roof * _ROUNDING:
        said = (
            f"{figure(rate)} prompt tokens/s are claimed; {_device(ground)} can read at most "
            f"{figure(roof)} of this model, {figure(rate / roof)} times fewer"
        )
    elif 0 < first * _ROUNDING < context / roof:
        said = (
            f"mean TTFT is {seconds(first)}; {_device(ground)} cannot read {context:,} tokens of "
            f"this model in less than {seconds(context / roof)}"
        )
    else:
        return None
    return f"{said}: most prompts were found in the prefix cache"


def _impossible(grid: Grid, cell: CellResult) -> str | None:
    """Say where tokens came faster than memory is read, or too many requests were in flight."""
    load, rate, took = cell.spec.load, cell.request_throughput, _mean(cell, "e2el")
    # Little's law: rate times time is what is in flight, and no more than was allowed can be.
    flying = (rate or 0.0) * (took or 0.0)
    if load.concurrency and not load.requests_per_second and flying > load.concurrency * _IN_FLIGHT:
        return (
            f"{figure(rate or 0)} requests/s of {seconds(took or 0)} each are {figure(flying)} in "
            f"flight, {load.concurrency} were sent"
        )
    return _too_fast(grid.ground, cell) if grid.ground else None


def _too_fast(ground: Known, cell: CellResult) -> str | None:
    """Only tokens after the first are decoded, by at most as many requests as were sent."""
    allowed, context = cell.spec.load.concurrency, cell.spec.context
    if allowed == 1 and cell.tpot and cell.tpot.mean > 0:
        said, alone = 1 / cell.tpot.mean, decode(*ground).roof_tokens_per_second
        if said <= alone * _ROUNDED_SPEED:
            return None
        return (
            f"{said:g} tokens/s of one request; {_device(ground)} cannot read this model's weights "
            f"more than {alone:.3g} times a second"
        )
    requests, tokens = cell.request_throughput, cell.output_token_throughput
    if not requests or not tokens or not allowed or tokens <= requests:
        return None
    roof = decode(*ground, concurrency=allowed, context=context).roof_tokens_per_second
    if tokens - requests <= roof * _ROUNDING:
        return None
    return (
        f"{figure(tokens - requests)} decoded tokens/s; {_device(ground)} can give at most "
        f"{figure(roof)} to {allowed} requests of {context:,} tokens"
    )


_COLD: Final = 3.0
"""Times what a request must take at most."""
_OVERHEAD: Final = 1.0
"""Seconds that the way there, a scheduler and a client may add to any request."""
_SLOWEST: Final = 1.0
"""Requests/s below which no engine is held back by anything but its model."""
_SMALL: Final = 64
"""Requests at once: of more, time is waiting, and neither caches nor compiling show in a mean."""


def _cold(grid: Grid, cell: CellResult) -> str | None:
    """Say where a cell took far longer than its prompts and answers must take on this hardware.

    All prompts of the load are read one after another, none from a cache; then it decodes.
    """
    took, counts, ground = _mean(cell, "e2el"), cell.counts, grid.ground
    users, context = cell.spec.load.concurrency, cell.spec.context
    if took is None or not ground or not users or not context or users > _SMALL:
        return None
    if counts and counts.succeeded < (1 - _SOME) * counts.measured:
        return None  # failures may explain how long the others took
    requests, output = cell.request_throughput, cell.output_token_throughput
    known = output / requests if requests and output else 1.0
    tokens = max(known, grid.claims.output_tokens or 1, cell.spec.output_tokens or 1)
    read = prefill(*ground, prompt_tokens=context).seconds.high
    step = decode(*ground, concurrency=users, context=context)
    honest = users * read + max(0.0, tokens - 1) / step.tokens_per_second_per_user.low
    pace = max(
        _SLOWEST,
        *(
            each.request_throughput or 0.0
            for each in grid.cells
            if each.spec.context >= context and each.spec.output_tokens == cell.spec.output_tokens
        ),
    )
    if took <= _COLD * honest + _OVERHEAD + users / pace:
        return None
    return (
        f"{seconds(took)} a request, where {users} prompts of {context:,} tokens that are in no "
        f"cache take {seconds(honest)} at most on this hardware: compiling or loading was measured"
    )


_OF_A_CELL: Final[Mapping[Code, Callable[[Grid, CellResult], str | None]]] = {
    Code.ARTICLE_METHOD: _burst,
    Code.PREFIX_CACHED: _prompts_not_read,
    Code.IMPOSSIBLE_SPEED: _impossible,
    Code.COLD: _cold,
    Code.TOO_FEW_SAMPLES: _too_few,
}
_USUAL_TIMEOUTS: Final = (10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0)
"""Seconds that people write down; one cell alone must agree with one of them."""
_AGREE: Final = 0.15
"""Relative spread of the time-outs that single cells imply."""
_OFF: Final = 0.1
"""Between the success that a time-out foresees and the one that is published."""
_EXACT: Final = 0.02
"""How far beyond a time-out a burst ends that time alone ended."""
_LATE: Final = 1.2
"""How far, where connecting and leaving took their time."""
_MANY: Final = 20
"""Requests of which the slowest twentieth is more than one."""
_SOME: Final = 0.01
"""Share of failures from which latencies are of survivors."""


class _Fate(NamedTuple):
    """One cell's successes."""

    place: int
    cell: CellResult
    total: int
    share: float
    """That succeeded."""
    waited: float


def _failures(grid: Grid) -> Found:
    """Give every cell with failures its reason: LENGTH_CAPPED, TIMEOUTS or ERRORS."""
    fates = [
        _Fate(place, cell, of.measured, of.succeeded / of.measured, cell.wall_seconds or 0.0)
        for place, cell in enumerate(grid.cells)
        if (of := cell.counts) and of.measured
    ]
    patience = grid.claims.timeout_seconds or _from_walls(fates) or _from_shares(fates)
    capped = _capped(fates, grid.claims, patience)
    for fate in fates:
        if pinned := _pinned(fate.cell):
            yield fate.place, Code.TIMEOUTS, pinned
        elif fate.place in capped:
            yield fate.place, Code.LENGTH_CAPPED, capped[fate.place]
        elif fate.share < 1 - _SOME:
            late = _late(fate, patience) if patience else None
            lost = round((1 - fate.share) * fate.total)
            words = f"{lost} of {fate.total} requests failed and the file does not say why"
            yield fate.place, Code.TIMEOUTS if late else Code.ERRORS, late or words


def _from_walls(fates: Sequence[_Fate]) -> float | None:
    """Find the usual time-out that several failing bursts lasted for, one of them exactly."""
    walls = [fate.waited for fate in fates if fate.share < 1 and _is_burst(fate.cell)]
    ended = {t: [w for w in walls if t * (1 - _EXACT) <= w <= t * _LATE] for t in _USUAL_TIMEOUTS}
    most = max(ended, key=lambda t: (len(ended[t]), -t))
    exact = any(wall <= most * (1 + _EXACT) for wall in ended[most])
    return most if len(ended[most]) > 1 and exact else None


def _from_shares(fates: Sequence[_Fate]) -> float | None:
    """Find the time-out that all half-failed bursts imply by the share that succeeded."""
    implied = [
        fate.share * fate.cell.spec.load.concurrency / fate.cell.request_throughput
        for fate in fates
        if _is_burst(fate.cell)
        and 0 < fate.share < 1
        and fate.cell.request_throughput
        and fate.cell.spec.load.concurrency
    ]
    if not implied:
        return None
    middle = median(implied)
    usual = next((t for t in _USUAL_TIMEOUTS if abs(middle / t - 1) <= _AGREE), None)
    agreeing = [each for each in implied if abs(each / middle - 1) <= _AGREE]
    if len(implied) == 1:
        return usual
    return (usual or middle) if len(agreeing) * 3 >= len(implied) * 2 else None


def _pinned(cell: CellResult) -> str | None:
    """Say where the slowest requests all end at one number of seconds that people write down."""
    if cell.e2el is None or cell.e2el.count < _MANY:
        return None
    slow = [v for v in (cell.e2el.p95, cell.e2el.p99, cell.e2el.max) if not math.isnan(v)]
    if len(slow) < 2 or max(slow) > min(slow) * (1 + _EXACT):
        return None
    usual = next((t for t in _USUAL_TIMEOUTS if abs(slow[0] / t - 1) <= _EXACT), None)
    said = f"the slowest requests all end after {seconds(slow[0])}"
    return f"{said}: a limit of {seconds(usual)}" if usual else None


def _late(fate: _Fate, patience: float) -> str | None:
    sent, rate = fate.cell.spec.load.concurrency, fate.cell.request_throughput or 0.0
    if not sent or not _is_burst(fate.cell):
        return None
    waited, limit = seconds(fate.waited), seconds(patience)
    if fate.cell.state is CellState.FAILED:
        late = fate.waited >= patience * (1 - _AGREE)
        return f"all {sent} failed after {waited}; the time-out is {limit}" if late else None
    foreseen = min(1.0, patience * rate / sent)
    if abs(foreseen - fate.share) <= _OFF:
        return (
            f"{percent(fate.share)} succeeded; at {figure(rate)} requests/s {percent(foreseen)} of "
            f"{sent} end within a time-out of {limit}"
        )
    lost = f"{percent(1 - fate.share)} failed in a burst that lasted {waited}"
    late = fate.waited >= patience * (1 - _EXACT)
    return f"{lost}, longer than the client's time-out of {limit}" if late else None


def _capped(fates: Sequence[_Fate], claims: Claims, patience: float | None) -> dict[int, str]:
    """Find cells whose prompts the model cannot take, by what is said or by whole rows."""
    if most := claims.max_model_len:
        answer = claims.output_tokens or 1
        return {
            fate.place: f"{context:,} + {answer} tokens exceed max_model_len {most:,}"
            for fate in fates
            if fate.share == 0 and (context := fate.cell.spec.context) + answer > most
        }
    by_length: dict[int, list[_Fate]] = defaultdict(list)
    for fate in fates:
        by_length[fate.cell.spec.context].append(fate)
    found: dict[int, str] = {}
    for context, row in sorted(by_length.items(), reverse=True):
        # A prompt that is too long is refused at once; what waited was given up.
        waited = patience and any(fate.waited >= patience * (1 - _AGREE) for fate in row)
        if waited or any(fate.share > 0 for fate in row):
            break
        words = f"all {len(row)} loads fail at {context:,} prompt tokens and at every longer length"
        found |= {fate.place: words for fate in row}
    return {} if len(found) == len(fates) else found


_CLIENT_CEILING: Final = ((64, 244.0), (256, 171.0), (1024, 64.0))
"""Requests/s of the articles' own script (httpx, gather and a semaphore) against a server without
latency, by requests at once: measured 2026-11-20 on one core, medians of three."""
_AT_CEILING: Final = (0.75, 2.0)
"""Share of the script's ceiling from which, and up to which, it is the script that was measured:
faster ones had another client."""
_FELL: Final = 0.9
_NEAR_CEILING: Final = 0.5
"""Where throughput falls as requests grow, so much of the ceiling is enough."""


def client_ceiling(concurrency: int) -> float:
    """Give the requests/s that the articles' script reaches at all, between and beyond the table.

    >>> [round(client_ceiling(users)) for users in (8, 64, 256, 1024, 2048)]
    [244, 244, 171, 64, 39]
    """
    lower, middle, upper = _CLIENT_CEILING
    low, high = (lower, middle) if concurrency <= middle[0] else (middle, upper)
    slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return float(low[1] * (max(concurrency, low[0]) / low[0]) ** slope)


def _client(grid: Grid) -> Found:
    places = {id(cell): place for place, cell in enumerate(grid.cells)}
    for row in rows(cell for cell in grid.cells if _is_burst(cell)):
        for cell in row.cells:
            if words := _like_the_script(cell, row):
                yield places[id(cell)], Code.CLIENT_SATURATED, words


def _like_the_script(cell: CellResult, row: Row) -> str | None:
    sent, rate = cell.spec.load.concurrency or 0, cell.request_throughput or 0.0
    if sent < _CLIENT_CEILING[0][0]:
        return None
    ceiling = client_ceiling(sent)
    fewer = [each for each in row.cells if (each.spec.load.concurrency or 0) < sent]
    before = max((each.request_throughput or 0.0 for each in fewer), default=0.0)
    fell = rate < _FELL * before
    least = _NEAR_CEILING if fell else _AT_CEILING[0]
    if not least <= rate / ceiling <= _AT_CEILING[1]:
        return None
    falls = f", after {figure(before)} with fewer" if fell else ""
    mean = _mean(cell, "e2el")
    took = "" if mean is None else f" and {seconds(mean)} each"
    return (
        f"{figure(rate)} requests/s{took} at {sent} at once{falls}; a script of this kind (httpx) "
        f"reaches {figure(ceiling)} against a server that does nothing"
    )


_COPIED: Final = 0.8
"""Share of common cells with the same figures."""
_COMMON: Final = 6
_DIGITS: Final = 4
_NOT_ONE: Final = 0.01
"""How far from 1 the ratio is at least: nearer, all requests may be alike."""
_SAME_RATIO: Final = 1e-4
"""Spread of the ratios of two columns, of which one is the other times a number."""
_METRICS: Final[Mapping[str, Callable[[CellResult], float | None]]] = {
    "requests/s": lambda cell: cell.request_throughput,
    "mean E2EL": lambda cell: _mean(cell, "e2el"),
    "mean TTFT": lambda cell: _mean(cell, "ttft"),
}
"""Figures by which a copy is known."""
Pairs = Mapping[int, tuple[CellResult, CellResult]]
"""Cells that are held against each other, by the place of the first in the file."""


def _copied(grid: Grid) -> Found:
    """Find figures that stand in another run, as they are or times one number."""
    for other in grid.others:
        theirs = {cell.spec: cell for cell in other.cells if cell.request_throughput}
        pairs = {
            place: (cell, theirs[cell.spec])
            for place, cell in enumerate(grid.cells)
            if cell.request_throughput and cell.spec in theirs
        }
        same = {place for place, (one, two) in pairs.items() if _print(one) == _print(two)}
        said = f"have the figures of {other.name} to {_DIGITS} digits"
        if len(pairs) < _COMMON or len(same) < _COPIED * len(pairs):
            same, said = _scaled(pairs, other.name)
        for place in sorted(same):
            share = percent(len(same) / len(pairs))
            words = f"{len(same)} of {len(pairs)} common cells ({share}) {said}"
            yield place, Code.DUPLICATED_GRID, words


def _copied_inside(grid: Grid) -> Found:
    """Find rows of one file that are another of its rows times one number."""
    every: dict[tuple[int, int], dict[Load, tuple[int, CellResult]]] = defaultdict(dict)
    for place, cell in enumerate(grid.cells):
        if cell.request_throughput:
            every[cell.spec.lengths][cell.spec.load] = place, cell
    marked: set[tuple[int, int]] = set()
    for one, two in combinations(sorted(every), 2):
        first, other = every[one], every[two]
        common = [load for load in first if load in other]
        if len(common) < _COMMON or two in marked:
            continue
        label = first[common[0]][1].spec.length_label
        pairs = {other[load][0]: (other[load][1], first[load][1]) for load in common}
        same, said = _scaled(pairs, f"the row of {label} tokens")
        words = f"{len(same)} of {len(common)} cells of the row {said}"
        yield from ((place, Code.DUPLICATED_GRID, words) for place in sorted(same))
        if same:
            marked.add(two)


def _scaled(pairs: Pairs, name: str) -> tuple[set[int], str]:
    """Give the places of which one figure is nearly always the same multiple of another's."""
    for metric, value in _METRICS.items():
        ratios = {
            place: ours / theirs
            for place, (one, two) in pairs.items()
            if (ours := value(one)) and (theirs := value(two)) and ours > 0 and theirs > 0
            if max(_digits(ours), _digits(theirs)) >= _DIGITS
        }
        factor, same = _one_factor(ratios)
        if same:
            return same, f"have {figure(factor)} times the {metric} of {name}, to {_DIGITS} digits"
    return set(), ""


def _computed(grid: Grid) -> Found:
    """Find percentiles that are the mean times one number in cell after cell."""
    for name, point in product(("e2el", "ttft", "tpot"), POINTS[1:-1]):
        ratios = {
            place: value / each.mean
            for place, cell in enumerate(grid.cells)
            if (each := getattr(cell, name)) and each.count > 1 and each.mean > 0
            if (value := getattr(each, point)) > 0
            if max(_digits(each.mean), _digits(value)) >= _DIGITS
        }
        factor, same = _one_factor(ratios)
        if abs(factor - 1) < _NOT_ONE:
            continue
        words = (
            f"{name.upper()} {point} is {factor:.4g} times the mean in {len(same)} of "
            f"{len(ratios)} cells: computed, not measured"
        )
        yield from ((place, Code.CONTRADICTORY, words) for place in sorted(same))


def _one_factor(ratios: Mapping[int, float]) -> tuple[float, set[int]]:
    """Give the ratio that nearly all have to four digits, and the places that have it."""
    if len(ratios) < _COMMON:
        return 1.0, set()
    factor = median(ratios.values())
    same = {place for place, each in ratios.items() if abs(each / factor - 1) <= _SAME_RATIO}
    return factor, same if len(same) >= max(_COMMON, _COPIED * len(ratios)) else set()


def _digits(value: float) -> int:
    """Count the digits that a figure was written with.

    >>> _digits(13.5), _digits(0.0012345)
    (3, 5)
    """
    return len(f"{value:.9e}".partition("e")[0].replace(".", "").rstrip("0"))


def _print(cell: CellResult) -> tuple[str, ...]:
    """Take a cell's fingerprint: figures that two measurements never share to four digits."""
    figures = (value(cell) for value in _METRICS.values())
    return tuple(f"{value:.{_DIGITS}g}" for value in figures if value)
