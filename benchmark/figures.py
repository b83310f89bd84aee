"""Raw samples to figures: statistics, intervals, results of a cell."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy import typing as npt

from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Counts,
    Distribution,
    Limits,
    Measured,
    RunPlan,
    ServerView,
    Slice,
    StopRule,
)
from benchmark.samples import UNKNOWN, Floats, Ints, Outcome, Samples

Mask = npt.NDArray[np.bool_]
PERCENTILES: Final = (50, 90, 95, 99)


def distribution(values: npt.NDArray[np.floating[Any]]) -> Distribution | None:
    """Sum values up; None where there is none.

    Percentiles are nearest-rank, which is NumPy's `inverted_cdf`: each is one of the values.
    """
    count = len(values)
    if not count:
        return None
    ranks = [_rank(percent, count) for percent in PERCENTILES]
    p50, p90, p95, p99 = (float(v) for v in np.partition(values, sorted(set(ranks)))[ranks])
    return Distribution(
        count=count,
        mean=float(values.mean(dtype=np.float64)),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=float(values.max()),
    )


def percentile(values: npt.NDArray[np.floating[Any]], percent: int) -> float:
    """Give the nearest-rank percentile of values, of which there must be one at least."""
    rank = _rank(percent, len(values))
    return float(np.partition(values, rank)[rank])


def _rank(percent: int, count: int) -> int:
    # In whole numbers: 0.95 * count can fall on the wrong side of a whole number.
    return -(-percent * count // 100) - 1


def within(times: Floats, *, begin: float, end: float) -> Mask:
    """Say which times are in the window: its begin is, its end is not; NaN never is."""
    return (begin <= times) & (times < end)


def known_tokens(samples: Samples) -> Floats:
    """Give the output tokens of each request.

    Where the engine did not say, as of a request that was cut, it is the request's events times
    the tokens of an event in those requests where it did say.
    """
    known = samples.output_tokens != UNKNOWN
    ratio = _ratio(samples.output_tokens[known], samples.events[known])
    return np.where(known, samples.output_tokens, samples.events * (ratio or 1.0))


def tokens_per_event(samples: Samples) -> float | None:
    """Give the mean number of tokens that one streamed event carried."""
    known = (samples.output_tokens != UNKNOWN) & (samples.events > 0)
    return _ratio(samples.output_tokens[known], samples.events[known])


def _ratio(above: Ints, below: Ints) -> float | None:
    total = int(below.sum())
    return float(above.sum()) / total if total else None


def tokens_arrived(samples: Samples, *, begin: float, end: float) -> float:
    """Count the output tokens that arrived in the window, of whichever request.

    Events come at the first token and after each gap; those of one request carry the same number
    of tokens each, output_tokens / events.
    """
    tokens = known_tokens(samples)
    inside = (samples.first_token >= begin) & (samples.last_token < end)
    touching = ~inside & (samples.first_token < end) & ~(samples.last_token < begin)
    return float(tokens[inside].sum()) + _arrived_partly(
        samples.rows(touching), tokens[touching], begin=begin, end=end
    )


def _arrived_partly(samples: Samples, tokens: Floats, *, begin: float, end: float) -> float:
    cuts = np.cumsum(samples.gap_counts)[:-1]
    total = 0.0
    for row, gaps in enumerate(np.split(samples.gaps, cuts) if len(samples) else ()):
        times = samples.first_token[row] + np.cumsum(np.append(0.0, gaps))
        total += tokens[row] * float(within(times, begin=begin, end=end).mean())
    return total


def in_flight(samples: Samples, *, begin: float, end: float) -> float | None:
    """Give the mean number of requests between sent and done over the window, by time.

    One whose end is not known was in flight to the end; None for a window of no length.
    """
    if end <= begin:
        return None
    done = np.where(np.isnan(samples.done), end, samples.done)
    overlap = np.minimum(done, end) - np.maximum(samples.sent, begin)
    return float(np.nansum(np.clip(overlap, 0.0, None))) / (end - begin)


STUDENT_T: Final = {8: 2.3646, 4: 3.1824}
"""Batches, and the 97.5 % quantile of Student's t for one degree of freedom fewer."""
BATCHES: Final = max(STUDENT_T)
"""Slices that an interval needs at least, each with something in it."""


