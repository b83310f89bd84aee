"""What can be said against published results from their figures alone."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from statistics import median
from typing import Final, NamedTuple

from benchmark.advice import Known, Row, known_by, rows
from benchmark.import_cells import Claims
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Load,
    Verdict,
    figure,
    percent,
    seconds,
)
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
_SEVERAL: Final = 2
_MANY: Final = 20
"""Requests of which the slowest twentieth is more than one."""
_SOME: Final = 0.01
"""Share of failures from which latencies are of survivors."""


class Fate(NamedTuple):
    """One cell's successes."""

    place: int
    cell: CellResult
    share: float
    """That succeeded."""

    @property
    def implied(self) -> float | None:
        """Seconds after which everything still open failed, if time alone decided."""
        rate, sent = self.cell.request_throughput, self.cell.spec.load.concurrency
        return self.share * sent / rate if rate and sent and 0 < self.share < 1 else None


def failures(cells: Sequence[CellResult], claims: Claims) -> Iterator[Found]:
    """Give every cell with failures its reason: LENGTH_CAPPED, TIMEOUTS or ERRORS."""
    fates = [fate for place, cell in enumerate(cells) if (fate := _fate(place, cell))]
    patience = timeout_of(fates, claims)
    capped = _capped(fates, claims, patience)
    for fate in fates:
        if pinned := _pinned(fate.cell):
            yield fate.place, Verdict(code=Code.TIMEOUTS, because=pinned)
            continue
        if fate.place in capped:
            yield fate.place, Verdict(code=Code.LENGTH_CAPPED, because=capped[fate.place])
        elif fate.share < 1 - _SOME:
            late = _late(fate, patience) if patience else None
            code = Code.TIMEOUTS if late else Code.ERRORS
            yield fate.place, Verdict(code=code, because=late or _lost(fate))


def timeout_of(fates: Sequence[Fate], claims: Claims) -> float | None:
    """Find the client's time-out in seconds, from what all cells with failures have in common."""
    if claims.timeout_seconds:
        return claims.timeout_seconds
    return _from_walls(fates) or _from_shares(fates)


def _from_walls(fates: Sequence[Fate]) -> float | None:
    """Find the usual time-out that several failing bursts lasted for, or one of them exactly."""
    walls = [
        fate.cell.wall_seconds
        for fate in fates
        if fate.share < 1 and is_burst(fate.cell) and fate.cell.wall_seconds
    ]
    ended = {t: [w for w in walls if t * (1 - _EXACT) <= w <= t * _LATE] for t in _USUAL_TIMEOUTS}
    most = max(ended, key=lambda t: (len(ended[t]), -t))
    exact = any(wall <= most * (1 + _EXACT) for wall in ended[most])
    return most if len(ended[most]) >= _SEVERAL and exact else None


def _from_shares(fates: Sequence[Fate]) -> float | None:
    """Find the time-out that all half-failed bursts imply by the share that succeeded."""
    implied = sorted(each for fate in fates if is_burst(fate.cell) and (each := fate.implied))
    if not implied:
        return None
    middle = statistics.median(implied)
    usual = next((t for t in _USUAL_TIMEOUTS if abs(middle / t - 1) <= _AGREE), None)
    agreeing = [each for each in implied if abs(each / middle - 1) <= _AGREE]
    if len(implied) > 1 and len(agreeing) * 3 >= len(implied) * 2:
        return usual or middle
    return usual if len(implied) == 1 else None


def _pinned(cell: CellResult) -> str | None:
    """Say where the slowest requests all end at one number of seconds that people write down."""
    if cell.e2el is None or cell.e2el.count < _MANY:
        return None
    slow = [v for v in (cell.e2el.p95, cell.e2el.p99, cell.e2el.max) if not math.isnan(v)]
    if len(slow) < _SEVERAL or max(slow) > min(slow) * (1 + _EXACT):
        return None
    usual = next((t for t in _USUAL_TIMEOUTS if abs(slow[0] / t - 1) <= _EXACT), None)
    if usual is None:
        return None
    return f"the slowest requests all end after {seconds(slow[0])}: a limit of {seconds(usual)}"


