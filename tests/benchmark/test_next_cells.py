"""Which cell comes next: of a grid, and of the search for the highest load within limits."""

from collections.abc import Callable, Sequence

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
    Workload,
)
from benchmark.run import MOST_USERS, bracket, grid_specs, next_grid_cell, next_search_cell
from tests.benchmark.made import a_cell, with_verdict

ANY = Subject(model="m", max_model_len=None)
ENGINE = Subject(model="m", max_model_len=2048)
DOUBLED = (1, 2, 4, 8, 16, 32)
Measure = Callable[[CellSpec], CellResult]


def plan(contexts: Sequence[int] = (8,), users: Sequence[int] = DOUBLED, **more: object) -> RunPlan:
    loads = [{"concurrency": number} for number in users]
    return RunPlan.model_validate({"contexts": contexts, "loads": loads, **more})


def flat_above(users: int, *, gain: float = 0.0) -> Measure:
    """An engine whose throughput grows with every user up to so many, then by a share in all."""

    def measured(spec: CellSpec) -> CellResult:
        number = spec.load.concurrency or 0
        tokens = 50.0 * min(number, users) * (1 + gain * (number > users))
        return a_cell(spec.context, number, output_token_throughput=tokens)

    return measured


def untold(spec: CellSpec) -> CellResult:
    """Four users are its limit, and it tells no usage."""
    rate = 2.0 * min(spec.load.concurrency or 0, 4)
    return a_cell(
        spec.context,
        spec.load.concurrency or 0,
        output_token_throughput=None,
        request_throughput=rate,
    )


def slow_at_eight(spec: CellSpec) -> CellResult:
    cell = flat_above(2)(spec)
    return with_verdict(cell, Code.CLIENT_SATURATED) if spec.load.concurrency == 8 else cell


def failed(spec: CellSpec) -> CellResult:
    return a_cell(spec.context, spec.load.concurrency or 0, state=CellState.FAILED)


def at_rate(spec: CellSpec) -> CellResult:
    return a_cell(8, 1).model_copy(update={"spec": spec})


def walk(
    wanted: RunPlan,
    measured: Measure,
    *,
    subject: Subject = ANY,
    done: Sequence[CellResult] = (),
) -> list[CellResult]:
    """Decide cell after cell until there is none."""
    cells = list(done)
    while (step := next_grid_cell(wanted, subject, cells)) is not None:
        cells.append(step if isinstance(step, CellResult) else measured(step))
    return cells


