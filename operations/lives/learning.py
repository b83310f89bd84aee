"""What was predicted of a deployment, held against what its engine does, and kept."""

from datetime import UTC, datetime
from typing import Final

from backends.base import KnowsEngine, Prediction, Predicts
from core.errors import OpsError
from core.metrics import EngineMetrics, MetricsPage
from core.records import Deployment, State
from operations.asking import ModelAnswer
from operations.resolve import Found
from operations.runtime import Runtime
from planner.calibrate import ActualCache, DecodePair, KvPair, PredictedCache, keep_decode, keep_kv

_ENOUGH_TOKENS: Final = 32
"""Of one answer, for the time of a token to mean anything."""


async def with_prediction(runtime: Runtime, found: Found, now: Deployment) -> Deployment:
    """Add to a ready deployment how far its memory is from the plan; once for each life."""
    if now.state is not State.READY:
        return now
    life = f"{now.target}/{now.name}/{now.revision}/{now.instance}"
    if life not in runtime.learned:
        runtime.learned[life] = await _learn_cache(runtime, found, now)
    return now.model_copy(update={"prediction": runtime.learned[life]})


async def learn_speed(runtime: Runtime, found: Found, answer: ModelAnswer) -> None:
    """Keep the time of a token, where the answer was long enough and alone."""
    timing, tokens = answer.timing, answer.completion_tokens or 0
    if timing is None or timing.tpot_seconds is None or tokens < _ENOUGH_TOKENS:
        return
    predicted = await _predicted(found)
    if predicted is None or predicted.accelerator.bandwidth_gb_per_s is None:
        return
    metrics = await _metrics(runtime, found)
    if metrics is None or metrics.requests_running or metrics.requests_waiting:
        return
    pair = DecodePair.of(
        predicted.model,
        predicted.accelerator,
        predicted.flags,
        context=(answer.prompt_tokens or 0) + tokens // 2,
        seconds_per_token=timing.tpot_seconds,
        at=datetime.now(UTC),
        target=answer.target,
        engine_version=predicted.flags.vllm_version or "not known",
        simulated=found.deployment.simulated,
    )
    keep_decode(runtime.stage.journal, pair)


async def _learn_cache(runtime: Runtime, found: Found, now: Deployment) -> str | None:
    predicted, metrics = await _predicted(found), await _metrics(runtime, found)
    actual = await _actual(found, metrics) if metrics else None
    if predicted is None or actual is None:
        return None
    pair = KvPair(
        at=datetime.now(UTC),
        target=now.target,
        name=now.name,
        model=now.model,
        accelerator=predicted.accelerator.name,
        count=predicted.memory.count,
        flags=predicted.flags,
        engine_version=predicted.flags.vllm_version or "not known",
        simulated=now.simulated,
        predicted=PredictedCache.of(predicted.memory),
        actual=actual,
    )
    keep_kv(runtime.stage.journal, pair, revision=now.revision, instance=now.instance or "")
    return pair.sentence()


async def _actual(found: Found, metrics: EngineMetrics) -> ActualCache | None:
    cache = metrics.cache
    known = (cache.num_gpu_blocks, cache.kv_cache_size_tokens, cache.kv_cache_max_concurrency)
    if any(figure is None for figure in known) or not isinstance(found.backend, KnowsEngine):
        return None
    blocks, tokens, concurrency = known
    memory = (await found.backend.engine_facts(found.name)).memory
    return ActualCache(
        kv_cache_gib=memory.get("kv_cache_gib"),
        num_blocks=blocks or 0,
        kv_tokens=tokens or 0,
        max_concurrency=concurrency or 0.0,
        weights_gib=memory.get("weights_gib"),
    )


async def _predicted(found: Found) -> Prediction | None:
    if not isinstance(found.backend, Predicts):
        return None
    try:
        return await found.backend.predicted(found.name)
    except OpsError:
        return None  # its model's folder is gone, or it was never planned


async def _metrics(runtime: Runtime, found: Found) -> EngineMetrics | None:
    try:
        async with runtime.endpoint(found.backend, found.name) as endpoint:
            return MetricsPage(await endpoint.metrics_text()).engine()
    except OpsError:
        return None
