"""A deployment looked at: its state, its health, its load and what it serves."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import anyio

from backends.base import EngineFacts, Hardware, KnowsEngine, Prediction, Predicts
from backends.endpoint import NAME as ENDPOINT
from core import waiting
from core.errors import EndpointError, NextStep, OpsError, RequestRefused
from core.metrics import CacheConfig, EngineMetrics, MetricsPage, Quantiles, Sample
from core.records import Record, State, moment, random_weights
from core.reply import note
from operations import forecast
from operations.ask import Probe, probe, require_ready
from operations.deployments import after_its_log
from operations.readings import Located
from operations.resolve import Found, last_use
from operations.runtime import Runtime
from planner.memory import plan_memory
from planner.model import read_model

_WARM_SECONDS: Final = 2.0
"""A first answer slower than this was a cold one: a warm engine says a few tokens in far less."""

_LONGEST_ANSWER: Final = 1_000
"""Characters of eight tokens, and then some."""
_WAIT: Final = "Wait for it with status_vllm."


class HealthReport(Located):
    """Whether the model really answers, and which layer is at fault if not."""

    healthy: bool
    layer: Literal["process", "server", "model", "none"]
    """The first that is unhealthy: the process, its HTTP server, or the model itself."""
    state: State
    detail: str
    fix: str | None = None
    answer: str | None = None
    latency_seconds: float | None = None
    start: Literal["cold", "warm"] | None = None
    awake_until: datetime | None = None
    """About; when it falls asleep if nobody asks."""
    probes: tuple[Probe, ...] = ()
    """With `deep`: tools, a JSON schema, thoughts, an image."""

    def summary(self) -> str:
        where = f"{self.name} on {self.target}"
        if self.latency_seconds is None:
            silent = (
                "" if self.layer == "process" else f"{where}, the {self.layer} does not answer: "
            )
            return f"Not healthy: {silent}{self.detail}"
        seen: dict[str, list[str]] = {"fail": [], "pass": [], "not tested": []}
        for one in self.probes:
            seen[one.outcome].append(one.what)
        parts = [f"{outcome}: {', '.join(names)}" for outcome, names in seen.items() if names]
        probed = f" {'; '.join(parts).capitalize()}." if parts else ""
        return f"{where} is healthy: the model answered in {self.latency_seconds:.3g} s.{probed}"

    def facts(self) -> Mapping[str, Any]:
        kept = {"target", "name", "healthy", "layer", "state", "fix", "answer"}
        more = {"latency_seconds", "start", "awake_until"}
        seen = {one.what: f"{one.outcome}: {one.detail}" for one in self.probes}
        if self.healthy and not seen:
            seen = {"more": "deep=true also tests tools, a JSON schema, thoughts and images"}
        return {**self.model_dump(mode="json", include=kept | more), **seen}

    def next_steps(self) -> tuple[NextStep, ...]:
        here = {"target": self.target, "name": self.name}
        if self.healthy:
            return (NextStep("get_metrics", here),)
        if self.layer == "process" and self.state not in {State.FAILED, State.EXPIRED}:
            return (NextStep("status_vllm", here),)
        log = () if self.target == ENDPOINT else (NextStep("get_logs", here),)
        return (NextStep("diagnose", here), *log)


async def health(runtime: Runtime, found: Found, *, deep: bool = False) -> HealthReport:
    """Let the model answer, and time it; `deep` also asks for what clients rely on.

    Raises:
        Stopped: It was stopped, and nothing is wrong with it.
    """
    deployment = found.deployment
    if deployment.state is State.STOPPED:
        require_ready(found)  # which is not unhealthy
    here = {
        "target": deployment.target,
        "name": found.name,
        "state": deployment.state,
        "awake_until": deployment.awake_until,
    }
    if deployment.state not in {State.READY, State.UNKNOWN}:
        failure = deployment.failure
        settled = {State.ASLEEP: "Ask with wake=true."}
        fix = failure.fix if failure else settled.get(deployment.state, _WAIT)
        words = deployment.summary()
        return HealthReport(**here, healthy=False, layer="process", detail=words, fix=fix)
    async with runtime.endpoint(found.backend, found.name) as endpoint:
        layer, detail, fix = "server", "", ""
        try:
            if await endpoint.healthy():
                layer = "model"
                name = await endpoint.model_meant(deployment.served_model_name)
                began = time.perf_counter()
                text = await endpoint.answer(name, max_tokens=8, timeout=30)
                seconds = time.perf_counter() - began
            else:
                detail, fix = "/health says no.", after_its_log(found.backend)
        except EndpointError as exc:
            detail, fix = f"{exc.summary} {exc.cause}".strip(), exc.fix
        if detail:
            return HealthReport(**here, healthy=False, layer=layer, detail=detail, fix=fix)
        made_up = "its weights are random" if random_weights(name) else ""
        if deployment.simulated:
            made_up = "a simulated engine makes its words up"
        probes = await probe(endpoint, name, made_up=made_up) if deep else ()
    return HealthReport(
        **here,
        healthy=True,
        layer="none",
        detail="Process, server and model answer.",
        answer=text[:_LONGEST_ANSWER],
        latency_seconds=round(seconds, 4),
        start="warm" if seconds < _WARM_SECONDS else "cold",
        probes=probes,
    )


RATE_WINDOW_SECONDS: Final = 1.0
"""Between the two looks that a rate is made from."""
MAX_SAMPLES: Final = 60
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


class MetricsReport(Located):
    """The numbers an operator acts on."""

    metrics: EngineMetrics | None = None
    """Counters are since the engine started."""
    latencies_since: datetime | None = None
    """The engine's start."""
    rates: Rates | None = None
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
            "kv_cache_tokens": seen.cache.kv_cache_size_tokens,
            "full_length_requests": seen.cache.kv_cache_max_concurrency,
            "not_reported": ", ".join(self.missing),
        }


