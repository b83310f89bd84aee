"""Raw samples to figures, and what those are worth: one rule for each code."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy import typing as npt

from benchmark.histogram import PERCENTILES, Values
from benchmark.records import (
    SPREADS,
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Counts,
    Limits,
    Measured,
    NodeView,
    RunPlan,
    ServerView,
    Slice,
    StopRule,
    Subject,
    Verdict,
    figure,
    percent,
    seconds,
)
from benchmark.samples import HELD_ROWS, UNKNOWN, Finish, Floats, Ints, Outcome, Samples, merged
from core.environment import read_toml
from core.records import Record, listed

Mask = npt.NDArray[np.bool_]


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
    total, partly = float(tokens[inside].sum()), samples.rows(touching)
    cuts = np.cumsum(partly.gap_counts)[:-1]
    for row, gaps in enumerate(np.split(partly.gaps, cuts) if len(partly) else ()):
        times = partly.first_token[row] + np.cumsum(np.append(0.0, gaps))
        total += tokens[touching][row] * float(within(times, begin=begin, end=end).mean())
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
        widths = relative_half_widths(slices).values()
        return all(width is not None and width <= rule.relative_half_width for width in widths)

    return ask


def relative_half_widths(slices: Sequence[Slice]) -> dict[str, float | None]:
    """Give half the 95 % intervals of output throughput and mean E2EL, over their means.

    None where it cannot be known: a batch without a token, or one during which no request ended,
    and so fewer slices than batches.
    """
    columns = np.array(slices, dtype=np.float64).reshape(-1, len(Slice._fields)).T
    of = dict(zip(Slice._fields, columns, strict=True))
    return {
        "relative_half_width": _half_width(of["output_tokens"], of["seconds"]),
        "e2el_relative_half_width": _half_width(of["e2el_sum"], of["requests"]),
    }


def _half_width(above: Floats, below: Floats) -> float | None:
    if not _batches(above, BATCHES).all():
        return None
    widths = []
    for count, quantile in STUDENT_T.items():
        over, under = _batches(above, count), _batches(below, count)
        residuals = over - over.sum() / under.sum() * under
        error = np.sqrt(np.square(residuals).sum() / (count - 1) / count)
        widths.append(float(quantile * error / over.mean()))
    return max(widths)


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
    and what server, client and nodes said of themselves, and has no other figure. All figures are
    sums over the parts of the samples, of which one is looked at at a time.
    """
    begin, end = _own_window(spec, measured)
    once = spec.load.arrivals is Arrivals.ONCE
    windows = (
        _Window(part, begin, end, _measured(part, measured), once) for part in measured.parts()
    )
    sums = reduce(_plus, (_sums(window, plan.limits, measured.nodes) for window in windows))
    counts = Counts(**{name: sums[name] for name in Counts.model_fields})
    failure = measured.failed or _failure(counts)
    seen = {
        "spec": spec,
        "started_at": measured.started_at,
        "wall_seconds": measured.wall_seconds,
        "counts": counts,
        "server": server,
        "client": measured.client,
        "nodes": tuple(_node(node, sums["nodes"][node.node]) for node in measured.nodes),
    }
    if failure:
        return CellResult.model_validate({**seen, "state": CellState.FAILED, "reason": failure})
    usual = sums["prompt_tokens"] / sums["prompts"] if sums["prompts"] else float(spec.context)
    arrived = sums["arrived_tokens"] + sums["arrived_untold"] * usual
    rates: dict[str, float | None] = {
        "request_throughput": sums["ended"] / (end - begin),
        "input_token_throughput": arrived / (end - begin),
        "output_token_throughput": sums["output_tokens"] / (end - begin),
    }
    if not sums["counted"]:  # how many tokens an event carries is not known
        rates["output_token_throughput"] = None
    figures: Figures = {
        "window_seconds": end - begin,
        "concurrency_mean": sums["in_flight"] if end > begin else None,
        **({} if once else relative_half_widths(measured.slices)),  # a drain has no steady state
        **{name: sums[name].distribution() for name in SPREADS},
        "tokens_per_event": sums["event_tokens"] / sums["events"] if sums["events"] else None,
        "reasoning_tokens": sums["reasoning_tokens"] if sums["reasoned"] else None,
        **rates,
        **prices(rates, usd_per_hour),
    }
    if plan.limits != Limits():
        # Counted as `request_throughput` is, so that goodput is never above it.
        figures["goodput"] = sums["good_ended"] / (end - begin)
        figures["goodput_share"] = sums["good"] / counts.measured
    return CellResult.model_validate({**seen, "state": CellState.MEASURED, **figures})


