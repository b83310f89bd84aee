"""What a cell's figures are worth: one rule for each code, with the figures that earned it."""

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmark import figures
from benchmark.figures import PERCENTILES, measured_rows, tpot_seconds
from benchmark.records import (
    Arrivals,
    CellResult,
    CellState,
    Code,
    Measured,
    RunPlan,
    Subject,
    Verdict,
    percent,
    seconds,
)
from benchmark.samples import UNKNOWN, Finish, Floats, Outcome, Samples
from core.records import Record

_FILE: Final = Path(__file__).with_name("validity.toml")


class Limit(Record):
    """One entry of `validity.toml`."""

    code: Code
    name: str
    limit: float
    unit: str
    why: str
    """What lies beyond it."""
    source: str


@cache
def limits() -> dict[str, Limit]:
    """Give the limits by name, for the rules and for people who ask."""
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["limit"]
    return {row["name"]: Limit.model_validate(row) for row in rows}


def limit_of(name: str) -> float:
    """Give the figure of one limit."""
    return limits()[name].limit


class Case(NamedTuple):
    """What is known of a cell when it is judged."""

    cell: CellResult
    measured: Measured | None
    rows: Samples | None
    """Measured requests that were answered whole; None where only figures are known."""
    plan: RunPlan
    subject: Subject
    before: Sequence[CellResult]

    @property
    def total(self) -> int:
        """Measured requests, well or badly ended."""
        return self.cell.counts.measured if self.cell.counts else 0

    @property
    def errors(self) -> dict[str, int]:
        """Failures among them, by class."""
        return self.cell.counts.errors if self.cell.counts else {}


_DECIDING: Final = tuple(
    f"{one}_{of}" for one in ("ttft", "tpot", "e2el") for of in ("mean", "p50")
)
"""What decisions and comparisons rest on; throughput of a closed loop moves as mean E2EL does."""
_DESCRIBING: Final = tuple(
    f"{one}_p{of}"
    for one in ("ttft", "tpot", "e2el", "itl")
    for of in PERCENTILES
    if one == "itl" or of != 50
)


def prefix_cached(case: Case) -> str | None:
    asked = case.plan.workload.prefix_share
    limit = asked + limit_of("hit_share")
    hits = case.cell.server.prefix_cache_hit_rate if case.cell.server else None
    if hits is not None and hits > limit:
        return f"hit rate {percent(hits)}, limit {percent(limit)}"
    cached = _cached_share(case.rows)
    if cached is not None and cached > limit:
        return f"{percent(cached)} of prompt tokens cached by usage, limit {percent(limit)}"
    return None


def _cached_share(rows: Samples | None) -> float | None:
    if rows is None:
        return None
    told = (rows.cached_tokens != UNKNOWN) & (rows.prompt_tokens > 0)
    prompts = int(rows.prompt_tokens[told].sum())
    return float(rows.cached_tokens[told].sum()) / prompts if prompts else None


def client_saturated(case: Case) -> str | None:
    most = limit_of("cpu_share")
    if case.cell.client and case.cell.client.cpu_share > most:
        return f"CPU {percent(case.cell.client.cpu_share)} of a core, limit {percent(most)}"
    return _moved(case.cell, _DECIDING)


def client_noise(case: Case) -> str | None:
    return None if client_saturated(case) else _moved(case.cell, _DESCRIBING)


def _moved(cell: CellResult, figures: Sequence[str]) -> str | None:
    """Say which figures the client may have moved beyond the limit, the worst two of them."""
    share, floor = limit_of("error_share"), limit_of("error_floor_seconds")
    bounds = cell.client.error_bounds if cell.client else {}
    known = ((name, bounds[name], _value(cell, name)) for name in figures if name in bounds)
    beyond = [
        (bound / value, name, bound)
        for name, bound, value in known
        if value and bound > max(floor, share * value)
    ]
    if not beyond:
        return None
    worst = ", ".join(
        f"{name.partition('_')[0].upper()} {name.partition('_')[2]} by {percent(of_it)} "
        f"({seconds(bound)})"
        for of_it, name, bound in sorted(beyond, reverse=True)[:2]
    )
    return f"it may have moved {worst}; limit {percent(share)} or {seconds(floor)}"


