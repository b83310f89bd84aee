"""What is served, in which precision, with how much room, on what."""

from backends.base import EngineFacts, Hardware, KnowsEngine, Prediction, Predicts
from core.endpoint import Endpoint, ServedModel
from core.metrics import CacheConfig, MetricsPage
from core.records import Record
from operations.answers import Located
from operations.asking import require_ready
from operations.memory import MemoryTable, memory_table
from operations.memory_check import compare
from operations.resolve import Found
from operations.runtime import Runtime


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
    blocks: int | None = None
    block_tokens: int | None = None


class ModelDetails(Located):
    """What is served, how, and on what."""

    model: str
    served_model_name: str
    max_model_len: int | None
    """Tokens of prompt and answer together."""
    engine: str
    precision: Precision
    flags: str
    """That differ from vLLM's defaults."""
    memory: dict[str, float | int | None]
    """By component, as the engine's log tells."""
    predicted_memory: MemoryTable | None = None
    """As the planner foresees it, where model and accelerator are known."""
    beside_plan: tuple[str, ...] = ()
    """Each figure of the log that was foreseen too: inside or outside of what was foreseen."""
    capacity: Capacity
    hardware: Hardware | None

    def summary(self) -> str:
        """Say model, context and capacity."""
        tokens = self.capacity.kv_cache_tokens
        room = f", KV cache for {tokens} tokens" if tokens else ""
        return (
            f"{self.served_model_name} on {self.engine}: context {self.max_model_len} tokens, "
            f"weights {self.precision.weights}, KV cache {self.precision.kv_cache}{room}."
        )


async def model_details(runtime: Runtime, found: Found) -> ModelDetails:
    """Gather what engine, log and host tell."""
    require_ready(found)
    backend, deployment = found
    facts, hardware = EngineFacts(), None
    predicted = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    if isinstance(backend, KnowsEngine):
        facts, hardware = await backend.engine_facts(found.name), await backend.hardware()
    async with runtime.endpoint(backend, found.name) as endpoint:
        served = await _served(endpoint, deployment.served_model_name)
        cache = MetricsPage(await endpoint.metrics_text()).engine().cache
        version = await endpoint.version()
    return ModelDetails(
        target=deployment.target,
        name=found.name,
        model=deployment.model,
        served_model_name=deployment.served_model_name,
        max_model_len=served.max_model_len if served else None,
        engine=f"vLLM {version}" if version and not deployment.simulated else deployment.engine,
        precision=_precision(facts, cache),
        flags=facts.flags,
        memory={name: value for name, value in facts.memory.items() if value is not None},
        predicted_memory=memory_table(predicted.memory) if predicted else None,
        beside_plan=_beside_plan(predicted, facts),
        capacity=_capacity(cache),
        hardware=hardware,
    )


def _beside_plan(predicted: Prediction | None, facts: EngineFacts) -> tuple[str, ...]:
    if predicted is None:
        return ()
    rows = compare(predicted.memory, facts.memory)
    return tuple(str(row) for row in rows if row.measured is not None)


async def _served(endpoint: Endpoint, name: str) -> ServedModel | None:
    return next((row for row in await endpoint.models() if row.id == name), None)


def _precision(facts: EngineFacts, cache: CacheConfig) -> Precision:
    weights = (facts.weights_dtype or "").removeprefix("torch.") or None
    stored = cache.cache_dtype or facts.kv_cache_dtype
    if stored == "auto":
        stored = f"{weights} (auto)" if weights else "auto"
    quantization = None if facts.quantization in {None, "None"} else facts.quantization
    return Precision(
        weights=quantization or weights,
        kv_cache=stored,
        compute=weights,
        quantization=quantization,
    )


def _capacity(cache: CacheConfig) -> Capacity:
    return Capacity(
        kv_cache_tokens=cache.kv_cache_size_tokens,
        full_length_requests=cache.kv_cache_max_concurrency,
        blocks=cache.num_gpu_blocks,
        block_tokens=cache.block_size,
    )