def _plus(one: Any, other: Any) -> Any:
    """Add sums of two parts, name by name."""
    if not isinstance(one, dict):
        return one + other
    added = {name: _plus(one[name], other[name]) for name in one.keys() & other.keys()}
    return one | other | added


def _own_window(spec: CellSpec, measured: Measured) -> tuple[float, float]:
    """Give the window; of one burst it is from its begin to the last end of what is measured."""
    begin, end = measured.window_begin, measured.window_end
    if spec.load.arrivals is not Arrivals.ONCE:
        return begin, end
    kept = [part.rows(_measured(part, measured)) for part in measured.parts()]
    begun = np.concatenate([rows.intended for rows in kept])
    done = np.concatenate([rows.done for rows in kept])
    if not len(begun):
        return begin, end
    return float(begun.min()), float(np.nanmax(np.append(done, begin)))


def _measured(samples: Samples, measured: Measured) -> Mask:
    """Say which requests began in the window and were not cut."""
    begun = within(samples.intended, begin=measured.window_begin, end=measured.window_end)
    return np.asarray(begun & (samples.outcome != Outcome.CUT))


class _Window(NamedTuple):
    samples: Samples
    begin: float
    end: float
    measured: Mask
    once: bool
    """One burst: all that is measured is in it, from its begin to its last end."""

    def tokens(self) -> float:
        if self.once:
            return float(known_tokens(self.samples)[self.measured].sum())
        return tokens_arrived(self.samples, begin=self.begin, end=self.end)

    def has(self, times: Floats) -> Mask:
        if self.once:
            return self.measured & ~np.isnan(times)
        return within(times, begin=self.begin, end=self.end)


def answered(samples: Samples) -> Mask:
    return np.asarray(samples.outcome == Outcome.OK)


def measured_rows(measured: Measured) -> Samples:
    """Give the requests that began in the window and were answered whole: the latencies' own.

    Of more than memory holds it is every so many: shares and medians are as good as of all.
    """
    step, kept = 1, []
    if measured.files:
        step += sum(int(_measured(part, measured).sum()) for part in measured.parts()) // HELD_ROWS
    for part in measured.parts():
        mask = np.zeros(len(part), dtype=np.bool_)
        mask[np.flatnonzero(_measured(part, measured) & answered(part))[::step]] = True
        kept.append(part.rows(mask))
    return merged(kept)


def _sums(window: _Window, limits: Limits, nodes: Sequence[NodeView]) -> Figures:
    """Count and add up one part of the samples: whatever `_plus` can put together."""
    samples, ok = window.samples, answered(window.samples)
    rows = samples.rows(window.measured & ok)
    outcomes, numbers = np.unique(samples.outcome[window.measured], return_counts=True)
    errors = {Outcome(o).name.lower(): int(n) for o, n in zip(outcomes, numbers, strict=True)}
    succeeded = errors.pop("ok", 0)
    told, prompts = samples.prompt_tokens != UNKNOWN, samples.prompt_tokens
    arrived, ended = window.has(samples.first_token), window.has(samples.done)
    evented = (rows.output_tokens != UNKNOWN) & (rows.events > 0)
    reasoning = rows.reasoning_tokens[rows.reasoning_tokens != UNKNOWN]
    connects = samples.connect_seconds[window.measured]
    good = ok & _meets(samples, limits)
    return {
        "sent": len(samples),
        "measured": int(window.measured.sum()),
        "succeeded": succeeded,
        "cut": int((samples.outcome == Outcome.CUT).sum()),
        "errors": errors,
        "ttft": Values(rows.first_token - rows.intended),
        "tpot": Values(tpot_seconds(rows)),
        "itl": Values(rows.gaps),
        "e2el": Values(rows.last_token - rows.intended),
        "connect": Values(connects[~np.isnan(connects)]),
        "event_tokens": int(rows.output_tokens[evented].sum()),
        "events": int(rows.events[evented].sum()),
        "reasoning_tokens": int(reasoning.sum()),
        "reasoned": len(reasoning),
        "ended": int((ok & ended).sum()),
        "counted": int((samples.output_tokens != UNKNOWN).sum()),
        "prompts": int(told.sum()),
        "prompt_tokens": int(prompts[told].sum()),
        "arrived_tokens": int(prompts[arrived & told].sum()),
        "arrived_untold": int((arrived & ~told).sum()),
        "output_tokens": window.tokens(),
        "in_flight": in_flight(samples, begin=window.begin, end=window.end) or 0.0,
        "good_ended": int((good & ended).sum()),
        "good": int(good[window.measured].sum()),
        "nodes": {node.node: _node_sums(window, node) for node in nodes},
    }