def _fate(place: int, cell: CellResult) -> Fate | None:
    counts = cell.counts
    if counts is None or not counts.measured:
        return None
    return Fate(place, cell, counts.succeeded / counts.measured)


def _late(fate: Fate, patience: float) -> str | None:
    cell, sent = fate.cell, fate.cell.spec.load.concurrency
    if not sent or not is_burst(cell):
        return None
    if cell.state is CellState.FAILED:
        waited = cell.wall_seconds or 0.0
        ended = f"all {sent} failed after {seconds(waited)}; the time-out is {seconds(patience)}"
        return ended if waited >= patience * (1 - _AGREE) else None
    foreseen = min(1.0, patience * (cell.request_throughput or 0.0) / sent)
    if abs(foreseen - fate.share) > _OFF:
        lasted = cell.wall_seconds or 0.0
        if lasted < patience * (1 - _EXACT):
            return None
        return (
            f"{percent(1 - fate.share)} failed in a burst that lasted {seconds(lasted)}, longer "
            f"than the client's time-out of {seconds(patience)}"
        )
    return (
        f"{percent(fate.share)} succeeded; at {figure(cell.request_throughput or 0)} requests/s "
        f"{percent(foreseen)} of {sent} end within a time-out of {seconds(patience)}"
    )


def _lost(fate: Fate) -> str:
    counts = fate.cell.counts
    total = counts.measured if counts else 0
    lost = round((1 - fate.share) * total)
    return f"{lost} of {total} requests failed and the file does not say why"


def _capped(fates: Sequence[Fate], claims: Claims, patience: float | None) -> dict[int, str]:
    """Find cells whose prompts the model cannot take, by what is said or by whole rows."""
    if claims.max_model_len:
        return {
            fate.place: f"{fate.cell.spec.context:,} + {claims.output_tokens or 1} tokens exceed "
            f"max_model_len {claims.max_model_len:,}"
            for fate in fates
            if fate.share == 0
            and fate.cell.spec.context + (claims.output_tokens or 1) > claims.max_model_len
        }
    rows: dict[int, list[Fate]] = defaultdict(list)
    for fate in fates:
        rows[fate.cell.spec.context].append(fate)
    found: dict[int, str] = {}
    for context in sorted(rows, reverse=True):
        row = rows[context]
        if any(fate.share > 0 or _waited(fate, patience) for fate in row):
            break
        words = f"all {len(row)} loads fail at {context:,} prompt tokens and at every longer length"
        found |= {fate.place: words for fate in row}
    return {} if len(found) == len(fates) else found


def _waited(fate: Fate, patience: float | None) -> bool:
    """Whether it failed by waiting: a prompt that is too long is refused at once."""
    waited = fate.cell.wall_seconds
    return patience is not None and waited is not None and waited >= patience * (1 - _AGREE)


_CLIENT_CEILING: Final = ((64, 244.0), (256, 171.0), (1024, 64.0))
"""Requests/s of the articles' own script (httpx, gather and a semaphore) against a server without
latency, by requests at once: measured 2026-11-20 on one core, medians of three."""
_AT_CEILING: Final = (0.75, 2.0)
"""Share of the script's ceiling from which, and up to which, it is the script that was measured:
faster ones had another client."""
_FELL: Final = 0.9
_NEAR_CEILING: Final = 0.5
"""Where throughput falls as requests grow, so much of the ceiling is enough."""
_COLD: Final = 3.0
"""Times what a request must take at most."""
_OVERHEAD: Final = 1.0
"""Seconds that the way there, a scheduler and a client may add to any request."""
_FAILED: Final = 0.01
_SLOWEST: Final = 1.0
"""Requests/s below which no engine is held back by anything but its model."""
_SMALL: Final = 64
"""Requests at once: of more, time is waiting, and neither caches nor compiling show in a mean."""
_SLOW_PREFILL: Final = 500.0
"""Prompt tokens/s below which no accelerator that serves is known to read."""
_FEWEST: Final = 30
"""Answers, as of our own cells."""
_COPIED: Final = 0.8
"""Share of common cells with the same figures."""
_COMMON: Final = 6
_DIGITS: Final = 4
_NOT_ONE: Final = 0.01
_SAME_RATIO: Final = 1e-4
"""Spread of the ratios of two columns, of which one is the other times a number."""