def _value(cell: CellResult, name: str) -> float | None:
    """Give a figure in seconds; a percentile only where it is more than the slowest request."""
    distribution, point = name.split("_")
    spread = getattr(cell, distribution)
    if spread is None or (point != "p50" and point in unsupported(spread.count)):
        return None
    return float(getattr(spread, point))


def kv_queued(case: Case) -> str | None:
    server = case.cell.server
    if server is None or not server.requests_waiting_mean or server.kv_cache_usage_max is None:
        return None
    free = 1 - server.kv_cache_usage_max
    size = case.subject.cache.kv_cache_size_tokens if case.subject.cache else None
    no_room = size is not None and free * size < case.cell.spec.context
    if server.kv_cache_usage_max < limit_of("kv_cache_usage") and not no_room:
        return None
    waiting = f"{server.requests_waiting_mean:.3g} requests waiting on average"
    return f"KV cache {percent(server.kv_cache_usage_max)} full, {waiting}"


def server_changed(case: Case) -> str | None:
    seen = [case.subject.process_start_time]
    seen += [c.server.process_start_time for c in (*case.before, case.cell) if c.server]
    known = [start for start in seen if start is not None]
    now = case.cell.server.process_start_time if case.cell.server else None
    if now is None or abs(now - known[0]) <= limit_of("start_tolerance_seconds"):
        return None
    apart, side = seconds(abs(now - known[0])), "after" if now > known[0] else "before"
    return f"the engine's process began {apart} {side} the one measured first"


def clock_stepped(case: Case) -> str | None:
    step = abs(case.cell.client.clock_step_seconds) if case.cell.client else 0.0
    limit = limit_of("step_seconds")
    return f"clock stepped {seconds(step)}, limit {seconds(limit)}" if step > limit else None


def other_load(case: Case) -> str | None:
    server = case.cell.server
    if server is None or not server.other_requests or case.cell.counts is None:
        return None
    share = server.other_requests / (server.requests_finished or case.cell.counts.sent or 1)
    limit = limit_of("other_share")
    if share <= limit:
        return None
    return f"{percent(share)} of the engine's requests were not ours, limit {percent(limit)}"


_OWN_CODE: Final = frozenset({"timeout", "throttled"})
"""Classes of failure that ERRORS leaves out, because another code speaks of them and spoils."""


def cold(case: Case) -> str | None:
    if case.cell.spec.load.arrivals is Arrivals.ONCE:
        return None  # a burst has no steady state to settle in; its method has its own code
    if case.measured is not None and not case.measured.settled:
        most = case.plan.stop.warmup_max_seconds
        return f"latency had not settled after {seconds(most)} of warm-up"
    if case.rows is None:
        return None
    begun = case.rows.intended
    figures = {
        "TTFT": (begun, case.rows.first_token - begun),
        "TPOT": (begun[case.rows.output_tokens > 1], tpot_seconds(case.rows)),
    }
    said = (_slower_first(name, *columns) for name, columns in figures.items())
    return next((words for words in said if words), None)


def _slower_first(name: str, begun: Floats, times: Floats) -> str | None:
    third = len(times) // 3
    if third < limit_of("requests_of_a_third"):
        return None
    ordered = times[np.argsort(begun, kind="stable")]
    first, last = figures.percentile(ordered[:third], 50), ordered[-third:]
    usual = figures.percentile(last, 50)
    factor = limit_of("first_over_last")
    if first <= factor * usual or first <= figures.percentile(last, 90):
        return None
    return (
        f"median {name} {seconds(first)} in the first third of the window, {seconds(usual)} in the "
        f"last; limit {factor:g} times"
    )


def short_output(case: Case) -> str | None:
    wanted = case.plan.workload.output_tokens
    if case.rows is None or not case.plan.workload.fixed_output:
        return None
    tokens = case.rows.output_tokens
    short = (tokens != UNKNOWN) & (tokens < wanted)
    if not short.any():
        return None
    return f"{int(short.sum())} of {len(tokens)} answers had fewer than {wanted} tokens"


def length_capped(case: Case) -> str | None:
    if refused := case.errors.get("too_long"):
        return f"{refused} of {case.total} requests refused as too long"
    most = case.plan.workload.output_tokens
    if case.plan.workload.fixed_output or most == 1 or case.rows is None or not len(case.rows):
        return None
    share = float((case.rows.finish == Finish.LENGTH).mean())
    limit = limit_of("capped_share")
    if share <= limit:
        return None
    return f"{percent(share)} of answers ended at {most} tokens, limit {percent(limit)}"


