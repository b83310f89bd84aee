"""What can be said against published results from their figures alone."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmark.advising.rows import Row, rows
from benchmark.imports.claimed import Found, impossible, is_burst, prompts_not_read
from benchmark.imports.claims import Claims
from benchmark.imports.failures import failures
from benchmark.records import CellResult, CellSpec, CellState, Code, Verdict
from benchmark.wording import figure, percent, seconds

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
"""Times the time of a neighbour that has more to do."""
_FEWEST: Final = 30
"""Answers, as of our own cells."""
_COPIED: Final = 0.8
"""Share of common cells with the same figures."""
_COMMON: Final = 6
_DIGITS: Final = 4


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
    yield from _cold(cells)
    yield from _client(cells)
    yield from _few(cells)
    yield from _copied(cells, others)


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


def _cold(cells: Sequence[CellResult]) -> Iterator[Found]:
    """Find cells far slower than the next load and the next length, which both have more to do."""
    grid = {cell.spec: cell for cell in cells if cell.e2el}
    for place, cell in enumerate(cells):
        slower = [found for spec in _next(cell.spec, grid) if (found := grid[spec].e2el)]
        if cell.e2el is None or not slower:
            continue
        most = max(each.mean for each in slower)
        if cell.e2el.mean > _COLD * most:
            words = (
                f"{seconds(cell.e2el.mean)} a request, where more load and longer prompts take "
                f"{seconds(most)} at most: compiling or loading was measured"
            )
            yield place, Verdict(code=Code.COLD, because=words)


def _next(spec: CellSpec, grid: dict[CellSpec, CellResult]) -> list[CellSpec]:
    alike = [each for each in grid if each.load.arrivals is spec.load.arrivals]
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
    took = f" and {seconds(cell.e2el.mean)} each" if cell.e2el else ""
    return (
        f"{figure(rate)} requests/s{took} at {sent} at once{falls}; a script of this kind (httpx) "
        f"reaches {figure(ceiling)} against a server that does nothing"
    )


def _copied(cells: Sequence[CellResult], others: Sequence[Run]) -> Iterator[Found]:
    mine = {cell.spec: _print(cell) for cell in cells if cell.request_throughput}
    for other in others:
        theirs = {cell.spec: _print(cell) for cell in other.cells if cell.request_throughput}
        common = mine.keys() & theirs.keys()
        same = {spec for spec in common if mine[spec] == theirs[spec]}
        if len(common) < _COMMON or len(same) < _COPIED * len(common):
            continue
        words = (
            f"{len(same)} of {len(common)} common cells ({percent(len(same) / len(common))}) have "
            f"the figures of {other.name} to {_DIGITS} digits"
        )
        for place, cell in enumerate(cells):
            if cell.spec in same:
                yield place, Verdict(code=Code.DUPLICATED_GRID, because=words)


def _print(cell: CellResult) -> tuple[str, ...]:
    """Take a cell's fingerprint: figures that two measurements never share to four digits."""
    figures = (cell.request_throughput, cell.e2el and cell.e2el.mean, cell.ttft and cell.ttft.mean)
    return tuple(f"{value:.{_DIGITS}g}" for value in figures if value)
