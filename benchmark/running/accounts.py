"""What a run has taken, will take and may take: time and money."""

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from benchmark.records import CellResult, CellSpec, CellState
from benchmark.running import grid
from benchmark.runs import Manifest
from benchmark.wording import figure, usd


class Foreseen(NamedTuple):
    """What is left, as far as cells so far can tell."""

    cells_total: int | None
    """None where the next cell depends on the last."""
    eta_seconds: float | None


class Accounts:
    """Of one run; what earlier processes spent on its cells counts as well.

    Times are seconds on `clock`. Looks, pauses and reports are paid for like cells.
    """

    def __init__(
        self,
        manifest: Manifest,
        done: Sequence[CellResult],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manifest = manifest
        self._before = sum(cell.wall_seconds or 0.0 for cell in done)
        self._clock: Final = clock
        self._began = clock()

    @property
    def elapsed_seconds(self) -> float:
        """All that was spent on the run."""
        return self._before + self._clock() - self._began

    @property
    def usd_so_far(self) -> float | None:
        """None where no price is known."""
        return self._usd(self.elapsed_seconds)

    def over_budget(self, more_seconds: float = 0.0) -> str | None:
        """Say which budget is used up, or would be by so much more; None while there is room."""
        plan, seconds = self._manifest.plan, self.elapsed_seconds + more_seconds
        would = "would be" if more_seconds else "is"
        if plan.max_minutes is not None and seconds >= plan.max_minutes * 60:
            return f"The budget of {figure(plan.max_minutes)} minutes {would} used up."
        cost = self._usd(seconds)
        if plan.max_cost_usd is not None and cost is not None and cost >= plan.max_cost_usd:
            return f"The budget of {usd(plan.max_cost_usd)} {would} used up."
        return None

    def next_cell_seconds(self, done: Sequence[CellResult]) -> float:
        """Guess how long the next cell takes: as its neighbour, else the least it can."""
        measured = _measured(done)
        return measured[-1] if measured else self._manifest.plan.stop.min_seconds

    def foresee(self, done: Sequence[CellResult], *, in_cell_seconds: float) -> Foreseen:
        """Foresee the end, `in_cell_seconds` into the present cell."""
        plan = self._manifest.plan
        if plan.profile == "find-capacity":
            return Foreseen(None, None)
        specs = list(grid.specs(plan))
        decided = {cell.spec for cell in done}
        left = [spec for spec in specs if spec not in decided and self._is_measured(spec)]
        each = self._mean_seconds(done)
        seconds = len(left) * each - min(in_cell_seconds, each)
        return Foreseen(len(specs), max(0.0, seconds))

    def _is_measured(self, spec: CellSpec) -> bool:
        return grid.too_long(self._manifest.plan, self._manifest.subject, spec) is None

    def _mean_seconds(self, done: Sequence[CellResult]) -> float:
        measured, stop = _measured(done), self._manifest.plan.stop
        if measured:
            return sum(measured) / len(measured)
        return (stop.min_seconds + stop.max_seconds + stop.warmup_max_seconds) / 2

    def _usd(self, seconds: float) -> float | None:
        price = self._manifest.provenance.usd_per_hour
        return None if price is None else price * seconds / 3600


def _measured(done: Sequence[CellResult]) -> list[float]:
    return [c.wall_seconds for c in done if c.wall_seconds and c.state is not CellState.SKIPPED]
