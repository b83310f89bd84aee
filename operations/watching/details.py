"""What is served, in which precision, with how much room, on what."""

from collections.abc import Mapping
from typing import Any

import anyio

from backends.base import EndsSlowBoots, EngineFacts, Hardware, KnowsEngine, Prediction, Predicts
from core.endpoint import Endpoint, ServedModel
from core.errors import OpsError
from core.metrics import CacheConfig, EngineMetrics, MetricsPage
from core.records import Deployment, MemoryPlan, Record
from operations.asking import require_ready
from operations.plans.alternatives import Alternatives, alternatives
from operations.plans.memory import Context, MemoryTable, context_of, each_gib, memory_table
from operations.plans.precisions import cache_type, compute_type, weights_type
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located
from operations.watching.memory_check import compare
from planner.layouts import Ground, Wish
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import places


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
    context: Context | None = None
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
    predicted_memory: MemoryTable | None = None
    """As the planner foresees it, where model and accelerator are known."""
    beside_plan: tuple[str, ...] = ()
    """Each figure of the log that was foreseen too: inside or outside of what was foreseen."""
    capacity: Capacity
    hardware: Hardware | None
    layouts: dict[str, str] = {}
    """Its flags and those that each layout would have here, and what each gives."""
    standing: str | None = None
    """Which layout its flags are, and what another would give more of."""

    def summary(self) -> str:
        """Say model, context and capacity."""
        tokens = self.capacity.kv_cache_tokens
        room = f", KV cache for {tokens} tokens" if tokens else ""
        takes = f"takes {', '.join(self.takes)}; " if self.takes else ""
        each = ", ".join(f"{name} {gib:g}" for name, gib in self.each_gib.items() if name != "sold")
        goes = f" Each of {self.accelerators}: {each} GiB." if self.accelerators else ""
        return (
            f"{self.served_model_name} on {self.engine}: {takes}context {self.max_model_len}"
            f" tokens, weights {self.precision.weights}, KV cache {self.precision.kv_cache}{room}."
            f"{goes}"
        )

    def facts(self) -> Mapping[str, Any]:
        """Give what is served, in which precision, and how much of it fits."""
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
            "layout": self.standing,
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
    backend, deployment = found
    facts, hardware = EngineFacts(), None
    predicted = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    if isinstance(backend, KnowsEngine):
        facts, hardware = await backend.engine_facts(found.name), await backend.hardware(found.name)
    async with runtime.endpoint(backend, found.name) as endpoint:
        served = await _served(endpoint, deployment.served_model_name)
        metrics = MetricsPage(await endpoint.metrics_text()).engine()
        version = await endpoint.version()
    return ModelDetails(
        target=deployment.target,
        name=found.name,
        model=deployment.model,
        served_model_name=deployment.served_model_name,
        max_model_len=served.max_model_len if served else None,
        engine=f"vLLM {version}" if version and not deployment.simulated else deployment.engine,
        precision=_precision(facts, metrics.cache, predicted),
        flags=facts.flags,
        memory={name: value for name, value in facts.memory.items() if value is not None},
        takes=await _takes(deployment.model, predicted),
        sampling=facts.sampling if facts.sampling or _tells_all(facts, deployment) else None,
        predicted_memory=memory_table(predicted.memory) if predicted else None,
        beside_plan=_beside_plan(predicted, facts),
        capacity=_capacity(metrics),
        hardware=hardware,
        **await _foreseen(found, predicted, facts, metrics.cache),
    )


async def _foreseen(
    found: Found, predicted: Prediction | None, facts: EngineFacts, cache: CacheConfig
) -> dict[str, Any]:
    """Give what only the planner can say, with the engine's own figures where it has them."""
    if predicted is None:
        return {}
    target, source = found.deployment.target, None
    if isinstance(found.backend, EndsSlowBoots):
        source = (await found.backend.boot_budget(found.name, predicted.model)).weights_from
    device, memory = predicted.accelerator, predicted.memory
    sold = f" of {device.sold_gib:g} GiB" if device.sold_gib else ""
    beside = _beside(target, predicted, source)
    return {
        "context": context_of(_as_sized(predicted, cache), predicted.model),
        "accelerators": f"{memory.count} x {device.title}{sold}",
        "each_gib": each_gib(memory, facts.memory),
        "layouts": dict(beside.rows),
        "standing": beside.standing or None,
    }


def _tells_all(facts: EngineFacts, deployment: Deployment) -> bool:
    """Whether a log was read that would say so if the model set defaults of its own."""
    return facts.version is not None and not deployment.simulated


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


def _as_sized(predicted: Prediction, cache: CacheConfig) -> MemoryPlan:
    """Plan it with as many blocks as the engine says it has."""
    kv, blocks = predicted.memory.kv_expected, cache.num_gpu_blocks
    if blocks is None or cache.block_size != kv.block_size:
        return predicted.memory
    size = {"kv_cache_memory_bytes": blocks * kv.bytes_per_block}
    flags = predicted.flags.model_copy(update=size)
    return plan_memory(predicted.model, predicted.accelerator, flags)


def _beside(target: str, predicted: Prediction, source: str | None) -> Alternatives:
    """Hold its flags against others, with the weights from where it has them."""
    where, memory = places().get(target), predicted.memory
    if where is None:
        return Alternatives({}, "", {})
    here = {"accelerator": predicted.accelerator.name, "count": memory.count}
    if source:
        here |= {"weights_from": source, "hub_disk_gib": None}
    ground = Ground(predicted.model, predicted.accelerator, memory.count)
    version = predicted.flags.vllm_version
    wish = Wish(max_model_len=memory.max_model_len, vllm_version=version)
    return alternatives(ground, where.model_copy(update=here), predicted.flags, wanted=wish)


def _beside_plan(predicted: Prediction | None, facts: EngineFacts) -> tuple[str, ...]:
    if predicted is None:
        return ()
    rows = compare(predicted.memory, facts.memory)
    return tuple(str(row) for row in rows if row.measured is not None)


async def _served(endpoint: Endpoint, name: str) -> ServedModel | None:
    return next((row for row in await endpoint.models() if row.id == name), None)


def _precision(facts: EngineFacts, cache: CacheConfig, predicted: Prediction | None) -> Precision:
    """Say what the engine tells; what its log leaves out, its model's own files tell."""
    compute = (facts.weights_dtype or "").removeprefix("torch.") or None
    method = None if facts.quantization in {None, "None"} else facts.quantization
    weights = method or compute
    if predicted:
        shape, flags = predicted.model, predicted.flags
        method = method or shape.quantization or flags.quantization
        weights = weights_type(shape, method)
        compute = compute or compute_type(shape, flags, predicted.accelerator)
    stored = cache.cache_dtype or facts.kv_cache_dtype
    return Precision(
        weights=weights,
        kv_cache=cache_type(stored, compute) if stored and compute else stored,
        compute=compute,
        quantization=method,
    )


def _capacity(metrics: EngineMetrics) -> Capacity:
    cache, used = metrics.cache, metrics.kv_cache_usage
    return Capacity(
        used_percent=None if used is None else round(100 * used, 1),
        kv_cache_tokens=cache.kv_cache_size_tokens,
        full_length_requests=cache.kv_cache_max_concurrency,
        blocks=cache.num_gpu_blocks,
        block_tokens=cache.block_size,
    )