def _node_sums(window: _Window, node: NodeView) -> Figures:
    samples = window.samples
    mine = window.measured & np.isin(samples.worker, node.workers)
    well = mine & answered(samples)
    begun, length = samples.intended[well], max(window.end - window.begin, 1e-9)
    ttft = samples.first_token[well] - begun
    places = np.minimum((begun - window.begin) / length * BATCHES, BATCHES - 1).astype(int)
    return {
        "requests": int(mine.sum()),
        "failed": int(mine.sum()) - len(ttft),
        "ttft": Values(ttft),
        "begun": np.bincount(places, minlength=BATCHES).astype(np.float64),
        "waited": np.bincount(places, weights=ttft, minlength=BATCHES),
    }


def _node(node: NodeView, sums: Figures) -> NodeView:
    """Give the node with the figures of its requests; one whose requests are gone has none.

    Its interval is by means of batches of the window, as throughput's is: waits that follow one
    another are alike, and each taken for itself would give too narrow a one.
    """
    if node.lost and not sums["requests"]:
        return node
    ttft = sums["ttft"].distribution()
    width = _half_width(sums["waited"], sums["begun"])
    half = None if ttft is None or width is None else width * ttft.mean
    seen = {"requests": sums["requests"], "failed": sums["failed"], "ttft": ttft}
    return node.model_copy(update=seen | {"ttft_half_width_seconds": half})


def _failure(counts: Counts) -> str | None:
    if counts.succeeded:
        return None
    if not counts.measured:
        return "No request that began in the window ended."
    classes = ", ".join(f"{number} {name}" for name, number in counts.errors.items())
    return f"None of {counts.measured} requests was answered whole: {classes}."


def tpot_seconds(samples: Samples) -> Floats:
    """Give (E2EL - TTFT) / (output tokens - 1) of each request with two tokens or more."""
    rows = samples.output_tokens > 1
    decode = samples.last_token[rows] - samples.first_token[rows]
    return np.asarray(decode / (samples.output_tokens[rows] - 1), dtype=np.float64)


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


def prices(rates: Mapping[str, float | None], usd_per_hour: float | None) -> dict[str, float]:
    """Give the prices, in $, of what an hour makes at the rates of a cell; none without a price."""
    given, output = rates["input_token_throughput"], rates["output_token_throughput"]
    both = None if output is None or given is None else output + given
    each = {
        "usd_per_1000_requests": (1e3, rates["request_throughput"]),
        "usd_per_million_output_tokens": (1e6, output),
        "usd_per_million_tokens": (1e6, both),
    }
    told = {} if usd_per_hour is None else each
    return {n: many * (usd_per_hour or 0) / 3600 / rate for n, (many, rate) in told.items() if rate}


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
    rows = read_toml(_FILE)["limit"]
    return {row["name"]: Limit.model_validate(row) for row in rows}


def limit_of(name: str) -> float:
    return limits()[name].limit


class Case(NamedTuple):
    """What is known of a cell when it is judged."""

    cell: CellResult
    counts: Counts
    server: ServerView
    """Of an engine that says nothing, an empty one."""
    measured: Measured
    rows: Samples
    """Measured requests that were answered whole."""
    plan: RunPlan
    subject: Subject
    before: Sequence[CellResult]


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


def _over(
    value: float | None, limit: float, words: str, shown: Callable[[float], str] = percent
) -> str | None:
    """Say a figure beside its limit where it is above it."""
    if value is None or value <= limit:
        return None
    return f"{words.format(shown(value))}, limit {shown(limit)}"


