"""What was measured in one cell, computed from its samples with vLLM's definitions.

Latencies are of requests that began in the window and whose whole answer came. Throughputs are of
what happened in the window, whenever it began: requests whose answer ended in it, output tokens
that arrived in it, prompts whose first token came in it. What begins before and what ends after
then weigh the same, and no edge favours short requests.
"""

from typing import Any, NamedTuple

import numpy as np

from benchmark.errors import Outcome
from benchmark.figures import convergence, statistics
from benchmark.figures.statistics import Mask, distribution, within
from benchmark.measured import Measured
from benchmark.records import Arrivals, CellResult, CellSpec, CellState, Counts, Limits, ServerView
from benchmark.runs import RunPlan
from benchmark.samples import UNKNOWN, Floats, Samples

Figures = dict[str, Any]


def compute(
    spec: CellSpec,
    measured: Measured,
    *,
    server: ServerView | None,
    plan: RunPlan,
    usd_per_hour: float | None,
) -> CellResult:
    """Give the cell's figures, without verdicts.

    A cell that was given up, or none of whose requests succeeded, has failed: it keeps its counts
    and what server and client said of themselves, and has no other figure.
    """
    window = _Window.of(spec, measured)
    counts = _counts(window)
    failure = measured.failed or _failure(counts)
    seen = {
        "spec": spec,
        "started_at": measured.started_at,
        "wall_seconds": measured.wall_seconds,
        "counts": counts,
        "server": server,
        "client": measured.client,
    }
    if failure:
        return CellResult.model_validate({**seen, "state": CellState.FAILED, "reason": failure})
    rates = _rates(window, spec)
    figures: Figures = {
        "window_seconds": window.seconds,
        "concurrency_mean": window.in_flight(),
        "relative_half_width": _width(spec, measured),
        **_latencies(window),
        **rates,
        **_goodput(window, plan.limits),
        **_prices(rates, usd_per_hour),
    }
    return CellResult.model_validate({**seen, "state": CellState.MEASURED, **figures})


class _Window(NamedTuple):
    samples: Samples
    begin: float
    end: float
    measured: Mask
    """Requests that began in it and were not cut."""
    once: bool
    """One burst: all that is measured is in it, from its begin to its last end."""

    @classmethod
    def of(cls, spec: CellSpec, measured: Measured) -> "_Window":
        samples = measured.samples
        begun = within(samples.intended, begin=measured.window_begin, end=measured.window_end)
        rows = begun & (samples.outcome != Outcome.CUT)
        if spec.load.arrivals is not Arrivals.ONCE or not rows.any():
            return cls(samples, measured.window_begin, measured.window_end, rows, once=False)
        ends = np.nanmax(np.append(samples.done[rows], measured.window_begin))
        return cls(samples, float(samples.intended[rows].min()), float(ends), rows, once=True)

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def in_flight(self) -> float | None:
        return statistics.in_flight(self.samples, begin=self.begin, end=self.end)

    def tokens(self) -> float:
        if self.once:
            return float(statistics.known_tokens(self.samples)[self.measured].sum())
        return statistics.tokens_arrived(self.samples, begin=self.begin, end=self.end)

    def has(self, times: Floats) -> Mask:
        if self.once:
            return self.measured & ~np.isnan(times)
        return within(times, begin=self.begin, end=self.end)

    def rate(self, number: float) -> float:
        return float(number) / self.seconds


def answered(samples: Samples) -> Mask:
    """Say which requests were answered whole."""
    return np.asarray(samples.outcome == Outcome.OK)


def measured_rows(measured: Measured) -> Samples:
    """Give the requests that began in the window and were answered whole: the latencies' own."""
    samples = measured.samples
    begun = within(samples.intended, begin=measured.window_begin, end=measured.window_end)
    return samples.rows(begun & answered(samples))