def enough(rule: StopRule) -> Callable[[Sequence[Slice]], bool]:
    """Give the question to ask after each slice: may the window end now?"""

    def ask(slices: Sequence[Slice]) -> bool:
        if not slices:
            return False
        seconds = slices[-1].begin + slices[-1].seconds - slices[0].begin
        if seconds >= rule.max_seconds:
            return True
        if seconds < rule.min_seconds or sum(s.requests for s in slices) < rule.min_requests:
            return False
        return _narrow(slices, rule.relative_half_width)

    return ask


def _narrow(slices: Sequence[Slice], limit: float) -> bool:
    widths = (relative_half_width(slices), e2el_relative_half_width(slices))
    return all(width is not None and width <= limit for width in widths)


def relative_half_width(slices: Sequence[Slice]) -> float | None:
    """Give half the 95 % interval of output throughput, over its mean.

    None where it cannot be known: a batch without a token, and so fewer slices than batches.
    """
    tokens = np.array([s.output_tokens for s in slices], dtype=np.float64)
    return _half_width(tokens, np.array([s.seconds for s in slices], dtype=np.float64))


def e2el_relative_half_width(slices: Sequence[Slice]) -> float | None:
    """Give the same of mean E2EL; None too where no request ended during a batch."""
    seconds = np.array([s.e2el_sum for s in slices], dtype=np.float64)
    return _half_width(seconds, np.array([s.requests for s in slices], dtype=np.float64))


def _half_width(above: Floats, below: Floats) -> float | None:
    if not _batches(above, BATCHES).all():
        return None
    return max(_by_batches(above, below, count) for count in STUDENT_T)


def _by_batches(above: Floats, below: Floats, count: int) -> float:
    above, below = _batches(above, count), _batches(below, count)
    residuals = above - above.sum() / below.sum() * below
    error = np.sqrt(np.square(residuals).sum() / (count - 1) / count)
    return float(STUDENT_T[count] * error / above.mean())


def _batches(values: Floats, count: int) -> Floats:
    return np.array([part.sum() for part in np.array_split(values, count)])


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
        **_widths(spec, measured),
        **_latencies(window),
        **rates,
        **_goodput(window, plan.limits),
        **prices(rates, usd_per_hour),
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
        return in_flight(self.samples, begin=self.begin, end=self.end)

    def tokens(self) -> float:
        if self.once:
            return float(known_tokens(self.samples)[self.measured].sum())
        return tokens_arrived(self.samples, begin=self.begin, end=self.end)

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
        "tokens_per_event": tokens_per_event(rows),
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


def _widths(spec: CellSpec, measured: Measured) -> Figures:
    """Give none for one burst: its drain has no steady state."""
    if spec.load.arrivals is Arrivals.ONCE:
        return {}
    return {
        "relative_half_width": relative_half_width(measured.slices),
        "e2el_relative_half_width": e2el_relative_half_width(measured.slices),
    }


def prices(rates: Mapping[str, float | None], usd_per_hour: float | None) -> dict[str, float]:
    """Give the prices, in $, of what an hour makes at the rates of a cell; none without a price."""
    if usd_per_hour is None:
        return {}
    given, output = rates["input_token_throughput"], rates["output_token_throughput"]
    each = {
        "usd_per_1000_requests": (1e3, rates["request_throughput"]),
        "usd_per_million_output_tokens": (1e6, output),
        "usd_per_million_tokens": (
            1e6,
            None if output is None or given is None else output + given,
        ),
    }
    return {
        name: number * usd_per_hour / 3600 / rate for name, (number, rate) in each.items() if rate
    }
