"""vLLM's Prometheus families and its line of averages, from the engine's own numbers."""

import math
import tomllib
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
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
    Summary,
)

from simulators.engine.boot import log
from simulators.engine.engine import FinishReason, Generation
from simulators.engine.room import CachePlan, Setup
from simulators.engine.scheduler import Batch, Scheduler

Child = Any
"""prometheus_client types a labelled metric like an unlabelled one."""
_ENGINE: Final = "0"


@cache
def families() -> dict[str, Any]:
    """The families as data, from `metrics.toml`."""
    text = files("simulators.engine").joinpath("metrics.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _bounds_up_to(limit: int) -> Iterator[int]:
    """1, 2, 5, 10, 20 ... as far as the longest request goes."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > limit:
                return
            yield step * power
        power *= 10


class EngineMetrics:
    """The registry behind `/metrics`, and the engine's observer."""

    def __init__(
        self,
        model_name: str,
        *,
        max_model_len: int,
        cache_config: Mapping[str, str],
        tool_parser: bool = False,
    ) -> None:
        self.registry = CollectorRegistry()
        GCCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        ProcessCollector(registry=self.registry)
        self._model_name = model_name
        self._limit = max_model_len
        self._metrics: dict[str, Child] = {}
        self._children: dict[tuple[str, ...], Child] = {}
        for family in families()["families"]:
            if family["name"] == "vllm:cache_config_info":
                self._state_cache_config(family, cache_config)
            elif "only_with" not in family or tool_parser:
                self._create(family)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._seen = dict.fromkeys(("queries", "hits", "preemptions"), 0)
        self._get("vllm:engine_sleep_state", "awake").set(1)

    def http(self, name: str, **labels: str) -> Child:
        """One of the web server's own metrics."""
        metric = self._metrics[name]
        return metric.labels(**labels) if labels else metric

    def stepped(self, scheduler: Scheduler, batch: Batch, tokens: int) -> None:
        """A step is over and made so many tokens."""
        self.look(scheduler)
        self.generation_tokens += tokens
        self._get("vllm:generation_tokens").inc(tokens)
        done = sum(chunk.tokens for chunk in batch.chunks)
        self._get("vllm:iteration_tokens_total").observe(done)

    def look(self, scheduler: Scheduler) -> None:
        """Show how full the engine is now."""
        waiting = len(scheduler.waiting)
        self._get("vllm:num_requests_running").set(len(scheduler.running))
        self._get("vllm:num_requests_waiting").set(waiting)
        self._get("vllm:num_requests_waiting_by_reason", "capacity").set(waiting)
        self._get("vllm:kv_cache_usage_perc").set(scheduler.pool.usage)
        self._grow("queries", "vllm:prefix_cache_queries", scheduler.prefix_queries)
        self._grow("hits", "vllm:prefix_cache_hits", scheduler.prefix_hits)
        self._grow("preemptions", "vllm:num_preemptions", scheduler.preemptions)

    def made_token(self, generation: Generation, since_last: float) -> None:
        """One more token; `since_last` is NaN for the first one."""
        if not math.isnan(since_last):
            self._get("vllm:inter_token_latency_seconds").observe(since_last)
            return
        times, request = generation.times, generation.request
        self._get("vllm:time_to_first_token_seconds").observe(times.first_token - times.arrived)
        cached = request.cached or 0
        self.prompt_tokens += len(request.prompt)
        self._get("vllm:prompt_tokens").inc(len(request.prompt))
        self._get("vllm:prompt_tokens_cached").inc(cached)
        self._get("vllm:prompt_tokens_by_source", "local_compute").inc(len(request.prompt) - cached)
        self._get("vllm:prompt_tokens_by_source", "local_cache_hit").inc(cached)
        self._get("vllm:prompt_tokens_cached_by_source", "device").inc(cached)

    def finished(self, generation: Generation, reason: FinishReason) -> None:
        """A request is over."""
        self._get("vllm:request_success", reason).inc()
        request, ask = generation.request, generation.ask
        sizes = {
            "vllm:request_prompt_tokens": len(request.prompt),
            "vllm:request_generation_tokens": request.generated,
            "vllm:request_params_max_tokens": ask.max_tokens,
            "vllm:request_num_preemptions": request.preemptions,
            "vllm:request_prefill_kv_computed_tokens": len(request.prompt) - (request.cached or 0),
        }
        for name, value in {**sizes, **_durations(generation)}.items():
            if not math.isnan(value):
                self._get(name).observe(value)
        if generation.is_last_of_family:
            longest = max(member.request.generated for member in generation.family)
            self._get("vllm:request_max_num_generation_tokens").observe(longest)
            self._get("vllm:request_params_n").observe(ask.choices)

    def _grow(self, what: str, name: str, total: int) -> None:
        self._get(name).inc(total - self._seen[what])
        self._seen[what] = total

    def _get(self, name: str, *own: str) -> Child:
        key = (name, *own)
        child = self._children.get(key)
        return child if child is not None else self._metrics[name]

    def _create(self, family: Mapping[str, Any]) -> None:
        name, labels = family["name"], family["labels"]
        metric = self._metric(family["kind"], name, labels, family.get("bounds"))
        self._metrics[name] = metric
        if name.startswith("http_"):
            return
        values: Mapping[str, list[str]] = family.get("values", {})
        for own in product(*values.values()):
            fixed = {"engine": _ENGINE, "model_name": self._model_name}
            known = {**fixed, **dict(zip(values, own, strict=True))}
            child = metric.labels(**{label: known[label] for label in labels})
            self._children[name, *own] = child

    def _metric(self, kind: str, name: str, labels: list[str], bounds: str | None) -> Child:
        text = name.partition(":")[2].replace("_", " ") or name.replace("_", " ")
        if kind == "counter":
            return Counter(name, text, labels, registry=self.registry)
        if kind == "gauge":
            return Gauge(name, text, labels, registry=self.registry)
        if kind == "summary":
            return Summary(name, text, labels, registry=self.registry)
        known = families()["bounds"][bounds] or list(_bounds_up_to(self._limit))
        return Histogram(name, text, labels, registry=self.registry, buckets=known)

    def _state_cache_config(self, family: Mapping[str, Any], config: Mapping[str, str]) -> None:
        gauge = Gauge(family["name"], "cache config", family["labels"], registry=self.registry)
        stated = {label: config.get(label, "None") for label in family["labels"]}
        gauge.labels(**{**stated, "engine": _ENGINE}).set(1)


def _durations(generation: Generation) -> dict[str, float]:
    times = generation.times
    steps = generation.request.generated - 1
    decode = times.last_token - times.first_token
    return {
        "vllm:e2e_request_latency_seconds": times.finished - times.arrived,
        "vllm:request_queue_time_seconds": times.admitted - times.arrived,
        "vllm:request_inference_time_seconds": times.last_token - times.admitted,
        "vllm:request_prefill_time_seconds": times.first_token - times.admitted,
        "vllm:request_decode_time_seconds": decode,
        "vllm:request_time_per_output_token_seconds": decode / steps if steps > 0 else 0.0,
    }


EVERY_SECONDS: Final = 10.0


def stats_logger(
    scheduler: Scheduler, metrics: EngineMetrics, *, every_seconds: float = EVERY_SECONDS
) -> Callable[[], Coroutine[Any, Any, None]]:
    """A task that writes the line until it is cancelled."""

    async def write_lines() -> None:
        before, was_idle = (0, 0), True
        while True:
            await anyio.sleep(every_seconds)
            now = (metrics.prompt_tokens, metrics.generation_tokens)
            idle = now == before and not scheduler.has_work
            if not (idle and was_idle):
                rates = [(new - old) / every_seconds for new, old in zip(now, before, strict=True)]
                log("APIServer", "loggers.py:335", _line(scheduler, *rates))
            before, was_idle = now, idle

    return write_lines


def _line(scheduler: Scheduler, prompt_rate: float, generation_rate: float) -> str:
    hits = scheduler.prefix_hits / scheduler.prefix_queries if scheduler.prefix_queries else 0.0
    return (
        f"Engine 000: Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
        f"Avg generation throughput: {generation_rate:.1f} tokens/s, "
        f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
        f"GPU KV cache usage: {100 * scheduler.pool.usage:.1f}%, "
        f"Prefix cache hit rate: {100 * hits:.1f}%"
    )


def cache_config(flags: Namespace, setup: Setup, plan: CachePlan) -> dict[str, str]:
    """Return the labels of `vllm:cache_config_info` that are not None.

    source: vllm 0.32.0, 2026-11-20.
    """
    return {
        "_block_size_resolved": "True",
        "block_size": str(setup.block_size),
        "cache_dtype": flags.kv_cache_dtype,
        "effective_attention_block_size": str(setup.block_size),
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": str(bool(flags.enable_prefix_caching)),
        "gpu_memory_utilization": str(flags.gpu_memory_utilization),
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_max_concurrency": str(plan.max_concurrency),
        "kv_cache_memory_bytes": str(flags.kv_cache_memory_bytes),
        "kv_cache_size_tokens": str(plan.tokens),
        "kv_offloading_backend": "native",
        "kv_sharing_fast_prefill": "False",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_ssm_cache_dtype": "auto",
        "num_gpu_blocks": str(plan.num_blocks),
        "num_gpu_blocks_override": str(flags.num_gpu_blocks_override),
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "replayssm_buffer_len": "16",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": str(flags.block_size is not None),
    }
