"""vLLM's Prometheus families and its line of averages, from the engine's own numbers."""

import math
import tomllib
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import anyio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from core.records import KvPlan
from simulators.engine.boot import log
from simulators.engine.scheduler import Request, Scheduler

Metric = Any
"""prometheus_client types a labelled metric like an unlabelled one."""
_EVERY_SECONDS: Final = 10.0


FAMILIES: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("metrics.toml").read_text("utf-8")
)


class EngineMetrics:
    """The registry behind `/metrics`: it keeps the engine's books."""

    def __init__(self, model_name: str, cache_config: dict[str, str]) -> None:
        self._registry = CollectorRegistry()
        GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._engine = {"engine": "0", "model_name": model_name}
        self._metrics: dict[str, Metric] = {}
        self._parts: dict[tuple[str, str], Metric] = {}
        for family in FAMILIES["families"]:
            self._create(family, cache_config)
        self._parts["vllm:engine_sleep_state", "awake"].set(1)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._counted: dict[str, int] = {}

    def page(self, scheduler: Scheduler) -> bytes:
        """Return the page as it is now."""
        self.look(scheduler)
        return generate_latest(self._registry)

    def count_http(self, handler: str, method: str, status: int) -> None:
        """One request of the web server's is answered."""
        labels = {"handler": handler, "method": method, "status": f"{status // 100}xx"}
        self._metrics["http_requests"].labels(**labels).inc()

    def look(self, scheduler: Scheduler) -> None:
        """Show how full the engine is now."""
        self._metrics["vllm:num_requests_running"].set(len(scheduler.running))
        self._metrics["vllm:num_requests_waiting"].set(len(scheduler.waiting))
        self._metrics["vllm:kv_cache_usage_perc"].set(scheduler.pool.usage)
        for name, total in {
            "vllm:prefix_cache_queries": scheduler.prefix_queries,
            "vllm:prefix_cache_hits": scheduler.prefix_hits,
            "vllm:num_preemptions": scheduler.preemptions,
            "vllm:generation_tokens": self.generation_tokens,
        }.items():
            self._metrics[name].inc(total - self._counted.get(name, 0))
            self._counted[name] = total

    def made_token(self, request: Request, now: float) -> None:
        """One more token of a request."""
        self.generation_tokens += 1
        if math.isnan(request.first_token_at):
            request.first_token_at = now
            self._metrics["vllm:time_to_first_token_seconds"].observe(now - request.arrived_at)
            self.prompt_tokens += len(request.prompt)
            self._metrics["vllm:prompt_tokens"].inc(len(request.prompt))
            self._metrics["vllm:prompt_tokens_cached"].inc(request.cached or 0)
        else:
            self._metrics["vllm:inter_token_latency_seconds"].observe(now - request.last_token_at)
        request.last_token_at = now

    def finished(self, request: Request, reason: str, now: float) -> None:
        """A request is over."""
        self._parts["vllm:request_success", reason].inc()
        steps = max(1, request.generated - 1)
        decode = request.last_token_at - request.first_token_at
        for name, seconds in {
            "vllm:e2e_request_latency_seconds": now - request.arrived_at,
            "vllm:request_queue_time_seconds": request.admitted_at - request.arrived_at,
            "vllm:request_prefill_time_seconds": request.first_token_at - request.admitted_at,
            "vllm:request_time_per_output_token_seconds": decode / steps,
        }.items():
            if not math.isnan(seconds):
                self._metrics[name].observe(seconds)

    def _create(self, family: dict[str, Any], cache_config: dict[str, str]) -> None:
        name, kind, labels = family["name"], family["kind"], family["labels"]
        text = name.partition(":")[2].replace("_", " ") or name.replace("_", " ")
        made: Metric
        if kind == "histogram":
            bounds = FAMILIES["bounds"][family["bounds"]]
            made = Histogram(name, text, labels, registry=self._registry, buckets=bounds)
        elif kind == "gauge":
            made = Gauge(name, text, labels, registry=self._registry)
        else:
            made = Counter(name, text, labels, registry=self._registry)
        if name == "vllm:cache_config_info":
            made.labels(engine="0", **cache_config).set(1)
        elif values := family.get("values"):
            for value in values:
                self._parts[name, value] = made.labels(**self._engine, **{labels[-1]: value})
        elif name.startswith("vllm:"):
            made = made.labels(**self._engine)
        self._metrics[name] = made


async def write_averages(scheduler: Scheduler, metrics: EngineMetrics) -> None:
    """Write the line, while something is done, until this is cancelled."""
    before, was_idle = (0, 0), True
    while True:
        await anyio.sleep(_EVERY_SECONDS)
        now = (metrics.prompt_tokens, metrics.generation_tokens)
        idle = now == before and not scheduler.has_work
        if not (idle and was_idle):
            rates = [(new - old) / _EVERY_SECONDS for new, old in zip(now, before, strict=True)]
            log("APIServer", "loggers.py:335", _line(scheduler, *rates))
        before, was_idle = now, idle


def _line(scheduler: Scheduler, prompt_rate: float, generation_rate: float) -> str:
    hits = scheduler.prefix_hits / scheduler.prefix_queries if scheduler.prefix_queries else 0.0
    return (
        f"Engine 000: Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
        f"Avg generation throughput: {generation_rate:.1f} tokens/s, "
        f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
        f"GPU KV cache usage: {100 * scheduler.pool.usage:.1f}%, "
        f"Prefix cache hit rate: {100 * hits:.1f}%"
    )


def cache_config(flags: Namespace, kv: KvPlan) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info`."""
    return {
        "block_size": str(kv.block_size),
        "cache_dtype": flags.kv_cache_dtype,
        "enable_prefix_caching": str(bool(flags.enable_prefix_caching)),
        "gpu_memory_utilization": str(flags.gpu_memory_utilization),
        "kv_cache_max_concurrency": str(kv.max_concurrency),
        "kv_cache_size_tokens": str(kv.kv_tokens),
        "num_gpu_blocks": str(kv.num_blocks),
    }