class Run(NamedTuple):
    """Other results that these may be a copy of."""

    name: str
    """With its model, as a person knows it."""
    cells: Sequence[CellResult]
    run_id: str = ""


def audit(
    cells: Sequence[CellResult], claims: Claims, *, others: Sequence[Run] = ()
) -> tuple[CellResult, ...]:
    """Give the cells with what their figures say against them; clean ones get nothing."""
    said: dict[int, list[Verdict]] = defaultdict(list)
    for place, verdict in _all(cells, claims, others):
        said[place].append(verdict)
    return tuple(
        cell.model_copy(update={"verdicts": (*cell.verdicts, *said[place])})
        for place, cell in enumerate(cells)
    )


def _all(cells: Sequence[CellResult], claims: Claims, others: Sequence[Run]) -> Iterator[Found]:
    yield from _bursts(cells)
    yield from prompts_not_read(cells, claims)
    yield from impossible(cells, claims)
    yield from failures(cells, claims)
    yield from _cold(cells, claims)
    yield from _client(cells)
    yield from _few(cells)
    yield from _copied(cells, others)
    yield from _copied_inside(cells)
    yield from _reckoned(cells)


def _bursts(cells: Sequence[CellResult]) -> Iterator[Found]:
    for place, cell in enumerate(cells):
        if is_burst(cell):
            words = (
                f"one burst of {cell.spec.load.concurrency} requests and its drain: no steady "
                f"state, so no serving rate"
            )
            yield place, Verdict(code=Code.ARTICLE_METHOD, because=words)


def _few(cells: Sequence[CellResult]) -> Iterator[Found]:
    for place, cell in enumerate(cells):
        got = cell.counts.succeeded if cell.counts else 0
        if cell.state is CellState.MEASURED and not is_burst(cell) and got < _FEWEST:
            words = f"{got} answers, {_FEWEST} wanted"
            yield place, Verdict(code=Code.TOO_FEW_SAMPLES, because=words)


def _cold(cells: Sequence[CellResult], claims: Claims) -> Iterator[Found]:
    """Find cells that took far longer than their prompts and answers must take on this hardware.

    Where model or hardware is not known, a cell is held against the next load and the next length
    instead, which both have more to do, and against a prompt that is read slowly.
    """
    ground = ground_of(claims)
    for place, cell in enumerate(cells):
        took = cell.e2el.mean if cell.e2el else math.nan
        if math.isnan(took) or (cell.spec.load.concurrency or 0) > _SMALL or _half_failed(cell):
            continue
        words = _beyond(ground, cells, cell, claims) if ground else _among(cells, cell, took)
        if words:
            because = f"{seconds(took)} a request, {words}: compiling or loading was measured"
            yield place, Verdict(code=Code.COLD, because=because)


def _half_failed(cell: CellResult) -> bool:
    """Whether failures may explain how long the others took."""
    counts = cell.counts
    return counts is not None and counts.succeeded < (1 - _FAILED) * counts.measured


def _beyond(
    ground: Known, cells: Sequence[CellResult], cell: CellResult, claims: Claims
) -> str | None:
    took, users = cell.e2el.mean if cell.e2el else 0.0, cell.spec.load.concurrency or 1
    honest = honest_seconds(ground, cell, _answer(cell, claims))
    if honest is None or took <= _COLD * honest + _OVERHEAD + users / _pace(cells, cell):
        return None
    return (
        f"where {cell.spec.load.concurrency} prompts of {cell.spec.context:,} tokens that are in "
        f"no cache take {seconds(honest)} at most on this hardware"
    )


def _pace(cells: Sequence[CellResult], cell: CellResult) -> float:
    """Give the requests/s that engine and client reached with prompts as long or longer."""
    rates = (
        each.request_throughput or 0.0
        for each in cells
        if each.spec.context >= cell.spec.context
        and each.spec.output_tokens == cell.spec.output_tokens
    )
    return max(_SLOWEST, *rates)


def _answer(cell: CellResult, claims: Claims) -> float:
    requests, output = cell.request_throughput, cell.output_token_throughput
    known = output / requests if requests and output else 1.0
    return max(known, claims.output_tokens or 1, cell.spec.output_tokens or 1)


