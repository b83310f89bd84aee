"""The search for the highest load within limits."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Limits,
    Load,
    RunPlan,
    Subject,
)
from benchmark.run import MOST_USERS, bracket, next_search_cell
from tests.benchmark.made import a_cell, with_verdict

ENGINE = Subject(model="m", max_model_len=2048)
Share = Callable[[float], float]


def plan(first: Load, *contexts: int) -> RunPlan:
    return RunPlan(
        profile="find-capacity",
        contexts=contexts or (512,),
        loads=(first,),
        limits=Limits(ttft_seconds=1.0),
    )


def users(number: int) -> Load:
    return Load(concurrency=number)


def rate(number: float) -> Load:
    return Load(arrivals=Arrivals.POISSON, requests_per_second=number)


def size(spec: CellSpec) -> float:
    return spec.load.requests_per_second or float(spec.load.concurrency or 0)


def within(capacity: float) -> Share:
    """All requests are within the limits up to a load, then ever fewer."""
    return lambda load: 1.0 if load <= capacity else 0.9 * capacity / load


def cell(spec: CellSpec, share: float) -> CellResult:
    return a_cell(spec.context, 1, goodput_share=share).model_copy(update={"spec": spec})


def search(wanted: RunPlan, share: Share, done: list[CellResult] | None = None) -> list[CellResult]:
    cells = list(done or [])
    while (step := next_search_cell(wanted, ENGINE, cells)) is not None:
        assert len(cells) < 200, "it does not end"
        cells.append(step if isinstance(step, CellResult) else cell(step, share(size(step))))
    return cells


def found(wanted: RunPlan, cells: list[CellResult]) -> float:
    return bracket(wanted, cells).holds or 0.0


@given(capacity=st.integers(0, MOST_USERS), first=st.integers(1, 5000))
def test_the_capacity_in_users_is_found_from_any_beginning(capacity: int, first: int) -> None:
    """To one user or 5 %, no cell twice, and it ends."""
    wanted = plan(users(first))
    cells = search(wanted, within(capacity))
    assert len({c.spec for c in cells}) == len(cells)
    assert (
        found(wanted, cells) <= capacity <= max(found(wanted, cells) * 1.05, found(wanted, cells))
    )
    assert len(cells) <= 30


@given(capacity=st.floats(0.01, 20_000), first=st.floats(0.01, 1000))
def test_the_capacity_in_requests_per_second_is_found(capacity: float, first: float) -> None:
    """To 5 %, unless it is hundreds of times below the first guess."""
    wanted = plan(rate(first))
    cells = search(wanted, within(capacity))
    best = found(wanted, cells)
    assert len({c.spec for c in cells}) == len({c.id for c in cells}) == len(cells)
    assert best <= capacity
    assert capacity <= best * 1.0501 or capacity < first / 128
    assert len(cells) <= 50


@given(capacity=st.integers(0, 5000), killed_at=st.integers(0, 30))
def test_a_killed_search_goes_on_where_it_was(capacity: int, killed_at: int) -> None:
    """It is a function of the cells alone."""
    wanted = plan(users(4))
    whole = search(wanted, within(capacity))
    assert search(wanted, within(capacity), whole[:killed_at]) == whole


@given(st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_search_ends_even_where_luck_decides(luck: list[bool]) -> None:
    """Cells that contradict each other never keep it going."""
    turns = iter(luck)
    cells = search(plan(users(8)), lambda _load: 1.0 if next(turns) else 0.0)
    assert len({c.spec for c in cells}) == len(cells) <= 40


def test_a_load_that_held_above_one_that_did_not_proves_nothing() -> None:
    """It was luck: the answer lies below the lowest load that failed."""
    wanted = plan(users(4))
    shares = {4: 1.0, 8: 0.5, 16: 1.0}
    cells = [cell(CellSpec(context=512, load=users(n)), share) for n, share in shares.items()]
    assert bracket(wanted, cells) == (4, 8)
    step = next_search_cell(wanted, ENGINE, cells)
    assert isinstance(step, CellSpec)
    assert step.load.concurrency == 6


def test_it_doubles_then_halves_the_gap() -> None:
    """As a person would do it."""
    cells = search(plan(users(4)), within(21))
    assert [size(c.spec) for c in cells] == [4, 8, 16, 32, 24, 20, 22, 21]


def test_an_engine_without_end_is_searched_to_the_ceiling() -> None:
    """The client ends somewhere."""
    wanted = plan(users(1))
    assert found(wanted, search(wanted, lambda _load: 1.0)) == MOST_USERS


def test_a_spoiled_cell_does_not_hold() -> None:
    """That a saturated client saw good figures proves nothing."""
    wanted = plan(users(8))
    good = cell(CellSpec(context=512, load=users(8)), 1.0)
    assert bracket(wanted, [good]).holds == 8
    assert bracket(wanted, [with_verdict(good, Code.CLIENT_SATURATED)]).fails == 8
    assert bracket(wanted, [with_verdict(good, Code.KV_QUEUED)]).holds == 8


def test_few_requests_are_believed() -> None:
    """A lower load would have fewer still, and prove less."""
    good = cell(CellSpec(context=512, load=users(8)), 1.0)
    assert bracket(plan(users(8)), [with_verdict(good, Code.TOO_FEW_SAMPLES)]).holds == 8


def test_a_failed_cell_does_not_hold() -> None:
    """It has no share at all."""
    wanted = plan(users(8))
    failed = a_cell(512, 8, state=CellState.FAILED)
    assert bracket(wanted, [failed]) == (None, 8)


@pytest.mark.parametrize("share", [0.94, 0.95])
def test_the_attainment_decides(share: float) -> None:
    """95 % are enough, 94 % are not."""
    wanted = plan(users(8))
    held = bracket(wanted, [cell(CellSpec(context=512, load=users(8)), share)]).holds
    assert (held == 8) is (share >= wanted.attainment)


def test_each_context_is_searched_for_itself() -> None:
    """One that is too long for the engine is skipped, once."""
    wanted = plan(users(4), 4096, 8, 512)
    cells = search(wanted, within(3))
    assert [c.id for c in cells if c.state is CellState.SKIPPED] == ["4096x4"]
    assert found(wanted, [c for c in cells if c.spec.context == 8]) == 3
    assert found(wanted, [c for c in cells if c.spec.context == 512]) == 3