RATES = tuple(
    Load(arrivals=Arrivals.POISSON, requests_per_second=rate) for rate in (1.0, 2.0, 4.0, 8.0)
)
GRIDS: dict[str, tuple[RunPlan, Measure, list[str]]] = {
    "in ascending order": (
        plan((512, 8), (4, 1)), flat_above(100), ["8x1", "8x4", "512x1", "512x4"],
    ),
    "each once": (plan((8, 8), (1, 1)), flat_above(9), ["8x1"]),
    "a saturated row two doublings further": (
        plan(), flat_above(4), ["8x1", "8x2", "8x4", "8x8", "8x16"],
    ),
    "by its requests where tokens are not told": (
        plan(), untold, ["8x1", "8x2", "8x4", "8x8", "8x16"],
    ),
    "each row for itself": (
        plan((8, 512), (1, 2, 4, 8)), flat_above(1),
        ["8x1", "8x2", "8x4", "512x1", "512x2", "512x4"],
    ),
    "a few percent are a gain": (plan(), flat_above(4, gain=0.04), [f"8x{n}" for n in DOUBLED]),
    "a step at the end is a gain": (
        plan(users=(1, 2, 4)), flat_above(2, gain=0.1), ["8x1", "8x2", "8x4"],
    ),
    "steps that do not double prove nothing": (
        plan(users=(8, 10, 12, 14)), flat_above(8), ["8x8", "8x10", "8x12", "8x14"],
    ),
    "a spoiled cell proves nothing": (
        plan(users=DOUBLED[:5]), slow_at_eight, [f"8x{n}" for n in DOUBLED[:5]],
    ),
    "every cell where that is wanted": (
        plan(stop_saturated=False), flat_above(1), [f"8x{n}" for n in DOUBLED],
    ),
    "open loops to their end": (
        plan(users=()).model_copy(update={"loads": RATES}), at_rate,
        [f"8-poisson-{n}" for n in (1, 2, 4, 8)],
    ),
    "of a dataset whatever its mean length": (
        plan((4096,), (1,), workload=Workload(dataset="prompts.jsonl")), flat_above(9), ["4096x1"],
    ),
    "a failed one not again": (plan(users=(1, 2)), failed, ["8x1", "8x2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_measured(name: str) -> None:
    """Contexts ascend, in each the users; a row that gains no more is left."""
    wanted, measured, ids = GRIDS[name]
    cells = walk(wanted, measured, subject=ENGINE)
    assert [cell.id for cell in cells if cell.state is not CellState.SKIPPED] == ids


def test_what_is_skipped_says_why() -> None:
    """2,048 and 64 are more than 2,048; exactly as long is not too long. A row names its last."""
    cells = walk(plan((1984, 2048), (1,)), flat_above(9), subject=ENGINE)
    saturated = walk(plan(), flat_above(4))
    assert [cells[0].state, len(saturated)] == [CellState.MEASURED, 6]
    for cell, code, said in (
        (cells[1], Code.LENGTH_CAPPED, "2,048 prompt tokens and 64 output tokens are more than"),
        (saturated[5], Code.SATURATED_ROW, "8x16 stands for it with 200 output tokens/s"),
    ):
        assert [v.code for v in cell.verdicts] == [code]
        assert cell.reason
        assert said in cell.reason


@given(
    contexts=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    users=st.lists(st.integers(1, 4096), min_size=1, max_size=8),
    capacity=st.integers(1, 4096),
    killed_at=st.integers(0, 40),
)
def test_every_cell_is_decided_once_wherever_it_was_killed(
    contexts: list[int], users: list[int], capacity: int, killed_at: int
) -> None:
    """Going on from the cells that are known gives the run that was never killed."""
    wanted = plan(contexts, users)
    whole = walk(wanted, flat_above(capacity), subject=ENGINE)
    resumed = walk(wanted, flat_above(capacity), subject=ENGINE, done=whole[:killed_at])
    assert resumed == whole
    assert [cell.spec for cell in whole] == list(grid_specs(wanted))


Share = Callable[[float], float]


def capacity_of(first: Load, *contexts: int) -> RunPlan:
    return RunPlan(
        profile="find-capacity",
        contexts=contexts or (512,),
        loads=(first,),
        limits=Limits(ttft_seconds=1.0),
    )


def users(number: int) -> Load:
    return Load(concurrency=number)


def within(capacity: float) -> Share:
    """All requests are within the limits up to a load, then ever fewer."""
    return lambda load: 1.0 if load <= capacity else 0.9 * capacity / load


def held(load: Load, share: float, context: int = 512) -> CellResult:
    spec = CellSpec(context=context, load=load)
    return a_cell(context, 1, goodput_share=share).model_copy(update={"spec": spec})


def search(wanted: RunPlan, share: Share, done: list[CellResult] | None = None) -> list[CellResult]:
    cells = list(done or [])
    while (step := next_search_cell(wanted, ENGINE, cells)) is not None:
        assert len(cells) < 200, "it does not end"
        if isinstance(step, CellSpec):
            step = held(step.load, share(step.load.size), step.context)
        cells.append(step)
    return cells


def found(wanted: RunPlan, cells: list[CellResult]) -> float:
    return bracket(wanted, cells).holds or 0.0


@given(capacity=st.integers(0, MOST_USERS), first=st.integers(1, 5000))
def test_the_capacity_in_users_is_found_from_any_beginning(capacity: int, first: int) -> None:
    """To one user or 5 %, no cell twice, and it ends."""
    wanted = capacity_of(users(first))
    cells = search(wanted, within(capacity))
    best = found(wanted, cells)
    assert len({c.spec for c in cells}) == len(cells) <= 30
    assert best <= capacity <= max(best * 1.05, best)


@given(capacity=st.floats(0.01, 20_000), first=st.floats(0.01, 1000))
def test_the_capacity_in_requests_per_second_is_found(capacity: float, first: float) -> None:
    """To 5 %, unless it is hundreds of times below the first guess."""
    wanted = capacity_of(Load(arrivals=Arrivals.POISSON, requests_per_second=first))
    cells = search(wanted, within(capacity))
    best = found(wanted, cells)
    assert len({c.spec for c in cells}) == len({c.id for c in cells}) == len(cells) <= 50
    assert best <= capacity
    assert capacity <= best * 1.0501 or capacity < first / 128


@given(st.lists(st.booleans(), min_size=40, max_size=40))
def test_a_search_ends_even_where_luck_decides(luck: list[bool]) -> None:
    """Cells that contradict each other never keep it going."""
    turns = iter(luck)
    cells = search(capacity_of(users(8)), lambda _load: 1.0 if next(turns) else 0.0)
    assert len({c.spec for c in cells}) == len(cells) <= 40


def test_a_load_that_held_above_one_that_did_not_proves_nothing() -> None:
    """It was luck: the answer lies below the lowest load that failed."""
    wanted = capacity_of(users(4))
    cells = [held(users(n), share) for n, share in ((4, 1.0), (8, 0.5), (16, 1.0))]
    assert bracket(wanted, cells) == (4, 8)
    assert next_search_cell(wanted, ENGINE, cells) == CellSpec(context=512, load=users(6))


def test_it_doubles_then_halves_the_gap() -> None:
    """As a person would do it; the client ends somewhere, and each context is for itself."""
    wanted = capacity_of(users(4))
    assert [c.spec.load.size for c in search(wanted, within(21))] == [4, 8, 16, 32, 24, 20, 22, 21]
    assert found(wanted, search(wanted, lambda _load: 1.0)) == MOST_USERS
    several = capacity_of(users(4), 4096, 8, 512)
    cells = search(several, within(3))
    assert [c.id for c in cells if c.state is CellState.SKIPPED] == ["4096x4"]
    for context in (8, 512):
        assert found(several, [c for c in cells if c.spec.context == context]) == 3


@pytest.mark.parametrize(
    ("share", "code", "holds"),
    [
        (1.0, None, True),
        (0.95, None, True),
        (0.94, None, False),
        (1.0, Code.CLIENT_SATURATED, False),
        (1.0, Code.KV_QUEUED, True),
        (1.0, Code.TOO_FEW_SAMPLES, True),  # a lower load would have fewer still
        (1.0, Code.COLD, True),  # warm it is only faster
        (0.94, Code.COLD, False),
        (1.0, Code.PREFIX_CACHED, False),
    ],
)
def test_what_holds_a_load(share: float, code: Code | None, holds: bool) -> None:  # noqa: FBT001
    """95 % of requests within the limits, in a cell that nothing makes better than it is."""
    cell = held(users(8), share)
    cell = with_verdict(cell, code) if code else cell
    assert bracket(capacity_of(users(8)), [cell]) == ((8, None) if holds else (None, 8))
    failed = a_cell(512, 8, state=CellState.FAILED)
    assert bracket(capacity_of(users(8)), [failed]) == (None, 8)


@pytest.mark.parametrize("second", [Code.COLD, Code.KV_QUEUED])
def test_a_load_that_missed_the_limits_cold_is_asked_once_more(second: Code) -> None:
    """It counted as too much load, and the answer was half of what the engine serves warm."""
    wanted, load = capacity_of(users(8)), users(8)
    cold = with_verdict(held(load, 0.5), Code.COLD)
    assert next_search_cell(wanted, ENGINE, [cold]) == cold.spec
    warm = with_verdict(held(load, 1.0 if second is Code.KV_QUEUED else 0.5), second)
    goes_on = users(16) if second is Code.KV_QUEUED else users(4)
    assert next_search_cell(wanted, ENGINE, [cold, warm]) == CellSpec(context=512, load=goes_on)


def test_of_rates_only_the_first_is_asked_once_more_where_it_was_cold() -> None:
    """Latency that never settles is what too high a rate looks like: each would be paid twice."""
    rates = [Load(arrivals=Arrivals.POISSON, requests_per_second=rate) for rate in (4.0, 8.0)]
    wanted = capacity_of(rates[0])
    first, fast = (with_verdict(held(rate, 0.5), Code.COLD) for rate in rates)
    assert next_search_cell(wanted, ENGINE, [first]) == first.spec
    step = next_search_cell(wanted, ENGINE, [held(rates[0], 1.0), fast])
    assert isinstance(step, CellSpec)
    assert step.load.size == 6.0


def test_a_load_too_low_for_its_samples_is_not_halved_for_what_is_not_its_doing() -> None:
    """A client that is always late was halved down to one request in a minute, each cell paid."""
    wanted = capacity_of(Load(arrivals=Arrivals.POISSON, requests_per_second=4.0))
    late = with_verdict(held(wanted.loads[0], 1.0), Code.CLIENT_SATURATED)
    assert next_search_cell(wanted, ENGINE, [late]) is not None
    assert next_search_cell(wanted, ENGINE, [with_verdict(late, Code.TOO_FEW_SAMPLES)]) is None
    slow = with_verdict(held(wanted.loads[0], 0.5), Code.TOO_FEW_SAMPLES)
    assert next_search_cell(wanted, ENGINE, [slow]) is not None