def _among(cells: Sequence[CellResult], cell: CellResult, took: float) -> str | None:
    grid = {each.spec: each.e2el.mean for each in cells if each.e2el}
    slower = [grid[spec] for spec in _next(cell.spec, grid) if not math.isnan(grid[spec])]
    users = cell.spec.load.concurrency or 1
    read = users * max(cell.spec.context, 1) / _SLOW_PREFILL
    if len(slower) < 2 or took <= _COLD * max(*slower, read) + _OVERHEAD:
        return None
    return f"where more load and longer prompts take {seconds(max(slower))} at most"


def _next(spec: CellSpec, grid: Iterable[CellSpec]) -> list[CellSpec]:
    alike = [
        each
        for each in grid
        if each.load.arrivals is spec.load.arrivals and each.output_tokens == spec.output_tokens
    ]
    loads = [each for each in alike if each.context == spec.context and _load(each) > _load(spec)]
    lengths = [each for each in alike if each.load == spec.load and each.context > spec.context]
    nearest = [min(loads, key=_load, default=None), min(lengths, key=_context, default=None)]
    return [each for each in nearest if each is not None]


def _load(spec: CellSpec) -> float:
    return spec.load.requests_per_second or spec.load.concurrency or 0


def _context(spec: CellSpec) -> int:
    return spec.context


def client_ceiling(concurrency: int) -> float:
    """Give the requests/s that the articles' script reaches at all, between and beyond the table.

    >>> [round(client_ceiling(users)) for users in (8, 64, 256, 1024, 2048)]
    [244, 244, 171, 64, 39]
    """
    if concurrency <= _CLIENT_CEILING[0][0]:
        return _CLIENT_CEILING[0][1]
    lower, upper = (
        _CLIENT_CEILING[:2] if concurrency <= _CLIENT_CEILING[1][0] else _CLIENT_CEILING[1:]
    )
    slope = math.log(upper[1] / lower[1]) / math.log(upper[0] / lower[0])
    return float(lower[1] * (concurrency / lower[0]) ** slope)


def _client(cells: Sequence[CellResult]) -> Iterator[Found]:
    places = {id(cell): place for place, cell in enumerate(cells)}
    for row in rows(cell for cell in cells if is_burst(cell)):
        for cell in row.cells:
            if words := _like_the_script(cell, row):
                yield places[id(cell)], Verdict(code=Code.CLIENT_SATURATED, because=words)


def _like_the_script(cell: CellResult, row: Row) -> str | None:
    sent, rate = cell.spec.load.concurrency or 0, cell.request_throughput or 0.0
    if sent < _CLIENT_CEILING[0][0]:
        return None
    ceiling = client_ceiling(sent)
    before = [
        each.request_throughput or 0.0
        for each in row.cells
        if (each.spec.load.concurrency or 0) < sent
    ]
    fell = rate < _FELL * max(before, default=0.0)
    least = _NEAR_CEILING if fell else _AT_CEILING[0]
    if not least <= rate / ceiling <= _AT_CEILING[1]:
        return None
    falls = f", after {figure(max(before))} with fewer" if fell else ""
    known = cell.e2el is not None and not math.isnan(cell.e2el.mean)
    took = f" and {seconds(cell.e2el.mean)} each" if cell.e2el and known else ""
    return (
        f"{figure(rate)} requests/s{took} at {sent} at once{falls}; a script of this kind (httpx) "
        f"reaches {figure(ceiling)} against a server that does nothing"
    )


def _copied(cells: Sequence[CellResult], others: Sequence[Run]) -> Iterator[Found]:
    """Find figures that stand in another run, as they are or times one number."""
    mine = {cell.spec: cell for cell in cells if cell.request_throughput}
    for other in others:
        theirs = {cell.spec: cell for cell in other.cells if cell.request_throughput}
        common = [spec for spec in mine if spec in theirs]
        pairs = {spec: (mine[spec], theirs[spec]) for spec in common}
        same = {spec for spec, (one, two) in pairs.items() if _print(one) == _print(two)}
        if len(common) >= _COMMON and len(same) >= _COPIED * len(common):
            said = f"have the figures of {other.name} to {_DIGITS} digits"
        else:
            same, said = _scaled(pairs, other.name)
        words = f"{len(same)} of {len(common)} common cells "
        for place, cell in enumerate(cells):
            if cell.spec in same:
                share = percent(len(same) / len(common))
                because = f"{words}({share}) {said}"
                yield place, Verdict(code=Code.DUPLICATED_GRID, because=because)


