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


def test_without_a_price_there_is_no_cost() -> None:
    """It is unknown, not 0."""
    accounts = Accounts(a_manifest(usd_per_hour=None), [], clock=Clock())
    assert accounts.usd_so_far is None
    assert accounts.over_budget() is None


def test_a_budget_is_over_when_it_is_reached() -> None:
    """Or foreseen to be."""
    clock = Clock()
    accounts = Accounts(manifest(max_cost_usd=1.0), [], clock=clock)
    clock.now += 99
    assert accounts.over_budget() is None
    assert accounts.over_budget(2.0) == "The budget of $1.00 would be used up."
    clock.now += 1
    assert accounts.over_budget() == "The budget of $1.00 is used up."


def test_the_remaining_cells_take_as_long_as_those_that_are_done() -> None:
    """Of twelve, two are done and four are too long for the engine, so six are left."""
    wanted = manifest(contexts=(8, 512, 8192))
    done = [a_cell(8, 1, wall_seconds=10.0), a_cell(8, 8, wall_seconds=20.0)]
    accounts = Accounts(wanted, done, clock=Clock())
    assert accounts.foresee(done, in_cell_seconds=0.0) == (12, 6 * 15.0)
    assert accounts.foresee(done, in_cell_seconds=5.0) == (12, 6 * 15.0 - 5)
    assert accounts.foresee(done, in_cell_seconds=500.0) == (12, 5 * 15.0)


def test_before_the_first_cell_the_plan_says_how_long_cells_are() -> None:
    """Between the shortest and the longest."""
    accounts = Accounts(manifest(), [], clock=Clock())
    eta = accounts.foresee([], in_cell_seconds=0.0).eta_seconds
    stop = manifest().plan.stop
    assert eta
    assert 12 * stop.min_seconds < eta < 12 * (stop.max_seconds + stop.warmup_max_seconds)


def test_a_search_foresees_nothing() -> None:
    """The next cell depends on the last."""
    accounts = Accounts(manifest(profile="find-capacity"), [], clock=Clock())
    assert accounts.foresee([], in_cell_seconds=0.0) == (None, None)


def test_the_next_cell_takes_as_long_as_its_neighbour() -> None:
    """Skipped ones took no time and say nothing."""
    done = [a_cell(8, 1, wall_seconds=30.0), a_cell(8, 8, state=CellState.SKIPPED)]
    accounts = Accounts(manifest(), done, clock=Clock())
    assert accounts.next_cell_seconds(done) == 30.0
    assert accounts.next_cell_seconds([]) == manifest().plan.stop.min_seconds
