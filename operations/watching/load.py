"""An engine's load: what runs, what waits, how full, how fast."""

import time
from typing import Final

import anyio

from core.metrics import CacheConfig, Counters, EngineMetrics, MetricsPage, Sample
from core.records import Record
from operations.asking import require_ready
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located

RATE_WINDOW_SECONDS: Final = 1.0
"""Between the two looks that a rate is made from."""
MAX_SAMPLES: Final = 60


class Rates(Record):
    """Over a short window just now, each second."""

    window_seconds: float
    prompt_tokens_per_second: float | None
    generation_tokens_per_second: float | None
    requests_per_second: float | None


class MetricsReport(Located):
    """The numbers an operator acts on."""

    metrics: EngineMetrics | None = None
    """Counters and latencies are since the engine started."""
    rates: Rates | None = None
    capacity_means: str | None = None
    samples: tuple[Sample, ...] = ()
    """Only those asked for with `raw`."""
    samples_left_out: int = 0
    missing: tuple[str, ...] = ()
    """What this engine does not report."""

    def summary(self) -> str:
        """Say load and room."""
        if self.metrics is None:
            return f"{len(self.samples)} samples of {self.name}."
        usage = self.metrics.kv_cache_usage
        full = "not known" if usage is None else f"{usage:.1%}"
        return (
            f"{self.name}: {self.metrics.requests_running} running, "
            f"{self.metrics.requests_waiting} waiting, KV cache {full} full."
        )


async def metrics(runtime: Runtime, found: Found, raw: str | None) -> MetricsReport:
    """Look twice, a second apart; with `raw`, once for the samples of that name."""
    require_ready(found)
    here = {"target": found.deployment.target, "name": found.name}
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
    return MetricsReport(
        **here,
        metrics=seen,
        rates=_rates(first.counters(), second.counters(), seconds),
        capacity_means=_meaning(seen.cache),
        missing=tuple(name for name, value in seen if value is None),
    )


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
