"""Rules about the two machines: the client's health, the engine's cache, queue and identity.

Each rule gives the words of its verdict, or None where the cell keeps to it.
"""

from typing import Final

import numpy as np

from benchmark.figures import statistics
from benchmark.judging.case import Case, limit_of
from benchmark.records import Arrivals, CellResult
from benchmark.samples import UNKNOWN, Samples
from benchmark.wording import percent, seconds

_BY_SCHEDULE: Final = frozenset({Arrivals.CONSTANT, Arrivals.POISSON, Arrivals.BURSTS})


def prefix_cached(case: Case) -> str | None:
    asked = case.plan.workload.prefix_share
    limit = asked + limit_of("hit_share")
    hits = case.server.prefix_cache_hit_rate if case.server else None
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
    client = case.client
    if client is None:
        return None
    most = limit_of("cpu_share")
    if client.cpu_share > most:
        return f"CPU {percent(client.cpu_share)} of a core, limit {percent(most)}"
    limit = _delay_limit(case.cell)
    lateness = _lateness(case.rows, case.cell.spec.load.arrivals)
    delays = {
        "loop lag p99.5": client.loop_lag_p99_5_seconds,
        "loop lag p99": client.loop_lag_p99_seconds,
        "wait for a CPU p99.5": client.cpu_wait_p99_5_seconds,
        "wait for a CPU p99": client.cpu_wait_p99_seconds,
        **(lateness or {"send lateness p99": client.send_lateness_p99_seconds}),
    }
    said = [f"{name} {seconds(d)}" for name, d in delays.items() if d is not None and d > limit]
    return f"{', '.join(said)}, limit {seconds(limit)}" if said else None


def _delay_limit(cell: CellResult) -> float:
    shares = [
        figure.p50 * limit_of(name)
        for figure, name in ((cell.ttft, "delay_share_of_ttft"), (cell.tpot, "delay_share_of_tpot"))
        if figure is not None
    ]
    return max(limit_of("delay_floor_seconds"), min(shares, default=0.0))


def _lateness(rows: Samples | None, arrivals: Arrivals) -> dict[str, float]:
    """Give how late requests were written; opening a connection is not the client's doing.

    It is p99 from 100 requests on, below that p90: one hiccup among 30 is no saturation.
    """
    if rows is None or not len(rows):
        return {}
    late = rows.sent - rows.intended
    if arrivals in _BY_SCHEDULE:
        late = late - np.nan_to_num(rows.connect_seconds)
    tail = 99 if len(rows) >= 100 else 90
    return {f"send lateness p{tail}": statistics.percentile(late, tail)}


def kv_queued(case: Case) -> str | None:
    server = case.server
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
    now = case.server.process_start_time if case.server else None
    if now is None or abs(now - known[0]) <= limit_of("start_tolerance_seconds"):
        return None
    apart, side = seconds(abs(now - known[0])), "after" if now > known[0] else "before"
    return f"the engine's process began {apart} {side} the one measured first"


def clock_stepped(case: Case) -> str | None:
    step = abs(case.client.clock_step_seconds) if case.client else 0.0
    limit = limit_of("step_seconds")
    return f"clock stepped {seconds(step)}, limit {seconds(limit)}" if step > limit else None


def other_load(case: Case) -> str | None:
    server = case.server
    if server is None or not server.other_requests or case.cell.counts is None:
        return None
    share = server.other_requests / (server.requests_finished or case.cell.counts.sent or 1)
    limit = limit_of("other_share")
    if share <= limit:
        return None
    return f"{percent(share)} of the engine's requests were not ours, limit {percent(limit)}"
