"""What a cell's figures are worth: one rule for each code, with the figures that earned it.

`validity.toml` holds the limits. Limits that belong to a plan (the interval's width, how many
requests) are in its stop rule. A verdict either spoils a cell or describes it: `records.MARKS`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from benchmark.judging import machine_rules, request_rules
from benchmark.judging.case import Case
from benchmark.judging.case import limits as limits  # noqa: PLC0414  said here too
from benchmark.judging.request_rules import unsupported as unsupported  # noqa: PLC0414  the same
from benchmark.measured import Measured
from benchmark.records import CellResult, CellState, Code, Verdict
from benchmark.runs import RunPlan, Subject
from benchmark.wording import seconds

Rule = Callable[[Case], str | None]
_RECONCILED_SECONDS: Final = 0.005
_RECONCILED_SHARE: Final = 0.2


def judged(
    cell: CellResult,
    *,
    measured: Measured | None,
    plan: RunPlan,
    subject: Subject,
    before: Sequence[CellResult],
) -> CellResult:
    """Give the cell with its verdicts; those that it has already stay.

    A failed cell is asked only what may explain it, a skipped one nothing. What only single
    requests tell is not asked without `measured`. `before` says which engine answered first where
    `subject` does not know.
    """
    if cell.state is CellState.SKIPPED:
        return cell
    case = Case.of(cell, measured, plan=plan, subject=subject, before=before)
    asked = RULES if cell.state is CellState.MEASURED else _OF_FAILED
    found = {code: because for code, rule in asked.items() if (because := rule(case))}
    kept = tuple(v for v in cell.verdicts if v.code not in found)
    new = tuple(Verdict(code=code, because=because) for code, because in found.items())
    return cell.model_copy(update={"verdicts": kept + new})


def reconciled(cell: CellResult) -> str | None:
    """Hold the client's TTFT against the engine's own histogram; None where they agree.

    The engine's is the mean of its histogram's growth during the window, so it is exact. They
    agree within 5 ms or 20 %: what the way there and the window's edges explain.
    """
    if cell.ttft is None or cell.server is None or cell.server.ttft_mean is None:
        return None
    ours, theirs = cell.ttft.mean, cell.server.ttft_mean
    apart = ours - theirs
    if abs(apart) <= max(_RECONCILED_SECONDS, _RECONCILED_SHARE * max(ours, theirs)):
        return None
    head = f"Mean TTFT is {seconds(ours)} here and {seconds(theirs)} in the engine: "
    if apart > 0:
        return (
            f"{head}{seconds(apart)} pass on the way, in a gateway, in a queue before it or here."
        )
    return f"{head}the engine counts requests that are not these, so its figure is of others too."


def _article_method(case: Case) -> str | None:
    if case.plan.profile != "article":
        return None
    return "one burst and its drain, no steady state: not a serving rate"


def _simulated(case: Case) -> str | None:
    return "no model runs; the figures are a simulation" if case.subject.simulated else None


_OF_FAILED: Final[dict[Code, Rule]] = {
    Code.CLIENT_SATURATED: machine_rules.client_saturated,
    Code.LENGTH_CAPPED: request_rules.length_capped,
    Code.TIMEOUTS: request_rules.timeouts,
    Code.SERVER_CHANGED: machine_rules.server_changed,
    Code.CLOCK_STEPPED: machine_rules.clock_stepped,
    Code.THROTTLED: request_rules.throttled,
    Code.ERRORS: request_rules.errors,
    Code.OTHER_LOAD: machine_rules.other_load,
    Code.ARTICLE_METHOD: _article_method,
    Code.SIMULATED: _simulated,
}
RULES: Final[dict[Code, Rule]] = {
    Code.PREFIX_CACHED: machine_rules.prefix_cached,
    Code.COLD: request_rules.cold,
    Code.SHORT_OUTPUT: request_rules.short_output,
    Code.KV_QUEUED: machine_rules.kv_queued,
    Code.TOO_FEW_SAMPLES: request_rules.too_few,
    Code.WIDE_INTERVAL: request_rules.wide,
    Code.CLIENT_NOISE: machine_rules.client_noise,
    **_OF_FAILED,
}
"""Codes that a cell of a run can earn; the audit of imported results has more."""
