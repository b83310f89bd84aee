"""How much memory a model takes on an accelerator, and what is left for its KV cache."""

import math
from collections.abc import Iterator
from typing import Any, Final

from core.records import Gib, KvPlan, MemoryPart, MemoryPlan, ModelShape
from planner.accelerators import Accelerator
from planner.defaults import Resolved, resolve
from planner.flags import Flags
from planner.kv import plan_kv
from planner.kv_tpu import plan_kv_tpu
from planner.overheads import GIB, MIB, overheads
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
    work = working_parts(model, accelerator, flags, known)
    refused = [*refusals(model, accelerator, flags, known), *_loading(accelerator, flags, held)]
    cache, how = _cache(model, accelerator, flags, known, held, work)
    low, expected, high = (_divide(model, accelerator, known, size) for size in cache)
    reasons = (*refused, *_room(accelerator, flags, known, held, work, low))
    return MemoryPlan(
        **_asked(model, accelerator, flags, known),
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


def _asked(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> dict[str, Any]:
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
        "requested_gib": _requested_gib(accelerator, flags, known),
        "free_gib": _free_gib(accelerator) if accelerator.memory_gib else None,
    }


_CPU_SHARES: Final = (0.5, 0.9)
"""Of the free memory, that a KV cache may take: the second where the first holds no request."""
Cache = tuple[int, int, int]
"""Bytes: low, expected, high."""


def _requested_gib(accelerator: Accelerator, flags: Flags, known: Resolved) -> float | None:
    if accelerator.memory_gib is None:
        return None
    if accelerator.kind == "cpu" and flags.gpu_memory_utilization is None:
        return _free_gib(accelerator)
    return accelerator.memory_gib * known.gpu_memory_utilization


def _cache(
    model: ModelShape,
    accelerator: Accelerator,
    flags: Flags,
    known: Resolved,
    held: Resident,
    work: tuple[MemoryPart, ...],
) -> tuple[Cache, tuple[str, ...]]:
    if (given := flags.kv_cache_memory_bytes) is not None:
        return (given, given, given), (f"KV cache = --kv-cache-memory-bytes = {given:,}",)
    requested = _requested_gib(accelerator, flags, known)
    if requested is None:
        return (0, 0, 0), ("The memory of this accelerator is not known.",)
    if accelerator.kind == "tpu":
        return _tpu_cache(requested, known, held)
    counted = [
        each for each in work if known.profile.graphs_estimated or each.name != "CUDA graphs"
    ]
    taken = sum(each.gib.expected for each in counted)
    less = sum(each.gib.high - each.gib.expected for each in (*held.parts, *counted))
    more = sum(each.gib.expected - each.gib.low for each in (*held.parts, *counted))
    if accelerator.kind == "cpu" and flags.gpu_memory_utilization is None:
        return _cpu_cache(model, accelerator, known, requested - _needed_gib(held, work))
    expected = requested - held.gib - taken
    if next(_loading(accelerator, flags, held), None):
        return (0, 0, 0), ("Nothing is left for a cache: the model cannot be loaded.",)
    return (_whole(expected - less), _whole(expected), _whole(expected + more)), (
        (
            f"requested = {accelerator.memory_gib} GiB x {known.gpu_memory_utilization} "
            f"= {requested:.2f} GiB"
        ),
        (
            f"KV cache = {requested:.2f} - {held.gib:.2f} weights - {taken:.2f} "
            f"({', '.join(each.name for each in counted)}) = {expected:.2f} GiB, "
            f"{less:.2f} less to {more:.2f} more"
        ),
    )


def _cpu_cache(
    model: ModelShape, accelerator: Accelerator, known: Resolved, left_gib: float
) -> tuple[Cache, tuple[str, ...]]:
    """Take half of what weights and processes leave free, more if one request needs it.

    vLLM's own default is 92 % of the host's memory, which is hardly ever free.
    """
    most = min(left_gib, accelerator.cache_gib_most or left_gib)
    size = 0
    for share in _CPU_SHARES:
        size = _whole(most * share) // MIB * MIB
        kv = _divide(model, accelerator, known, size)
        if kv.fits:
            enough = (known.max_num_seqs * kv.blocks_per_request + 1) * kv.bytes_per_block
            size = min(size, -(-enough // MIB) * MIB)
            break
    return (size, size, size), (
        f"KV cache = {size / GIB:.2f} GiB of the {max(0.0, left_gib):.2f} GiB left of what is free",
    )


def _needed_gib(held: Resident, work: tuple[MemoryPart, ...]) -> float:
    """Return what everything but the cache takes at most."""
    return held.peak_gib + sum(each.gib.high for each in work)


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
    free, chips = _free_gib(accelerator), known.tensor_parallel if accelerator.kind == "tpu" else 1
    beside = held.gib + sum(each.gib.high for each in work)
    most = min(free - beside, accelerator.cache_gib_most or free)
    cache = low.kv_cache_bytes / GIB / chips
    if flags.kv_cache_memory_bytes is not None and cache > most:
        would = f"a cache of {int(most * chips * 1024)} MiB would fit" if most > 0 else "none would"
        yield (
            f"Weights, work and the cache asked for need {beside + cache:.2f} GiB, "
            f"{free:.2f} are free: {would}."
        )
    is_cpu = accelerator.kind == "cpu"
    reserved = (_requested_gib(accelerator, flags, known) or 0.0) if is_cpu else 0.0
    if flags.kv_cache_memory_bytes is None and reserved > free:
        yield (
            f"gpu_memory_utilization {flags.gpu_memory_utilization} is {reserved:.2f} GiB of the"
            f" host's {accelerator.memory_gib:.2f}, {free:.2f} are free: at most"
            f" {int(accelerator.free_at_start * 100) / 100} would fit; left out, it is computed."
        )
    if is_cpu and beside >= free:
        yield f"Weights and processes need {beside:.2f} GiB, {free:.2f} are free."
    elif not low.fits:
        need = low.blocks_per_request * low.bytes_per_block / GIB
        yield (
            f"One request of {known.max_model_len:,} tokens needs {need:.2f} GiB of KV cache, "
            f"{low.kv_cache_bytes / GIB:.2f} GiB are left on the low estimate; "
            f"{low.max_len_that_fits:,} tokens would fit."
        )