def _counts(window: _Window) -> Counts:
    samples = window.samples
    outcomes, numbers = np.unique(samples.outcome[window.measured], return_counts=True)
    each = {Outcome(int(o)): int(n) for o, n in zip(outcomes, numbers, strict=True)}
    return Counts(
        sent=len(samples),
        measured=int(window.measured.sum()),
        succeeded=each.pop(Outcome.OK, 0),
        cut=int((samples.outcome == Outcome.CUT).sum()),
        errors={outcome.name.lower(): number for outcome, number in each.items()},
    )


def _failure(counts: Counts) -> str | None:
    if counts.succeeded:
        return None
    if not counts.measured:
        return "No request that began in the window ended."
    classes = ", ".join(f"{number} {name}" for name, number in counts.errors.items())
    return f"None of {counts.measured} requests was answered whole: {classes}."


def _latencies(window: _Window) -> Figures:
    samples = window.samples
    connects = samples.connect_seconds[window.measured]
    rows = samples.rows(window.measured & answered(samples))
    reasoning = rows.reasoning_tokens[rows.reasoning_tokens != UNKNOWN]
    return {
        "ttft": distribution(rows.first_token - rows.intended),
        "tpot": distribution(tpot_seconds(rows)),
        "itl": distribution(rows.gaps),
        "tokens_per_event": statistics.tokens_per_event(rows),
        "e2el": distribution(rows.last_token - rows.intended),
        "connect": distribution(connects[~np.isnan(connects)]),
        "reasoning_tokens": int(reasoning.sum()) if len(reasoning) else None,
    }


def tpot_seconds(samples: Samples) -> Floats:
    """Give (E2EL - TTFT) / (output tokens - 1) of each request with two tokens or more."""
    rows = samples.output_tokens > 1
    decode = samples.last_token[rows] - samples.first_token[rows]
    return np.asarray(decode / (samples.output_tokens[rows] - 1), dtype=np.float64)


def _rates(window: _Window, spec: CellSpec) -> Figures:
    samples = window.samples
    prompts = samples.prompt_tokens[window.has(samples.first_token)]
    known = samples.prompt_tokens[samples.prompt_tokens != UNKNOWN]
    usual = float(known.mean()) if len(known) else float(spec.context)
    return {
        "request_throughput": window.rate((answered(samples) & window.has(samples.done)).sum()),
        "input_token_throughput": window.rate(np.where(prompts == UNKNOWN, usual, prompts).sum()),
        "output_token_throughput": window.rate(window.tokens()),
    }


def _goodput(window: _Window, limits: Limits) -> Figures:
    """Count as `request_throughput` does, so that goodput is never above it."""
    if limits == Limits():
        return {}
    good = answered(window.samples) & _meets(window.samples, limits)
    return {
        "goodput": window.rate((good & window.has(window.samples.done)).sum()),
        "goodput_share": float(good[window.measured].mean()),
    }


def _meets(samples: Samples, limits: Limits) -> Mask:
    """Say which requests are within all limits; one token alone has no TPOT and meets it."""
    good = np.ones(len(samples), dtype=np.bool_)
    if limits.ttft_seconds is not None:
        good &= samples.first_token - samples.intended <= limits.ttft_seconds
    if limits.e2el_seconds is not None:
        good &= samples.last_token - samples.intended <= limits.e2el_seconds
    if limits.tpot_seconds is not None:
        several = samples.output_tokens > 1
        good[several] &= tpot_seconds(samples) <= limits.tpot_seconds
    return good


def _width(spec: CellSpec, measured: Measured) -> float | None:
    """Give none for one burst: its drain has no steady state."""
    if spec.load.arrivals is Arrivals.ONCE:
        return None
    return convergence.relative_half_width(measured.slices)


def _prices(rates: Figures, usd_per_hour: float | None) -> Figures:
    if usd_per_hour is None:
        return {}
    outputs = rates["output_token_throughput"]
    each = {
        "usd_per_1000_requests": (1e3, rates["request_throughput"]),
        "usd_per_million_output_tokens": (1e6, outputs),
        "usd_per_million_tokens": (1e6, outputs + rates["input_token_throughput"]),
    }
    return {
        name: number * usd_per_hour / 3600 / rate for name, (number, rate) in each.items() if rate
    }
