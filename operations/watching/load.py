"""An engine's load: what runs, what waits, how full, how fast."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from pydantic import AwareDatetime

from core.errors import InvalidArgument
from core.journal import readable, utc_now
from core.metrics import (
    CacheConfig,
    Counters,
    EngineMetrics,
    Histogram,
    MetricsPage,
    Quantiles,
    Sample,
)
from core.records import Deployment, Record, moment
from core.reply import note
from operations.asking import require_ready
from operations.last_use import counted
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located

RATE_WINDOW_SECONDS: Final = 1.0
"""Between the two looks that a rate is made from."""
MAX_SAMPLES: Final = 60
_LOOKS: Final = "latencies"
"""Under which the journal keeps what was looked at."""
_SHORT: Final = {
    "time_to_first_token_seconds": "TTFT",
    "time_per_output_token_seconds": "TPOT",
    "inter_token_latency_seconds": "ITL",
    "e2e_request_latency_seconds": "E2EL",
    "request_queue_time_seconds": "queue",
}


class Rates(Record):
    """Over a short window just now, each second."""

    window_seconds: float
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    requests_per_second: float | None


class _Look(Record):
    """The latencies that an engine had counted at some time."""

    target: str
    name: str
    at: AwareDatetime
    started_at: AwareDatetime | None
    """Of the engine: another one counts anew."""
    histograms: dict[str, Histogram]


class MetricsReport(Located):
    """The numbers an operator acts on."""

    metrics: EngineMetrics | None = None
    """Counters are since the engine started."""
    latencies_since: datetime | None = None
    """The engine's start or, where a time was asked for, the last look before it."""
    rates: Rates | None = None
    capacity_means: str | None = None
    last_used: str | None = None
    """As far as it is known."""
    awake_until: datetime | None = None
    """About; when it falls asleep if nobody asks."""
    samples: tuple[Sample, ...] = ()
    """Only those asked for with `raw`."""
    samples_left_out: int = 0
    missing: tuple[str, ...] = ()
    """What this engine does not report."""

    def summary(self) -> str:
        """Say load, room and how fast it was."""
        if self.metrics is None:
            return f"{len(self.samples)} samples of {self.name}."
        usage = self.metrics.kv_cache_usage
        full = "not known" if usage is None else f"{usage:.1%}"
        since = f" since {moment(self.latencies_since)}" if self.latencies_since else ""
        rows = {name: self.metrics.latencies.get(key) for key, name in _SHORT.items()}
        said = [f"{name} {_three(row)}" for name, row in rows.items() if row and row.count]
        speed = f" p50/p95/p99{since}: {', '.join(said[:3])}." if said else ""
        used = f" {self.last_used[0].upper()}{self.last_used[1:]}." if self.last_used else ""
        return (
            f"{self.name}: {self.metrics.requests_running} running, "
            f"{self.metrics.requests_waiting} waiting, KV cache {full} full.{speed}{used}"
        )

    def facts(self) -> Mapping[str, Any]:
        """Return load, rates and percentiles; counters of the process are left to the whole."""
        seen = self.metrics
        if seen is None:
            rows = [f"{one.name}{one.labels or ''} {one.value:g}" for one in self.samples]
            return {"samples": rows, "left_out": self.samples_left_out}
        counts = {name: row.count for name, row in seen.latencies.items() if row}
        return {
            "target": self.target,
            "name": self.name,
            **(self.rates.model_dump(exclude={"window_seconds"}) if self.rates else {}),
            "prefix_cache_hit_rate": seen.prefix_cache_hit_rate,
            "preemptions": seen.preemptions,
            "prompt_tokens": seen.prompt_tokens,
            "generation_tokens": seen.generation_tokens,
            "requests_finished": {k: n for k, n in (seen.requests_finished or {}).items() if n},
            "http_requests": seen.http_requests,
            "latencies": {
                name: f"{_three(seen.latencies[key])} (p50/p95/p99 of {counts[key]})"
                for key, name in _SHORT.items()
                if counts.get(key)
            },
            "latencies_since": self.latencies_since,
            "awake_until": self.awake_until,
            "capacity": self.capacity_means,
            "not_reported": ", ".join(self.missing),
        }


def _three(row: Quantiles | None) -> str:
    """Write p50, p95 and p99; of what the histogram does not resolve, the bound that is certain."""
    if row is None:
        return "not known"
    pairs = (row.p50, row.p50_at_most), (row.p95, row.p95_at_most), (row.p99, row.p99_at_most)
    return "/".join(_duration(value, bound) for value, bound in pairs)


