"""The next cell of a grid: a pure function of what was decided so far.

Contexts ascend, and within each the loads. A row of closed loops that saturated stands for its
higher loads: where throughput grew by no more than 3 % over two further steps that at least doubled
the users together, the next users only wait longer. What they would wait follows from the cell
named (Little's law). Profiles whose every cell is wanted switch this off: `stop_saturated`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmark.records import Arrivals, CellResult, CellSpec, CellState, Code, Verdict
from benchmark.reporting.tables import load_label, load_order
from benchmark.runs import RunPlan, Subject
from benchmark.wording import figure, percent

GAIN: Final = 0.03
"""Less is within what a cell's interval leaves open."""
_STEPS: Final = 2
"""One flat step may be chance."""
_GROWTH: Final = 4.0
"""Over both steps: two doublings."""


def next_cell(
    plan: RunPlan, subject: Subject, done: Sequence[CellResult]
) -> CellSpec | CellResult | None:
    """Say what comes next: a cell to measure, one decided without measuring, None at the end."""
    decided = {cell.spec for cell in done}
    spec = next((spec for spec in specs(plan) if spec not in decided), None)
    if spec is None:
        return None
    return too_long(plan, subject, spec) or _saturated(plan, done, spec) or spec


def specs(plan: RunPlan) -> Iterator[CellSpec]:
    """Give every cell of the grid, in order."""
    for context in sorted(set(plan.contexts)):
        for load in sorted(set(plan.loads), key=load_order):
            yield CellSpec(context=context, load=load)


def too_long(plan: RunPlan, subject: Subject, spec: CellSpec) -> CellResult | None:
    """Give the skipped cell where one request alone is longer than the engine allows."""
    wanted, longest = plan.workload.output_tokens, subject.max_model_len
    if longest is None or plan.workload.dataset or spec.context + wanted <= longest:
        return None
    because = (
        f"{spec.context:,} prompt tokens and {wanted:,} output tokens are more than "
        f"max_model_len {longest:,}"
    )
    return _skipped(spec, Code.LENGTH_CAPPED, because)


def _saturated(plan: RunPlan, done: Sequence[CellResult], spec: CellSpec) -> CellResult | None:
    if not plan.stop_saturated or spec.load.arrivals is not Arrivals.CLOSED:
        return None
    row = [cell for cell in done if _same_row(cell, spec)]
    *_, base, middle, last = (None, None, None, *row)
    if not (base and middle and last and all(map(_tells, (base, middle, last)))):
        return None
    if _users(last) < _GROWTH * _users(base) or _users(spec) <= _users(last):
        return None
    best = max(_tokens(middle), _tokens(last))
    if best > (1 + GAIN) * _tokens(base):
        return None
    because = (
        f"output throughput grew by {percent(max(0.0, best / _tokens(base) - 1))} from "
        f"{load_label(base.spec.load)} to {load_label(last.spec.load)} users, limit "
        f"{percent(GAIN)}; {last.id} stands for it with {figure(_tokens(last))} tokens/s"
    )
    return _skipped(spec, Code.SATURATED_ROW, because)


def _same_row(cell: CellResult, spec: CellSpec) -> bool:
    return (
        cell.spec.context == spec.context
        and cell.spec.load.arrivals is spec.load.arrivals
        and cell.state is not CellState.SKIPPED
    )


def _tells(cell: CellResult) -> bool:
    """Whether its throughput is the engine's: a spoiled cell, such as a slow client's, is not."""
    return cell.valid and bool(cell.output_token_throughput)


def _users(cell: CellResult | CellSpec) -> int:
    load = cell.spec.load if isinstance(cell, CellResult) else cell.load
    return load.concurrency or 0


def _tokens(cell: CellResult) -> float:
    return cell.output_token_throughput or 0.0


def _skipped(spec: CellSpec, code: Code, because: str) -> CellResult:
    return CellResult(
        spec=spec,
        state=CellState.SKIPPED,
        reason=f"{because[0].upper()}{because[1:]}.",
        verdicts=(Verdict(code=code, because=because),),
    )