Pairs = Mapping[CellSpec, tuple[CellResult, CellResult]]


def _scaled(pairs: Pairs, name: str) -> tuple[set[CellSpec], str]:
    """Give the cells of which one figure is always the same multiple of another run's."""
    for metric, value in _METRICS.items():
        ratios = {
            spec: ours / theirs
            for spec, (one, two) in pairs.items()
            if (ours := value(one)) and (theirs := value(two)) and ours > 0 and theirs > 0
            if max(_digits(ours), _digits(theirs)) >= _DIGITS
        }
        if len(ratios) < _COMMON:
            continue
        middle = median(ratios.values())
        same = {spec for spec, each in ratios.items() if abs(each / middle - 1) <= _SAME_RATIO}
        if len(same) >= max(_COMMON, _COPIED * len(ratios)):
            return same, f"have {figure(middle)} times the {metric} of {name}, to {_DIGITS} digits"
    return set(), ""


def _copied_inside(cells: Sequence[CellResult]) -> Iterator[Found]:
    """Find rows of one file that are another of its rows times one number."""
    every: dict[tuple[int, int], dict[Load, tuple[int, CellResult]]] = defaultdict(dict)
    for place, cell in enumerate(cells):
        if cell.request_throughput:
            every[cell.spec.lengths][cell.spec.load] = place, cell
    table = {lengths: row for lengths, row in every.items() if len(row) >= _COMMON}
    marked: set[tuple[int, int]] = set()
    for one, two in combinations(sorted(table), 2):
        common = [load for load in table[one] if load in table[two]]
        pairs = {
            table[two][load][1].spec: (table[two][load][1], table[one][load][1]) for load in common
        }
        label = table[one][common[0]][1].spec.length_label if common else ""
        same, words = _scaled(pairs, f"the row of {label} tokens")
        for load in common:
            place, cell = table[two][load]
            if cell.spec in same and two not in marked:
                because = f"{len(same)} of {len(common)} cells of the row {words}"
                yield place, Verdict(code=Code.DUPLICATED_GRID, because=because)
        if same:
            marked.add(two)


def _reckoned(cells: Sequence[CellResult]) -> Iterator[Found]:
    """Find percentiles that are the mean times one number in cell after cell."""
    for name, point in product(("e2el", "ttft", "tpot"), ("p50", "p90", "p95", "p99")):
        ratios = {
            place: getattr(spread, point) / spread.mean
            for place, cell in enumerate(cells)
            if (spread := getattr(cell, name)) is not None
            and spread.count > 1
            and spread.mean > 0
            and getattr(spread, point) > 0
            and max(_digits(spread.mean), _digits(getattr(spread, point))) >= _DIGITS
        }
        middle = median(ratios.values()) if ratios else 1.0
        same = [place for place, each in ratios.items() if abs(each / middle - 1) <= _SAME_RATIO]
        if len(same) < max(_COMMON, _COPIED * len(ratios)) or abs(middle - 1) < _NOT_ONE:
            continue
        words = (
            f"{name.upper()} {point} is {middle:.4g} times the mean in {len(same)} of "
            f"{len(ratios)} cells: computed, not measured"
        )
        for place in same:
            yield place, Verdict(code=Code.CONTRADICTORY, because=words)


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


def _mean(name: str) -> Callable[[CellResult], float | None]:
    """Make the reader of one mean; None where it is not known."""

    def read(cell: CellResult) -> float | None:
        found = getattr(cell, name)
        return None if found is None or math.isnan(found.mean) else float(found.mean)

    return read


_METRICS: Final[Mapping[str, Callable[[CellResult], float | None]]] = {
    "requests/s": lambda cell: cell.request_throughput,
    "mean E2EL": _mean("e2el"),
    "mean TTFT": _mean("ttft"),
}
"""Figures by which a copy is known."""
