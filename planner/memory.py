"""How much memory a model takes on an accelerator, and what is left for its KV cache."""

import math
from collections.abc import Iterator
from typing import Any

from core.plans import Gib, KvPlan, MemoryPart, MemoryPlan
from core.records import ModelShape
from planner.accelerators import Accelerator
from planner.defaults import Resolved, resolve
from planner.flags import Flags
from planner.kv import plan_kv
from planner.kv_tpu import plan_kv_tpu
from planner.overheads import GIB, overheads
from planner.refusals import refusals, warnings
from planner.resident import Resident, resident
from planner.working import working_parts


def plan_memory(model: ModelShape, accelerator: Accelerator, flags: Flags) -> MemoryPlan:
    """Foresee vLLM's memory on `flags.tensor_parallel_size` accelerators of one kind.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    known = resolve(model, accelerator, flags)
    held = resident(model, accelerator, flags, known)
    work = working_parts(model, accelerator, flags, known) if accelerator.kind == "gpu" else ()
    refused = [*refusals(model, accelerator, flags, known), *_loading(accelerator, flags, held)]
    cache, how = _cache(accelerator, flags, known, held, work)
    low, expected, high = (_divide(model, accelerator, known, size) for size in cache)
    reasons = (*refused, *_room(accelerator, flags, known, held, work, low))
    return MemoryPlan(
        **_asked(model, accelerator, known),
        weights_gib=held.gib,
        load_peak_gib=held.peak_gib,
        kv_cache_gib=Gib(low=cache[0] / GIB, expected=cache[1] / GIB, high=cache[2] / GIB),
        kv_is_shared=accelerator.kind == "tpu",
        parts=(*held.parts, *work),
        kv_low=low,
        kv_expected=expected,
        kv_high=high,
        fits=not reasons,
        reasons=reasons,
        warnings=tuple(warnings(model, accelerator, flags, known)),
        derivation=(*known.derivation, *how),
    )


def _asked(model: ModelShape, accelerator: Accelerator, known: Resolved) -> dict[str, Any]:
    return {
        "model": model.model,
        "accelerator": accelerator.name,
        "count": known.tensor_parallel,
        "vllm_version": known.profile.version,
        "max_model_len": known.max_model_len,
        "max_num_seqs": known.max_num_seqs,
        "max_num_batched_tokens": known.max_num_batched_tokens,
        "gpu_memory_utilization": known.gpu_memory_utilization,
        "visible_gib": accelerator.memory_gib,
        "requested_gib": _requested_gib(accelerator, known),
    }


Cache = tuple[int, int, int]
"""Bytes: low, expected, high."""


def _requested_gib(accelerator: Accelerator, known: Resolved) -> float | None:
    if accelerator.memory_gib is None:
        return None
    return accelerator.memory_gib * known.gpu_memory_utilization


def _cache(
    accelerator: Accelerator,
    flags: Flags,
    known: Resolved,
    held: Resident,
    work: tuple[MemoryPart, ...],
) -> tuple[Cache, tuple[str, ...]]:
    if (given := flags.kv_cache_memory_bytes) is not None:
        return (given, given, given), (f"KV cache = --kv-cache-memory-bytes = {given:,}",)
    requested = _requested_gib(accelerator, known)
    if requested is None:
        return (0, 0, 0), ("The memory of this accelerator is not known.",)
    if accelerator.kind == "tpu":
        return _tpu_cache(requested, known, held)
    counted = [
        each for each in work if known.profile.graphs_estimated or each.name != "CUDA graphs"
    ]
    taken = sum(each.gib.expected for each in counted)
    apart = sum(each.gib.high - each.gib.expected for each in (*held.parts, *counted))
    expected = requested - held.gib - taken
    if next(_loading(accelerator, flags, held), None):
        return (0, 0, 0), ("Nothing is left for a cache: the model cannot be loaded.",)
    return (_whole(expected - apart), _whole(expected), _whole(expected + apart)), (
        (
            f"requested = {accelerator.memory_gib} GiB x {known.gpu_memory_utilization} "
            f"= {requested:.2f} GiB"
        ),
        (
            f"KV cache = {requested:.2f} - {held.gib:.2f} weights - {taken:.2f} "
            f"({', '.join(each.name for each in counted)}) = {expected:.2f} +- {apart:.2f} GiB"
        ),
    )


def _tpu_cache(requested: float, known: Resolved, held: Resident) -> tuple[Cache, tuple[str, ...]]:
    ways = known.tensor_parallel
    apart = held.gib * overheads().uncertain.tpu_weights * ways
    expected = (requested - held.gib) * ways
    return (_whole(expected - apart), _whole(expected), _whole(expected + apart)), (
        (
            f"KV cache = {ways} x ({requested:.2f} - {held.gib:.2f} weights) = {expected:.2f} GiB "
            "of all chips; compiled programs live outside"
        ),
    )


def _whole(gib: float) -> int:
    return max(0, math.floor(gib * GIB))


def _divide(
    model: ModelShape, accelerator: Accelerator, known: Resolved, kv_cache_bytes: int
) -> KvPlan:
    if accelerator.kind == "tpu":
        return plan_kv_tpu(model, kv_cache_bytes, known.ask, max_num_seqs=known.max_num_seqs)
    return plan_kv(model, kv_cache_bytes, known.ask)


def _free_gib(accelerator: Accelerator) -> float:
    return (accelerator.memory_gib or math.inf) * accelerator.free_at_start


def _loading(accelerator: Accelerator, flags: Flags, held: Resident) -> Iterator[str]:
    free = _free_gib(accelerator)
    if held.peak_gib <= free:
        return
    passing = held.transient
    why = (
        f" ({held.peak_gib - passing.gib.expected:.2f} resident and {passing.gib.expected:.2f} for "
        "a second token table that is freed afterwards)"
        if passing
        else ""
    )
    offloaded = " even with its offload" if flags.cpu_offload_gb else ""
    yield (
        f"It runs out of memory while loading{offloaded}: needs {held.peak_gib:.2f} GiB to load"
        f"{why}, {accelerator.memory_gib:.2f} GiB is visible and {free:.2f} free."
    )


def _room(
    accelerator: Accelerator,
    flags: Flags,
    known: Resolved,
    held: Resident,
    work: tuple[MemoryPart, ...],
    low: KvPlan,
) -> Iterator[str]:
    if held.peak_gib > _free_gib(accelerator):
        return
    if flags.kv_cache_memory_bytes is None and accelerator.memory_gib is None:
        yield "The memory of this accelerator is not known: give --kv-cache-memory-gib."
        return
    everything = held.gib + sum(each.gib.high for each in work)
    chips = known.tensor_parallel if accelerator.kind == "tpu" else 1
    everything += low.kv_cache_bytes / GIB / chips
    if flags.kv_cache_memory_bytes is not None and everything > _free_gib(accelerator):
        yield (
            f"Weights, work and the cache asked for need {everything:.2f} GiB, "
            f"{_free_gib(accelerator):.2f} are free."
        )
    if not low.fits:
        need = low.blocks_per_request * low.bytes_per_block / GIB
        yield (
            f"One request of {known.max_model_len:,} tokens needs {need:.2f} GiB of KV cache, "
            f"{low.kv_cache_bytes / GIB:.2f} GiB are left on the low estimate; "
            f"{low.max_len_that_fits:,} tokens would fit."
        )