def prefix_cached(case: Case) -> str | None:
    work, rows = case.plan.workload, case.rows
    known = rows.prompt_tokens[rows.prompt_tokens > 0]
    usual = float(known.mean()) if len(known) else max(1.0, case.cell.spec.context)
    template = case.subject.template_tokens if work.api == "chat" else 0
    alike = work.prefix_share + (1 - work.prefix_share) * min(1.0, template / usual)
    limit = alike + limit_of("hit_share_of_datasets" if work.dataset else "hit_share")
    told = (rows.cached_tokens != UNKNOWN) & (rows.prompt_tokens > 0)
    cached = _ratio(rows.cached_tokens[told], rows.prompt_tokens[told])
    by_usage = "{} of prompt tokens cached by usage"
    hits = case.server.prefix_cache_hit_rate
    return _over(hits, limit, "hit rate {}") or _over(cached, limit, by_usage)


def client_saturated(case: Case) -> str | None:
    share, where = case.measured.client.cpu_share, _on(case.cell, "cpu_share")
    full = _over(share, limit_of("cpu_share"), f"CPU {{}} of a core{where}")
    return full or _moved(case.cell, _DECIDING)


def _on(cell: CellResult, name: str) -> str:
    """Name the node whose client is worst in a figure; nothing where there are no nodes."""
    read = attrgetter(name)
    told = [(abs(read(node.client)), node.node) for node in cell.nodes if node.client]
    return f" on {max(told)[1]}" if told else ""


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
    name = max(beyond)[1]
    told = [(n.client.error_bounds.get(name, 0.0), n.node) for n in cell.nodes if n.client]
    where = f" (most on {max(told)[1]})" if told else ""
    return f"it may have moved {worst}{where}; limit {percent(share)} or {seconds(floor)}"


def _value(cell: CellResult, name: str) -> float | None:
    """Give a figure in seconds; a percentile only where it is more than the slowest request."""
    distribution, point = name.split("_")
    spread = getattr(cell, distribution)
    if spread is None or (point != "p50" and point in unsupported(spread.count)):
        return None
    return float(getattr(spread, point))


def kv_queued(case: Case) -> str | None:
    server = case.server
    if not server.requests_waiting_mean or server.kv_cache_usage_max is None:
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
    known, now = [start for start in seen if start is not None], case.server.process_start_time
    if now is None or abs(now - known[0]) <= limit_of("start_tolerance_seconds"):
        return None
    apart, side = seconds(abs(now - known[0])), "after" if now > known[0] else "before"
    return f"the engine's process began {apart} {side} the one measured first"


def clock_stepped(case: Case) -> str | None:
    step, on = abs(case.measured.client.clock_step_seconds), _on(case.cell, "clock_step_seconds")
    return _over(step, limit_of("step_seconds"), f"clock stepped {{}}{on}", seconds)


def node_lost(case: Case) -> str | None:
    gone = [f"{node.node}: {node.lost}" for node in case.cell.nodes if node.lost]
    return f"{len(gone)} of {len(case.cell.nodes)} nodes, {listed(gone, most=2)}" if gone else None


def farthest(cell: CellResult) -> tuple[str, str] | None:
    """Give the node whose mean TTFT is farthest from the others', beyond both intervals, and why.

    None where all are alike, as far as their intervals tell.
    """
    told = [node for node in cell.nodes if node.ttft and node.ttft_half_width_seconds]
    floor, share = limit_of("error_floor_seconds"), limit_of("error_share")
    far = []
    for node in told if len(told) > 1 else ():
        mean, width = _together([node])
        usual, around = _together([other for other in told if other is not node])
        apart = abs(mean - usual)
        if apart > max(limit_of("of_both_intervals") * (width + around), floor, share * usual):
            own, theirs = (
                f"{seconds(value)} ± {seconds(half)}"
                for value, half in ((mean, width), (usual, around))
            )
            words = f"mean TTFT {own} from {node.node}, {theirs} from the others"
            far.append((apart, mean > usual, node.node, words))
    return max(far)[2:] if far else None


def _together(nodes: Sequence[NodeView]) -> tuple[float, float]:
    """Give their mean TTFT and half its interval, as if each had a chance of its own.

    What the engine does to all of them at once is in each one's interval, and not in differences.
    """
    spreads = [
        (n.ttft.count, n.ttft.mean, n.ttft_half_width_seconds or 0.0) for n in nodes if n.ttft
    ]
    count = sum(each for each, _, _ in spreads)
    half = sum((each * width) ** 2 for each, _, width in spreads) ** 0.5
    return sum(each * mean for each, mean, _ in spreads) / count, half / count


