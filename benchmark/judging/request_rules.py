"""Rules about requests: what failed, what was too short, too few, too slow at first.

Each rule gives the words of its verdict, or None where the cell keeps to it.
"""

from typing import Final

import numpy as np

from benchmark.errors import Finish, Outcome
from benchmark.figures import convergence, statistics
from benchmark.figures.results import tpot_seconds
from benchmark.judging.case import Case, limit_of
from benchmark.records import Arrivals
from benchmark.samples import UNKNOWN, Floats
from benchmark.wording import percent, seconds

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
    first, last = statistics.percentile(ordered[:third], 50), ordered[-third:]
    usual = statistics.percentile(last, 50)
    factor = limit_of("first_over_last")
    if first <= factor * usual or first <= statistics.percentile(last, 90):
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
    begun = statistics.within(samples.intended, begin=run.window_begin, end=run.window_end)
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
    return tuple(f"p{p}" for p in statistics.PERCENTILES if count * (100 - p) < 100)


def wide(case: Case) -> str | None:
    if case.cell.spec.load.arrivals is Arrivals.ONCE:
        return None
    limit = case.plan.stop.relative_half_width
    widths = {"throughput": case.cell.relative_half_width}
    if case.measured is not None:
        widths["mean E2EL"] = convergence.e2el_relative_half_width(case.measured.slices)
        if None in widths.values():
            return f"no interval can be given from {len(case.measured.slices)} slices"
    said = [f"{name} ± {percent(w)}" for name, w in widths.items() if w is not None and w > limit]
    return f"{', '.join(said)}, wanted ± {percent(limit)}" if said else None
