"""Why published requests failed: the client's patience, the model's length, or something else."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmark.imports.claimed import Found, is_burst
from benchmark.imports.claims import Claims
from benchmark.records import CellResult, CellState, Code, Verdict
from benchmark.wording import figure, percent, seconds

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
