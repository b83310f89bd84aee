"""Which cell comes next, and which are decided without measuring."""

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Load,
    RunPlan,
    Subject,
    Workload,
)
from benchmark.run import grid_specs, next_grid_cell
from tests.benchmark.made import a_cell, with_verdict

ANY = Subject(model="m", max_model_len=None)


def plan(
    contexts: Sequence[int] = (8, 512), users: Sequence[int] = (1, 2, 4, 8, 16), **more: object
) -> RunPlan:
    loads = [{"concurrency": number} for number in users]
    return RunPlan.model_validate({"contexts": contexts, "loads": loads, **more})


def flat_above(users: int, *, gain: float = 0.0) -> Callable[[CellSpec], CellResult]:
    """An engine whose throughput grows with every user up to so many, then by a share in all."""

    def measured(spec: CellSpec) -> CellResult:
        number = spec.load.concurrency or 0
        tokens = 50.0 * min(number, users) * (1 + gain * (number > users))
        return a_cell(spec.context, number, output_token_throughput=tokens)

    return measured


def walk(
    wanted: RunPlan,
    measured: Callable[[CellSpec], CellResult],
    *,
    subject: Subject = ANY,
    done: Sequence[CellResult] = (),
) -> list[CellResult]:
    """Decide cell after cell until there is none."""
    cells = list(done)
    while (step := next_grid_cell(wanted, subject, cells)) is not None:
        cells.append(step if isinstance(step, CellResult) else measured(step))
    return cells


def ids(cells: Sequence[CellResult], state: CellState = CellState.MEASURED) -> list[str]:
    return [cell.id for cell in cells if cell.state is state]


def test_contexts_ascend_and_in_each_the_users() -> None:
    """Whatever the order in which they were asked for."""
    cells = walk(plan((512, 8), (4, 1)), flat_above(100))
    assert ids(cells) == ["8x1", "8x4", "512x1", "512x4"]


def test_what_no_single_request_can_do_is_skipped_with_its_figures() -> None:
    """2,048 and 64 are more than 2,048; exactly as long is not too long."""
    engine = Subject(model="m", max_model_len=2048)
    cells = walk(plan((1984, 2048), (1,)), flat_above(9), subject=engine)
    assert ids(cells) == ["1984x1"]
    (skipped,) = cells[1:]
    assert skipped.state is CellState.SKIPPED
    assert skipped.reason
    for figure in ("2,048 prompt tokens", "64 output tokens", "max_model_len 2,048"):
        assert figure in skipped.reason
    assert [v.code for v in skipped.verdicts] == [Code.LENGTH_CAPPED]


def test_prompts_of_a_dataset_are_not_held_against_the_context() -> None:
    """Its context is the mean of all; each prompt is answered or refused for itself."""
    engine = Subject(model="m", max_model_len=100)
    workload = Workload(dataset="prompts.jsonl")
    cells = walk(plan((200,), (1,), workload=workload), flat_above(9), subject=engine)
    assert ids(cells) == ["200x1"]


def test_a_saturated_row_is_measured_two_doublings_further() -> None:
    """Then the last measured cell stands for the others, by name and with the gain seen."""
    cells = walk(plan((8,), (1, 2, 4, 8, 16, 32)), flat_above(4))
    assert ids(cells) == ["8x1", "8x2", "8x4", "8x8", "8x16"]
    (skipped,) = cells[5:]
    assert skipped.id == "8x32"
    assert [v.code for v in skipped.verdicts] == [Code.SATURATED_ROW]
    assert skipped.reason
    assert "8x16 stands for it with 200 tokens/s" in skipped.reason


def test_a_row_that_still_gains_is_measured_on() -> None:
    """A few percent over two doublings are a gain."""
    cells = walk(plan((8,), (1, 2, 4, 8, 16, 32)), flat_above(4, gain=0.04))
    assert len(ids(cells)) == 6


def test_a_gain_at_the_last_step_alone_is_a_gain() -> None:
    """Batches fill in steps."""

    def measured(spec: CellSpec) -> CellResult:
        users = spec.load.concurrency or 0
        return a_cell(8, users, output_token_throughput=100.0 if users < 4 else 110.0)

    assert "8x8" in ids(walk(plan((8,), (1, 2, 4, 8)), measured))


def test_other_rows_know_nothing_of_a_saturated_one() -> None:
    """Each row is judged by itself."""
    cells = walk(plan((8, 512), (1, 2, 4, 8)), flat_above(1))
    assert ids(cells) == ["8x1", "8x2", "8x4", "512x1", "512x2", "512x4"]


def test_steps_that_do_not_double_prove_no_saturation() -> None:
    """Ten and twelve users are nearly the same load."""
    cells = walk(plan((8,), (8, 10, 12, 14)), flat_above(8))
    assert len(ids(cells)) == 4


def test_a_spoiled_cell_proves_no_saturation() -> None:
    """What a slow client reached is not where the engine ends."""

    def measured(spec: CellSpec) -> CellResult:
        cell = flat_above(2)(spec)
        return with_verdict(cell, Code.CLIENT_SATURATED) if spec.load.concurrency == 8 else cell

    assert len(ids(walk(plan((8,), (1, 2, 4, 8, 16)), measured))) == 5


def test_profiles_that_want_every_cell_get_it() -> None:
    """No row ends early there."""
    cells = walk(plan((8,), (1, 2, 4, 8, 16), stop_saturated=False), flat_above(1))
    assert len(ids(cells)) == 5


def test_open_loops_do_not_saturate_a_row() -> None:
    """Above its capacity an open loop is another thing, and worth seeing."""
    loads = [{"requests_per_second": r, "arrivals": "poisson"} for r in (1.0, 2.0, 4.0, 8.0)]
    wanted = RunPlan.model_validate({"contexts": (8,), "loads": loads})

    def measured(spec: CellSpec) -> CellResult:
        return a_cell(8, 1).model_copy(update={"spec": spec})

    cells = walk(wanted, measured)
    assert len(ids(cells)) == 4
    assert all(cell.spec.load.arrivals is Arrivals.POISSON for cell in cells)


def test_a_failed_cell_is_decided() -> None:
    """It is not tried for ever."""

    def measured(spec: CellSpec) -> CellResult:
        return a_cell(spec.context, spec.load.concurrency or 0, state=CellState.FAILED)

    cells = walk(plan((8,), (1, 2)), measured)
    assert ids(cells, CellState.FAILED) == ["8x1", "8x2"]


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
    wanted, engine = plan(contexts, users), Subject(model="m", max_model_len=2048)
    whole = walk(wanted, flat_above(capacity), subject=engine)
    resumed = walk(wanted, flat_above(capacity), subject=engine, done=whole[:killed_at])
    assert resumed == whole
    assert [cell.spec for cell in whole] == list(grid_specs(wanted))


def test_loads_may_be_asked_for_twice() -> None:
    """They are one cell."""
    wanted = RunPlan(contexts=(8, 8), loads=(Load(concurrency=1), Load(concurrency=1)))
    assert ids(walk(wanted, flat_above(9))) == ["8x1"]