def _three(row: Quantiles | None) -> str:
    """Write p50, p95 and p99; of what the histogram does not resolve, the bound that is certain."""
    if row is None:
        return "not known"
    pairs = (row.p50, row.p50_at_most), (row.p95, row.p95_at_most), (row.p99, row.p99_at_most)
    said = [_duration(value, bound) for value, bound in pairs]
    return "/".join(said) if len(set(said)) > 1 else f"all {said[0]}"


def _duration(value: float | None, at_most: float | None) -> str:
    if value is None:
        return "beyond its buckets" if at_most is None else f"under {_duration(at_most, None)}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


async def metrics(runtime: Runtime, found: Found, raw: str | None) -> MetricsReport:
    """Look twice, a second apart; with `raw`, once for the samples of that name.

    Raises:
        NotReady: The deployment does not serve now.
        EndpointError: Its engine cannot be asked.
    """
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
        await anyio.sleep(waiting.pause(RATE_WINDOW_SECONDS))
        second, seconds = MetricsPage(await endpoint.metrics_text()), time.monotonic() - began
    before, seen = first.engine(), second.engine()
    return MetricsReport(
        **here,
        metrics=seen,
        latencies_since=seen.started_at,
        rates=_rates(before, seen, seconds),
        last_used=last_use(runtime, deployment),
        awake_until=deployment.awake_until,
        missing=tuple(name for name, value in seen if value is None),
    )


def _rates(first: EngineMetrics, second: EngineMetrics, seconds: float) -> Rates:
    def per_second(before: int | None, after: int | None) -> float | None:
        if before is None or after is None:
            return None
        return round(max(0, after - before) / seconds, 2)

    asked = [one.requests_finished for one in (first, second)]
    return Rates(
        window_seconds=round(seconds, 2),
        prompt_tokens_per_second=per_second(first.prompt_tokens, second.prompt_tokens),
        generation_tokens_per_second=per_second(first.generation_tokens, second.generation_tokens),
        requests_per_second=per_second(*(sum(one.values()) if one else None for one in asked)),
    )


class Precision(Record):
    """The number formats in use."""

    weights: str | None = None
    kv_cache: str | None = None
    compute: str | None = None
    quantization: str | None = None


class Capacity(Record):
    """How much the KV cache holds."""

    kv_cache_tokens: int | None = None
    full_length_requests: float | None = None
    """Requests of max_model_len that fit at once."""
    used_percent: float | None = None
    """Of its blocks, now."""
    blocks: int | None = None
    block_tokens: int | None = None


