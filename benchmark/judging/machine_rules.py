"""Rules about the two machines: the client's health, the engine's cache, queue and identity.

Each rule gives the words of its verdict, or None where the cell keeps to it.
"""

from collections.abc import Sequence
from typing import Final

from benchmark.figures.statistics import PERCENTILES
from benchmark.judging.case import Case, limit_of
from benchmark.judging.request_rules import unsupported
from benchmark.records import CellResult
from benchmark.samples import UNKNOWN, Samples
from benchmark.wording import percent, seconds

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
    most = limit_of("cpu_share")
    if case.client and case.client.cpu_share > most:
        return f"CPU {percent(case.client.cpu_share)} of a core, limit {percent(most)}"
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
