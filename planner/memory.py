"""How much memory a model takes on an accelerator, and what is left for its KV cache."""

import functools
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.records import (
    DeploymentSpec,
    Gib,
    KvPlan,
    LayerShape,
    MemoryPart,
    MemoryPlan,
    ModelShape,
    ParameterGroup,
    Record,
    valid,
)
from planner.flags import (
    Flags,
    Resolved,
    most_tokens_of_an_item,
    needs_float32,
    numbers,
    positions,
    refuses_fp16,
    resolve,
)
from planner.kv import plan_kv, plan_kv_tpu
from planner.model import MXFP4
from planner.places import Accelerator, upstream_doubts
from planner.tensors import QUANTIZABLE

GIB: Final = 2**30
MIB: Final = 2**20
_FILE: Final = Path(__file__).with_name("overheads.toml")


class Uncertain(Record):
    """How far off each estimate may be, as a share of it."""

    weights: float
    experts: float
    mxfp4: float
    activations: float
    sampler: float
    all_reduce: float
    graphs: float
    non_torch: float
    tpu_weights: float
    cpu_processes: float


class Overheads(Record):
    """The numbers, as the file explains them."""

    repack_slack_gib: float
    marlin_fp8_scale_bytes: float
    cublas_mib: float
    cublas_mib_before_sm90: float
    graph_mib_per_layer: float
    nccl_gib: float
    all_reduce_gib: float
    mxfp4_outside_gib: float
    vision_patches: int
    tpu_programs_gib: float
    cpu_processes_gib: float
    uncertain: Uncertain


@functools.cache
def overheads() -> Overheads:
    """Give the numbers."""
    return valid(Overheads, tomllib.loads(_FILE.read_text("utf-8")))


def part(name: str, size: float, *derivation: str, uncertain: float = 0.0) -> MemoryPart:
    """Make a part of a plan from its bytes."""
    gib = size / GIB
    around = Gib(low=gib * (1 - uncertain), expected=gib, high=gib * (1 + uncertain))
    return MemoryPart(name=name, gib=around, derivation=derivation)