class ModelDetails(Located):
    """What is served, how, and on what."""

    model: str
    served_model_name: str
    max_model_len: int | None
    """Tokens of prompt and answer together."""
    takes: tuple[str, ...] = ()
    """What a prompt may hold: text, images, video, audio; empty is not known."""
    sampling: dict[str, float] | None = None
    """Defaults of a request that the model's own files set; the others are vLLM's: temperature 1,
    top_p 1, no top_k. None where the engine's log does not tell."""
    context: forecast.Context | None = None
    """That length, the model's own, and what the cache has room for."""
    engine: str
    precision: Precision
    flags: str
    """That differ from vLLM's defaults."""
    memory: dict[str, float | int | None]
    """By component, as the engine's log tells."""
    accelerators: str | None = None
    """Of one replica."""
    each_gib: dict[str, float] = {}
    """Of one accelerator, as it is sold: all that is in it, and what is left."""
    predicted_memory: forecast.MemoryTable | None = None
    """As the planner foresees it, where model and accelerator are known."""
    capacity: Capacity
    hardware: Hardware | None

    def summary(self) -> str:
        tokens = self.capacity.kv_cache_tokens
        room = f", KV cache for {tokens} tokens" if tokens else ""
        takes = f"takes {', '.join(self.takes)}; " if self.takes else ""
        longest = "not known" if self.max_model_len is None else f"{self.max_model_len} tokens"
        stored, cache = (
            said or "not known" for said in (self.precision.weights, self.precision.kv_cache)
        )
        each = ", ".join(f"{name} {gib:g}" for name, gib in self.each_gib.items() if name != "sold")
        goes = f" Each of {self.accelerators}: {each} GiB." if self.accelerators else ""
        return (
            f"{self.served_model_name} on {self.engine}: {takes}context {longest}"
            f", weights {stored}, KV cache {cache}{room}."
            f"{goes}"
        )

    def facts(self) -> Mapping[str, Any]:
        capacity = self.capacity
        own = f"{self.context.model_max_len} tokens" if self.context else None
        return {
            "target": self.target,
            "name": self.name,
            "model": self.model,
            "takes": ", ".join(self.takes) or "not known: the model's config.json is not here",
            "max_model_len": self.max_model_len,
            "model's own limit": own,
            "sampling defaults": None if self.sampling is None else _sampled(self.sampling),
            **self.precision.model_dump(),
            "KV cache tokens": capacity.kv_cache_tokens,
            "requests of full length at once": capacity.full_length_requests,
            "KV cache used, %": capacity.used_percent,
            "runs on": self.accelerators or (self.hardware and self.hardware.accelerator),
            "GiB of each": ", ".join(f"{name} {gib:g}" for name, gib in self.each_gib.items()),
        }


def _sampled(set_by_model: Mapping[str, float]) -> str:
    """Say every default of a request, those that the model sets first.

    >>> _sampled({"top_k": 64.0, "top_p": 0.95})
    "top_k 64, top_p 0.95 (the model's own), temperature 1 (vLLM's)"
    """
    own = ", ".join(f"{name} {value:g}" for name, value in set_by_model.items())
    others = {"temperature": "1", "top_p": "1", "top_k": "off"}
    rest = ", ".join(f"{name} {says}" for name, says in others.items() if name not in set_by_model)
    parts = (f"{own} (the model's own)" if own else "", f"{rest} (vLLM's)" if rest else "")
    return ", ".join(filter(None, parts))