def clock_unsure(case: Case) -> str | None:
    """Ask what a shift of one node's requests against the others' may change.

    Of a closed loop the ramp. Poisson arrivals stay what they are, but for the window's edges.
    Where arrivals follow one pattern, in bursts or evenly, nobody's wait is changed by more than
    the shift, which is held against TTFT.
    """
    told = [(n.clock_bound_seconds, n.node) for n in case.cell.nodes if n.clock_bound_seconds]
    if not told:
        return None
    cell, arrivals = case.cell, case.cell.spec.load.arrivals
    if arrivals is Arrivals.CLOSED:
        limit, of_what = case.plan.stop.ramp_seconds, "the ramp"
    elif arrivals is Arrivals.POISSON:
        share = limit_of("share_of_window")
        limit, of_what = share * (cell.window_seconds or 0.0), f"{percent(share)} of the window"
    else:
        share, ttft = limit_of("share_of_ttft"), cell.ttft.mean if cell.ttft else 0.0
        limit, of_what = share * ttft, f"{percent(share)} of mean TTFT"
    bound, node = max(told)
    limit = max(limit, limit_of("error_floor_seconds"))
    said = _over(bound, limit, f"clock of {node} known to ± {{}}", seconds)
    return said and f"{said} ({of_what})"


def other_load(case: Case) -> str | None:
    share = (case.server.other_requests or 0) / (
        case.server.requests_finished or case.counts.sent or 1
    )
    return _over(share, limit_of("other_share"), "{} of the engine's requests were not ours")


_OWN_CODE: Final = frozenset({"timeout", "throttled"})
"""Classes of failure that ERRORS leaves out, because another code speaks of them and spoils."""


def cold(case: Case) -> str | None:
    if case.cell.spec.load.arrivals is Arrivals.ONCE:
        return None  # a burst has no steady state to settle in; its method has its own code
    if not case.measured.settled:
        most = case.plan.stop.warmup_max_seconds
        return f"latency had not settled after {seconds(most)} of warm-up"
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
    (first,) = Values(ordered[:third]).percentiles(50)
    usual, slow = Values(ordered[-third:]).percentiles(50, 90)
    factor = limit_of("first_over_last")
    if first <= factor * usual or first <= slow:
        return None
    return (
        f"median {name} {seconds(first)} in the first third of the window, {seconds(usual)} in the "
        f"last; limit {factor:g} times"
    )


def short_output(case: Case) -> str | None:
    wanted, tokens = case.plan.workload.output_tokens, case.rows.output_tokens
    stopped = (tokens == UNKNOWN) & (case.rows.finish == Finish.STOP)
    short = int((stopped | ((tokens != UNKNOWN) & (tokens < wanted))).sum())
    if not short or not case.plan.workload.fixed_output:
        return None
    return f"{short} of {len(tokens)} answers had fewer than {wanted} tokens"


def prompt_cut(case: Case) -> str | None:
    """Say where the endpoint read much less than was sent, as one with a shorter context does."""
    sent, workload = case.cell.spec.context, case.plan.workload
    told = case.rows.prompt_tokens[case.rows.prompt_tokens != UNKNOWN]
    if not len(told) or not sent or workload.dataset:
        return None
    limit = limit_of("unread_share" if workload.api == "completion" else "unread_share_of_chats")
    read = float(told.mean())
    words = f"{figure(read)} prompt tokens of {sent:,} read: {{}} less"
    return _over(1 - read / sent, limit, words)


def length_capped(case: Case) -> str | None:
    if refused := case.counts.errors.get("too_long"):
        return f"{refused} of {case.counts.measured} requests refused as too long"
    most = case.plan.workload.output_tokens
    if case.plan.workload.fixed_output or most == 1 or not len(case.rows):
        return None
    share = float((case.rows.finish == Finish.LENGTH).mean())
    return _over(share, limit_of("capped_share"), f"{{}} of answers ended at {most} tokens")


def timeouts(case: Case) -> str | None:
    if late := case.counts.errors.get("timeout"):
        return f"{late} of {case.counts.measured} requests timed out"
    if node_lost(case):  # which cuts what is on its way
        return None
    run, begun, cut = case.measured, 0, 0
    for part in run.parts():
        inside = within(part.intended, begin=run.window_begin, end=run.window_end)
        begun += int(inside.sum())
        cut += int((inside & (part.outcome == Outcome.CUT)).sum())
    if not cut or cut <= limit_of("cut_share") * begun:
        return None
    return f"{cut} of {begun} requests were cut before their answer was whole"


