"""The next cell of a search for the highest load within limits: pure bracketing.

The load doubles from the first one until too few requests are within the limits, or halves until
enough are; then the gap between the highest load that held and the lowest that did not is halved,
until it is one user or 5 %. A load holds only if nothing spoils its cell: what a saturated client
or a foreign load has seen proves nothing. Too few requests are no such thing, for lower loads would
have fewer still: their word is taken, and the verdict stays with the cell. Each context is searched
for itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from benchmark.records import CellResult, CellSpec, CellState, Code, Load
from benchmark.running.grid import too_long
from benchmark.runs import RunPlan, Subject

RESOLUTION: Final = 0.05
"""Of the answer; single users are told apart as well."""
MOST_USERS: Final = 16_384
MOST_PER_SECOND: Final = 100_000.0
_DEPTH: Final = 2.0**-8
"""How far below the first rate it is looked for, as a share of it."""
_DIGITS: Final = 4
"""Of a rate: loads that are 5 % apart stay apart, and ids stay short."""


class Bracket(NamedTuple):
    """Where the answer lies."""

    holds: float | None
    """The highest load within the limits, below every one that was not."""
    fails: float | None
    """The lowest load that was not."""


def next_cell(
    plan: RunPlan, subject: Subject, done: Sequence[CellResult]
) -> CellSpec | CellResult | None:
    """Say what comes next: a cell to measure, one decided without measuring, None at the end."""
    return next(_open_ends(plan, subject, done), None)


def _open_ends(
    plan: RunPlan, subject: Subject, done: Sequence[CellResult]
) -> Iterator[CellSpec | CellResult]:
    for context in sorted(set(plan.contexts)):
        row = [cell for cell in done if cell.spec.context == context]
        if any(cell.state is CellState.SKIPPED for cell in row):
            continue
        size = _next_size(plan, {_size(cell.spec.load): _held(plan, cell) for cell in row})
        if size is not None:
            spec = CellSpec(context=context, load=_of_size(plan.loads[0], size))
            yield too_long(plan, subject, spec) or spec


def bracket(plan: RunPlan, row: Sequence[CellResult]) -> Bracket:
    """Say between which loads the capacity of one context lies."""
    return _bracket({_size(cell.spec.load): _held(plan, cell) for cell in row})


def _held(plan: RunPlan, cell: CellResult) -> bool:
    share = cell.goodput_share
    spoiled = any(v.spoils and v.code is not Code.TOO_FEW_SAMPLES for v in cell.verdicts)
    return not spoiled and share is not None and share >= plan.attainment


def _bracket(tried: Mapping[float, bool]) -> Bracket:
    fails = min((size for size, held in tried.items() if not held), default=None)
    below = (s for s, held in tried.items() if held and (fails is None or s < fails))
    return Bracket(max(below, default=None), fails)


def _next_size(plan: RunPlan, tried: Mapping[float, bool]) -> float | None:
    first = plan.loads[0]
    if not tried:
        return _size(first)
    holds, fails = _bracket(tried)
    by_users = first.requests_per_second is None
    if fails is None:
        most = MOST_USERS if by_users else MOST_PER_SECOND
        return _doubled(holds or 1.0, most)
    if holds is None:
        least = 1.0 if by_users else _size(first) * _DEPTH
        return _halved(fails, least, by_users=by_users)
    return _between(holds, fails, by_users=by_users)


def _doubled(holds: float, most: float) -> float | None:
    return min(2 * holds, most) if holds < most else None


def _halved(fails: float, least: float, *, by_users: bool) -> float | None:
    if fails <= least:
        return None
    return float(fails // 2) if by_users else _rounded(fails / 2)


def _between(holds: float, fails: float, *, by_users: bool) -> float | None:
    if fails <= holds * (1 + RESOLUTION) or (by_users and fails - holds <= 1):
        return None
    middle = (holds + fails) / 2
    return float(int(middle)) if by_users else _rounded(middle)


def _rounded(rate: float) -> float:
    return float(f"{rate:.{_DIGITS}g}")


def _size(load: Load) -> float:
    return float(load.requests_per_second or load.concurrency or 0)


def _of_size(first: Load, size: float) -> Load:
    if first.requests_per_second is None:
        return first.model_copy(update={"concurrency": int(size)})
    return first.model_copy(update={"requests_per_second": size})