async def model_details(runtime: Runtime, found: Found) -> ModelDetails:
    """Gather what engine, log and host tell."""
    require_ready(found)
    backend, deployment = found.backend, found.deployment
    facts, hardware = EngineFacts(), None
    predicted = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    if isinstance(backend, KnowsEngine):
        facts, hardware = await backend.engine_facts(found.name), await backend.hardware(found.name)
    async with runtime.endpoint(backend, found.name) as endpoint:
        name = await endpoint.model_meant(deployment.served_model_name)
        served = next((row for row in await endpoint.models() if row.id == name), None)
        try:
            page = await endpoint.metrics_text()
        except RequestRefused:  # of an engine that is not vLLM, or behind a gateway
            note("It has no /metrics: what its KV cache holds is not known.")
            page = ""
        metrics, version = MetricsPage(page).engine(), await endpoint.version()
    cache, used = metrics.cache, metrics.kv_cache_usage
    # A log was read that would say so if the model set defaults of its own.
    tells_all = facts.version is not None and not deployment.simulated
    return ModelDetails(
        target=deployment.target,
        name=found.name,
        model=deployment.model,
        served_model_name=name,
        max_model_len=served.max_model_len if served else None,
        engine=f"vLLM {version}" if version and not deployment.simulated else deployment.engine,
        precision=_precision(facts, cache, predicted),
        flags=facts.flags,
        memory={name: value for name, value in facts.memory.items() if value is not None},
        takes=await _takes(deployment.model, predicted),
        sampling=facts.sampling if facts.sampling or tells_all else None,
        predicted_memory=forecast.memory_table(predicted.memory) if predicted else None,
        capacity=Capacity(
            used_percent=None if used is None else round(100 * used, 1),
            kv_cache_tokens=cache.kv_cache_size_tokens,
            full_length_requests=cache.kv_cache_max_concurrency,
            blocks=cache.num_gpu_blocks,
            block_tokens=cache.block_size,
        ),
        hardware=hardware,
        **_foreseen(predicted, facts, cache),
    )


def _foreseen(
    predicted: Prediction | None, facts: EngineFacts, cache: CacheConfig
) -> dict[str, Any]:
    """Give what only the planner can say, with the engine's own figures where it has them."""
    if predicted is None:
        return {}
    device, memory, sized = predicted.accelerator, predicted.memory, predicted.memory
    blocks, kv = cache.num_gpu_blocks, memory.kv_expected
    if blocks is not None and cache.block_size == kv.block_size:
        # Planned with as many blocks as the engine says it has.
        size = {"kv_cache_memory_bytes": blocks * kv.bytes_per_block}
        flags = predicted.flags.model_copy(update=size)
        sized = plan_memory(predicted.model, device, flags)
    sold = f" of {device.sold_gib:g} GiB" if device.sold_gib else ""
    return {
        "context": forecast.context_of(sized, predicted.model),
        "accelerators": f"{memory.count} x {device.title}{sold}",
        "each_gib": forecast.each_gib(memory, facts.memory),
    }


async def _takes(model: str, predicted: Prediction | None) -> tuple[str, ...]:
    """Say what a prompt may hold, by the model's config; nothing where that cannot be read."""
    try:
        shape = predicted.model if predicted else await anyio.to_thread.run_sync(read_model, model)
    except OpsError:
        return ()
    if not shape.layers:
        return ()
    tpu = predicted is not None and predicted.accelerator.kind == "tpu"
    towers = not (predicted and predicted.flags.language_model_only)
    can = {
        "text": True,
        "images": shape.vision and towers,
        # vllm/model_executor/models/gemma4_mm.py, 0.32: images, video, and audio with its tower.
        "video": shape.vision and towers and (shape.model_type or "").startswith("gemma4"),
        "audio": shape.audio and towers and not tpu,  # tpu-inference loads no audio tower
    }
    return tuple(kind for kind, takes in can.items() if takes)


def _precision(facts: EngineFacts, cache: CacheConfig, predicted: Prediction | None) -> Precision:
    """Say what the engine tells; what its log leaves out, its model's own files tell."""
    compute = (facts.weights_dtype or "").removeprefix("torch.") or None
    method = None if facts.quantization in {None, "None"} else facts.quantization
    weights = method or compute
    if predicted:
        shape, flags = predicted.model, predicted.flags
        method = method or shape.quantization or flags.quantization
        weights = forecast.weights_type(shape, method)
        compute = compute or forecast.compute_type(shape, flags, predicted.accelerator)
    stored = cache.cache_dtype or facts.kv_cache_dtype
    return Precision(
        weights=weights,
        kv_cache=forecast.cache_type(stored, compute) if stored and compute else stored,
        compute=compute,
        quantization=method,
    )
