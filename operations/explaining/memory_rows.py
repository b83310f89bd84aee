"""The flags that divide the accelerator's memory: what each does here, and what it trades."""

from collections.abc import Iterator
from typing import Final

from core.records import MemoryPlan
from operations.explaining.case import Case, at_once, bytes_per_token
from operations.explaining.records import FlagRow
from operations.plans.precisions import precision
from planner.kv import kv_precisions

_UNKNOWN: Final = "How much, nobody can say here: model or memory of the accelerator are not known."
_STEP: Final = 0.05
"""Of gpu_memory_utilization, for what a little less would do."""


def memory_rows(case: Case) -> Iterator[FlagRow]:
    """Give the rows of context, cache and weights."""
    yield _length(case)
    yield _utilization(case)
    yield _kv_dtype(case)
    if case.spec.kv_cache_memory_bytes:
        yield _kv_bytes(case)
    yield _quantization(case)
    yield _dtype(case)
    yield _offload(case)


def _length(case: Case) -> FlagRow:
    plan, asked = case.memory, case.spec.max_model_len
    own = case.model.max_position_embeddings
    return FlagRow(
        flag="--max-model-len",
        value=_tokens(case.length),
        default=f"{_tokens(own)}, the model's own",
        differs=asked is not None and asked != own,
        does=_holds(plan) if plan else _UNKNOWN,
        trades=_length_trade(case, plan) if plan else "Context against requests at once.",
    )


def _holds(plan: MemoryPlan) -> str:
    return (
        f"Prompt and answer together have at most {plan.max_model_len:,} tokens. The KV cache,"
        f" {plan.kv_cache_gib.expected:.2f} GiB, holds {plan.kv_expected.kv_tokens:,} tokens:"
        f" {at_once(plan)} requests of that length at once, more of shorter ones."
    )


