"""Time and money of a run: spent, foreseen and allowed."""

import pytest

from benchmark.records import CellState, Manifest, RunPlan
from benchmark.run import Accounts
from tests.benchmark.made import a_cell, a_manifest


class Clock:
    """Seconds that go by when a test says so."""

    now = 500.0

    def __call__(self) -> float:
        return self.now


def manifest(**plan: object) -> Manifest:
    made = a_manifest(usd_per_hour=36.0)
    wanted = RunPlan.model_validate({**made.plan.model_dump(), **plan})
    return made.model_copy(update={"plan": wanted})


def test_what_earlier_processes_spent_is_added() -> None:
    """By the seconds that their cells took."""
    clock = Clock()
    done = [a_cell(8, 1, wall_seconds=40.0), a_cell(8, 8, wall_seconds=50.0)]
    accounts = Accounts(manifest(), done, clock=clock)
    clock.now += 10
    assert accounts.elapsed_seconds == 100
    assert accounts.usd_so_far == pytest.approx(1.0)


def test_a_budget_is_over_when_it_is_reached() -> None:
    """Or foreseen to be."""
    clock = Clock()
    accounts = Accounts(manifest(max_cost_usd=1.0), [], clock=clock)
    clock.now += 99
    assert accounts.over_budget() is None
    assert accounts.over_budget(2.0) == "The budget of $1.00 would be used up."
    clock.now += 1
    assert accounts.over_budget() == "The budget of $1.00 is used up."
    unknown = Accounts(a_manifest(usd_per_hour=None), [], clock=Clock())  # that is not 0
    assert (unknown.usd_so_far, unknown.over_budget()) == (None, None)


def test_the_remaining_cells_take_as_long_as_those_that_are_done() -> None:
    """Of twelve, two are done and four are too long for the engine, so six are left."""
    wanted = manifest(contexts=(8, 512, 8192))
    done = [a_cell(8, 1, wall_seconds=10.0), a_cell(8, 8, wall_seconds=20.0)]
    accounts = Accounts(wanted, done, clock=Clock())
    assert accounts.foresee(done, in_cell_seconds=0.0) == (12, 6 * 15.0)
    assert accounts.foresee(done, in_cell_seconds=5.0) == (12, 6 * 15.0 - 5)
    assert accounts.foresee(done, in_cell_seconds=500.0) == (12, 5 * 15.0)


def test_what_is_not_known_yet_is_guessed_by_the_plan() -> None:
    """Between the shortest and the longest cell; of a search, whose next cell depends on the last,
    nothing; and the next cell takes as long as its neighbour that was not skipped.
    """
    accounts, stop = Accounts(manifest(), [], clock=Clock()), manifest().plan.stop
    eta = accounts.foresee([], in_cell_seconds=0.0).eta_seconds
    assert eta
    assert 12 * stop.min_seconds < eta < 12 * (stop.max_seconds + stop.warmup_max_seconds)
    search = Accounts(manifest(profile="find-capacity"), [], clock=Clock())
    assert search.foresee([], in_cell_seconds=0.0) == (None, None)
    done = [a_cell(8, 1, wall_seconds=30.0), a_cell(8, 8, state=CellState.SKIPPED)]
    assert accounts.next_cell_seconds(done) == 30.0
    assert accounts.next_cell_seconds([]) == stop.min_seconds