def refusals(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[str]:
    """Give each reason why these flags cannot start, in a sentence."""
    yield from _precision(model, accelerator, flags)
    yield from _lengths(model, flags, known)
    yield from _sharding(model, known)
    util = known.gpu_memory_utilization
    if accelerator.kind == "gpu" and not flags.kv_cache_memory_bytes:
        yield from _utilization(accelerator, util)
        yield from _mxfp4(model, accelerator, flags, known)
    if accelerator.kind == "tpu":
        yield from _tpu(model, accelerator, flags, util)


def warnings(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[str]:
    """Give what starts but should be known."""
    sm = accelerator.sm or 99
    if sm < 8 and any(layer.head_size > 256 for layer in model.layers):
        yield (
            f"{accelerator.title} has 64 KiB of shared memory: vLLM's Triton attention of heads "
            "beyond 256 needs 96 and dies (OutOfResources) unless patched."
        )
    if needs_float32(model, accelerator, flags):
        yield (
            f"{accelerator.title} has no bf16, and vLLM does not run {model.model_type} in fp16:"
            " it takes float32, which doubles weights and cache."
        )
    elif not accelerator.bf16 and flags.dtype in {None, "auto", "bfloat16"}:
        yield f"{accelerator.title} has no bf16: vLLM casts to fp16."
    if accelerator.kind == "gpu" and known.max_num_seqs >= 512 and flags.max_num_seqs is None:
        yield (
            f"vLLM's default of {known.max_num_seqs} sequences here reserves sampler memory; "
            "--max-num-seqs 256 leaves more for the cache."
        )
    if accelerator.kind == "tpu" and (model.model_type or "").startswith("gemma4_unified"):
        yield "tpu-inference 0.32 has no JAX build of this model: its torch path may take more."
    yield from upstream_doubts(model.model, accelerator.name, flags.vllm_version, "default")
    if known.profile.graphs_estimated is False and not flags.enforce_eager:
        yield "This version does not count CUDA graphs: it may run out of memory after its start."
    yield from model.unknown


def _precision(model: ModelShape, accelerator: Accelerator, flags: Flags) -> Iterator[str]:
    sm = "" if accelerator.sm is None else f" (SM {accelerator.sm})"
    if (flags.kv_cache_dtype or "").startswith("fp8") and not accelerator.fp8_kv:
        yield f"An fp8 KV cache needs SM 8.9 or newer; {accelerator.title}{sm} has none."
    fp8 = flags.quantization == "fp8" or model.quantization_bits == 8
    if fp8 and accelerator.sm is not None and accelerator.sm < 8.0:
        yield f"fp8 weights need SM 8.0 or newer; {accelerator.title}{sm} has none."
    if flags.dtype in {"float16", "half"} and refuses_fp16(model):
        yield f"vLLM does not run {model.model_type} in float16 (numerical instability)."
    if model.quantization and needs_float32(model, accelerator, flags):
        yield (
            f"{accelerator.title}{sm} has no bfloat16, vLLM does not run {model.model_type} in"
            " float16, and quantized weights do not run in float32."
        )
    if not accelerator.bf16 and flags.dtype == "bfloat16":
        yield f"{accelerator.title}{sm} has no bfloat16."


def _lengths(model: ModelShape, flags: Flags, known: Resolved) -> Iterator[str]:
    most = positions(model, flags)
    if most and known.max_model_len > most:
        yield f"--max-model-len {known.max_model_len:,} is beyond the model's {most:,} positions."
    item = most_tokens_of_an_item(model, flags)
    if flags.disable_chunked_mm_input and known.max_num_batched_tokens < item:
        yield (
            f"--max-num-batched-tokens {known.max_num_batched_tokens:,} is below {item:,}, the "
            "largest image or video, and --disable-chunked-mm-input forbids to split it."
        )


def _sharding(model: ModelShape, known: Resolved) -> Iterator[str]:
    ways = known.tensor_parallel
    heads = model.num_attention_heads or ways
    if heads % ways:
        yield f"{heads} attention heads cannot be shared by {ways} accelerators."
    for count in sorted({layer.kv_heads for layer in model.layers}):
        if count % ways and ways % count:
            yield f"{count} KV heads cannot be shared by {ways} accelerators."


def _utilization(accelerator: Accelerator, util: float) -> Iterator[str]:
    if accelerator.memory_gib and util > accelerator.free_at_start:
        free = accelerator.memory_gib * accelerator.free_at_start
        yield (
            f"--gpu-memory-utilization {util} asks for {util * accelerator.memory_gib:.2f} GiB; "
            f"{free:.2f} of {accelerator.memory_gib:.2f} GiB are free at the start."
        )


def _mxfp4(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[str]:
    counted = known.profile.graphs_estimated or flags.enforce_eager
    old = numbers(known.profile.version) < (0, 18)  # gpt-oss-120b ran at 0.95 with 0.11.0
    if model.quantization != MXFP4 or counted or old or not accelerator.memory_gib:
        return
    share = accelerator.free_at_start - known.gpu_memory_utilization
    need, outside = overheads().mxfp4_outside_gib, share * accelerator.memory_gib
    if 0 <= outside < need:
        yield (
            f"vLLM {known.profile.version} does not count CUDA graphs, and a MXFP4 model needs"
            f" about {need} GiB beside what --gpu-memory-utilization asks for:"
            f" {known.gpu_memory_utilization} leaves {outside:.2f}."
        )


def _tpu(model: ModelShape, accelerator: Accelerator, flags: Flags, util: float) -> Iterator[str]:
    visible, programs = accelerator.memory_gib or 0.0, overheads().tpu_programs_gib
    if visible * (1 - util) < programs:
        yield (
            f"At --gpu-memory-utilization {util} {visible * (1 - util):.2f} GiB of a chip remain; "
            f"the compiled programs live outside vLLM's budget and need about {programs} GiB."
        )
    old = flags.vllm_version is not None and numbers(flags.vllm_version) < (0, 32)
    if model.quantization_bits == 4 and old:
        yield (
            f"tpu-inference before 0.32 has no int4 weights, and this is {flags.vllm_version}: take"
            " bf16 weights, or an image of 0.32 or newer and its vllm_version."
        )


_FP32: Final = 4
_INT64: Final = 8
_SEGMENTS: Final = 128
"""Rows from which torch sorts them as they are; fewer are sorted together, with row numbers."""
_SEGMENTED: Final = _INT64 + (_FP32 + _INT64)
"""A second index, and what CUB exchanges keys and indices with."""
_FULL: Final = 2 * _INT64 + _FP32 + (_FP32 + _INT64)
"""Index and row number, twice; keys; and what CUB exchanges them with."""
_FUSING: Final = {9, 10}
_HOPPERS: Final = 132
"""Multiprocessors of the H100 that `libraries_gib` was measured on."""


def working_parts(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> tuple[MemoryPart, ...]:
    """Give what vLLM's profile run finds on a GPU, and what its processes take on a CPU."""
    numbers = overheads()
    if accelerator.kind == "cpu" and accelerator.memory_gib is not None:
        why = "Python and PyTorch, API server and engine core"
        size, uncertain = numbers.cpu_processes_gib * GIB, numbers.uncertain.cpu_processes
        return (part("processes", size, why, uncertain=uncertain),)
    if accelerator.kind != "gpu":
        return ()
    parts = [max(_peaks(model, accelerator, flags, known), key=lambda peak: peak.gib.expected)]
    if _keeps_workspace(model, known):
        parts += _experts(model, known)
    if not flags.enforce_eager:
        parts.append(_graphs(model, accelerator, known))
    return (*parts, *_libraries(accelerator, known))


def _libraries(accelerator: Accelerator, known: Resolved) -> Iterator[MemoryPart]:
    numbers, several = overheads(), known.tensor_parallel > 1
    # A context keeps the same for each multiprocessor.
    size = (accelerator.multiprocessors or _HOPPERS) / _HOPPERS
    apart = known.profile.libraries_gib * size + (numbers.nccl_gib if several else 0)
    why = "growth of the CUDA context" + (" and NCCL" if several else "")
    yield part("libraries", apart * GIB, why, uncertain=numbers.uncertain.non_torch)
    if several and known.profile.fuses_all_reduce and (accelerator.sm or 0) // 1 in _FUSING:
        size, why = numbers.all_reduce_gib * GIB, "FlashInfer's buffers on such accelerators"
        yield part("fused all-reduce", size, why, uncertain=numbers.uncertain.all_reduce)


def _peaks(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[MemoryPart]:
    # They come one after another, so only the largest counts.
    uncertain, ways = overheads().uncertain, known.tensor_parallel
    tokens, element, hidden = (
        known.max_num_batched_tokens,
        known.element_bytes,
        model.hidden_size or 0,
    )
    width = round(3 * (model.intermediate_size or 0) / ways + 3 * hidden)
    what = f"{tokens:,} tokens x {width:,} x {element}"
    beside = 0.0 if _keeps_workspace(model, known) else _experts_bytes(model, known)
    size = tokens * width * element + beside
    yield part("activations", size, what, uncertain=uncertain.activations)
    yield _sampler(model, accelerator, known)
    if most_tokens_of_an_item(model, flags) and model.vision_intermediate_size:
        patches = overheads().vision_patches
        width = 3 * model.vision_intermediate_size + 4 * model.vision_hidden_size
        what = f"{patches:,} patches of a video x {width:,} x {element}"
        yield part(
            "vision encoder", patches * width * element, what, uncertain=uncertain.activations
        )


def _sampler(model: ModelShape, accelerator: Accelerator, known: Resolved) -> MemoryPart:
    """Count the tensors that are there at once when vLLM samples once for every sequence.

    source: the wheels named in versions.toml, v1/sample and v1/worker/gpu_model_runner.py; of a
    sort also torch 2.9 aten/src/ATen/native/cuda/SortStable.cu.
    """
    seqs, vocab, element = known.max_num_seqs, model.vocab_size or 0, known.element_bytes
    each = element + _FP32  # as computed, and for the sampler
    buffer = 0
    if known.profile.sampler != "sort":
        each += 2 * _FP32  # probabilities, and noise to divide them by
        rows = min(1 << max(0, seqs - 1).bit_length(), accelerator.multiprocessors)
        buffer = rows * vocab * _FP32
    else:
        each += _FP32 + _INT64 + (_SEGMENTED if seqs >= _SEGMENTS else _FULL)
    hidden = (model.hidden_size or 0) * element
    numbers = overheads()
    new = (accelerator.sm or 0) >= 9.0
    blas = (numbers.cublas_mib if new else numbers.cublas_mib_before_sm90) * MIB
    states = known.max_num_batched_tokens * hidden + 2 * seqs * hidden
    made = part(
        "sampler",
        seqs * vocab * each + buffer + states + blas,
        f"{seqs:,} sequences x {vocab:,} tokens x {each} bytes, the hidden states and workspaces",
        uncertain=numbers.uncertain.sampler,
    )
    if known.profile.sampler != "v2":
        return made
    least = (seqs * vocab * element + states) / GIB
    return made.model_copy(update={"gib": made.gib.model_copy(update={"low": least})})


def _keeps_workspace(model: ModelShape, known: Resolved) -> bool:
    return known.profile.keeps_workspace and model.quantization != MXFP4


def _experts(model: ModelShape, known: Resolved) -> Iterator[MemoryPart]:
    if size := _experts_bytes(model, known):
        what = f"{known.max_num_batched_tokens:,} tokens x {model.experts_per_token} experts each"
        yield part("experts' workspace", size, what, uncertain=overheads().uncertain.activations)


def _experts_bytes(model: ModelShape, known: Resolved) -> float:
    """Return what vLLM's kernels for experts work in.

    source: vllm 0.32.0 fused_moe/experts, workspace_shapes of TritonExperts and MarlinExperts
    """
    if not model.num_experts:
        return 0.0
    inner = model.moe_intermediate_size / known.tensor_parallel
    hidden = model.hidden_size or 0
    wide = max(inner, hidden) + max(2 * inner, hidden)
    return known.max_num_batched_tokens * model.experts_per_token * wide * known.element_bytes


def _graphs(model: ModelShape, accelerator: Accelerator, known: Resolved) -> MemoryPart:
    larger = accelerator.sm == 10.0 or model.model_type == "gpt_oss"
    most = min(2 * known.max_num_seqs, 1024 if larger else 512)
    sizes = capture_sizes(most)
    full = sum(size <= known.max_num_seqs for size in sizes)
    each = overheads().graph_mib_per_layer * len(model.layers)
    return part(
        "CUDA graphs",
        (len(sizes) + full) * each * MIB,
        f"{len(sizes)} piecewise and {full} full graphs x {each:.1f} MiB",
        uncertain=overheads().uncertain.graphs,
    )


def capture_sizes(most: int) -> tuple[int, ...]:
    """Give the batch sizes that vLLM captures.

    >>> capture_sizes(16)
    (1, 2, 4, 8, 16)
    """
    sizes = (1, 2, 4, *range(8, 257, 8), *range(272, most + 1, 16))
    return tuple(size for size in sizes if size <= most)


_SHARDED: Final = frozenset({"linear", "experts", "embedding", "per_layer_embedding", "lm_head"})
_SHARDED_ON_TPU: Final = _SHARDED | {"vision", "shared_kv"}
# source: inferred from 18,523 blocks on v6e-4 (2026-11-20); on GPUs read in vllm 0.32.0.
_TOWERS: Final = frozenset({"vision", "audio"})
_HOPPER: Final = 9.0
_STORED_ELEMENT: Final = {"float32": 4}
_OFFLOADED: Final = QUANTIZABLE | {"other"}
"""Only decoder layers go to the host, each as it is made."""


class Resident(NamedTuple):
    """The parts that stay, and the one that passes."""

    parts: tuple[MemoryPart, ...]
    offloaded: float
    """Bytes kept in the host's memory."""
    transient: MemoryPart | None
    """Needed only while loading."""

    @property
    def gib(self) -> float:
        """Of all parts that stay."""
        return sum(each.gib.expected for each in self.parts) - self.offloaded / GIB

    @property
    def peak_gib(self) -> float:
        """While loading, before the repack leaves its slack."""
        slack = sum(each.gib.expected for each in self.parts if each.name == "repack slack")
        passing = self.transient.gib.expected if self.transient else 0.0
        return self.gib - slack + passing


def resident(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Resident:
    """Say what one accelerator holds once the model is loaded."""
    parts = (
        *_weights(model, accelerator, flags, known),
        *_extras(model, accelerator, flags, known),
    )
    layers = sum(each.gib.expected * GIB for each in parts if each.name in _OFFLOADED)
    return Resident(
        parts=parts,
        offloaded=min((flags.cpu_offload_gb or 0) * GIB, layers),
        transient=_transient(model, accelerator, known),
    )


def _weights(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[MemoryPart]:
    ways = known.tensor_parallel
    for group in model.groups:
        size = _group_bytes(group, model, accelerator, flags, known)
        if not size:
            continue
        shared = group.name in (_SHARDED_ON_TPU if accelerator.kind == "tpu" else _SHARDED)
        each = size / ways if shared else size
        yield part(
            group.name,
            each,
            f"{group.parameters:,} parameters, {size:,.0f} bytes ({group.provenance})"
            + (f" over {ways} accelerators" if shared and ways > 1 else ""),
            uncertain=_uncertain(group, model),
        )


def _uncertain(group: ParameterGroup, model: ModelShape) -> float:
    shares = overheads().uncertain
    if group.name != "experts" or not model.quantization:
        return shares.weights
    return shares.mxfp4 if model.quantization == MXFP4 else shares.experts


def _group_bytes(
    group: ParameterGroup,
    model: ModelShape,
    accelerator: Accelerator,
    flags: Flags,
    known: Resolved,
) -> float:
    tpu = accelerator.kind == "tpu"
    if group.name in _TOWERS and flags.language_model_only:
        return 0
    if tpu and group.name == "audio":  # tpu-inference loads text and vision only.
        return 0
    size: float = group.stored_bytes if tpu and group.name == "shared_kv" else group.resident_bytes
    if model.quantization == MXFP4 and group.name == "experts" and accelerator.kind == "gpu":
        return size * _padded(model, accelerator, known)
    if model.quantization and group.name in QUANTIZABLE:
        return size
    if flags.quantization == "fp8" and group.name in QUANTIZABLE:
        return group.parameters
    return size * known.element_bytes / _STORED_ELEMENT.get(model.dtype or "", 2)


def _padded(model: ModelShape, accelerator: Accelerator, known: Resolved) -> float:
    """Return how much larger MXFP4 experts are once vLLM has padded them for its kernels.

    source: vllm 0.18.0 quantization/mxfp4.py and 0.28.0 fused_moe/oracle/mxfp4.py: Marlin, which
    pads the most. Of Triton's layout on SM 9.0 inferred from gpt-oss-20b and -120b, 13.47 and
    64.38 GiB with vLLM 0.11.0 (llm-d-planner docs/empirical-vllm-memory-results.md, 2026-04-27).
    """
    inner, hidden = model.moe_intermediate_size / known.tensor_parallel, model.hidden_size or 0
    if not (inner and hidden):
        return 1.0
    wider = math.ceil(hidden / 256) * 256 / hidden
    if accelerator.sm == _HOPPER and known.profile.mxfp4_on_hopper == "triton":
        return wider
    return wider * math.ceil(inner / 128) * 128 / inner


def _extras(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[MemoryPart]:
    yield from _key_values(model, accelerator, known)
    if accelerator.kind == "tpu":
        return
    heads = {(layer.attention, layer.head_size) for layer in model.layers}
    stretched = {"full": model.rope_factor, "sliding": 1.0}
    width = round(sum(size * stretched[attention] for attention, size in heads))
    positions = model.max_position_embeddings or 0
    rope = positions * width * known.element_bytes
    yield part("rope caches", rope, f"{positions:,} positions x {width} x {known.element_bytes}")
    if model.per_layer_embedding_size and model.vision:
        tokens, wide = known.max_num_batched_tokens, model.per_layer_embedding_size
        size = tokens * len(model.layers) * wide * known.element_bytes
        yield part("per-layer buffer", size, f"{tokens:,} tokens x {len(model.layers)} x {wide}")
    if accelerator.kind == "gpu":
        yield from _repack(model, accelerator, flags, known)


def _key_values(
    model: ModelShape, accelerator: Accelerator, known: Resolved
) -> Iterator[MemoryPart]:
    linear = model.group("linear")
    if linear is None or not linear.parameters:
        return
    own = [layer for layer in model.layers if not layer.shares_kv]
    each = (model.hidden_size or 0) * linear.resident_bytes / linear.parameters
    twice = sum(_rows(layer, known) for layer in own if layer.attention == "full")
    if model.k_eq_v and accelerator.kind != "tpu":
        yield part(
            "keys loaded twice", twice * each, f"{twice:,.0f} rows where values are the keys"
        )
    copies = sum(
        2 * (_rows(layer, known) - layer.kv_heads * layer.head_size / known.tensor_parallel)
        for layer in own
    )
    if copies:
        yield part("key-value copies", copies * each, "fewer KV heads than accelerators")


def _rows(layer: LayerShape, known: Resolved) -> int:
    return max(1, layer.kv_heads // known.tensor_parallel) * layer.head_size


def _repack(
    model: ModelShape, accelerator: Accelerator, flags: Flags, known: Resolved
) -> Iterator[MemoryPart]:
    numbers, linear, experts = overheads(), model.group("linear"), model.group("experts")
    int4 = model.quantization_bits == 4 and accelerator.sm is not None
    int4 = int4 and model.quantization != MXFP4
    fp8 = model.quantization_bits == 8 or flags.quantization == "fp8"
    if fp8 and not accelerator.fp8_compute:
        both = sum(group.parameters for group in (linear, experts) if group)
        scales = both * numbers.marlin_fp8_scale_bytes / known.tensor_parallel
        yield part("fp8 scales for Marlin", scales, "a bf16 scale for every 128 weights")
    elif not int4:
        return
    slack = numbers.repack_slack_gib * GIB
    why = [f"{numbers.repack_slack_gib} GiB that the allocator keeps after repacking"]
    if experts:
        slack += experts.resident_bytes / len(model.layers) / known.tensor_parallel
        why.append("and one layer's experts")
    yield part("repack slack", slack, *why, uncertain=0.5)


def _transient(model: ModelShape, accelerator: Accelerator, known: Resolved) -> MemoryPart | None:
    if not model.tied or accelerator.kind != "gpu":
        return None
    rows, wide, ways = model.vocab_size or 0, model.hidden_size or 0, known.tensor_parallel
    size = rows * wide * known.element_bytes / ways
    return part(
        "second token table",
        size,
        f"{rows:,} x {wide:,} x {known.element_bytes} / {ways}: made for the output layer, "
        "and freed when it is tied to the embedding",
    )


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


def foresee(
    spec: DeploymentSpec,
    model: ModelShape,
    accelerator: Accelerator | None,
    *,
    vllm_version: str | None = None,
) -> MemoryPlan | None:
    """Plan a spec's memory; None where nothing can be said without guessing.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
    """
    if accelerator is None or not (model.layers and model.groups):
        return None
    if accelerator.memory_gib is None and spec.kv_cache_memory_bytes is None:
        return None
    return plan_memory(model, accelerator, Flags.of(spec, vllm_version=vllm_version))