def timeouts(case: Case) -> str | None:
    if late := case.errors.get("timeout"):
        return f"{late} of {case.total} requests timed out"
    if case.measured is None:
        return None
    samples, run = case.measured.samples, case.measured
    begun = figures.within(samples.intended, begin=run.window_begin, end=run.window_end)
    cut = int((begun & (samples.outcome == Outcome.CUT)).sum())
    if not cut or cut <= limit_of("cut_share") * int(begun.sum()):
        return None
    return f"{cut} of {int(begun.sum())} requests were cut before their answer was whole"


def throttled(case: Case) -> str | None:
    refused = case.errors.get("throttled")
    return f"{refused} of {case.total} requests got 429 or 503" if refused else None


def errors(case: Case) -> str | None:
    others = {name: number for name, number in case.errors.items() if name not in _OWN_CODE}
    limit = limit_of("failed_share")
    if not others or sum(others.values()) <= limit * case.total:
        return None
    words = ", ".join(f"{number} {name}" for name, number in others.items())
    return f"{words} of {case.total} requests, limit {percent(limit)}"


def too_few(case: Case) -> str | None:
    got, wanted = case.cell.counts.succeeded if case.cell.counts else 0, case.plan.stop.min_requests
    if got >= wanted:
        return None
    slowest = ", ".join(unsupported(got))
    return f"{got} answers, {wanted} wanted" + (f"; {slowest} = the slowest" if slowest else "")


def unsupported(count: int) -> tuple[str, ...]:
    """Name the percentiles that are only the slowest of so few requests.

    >>> unsupported(40)
    ('p99',)
    """
    return tuple(f"p{p}" for p in figures.PERCENTILES if count * (100 - p) < 100)


def wide(case: Case) -> str | None:
    if case.cell.spec.load.arrivals is Arrivals.ONCE:
        return None
    limit = case.plan.stop.relative_half_width
    widths = {
        "throughput": case.cell.relative_half_width,
        "mean E2EL": case.cell.e2el_relative_half_width,
    }
    if case.measured is not None and None in widths.values():
        return f"no interval can be given from {len(case.measured.slices)} slices"
    said = [f"{name} ± {percent(w)}" for name, w in widths.items() if w is not None and w > limit]
    return f"{', '.join(said)}, wanted ± {percent(limit)}" if said else None


Rule = Callable[[Case], str | None]


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
    rows = None if measured is None else measured_rows(measured)
    case = Case(cell, measured, rows, plan, subject, before)
    asked = RULES if cell.state is CellState.MEASURED else _OF_FAILED
    found = {code: because for code, rule in asked.items() if (because := rule(case))}
    kept = tuple(v for v in cell.verdicts if v.code not in found)
    new = tuple(Verdict(code=code, because=because) for code, because in found.items())
    return cell.model_copy(update={"verdicts": kept + new})


def _article_method(case: Case) -> str | None:
    if case.plan.profile != "article":
        return None
    return "one burst and its drain, no steady state: not a serving rate"


def _simulated(case: Case) -> str | None:
    return "no model runs; the figures are a simulation" if case.subject.simulated else None


_OF_FAILED: Final[dict[Code, Rule]] = {
    Code.CLIENT_SATURATED: client_saturated,
    Code.LENGTH_CAPPED: length_capped,
    Code.TIMEOUTS: timeouts,
    Code.SERVER_CHANGED: server_changed,
    Code.CLOCK_STEPPED: clock_stepped,
    Code.THROTTLED: throttled,
    Code.ERRORS: errors,
    Code.OTHER_LOAD: other_load,
    Code.ARTICLE_METHOD: _article_method,
    Code.SIMULATED: _simulated,
}
RULES: Final[dict[Code, Rule]] = {
    Code.PREFIX_CACHED: prefix_cached,
    Code.COLD: cold,
    Code.SHORT_OUTPUT: short_output,
    Code.KV_QUEUED: kv_queued,
    Code.TOO_FEW_SAMPLES: too_few,
    Code.WIDE_INTERVAL: wide,
    Code.CLIENT_NOISE: client_noise,
    **_OF_FAILED,
}
"""Codes that a cell of a run can earn; the audit of imported results has more."""