def _length_trade(case: Case, plan: MemoryPlan) -> str:
    lengths = (plan.max_model_len // 2, plan.max_model_len * 2)
    most = case.model.max_position_embeddings or lengths[1]
    others = "; ".join(
        f"with {one:,} tokens {at_once(case.plan(max_model_len=one))}"
        for one in lengths
        if 0 < one <= most
    )
    return (
        f"Context against requests at once: {others}. The longest single request that fits is"
        f" {plan.kv_low.max_len_that_fits:,} tokens."
    )


def _utilization(case: Case) -> FlagRow:
    plan = case.memory
    value = f"{plan.gpu_memory_utilization:g}" if plan else _or_default(case, "not known")
    return FlagRow(
        flag="--gpu-memory-utilization",
        value=value,
        default=_own_share(case),
        differs=case.spec.gpu_memory_utilization is not None,
        does=_share(plan) if plan and plan.requested_gib else _UNKNOWN,
        trades=_share_trade(case, plan) if plan and plan.visible_gib else "Cache against headroom.",
    )


def _own_share(case: Case) -> str:
    plan = case.plan(gpu_memory_utilization=None)
    return f"{plan.gpu_memory_utilization:g}" if plan else "vLLM's own"


def _or_default(case: Case, unknown: str) -> str:
    said = case.spec.gpu_memory_utilization
    return unknown if said is None else f"{said:g}"


def _share(plan: MemoryPlan) -> str:
    taken = f"{plan.requested_gib or 0:.2f} of {plan.visible_gib or 0:.2f} GiB"
    if any(part.name == "KV cache" for part in plan.parts):
        return f"vLLM takes {taken}."
    return (
        f"vLLM takes {taken}: {plan.weights_gib:.2f} of weights, {plan.kv_cache_gib.expected:.2f}"
        f" of KV cache{' on all chips together' if plan.kv_is_shared else ''}, the rest to work in."
    )


def _share_trade(case: Case, plan: MemoryPlan) -> str:
    less = round(plan.gpu_memory_utilization - _STEP, 2)
    outside = (plan.visible_gib or 0) - (plan.requested_gib or 0)
    return (
        f"Cache against headroom: {outside:.2f} GiB stay for what vLLM does not count; {less:g}"
        f" would leave {outside + _STEP * (plan.visible_gib or 0):.2f} and hold"
        f" {at_once(case.plan(gpu_memory_utilization=less))} requests of full length."
    )


def _kv_dtype(case: Case) -> FlagRow:
    plan, value = case.memory, case.flags.kv_cache_dtype or "auto"
    each = bytes_per_token(plan.kv_expected) if plan else 0
    on_average = f" A token of a full-length request takes {each:,} bytes of it." if each else ""
    kinds = precision(case.model, case.flags, case.device)
    return FlagRow(
        flag="--kv-cache-dtype",
        value=value,
        default="auto: as the model computes",
        differs=value != "auto",
        does=f"{kinds[:1].upper()}{kinds[1:]}.{on_average}",
        trades=_kv_trade(case, plan),
    )


def _kv_trade(case: Case, plan: MemoryPlan | None) -> str:
    able = {one.kv_cache_dtype: one for one in kv_precisions(case.device) if one.planned}
    other = "auto" if case.fp8_kv else "fp8"
    if case.device.kind == "cpu" or other not in able:
        return "A little accuracy of attention against room: fp8 is not planned for here."
    if not able[other].possible:
        return f"Nothing: fp8 is not to be had here ({able[other].why.rstrip('.')})."
    held = at_once(case.plan(kv_cache_dtype=None if other == "auto" else other))
    now = f", now {at_once(plan)}" if plan else ""
    return (
        f"A little accuracy of attention against room: with {other} the cache would hold {held}"
        f" requests of full length{now}."
    )


def _kv_bytes(case: Case) -> FlagRow:
    return FlagRow(
        flag="--kv-cache-memory-bytes",
        value=str(case.spec.kv_cache_memory_bytes),
        default="left out: what gpu_memory_utilization leaves",
        differs=True,
        does=_holds(case.memory) if case.memory else _UNKNOWN,
        trades="Certainty against room: it is taken as it is, whatever else needs memory.",
    )


def _quantization(case: Case) -> FlagRow:
    own, said = case.model.quantization, case.spec.quantization
    plan = case.memory
    weights = f"Weights take {plan.weights_gib:.2f} GiB on each accelerator." if plan else _UNKNOWN
    return FlagRow(
        flag="--quantization",
        value=said or own or "none",
        default=own or "none",
        differs=said is not None and said != own,
        does=weights,
        trades=_quantization_trade(case, said or own),
    )


def _quantization_trade(case: Case, method: str | None) -> str:
    if method:
        bits = case.model.quantization_bits
        size = f"{bits}-bit weights" if bits else "quantized weights"
        return f"Quality against memory and speed: {size} are smaller and sooner read."
    fp8 = case.plan(quantization="fp8")
    if fp8 is None or case.device.kind != "gpu":
        return "Quality against memory: 16 bits, as trained; list_models has quantized checkpoints."
    return (
        f"Quality against memory: with fp8 the weights would take {fp8.weights_gib:.2f} GiB and the"
        f" cache would hold {at_once(fp8)} requests of full length."
    )


def _dtype(case: Case) -> FlagRow:
    said = case.spec.dtype
    kind = case.model.dtype or "not known"
    return FlagRow(
        flag="--dtype",
        value=said or f"auto ({kind})",
        default=f"auto: the checkpoint's, {kind}",
        differs=said not in {None, "auto", kind},
        does="What is not quantized, and all arithmetic, is of this type.",
        trades="Range against hardware: bfloat16 needs SM 8.0 or newer; float16 overflows sooner.",
    )


def _offload(case: Case) -> FlagRow:
    said = case.spec.cpu_offload_gb or 0
    without = case.plan(cpu_offload_gb=None)
    needed = bool(said and without and not without.fits)
    return FlagRow(
        flag="--cpu-offload-gb",
        value=f"{said:g}",
        default="0",
        differs=bool(said),
        does=f"{said:g} GiB of weights lie in the host's memory."
        if said
        else "All weights lie on the accelerator."
        if case.device.kind != "cpu"
        else "Nothing: there is only the host's memory.",
        trades=_offload_trade(case, needed=needed),
    )


def _offload_trade(case: Case, *, needed: bool) -> str:
    device = case.device
    if not (device.bandwidth_gb_per_s and device.pcie_gb_per_s):
        return "Memory against speed: what is offloaded is moved for every step."
    times = device.bandwidth_gb_per_s / device.pcie_gb_per_s
    why = " Without it the model would not fit." if needed else ""
    return (
        f"Memory against speed: every step moves what is offloaded over PCIe,"
        f" {device.pcie_gb_per_s:.0f} GB/s against {device.bandwidth_gb_per_s:,.0f} GB/s of its own"
        f" memory, {times:.0f} times slower.{why}"
    )


def _tokens(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"