def _duration(value: float | None, at_most: float | None) -> str:
    if value is None:
        return "beyond its buckets" if at_most is None else f"under {_duration(at_most, None)}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


async def metrics(
    runtime: Runtime, found: Found, raw: str | None, *, since: str | None = None
) -> MetricsReport:
    """Look twice, a second apart; with `raw`, once for the samples of that name.

    With a time latencies are those since the last look before it, where there is one.

    Raises:
        InvalidArgument: The time is none.
        NotReady: The deployment does not serve now.
        EndpointError: Its engine cannot be asked.
    """
    wanted = _time(since) if since else None
    require_ready(found)
    deployment = found.deployment
    here = {"target": deployment.target, "name": found.name}
    async with runtime.endpoint(found.backend, found.name) as endpoint:
        first, began = MetricsPage(await endpoint.metrics_text()), time.monotonic()
        if raw:
            samples = first.matching(raw)
            return MetricsReport(
                **here,
                samples=samples[:MAX_SAMPLES],
                samples_left_out=max(0, len(samples) - MAX_SAMPLES),
            )
        await anyio.sleep(RATE_WINDOW_SECONDS)
        second, seconds = MetricsPage(await endpoint.metrics_text()), time.monotonic() - began
    seen = second.engine()
    counted_from = seen.started_at
    before = _looked(runtime, deployment, seen, wanted) if wanted else None
    now = _keep(runtime, deployment, seen, second.histograms())
    if wanted and not before and not (counted_from and counted_from > wanted):
        note("Nobody looked at this engine before that time: latencies are since its start.")
    if before:
        counted_from = before.at
        seen = seen.model_copy(update={"latencies": _between(before, now)})
    return MetricsReport(
        **here,
        metrics=seen,
        latencies_since=counted_from,
        rates=_rates(first.counters(), second.counters(), seconds),
        capacity_means=_meaning(seen.cache),
        last_used=counted(runtime, deployment, seen),
        awake_until=deployment.awake_until,
        missing=tuple(name for name, value in seen if value is None),
    )


def _time(text: str) -> datetime:
    """Read a time, in UTC unless it says another zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidArgument(
            f"'{text[:40]}' is no time.", fix="Give one such as 2026-11-23T08:00, in UTC."
        ) from exc
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _between(before: _Look, now: _Look) -> dict[str, Quantiles | None]:
    none = Histogram(buckets={}, total=0.0)
    return {
        name: one.since(before.histograms.get(name, none)).quantiles()
        for name, one in now.histograms.items()
    }


def _looked(
    runtime: Runtime, deployment: Deployment, seen: EngineMetrics, latest: datetime
) -> _Look | None:
    """Return the newest look at this engine that was not later."""
    kept = readable(runtime.stage.journal.pairs(_LOOKS), _Look)
    here = (deployment.target, deployment.name, seen.started_at)
    fitting = [
        one for one in kept if (one.target, one.name, one.started_at) == here and one.at <= latest
    ]
    return max(fitting, key=lambda one: one.at, default=None)


def _keep(
    runtime: Runtime,
    deployment: Deployment,
    seen: EngineMetrics,
    histograms: dict[str, Histogram],
) -> _Look:
    """Remember a look; one of the same ten minutes a week ago gives way, so that few are kept."""
    now = utc_now()
    look = _Look(
        target=deployment.target,
        name=deployment.name,
        at=now,
        started_at=seen.started_at,
        histograms=histograms,
    )
    slot = f"{deployment.target}/{deployment.name}/{now:%a %H%M}"[:-1]
    runtime.stage.journal.keep_pair(_LOOKS, slot, look.model_dump_json())
    return look


def _meaning(cache: CacheConfig) -> str | None:
    tokens, requests = cache.kv_cache_size_tokens, cache.kv_cache_max_concurrency
    if tokens is None or requests is None:
        return None
    return (
        f"The KV cache holds {tokens} tokens: {requests:.2f} requests of full length at once; "
        "what is beyond waits."
    )


def _rates(first: Counters, second: Counters, seconds: float) -> Rates:
    def per_second(name: str) -> float | None:
        before: float | None = getattr(first, name)
        after: float | None = getattr(second, name)
        if before is None or after is None:
            return None
        return round(max(0.0, after - before) / seconds, 2)

    return Rates(
        window_seconds=round(seconds, 2),
        prompt_tokens_per_second=per_second("prompt_tokens"),
        generation_tokens_per_second=per_second("generation_tokens"),
        requests_per_second=per_second("requests_finished"),
    )