def throttled(case: Case) -> str | None:
    refused = case.counts.errors.get("throttled")
    return f"{refused} of {case.counts.measured} requests got 429 or 503" if refused else None


def errors(case: Case) -> str | None:
    others = {name: n for name, n in case.counts.errors.items() if name not in _OWN_CODE}
    total, limit = case.counts.measured, limit_of("failed_share")
    if not others or sum(others.values()) <= limit * total:
        return None
    words = ", ".join(f"{number} {name}" for name, number in others.items())
    return f"{words} of {total} requests, limit {percent(limit)}"


def too_few(case: Case) -> str | None:
    got, wanted = case.counts.succeeded, case.plan.stop.min_requests
    if got >= wanted:
        return None
    slowest = ", ".join(unsupported(got))
    return f"{got} answers, {wanted} wanted" + (f"; {slowest} = the slowest" if slowest else "")


def unsupported(count: int) -> tuple[str, ...]:
    """Name the percentiles that are only the slowest of so few requests.

    >>> unsupported(40)
    ('p99',)
    """
    return tuple(f"p{p}" for p in PERCENTILES if count * (100 - p) < 100)


def wide(case: Case) -> str | None:
    if case.cell.spec.load.arrivals is Arrivals.ONCE:
        return None
    limit = case.plan.stop.relative_half_width
    widths = {
        "throughput": case.cell.relative_half_width,
        "mean E2EL": case.cell.e2el_relative_half_width,
    }
    if None in widths.values():
        return f"no interval can be given from {len(case.measured.slices)} slices"
    said = [f"{name} ± {percent(w)}" for name, w in widths.items() if w is not None and w > limit]
    return f"{', '.join(said)}, wanted ± {percent(limit)}" if said else None


Rule = Callable[[Case], str | None]


def judged(
    cell: CellResult,
    *,
    measured: Measured,
    plan: RunPlan,
    subject: Subject,
    before: Sequence[CellResult],
) -> CellResult:
    """Give the cell, as `compute` has made it, with its verdicts.

    A failed cell is asked only what may explain it. `before` says which engine answered first
    where `subject` does not know.
    """
    assert cell.counts
    server, rows = cell.server or ServerView(looks=0), measured_rows(measured)
    case = Case(cell, cell.counts, server, measured, rows, plan, subject, before)
    asked = RULES if cell.state is CellState.MEASURED else _OF_FAILED
    found = {code: because for code, rule in asked.items() if (because := rule(case))}
    verdicts = tuple(Verdict(code=code, because=because) for code, because in found.items())
    return cell.model_copy(update={"verdicts": verdicts})


_ARTICLE: Final = "one burst and its drain, no steady state: not a serving rate"
_OF_FAILED: Final[dict[Code, Rule]] = {
    Code.CLIENT_SATURATED: client_saturated,
    Code.LENGTH_CAPPED: length_capped,
    Code.TIMEOUTS: timeouts,
    Code.SERVER_CHANGED: server_changed,
    Code.CLOCK_STEPPED: clock_stepped,
    Code.NODE_LOST: node_lost,
    Code.THROTTLED: throttled,
    Code.ERRORS: errors,
    Code.OTHER_LOAD: other_load,
    Code.ARTICLE_METHOD: lambda case: _ARTICLE if case.plan.profile == "article" else None,
    Code.SIMULATED: lambda case: (
        "no model runs; the figures are a simulation" if case.subject.simulated else None
    ),
}
RULES: Final[dict[Code, Rule]] = {
    Code.PREFIX_CACHED: prefix_cached,
    Code.COLD: cold,
    Code.SHORT_OUTPUT: short_output,
    Code.PROMPT_CUT: prompt_cut,
    Code.KV_QUEUED: kv_queued,
    Code.TOO_FEW_SAMPLES: too_few,
    Code.WIDE_INTERVAL: wide,
    Code.CLIENT_NOISE: client_noise,
    Code.NODE_UNEVEN: lambda case: (farthest(case.cell) or (None, None))[1],
    Code.CLOCK_UNSURE: clock_unsure,
    **_OF_FAILED,
}
"""Codes that a cell of a run can earn; the audit of imported results has more."""
