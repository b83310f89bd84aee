"""How much memory a model takes on an accelerator, and what is left for its KV cache."""

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from core.environment import read_toml
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

_BF16: Final = 2
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
    return valid(Overheads, read_toml(_FILE))


_SEEN_TO_BOOT: Final = 8192
_SEEN_NOT_TO: Final = 16_384
"""Lengths of the bf16 12B on one v6e: the first booted, the second did not, though by its figures
it fits. Why was not kept. source: an owner's deployments with vllm-tpu, noted 2026-11-20"""


class Case(NamedTuple):
    """A model on accelerators of one kind, and vLLM's flags with what it makes of them."""

    model: ModelShape
    device: Accelerator
    flags: Flags
    known: Resolved

    @classmethod
    def of(cls, model: ModelShape, device: Accelerator, flags: Flags) -> Self:
        """Resolve the flags.

        Raises:
            InvalidArgument: A flag is none that vLLM takes.
            Unsupported: The model's shape is not known.
        """
        return cls(model, device, flags, resolve(model, device, flags))

    @property
    def uses_mxfp4(self) -> bool:
        """Whether its experts have four bits and a shared scale."""
        return self.model.quantization == MXFP4

    @property
    def is_unified(self) -> bool:
        """Whether it is the 12B, of which tpu-inference has no build of its own."""
        return (self.model.model_type or "").startswith("gemma4_unified")

    @property
    def longest_seen(self) -> int | None:
        """The greatest length that was seen to boot, where a greater one was seen not to."""
        alone = self.device.name == "v6e" and self.known.tensor_parallel == 1
        bf16 = self.model.quantization is None and self.flags.quantization is None
        return _SEEN_TO_BOOT if self.is_unified and alone and bf16 else None

    @property
    def requested_gib(self) -> float | None:
        """What vLLM may take of an accelerator; None where its memory is not known."""
        if self.device.memory_gib is None:
            return None
        if self.device.kind == "cpu" and self.flags.gpu_memory_utilization is None:
            return self.device.free_gib
        return self.device.memory_gib * self.known.gpu_memory_utilization

    @property
    def doubts_fp8(self) -> bool:
        """Whether a cache of 8 bits is asked for where one of 16 was seen to be made of it."""
        return self.device.kind == "tpu" and self.known.ask.element_bytes < _BF16

    def divide(self, kv_cache_bytes: int, *, surely: bool = False) -> KvPlan:
        """Divide a cache as the engine there does; `surely` as it does at worst."""
        ask = self.known.ask
        if surely and self.doubts_fp8:
            ask = ask._replace(element_bytes=_BF16)
        if self.device.kind == "tpu":
            seqs = self.known.max_num_seqs
            found = plan_kv_tpu(self.model, kv_cache_bytes, ask, max_num_seqs=seqs)
            most = min(found.max_len_that_fits, self.longest_seen or found.max_len_that_fits)
            return found.model_copy(update={"max_len_that_fits": most})
        return plan_kv(self.model, kv_cache_bytes, ask)


def _part(name: str, size: float, uncertain: float = 0.0) -> MemoryPart:
    """Make a part of a plan from its bytes, which may be so much off, as a share."""
    gib = size / GIB
    around = Gib(low=gib * (1 - uncertain), expected=gib, high=gib * (1 + uncertain))
    return MemoryPart(name=name, gib=around)


def _refusals(case: Case) -> Iterator[str]:
    """Give each reason why these flags cannot start, in a sentence."""
    kind = case.device.kind
    yield from _precision(case)
    yield from _lengths(case)
    yield from _sharding(case)
    if kind == "gpu" and not case.flags.kv_cache_memory_bytes:
        yield from _utilization(case)
    if kind == "tpu":
        yield from _tpu(case)


def _warnings(case: Case) -> Iterator[str]:
    """Give what starts but should be known."""
    model, device, flags, known = case
    widest = max((layer.head_size for layer, _ in model.layer_kinds), default=0)
    if (device.sm or 99) < 8 and widest * known.element_bytes > 512:
        yield (
            f"{device.title} has 64 KiB of shared memory: vLLM's Triton attention of heads of"
            f" {widest} in {known.element_bytes * 8} bits needs 96 or more and dies"
            " (OutOfResources) unless patched."
        )
    if needs_float32(model, device, flags):
        yield (
            f"{device.title} has no bf16, and vLLM does not run {model.model_type} in fp16:"
            " it takes float32, which doubles weights and cache."
        )
    elif not device.bf16 and flags.dtype in {None, "auto", "bfloat16"}:
        yield f"{device.title} has no bf16: vLLM casts to fp16."
    if device.kind == "gpu" and known.max_num_seqs >= 512 and flags.max_num_seqs is None:
        yield (
            f"vLLM's default of {known.max_num_seqs} sequences here reserves sampler memory; "
            "--max-num-seqs 256 leaves more for the cache."
        )
    beyond = case.longest_seen and known.max_model_len > case.longest_seen
    if device.kind == "tpu" and case.is_unified and not beyond:
        yield (
            "tpu-inference 0.32 has no JAX build of this model, and its torch path may take more:"
            f" one v6e was seen to boot the 12B at {_SEEN_TO_BOOT:,} tokens and not at"
            f" {_SEEN_NOT_TO:,}, which bills as well."
        )
    if case.doubts_fp8:
        yield (
            "A v6e that said fp8 was seen to allocate a bf16 KV cache: whether it fits, and how"
            " many it holds, is judged by 16 bits."
        )
    yield from upstream_doubts(model.model, device.name, flags.vllm_version, "default")
    if not known.profile.graphs_estimated and not flags.enforce_eager:
        yield "This version does not count CUDA graphs: it may run out of memory after its start."
    yield from model.unknown


def _precision(case: Case) -> Iterator[str]:
    model, device, flags, _ = case
    where = device.title if device.sm is None else f"{device.title} (SM {device.sm})"
    if (flags.kv_cache_dtype or "").startswith("fp8") and not device.fp8_kv:
        yield f"An fp8 KV cache needs SM 8.9 or newer; {where} has none."
    fp8 = flags.quantization == "fp8" or model.quantization_bits == 8
    if fp8 and device.sm is not None and device.sm < 8.0:
        yield f"fp8 weights need SM 8.0 or newer; {where} has none."
    if flags.dtype in {"float16", "half"} and refuses_fp16(model):
        yield f"vLLM does not run {model.model_type} in float16 (numerical instability)."
    if model.quantization and needs_float32(model, device, flags):
        yield (
            f"{where} has no bfloat16, vLLM does not run {model.model_type} in"
            " float16, and quantized weights do not run in float32."
        )
    if not device.bf16 and "bfloat16" in {flags.dtype, flags.kv_cache_dtype}:
        yield f"{where} has no bfloat16, also not for a KV cache."


def _lengths(case: Case) -> Iterator[str]:
    model, _, flags, known = case
    most = positions(model, flags)
    if most and known.max_model_len > most:
        yield f"--max-model-len {known.max_model_len:,} is beyond the model's {most:,} positions."
    item = most_tokens_of_an_item(model, flags)
    if flags.disable_chunked_mm_input and known.max_num_batched_tokens < item:
        yield (
            f"--max-num-batched-tokens {known.max_num_batched_tokens:,} is below {item:,}, the "
            "largest image or video, and --disable-chunked-mm-input forbids to split it."
        )


def _sharding(case: Case) -> Iterator[str]:
    ways = case.known.tensor_parallel
    heads = case.model.num_attention_heads or ways
    if heads % ways:
        yield f"{heads} attention heads cannot be shared by {ways} accelerators."
    for count in sorted({layer.kv_heads for layer, _ in case.model.layer_kinds}):
        if count % ways and ways % count:
            yield f"{count} KV heads cannot be shared by {ways} accelerators."


def _utilization(case: Case) -> Iterator[str]:
    known, memory, share = case.known, case.device.memory_gib, case.device.free_at_start
    util, version = known.gpu_memory_utilization, known.profile.version
    if not memory:
        return
    if util > share:
        yield (
            f"--gpu-memory-utilization {util} asks for {util * memory:.2f} GiB; "
            f"{memory * share:.2f} of {memory:.2f} GiB are free at the start."
        )
    counted = known.profile.graphs_estimated or case.flags.enforce_eager
    old = numbers(version) < (0, 18)  # gpt-oss-120b ran at 0.95 with 0.11.0
    need, outside = overheads().mxfp4_outside_gib, (share - util) * memory
    if case.uses_mxfp4 and not counted and not old and 0 <= outside < need:
        yield (
            f"vLLM {version} does not count CUDA graphs, and a MXFP4 model needs"
            f" about {need} GiB beside what --gpu-memory-utilization asks for:"
            f" {util} leaves {outside:.2f}."
        )


def _tpu(case: Case) -> Iterator[str]:
    if case.longest_seen and case.known.max_model_len > case.longest_seen:
        yield (
            f"One v6e was seen to boot it at {_SEEN_TO_BOOT:,} tokens and not at"
            f" {_SEEN_NOT_TO:,}: nobody has seen it boot beyond {_SEEN_TO_BOOT:,}, and a chip that"
            " boots nothing bills as well."
        )
    util, version = case.known.gpu_memory_utilization, case.flags.vllm_version
    outside, programs = (case.device.memory_gib or 0.0) * (1 - util), overheads().tpu_programs_gib
    if outside < programs:
        yield (
            f"At --gpu-memory-utilization {util} {outside:.2f} GiB of a chip remain; "
            f"the compiled programs live outside vLLM's budget and need about {programs} GiB."
        )
    if case.model.quantization_bits == 4 and version is not None and numbers(version) < (0, 32):
        yield (
            f"tpu-inference before 0.32 has no int4 weights, and this is {version}: take"
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


def _working_parts(case: Case) -> tuple[MemoryPart, ...]:
    """Give what vLLM's profile run finds on a GPU, and what its processes take on a CPU."""
    shares = overheads().uncertain
    if case.device.kind == "cpu" and case.device.memory_gib is not None:
        # Python and PyTorch, API server and engine core.
        return (_part("processes", overheads().cpu_processes_gib * GIB, shares.cpu_processes),)
    if case.device.kind != "gpu":
        return ()
    # Peaks come one after another, so only the largest counts.
    parts = [max(_peaks(case), key=lambda peak: peak.gib.expected)]
    if _keeps_workspace(case) and (size := _experts_bytes(case)):
        parts.append(_part("experts' workspace", size, shares.activations))
    if not case.flags.enforce_eager:
        parts.append(_graphs(case))
    return (*parts, *_libraries(case))


def _libraries(case: Case) -> Iterator[MemoryPart]:
    device, known, fixed = case.device, case.known, overheads()
    several = known.tensor_parallel > 1
    # A context keeps the same for each multiprocessor.
    size = (device.multiprocessors or _HOPPERS) / _HOPPERS * known.profile.libraries_gib
    size += fixed.nccl_gib if several else 0
    yield _part("libraries", size * GIB, fixed.uncertain.non_torch)
    if several and known.profile.fuses_all_reduce and (device.sm or 0) // 1 in _FUSING:
        # FlashInfer's buffers.
        yield _part("fused all-reduce", fixed.all_reduce_gib * GIB, fixed.uncertain.all_reduce)


def _peaks(case: Case) -> Iterator[MemoryPart]:
    model, known = case.model, case.known
    tokens, element = known.max_num_batched_tokens, known.element_bytes
    shares = overheads().uncertain
    inner, hidden = model.intermediate_size or 0, model.hidden_size or 0
    width = round(3 * inner / known.tensor_parallel + 3 * hidden)
    beside = 0.0 if _keeps_workspace(case) else _experts_bytes(case)
    yield _part("activations", tokens * width * element + beside, shares.activations)
    yield _sampler(case)
    if most_tokens_of_an_item(model, case.flags) and model.vision_intermediate_size:
        width = 3 * model.vision_intermediate_size + 4 * model.vision_hidden_size
        size = overheads().vision_patches * width * element
        yield _part("vision encoder", size, shares.activations)


def _sampler(case: Case) -> MemoryPart:
    """Count the tensors that are there at once when vLLM samples once for every sequence.

    source: the wheels named in versions.toml, v1/sample and v1/worker/gpu_model_runner.py; of a
    sort also torch 2.9 aten/src/ATen/native/cuda/SortStable.cu.
    """
    model, device, _, known = case
    seqs, vocab, element = known.max_num_seqs, model.vocab_size or 0, known.element_bytes
    each = element + _FP32  # as computed, and for the sampler
    buffer = 0
    if known.profile.sampler == "sort":
        each += _FP32 + _INT64 + (_SEGMENTED if seqs >= _SEGMENTS else _FULL)
    else:
        each += 2 * _FP32  # probabilities, and noise to divide them by
        buffer = min(1 << max(0, seqs - 1).bit_length(), device.multiprocessors) * vocab * _FP32
    fixed, new = overheads(), (device.sm or 0) >= 9.0
    blas = (fixed.cublas_mib if new else fixed.cublas_mib_before_sm90) * MIB
    states = (known.max_num_batched_tokens + 2 * seqs) * (model.hidden_size or 0) * element
    size = seqs * vocab * each + buffer + states + blas
    made = _part("sampler", size, fixed.uncertain.sampler)
    if known.profile.sampler != "v2":
        return made
    least = (seqs * vocab * element + states) / GIB
    return made.model_copy(update={"gib": made.gib.model_copy(update={"low": least})})


def _keeps_workspace(case: Case) -> bool:
    return case.known.profile.keeps_workspace and not case.uses_mxfp4


def _experts_bytes(case: Case) -> float:
    """Return what vLLM's kernels for experts work in.

    source: vllm 0.32.0 fused_moe/experts, workspace_shapes of TritonExperts and MarlinExperts
    """
    model, known = case.model, case.known
    if not model.num_experts:
        return 0.0
    inner, hidden = model.moe_intermediate_size / known.tensor_parallel, model.hidden_size or 0
    wide = max(inner, hidden) + max(2 * inner, hidden)
    return known.max_num_batched_tokens * model.experts_per_token * wide * known.element_bytes


def _graphs(case: Case) -> MemoryPart:
    seqs = case.known.max_num_seqs
    larger = case.device.sm == 10.0 or case.model.model_type == "gpt_oss"
    most = min(2 * seqs, 1024 if larger else 512)
    captured = (1, 2, 4, *range(8, 257, 8), *range(272, most + 1, 16))
    sizes = [size for size in captured if size <= most]
    full = sum(size <= seqs for size in sizes)
    each = overheads().graph_mib_per_layer * len(case.model.layers)
    return _part("CUDA graphs", (len(sizes) + full) * each * MIB, overheads().uncertain.graphs)


_SHARDED: Final = frozenset({"linear", "experts", "embedding", "per_layer_embedding", "lm_head"})
_SHARDED_ON_TPU: Final = _SHARDED | {"vision", "shared_kv"}
# source: inferred from 18,523 blocks on v6e-4 (2026-11-20); on GPUs read in vllm 0.32.0.
_TOWERS: Final = frozenset({"vision", "audio"})
_HOPPER: Final = 9.0
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


def resident(case: Case) -> Resident:
    """Say what one accelerator holds once the model is loaded."""
    parts = (*_weights(case), *_key_values(case))
    if case.device.kind != "tpu":
        parts = (*parts, *_tables(case))
    if case.device.kind == "gpu":
        parts = (*parts, *_repack(case))
    layers = sum(each.gib.expected * GIB for each in parts if each.name in _OFFLOADED)
    return Resident(
        parts=parts,
        offloaded=min((case.flags.cpu_offload_gb or 0) * GIB, layers),
        transient=_transient(case),
    )


def _weights(case: Case) -> Iterator[MemoryPart]:
    ways = case.known.tensor_parallel
    names = _SHARDED_ON_TPU if case.device.kind == "tpu" else _SHARDED
    for group in case.model.groups:
        size = _group_bytes(group, case)
        if not size:
            continue
        share = size / ways if group.name in names else size
        yield _part(group.name, share, _uncertain(group, case))


def _uncertain(group: ParameterGroup, case: Case) -> float:
    shares = overheads().uncertain
    if group.name != "experts" or not case.model.quantization:
        return shares.weights
    return shares.mxfp4 if case.uses_mxfp4 else shares.experts


def _group_bytes(group: ParameterGroup, case: Case) -> float:
    model, device, flags, known = case
    tpu = device.kind == "tpu"
    if group.name in _TOWERS and flags.language_model_only:
        return 0
    if tpu and group.name == "audio":  # tpu-inference loads text and vision only.
        return 0
    size: float = group.stored_bytes if tpu and group.name == "shared_kv" else group.resident_bytes
    if case.uses_mxfp4 and group.name == "experts" and device.kind == "gpu":
        return size * _padded(case)
    if model.quantization and group.name in QUANTIZABLE:
        return size
    if flags.quantization == "fp8" and group.name in QUANTIZABLE:
        return group.parameters
    return size * known.element_bytes / (4 if model.dtype == "float32" else 2)


def _padded(case: Case) -> float:
    """Return how much larger MXFP4 experts are once vLLM has padded them for its kernels.

    source: vllm 0.18.0 quantization/mxfp4.py and 0.28.0 fused_moe/oracle/mxfp4.py: Marlin, which
    pads the most. Of Triton's layout on SM 9.0 inferred from gpt-oss-20b and -120b, 13.47 and
    64.38 GiB with vLLM 0.11.0 (llm-d-planner docs/empirical-vllm-memory-results.md, 2026-04-27).
    """
    model, known = case.model, case.known
    inner, hidden = model.moe_intermediate_size / known.tensor_parallel, model.hidden_size or 0
    if not (inner and hidden):
        return 1.0
    wider = math.ceil(hidden / 256) * 256 / hidden
    if case.device.sm == _HOPPER and known.profile.mxfp4_on_hopper == "triton":
        return wider
    return wider * math.ceil(inner / 128) * 128 / inner


def _key_values(case: Case) -> Iterator[MemoryPart]:
    model, ways = case.model, case.known.tensor_parallel
    linear = model.group("linear")
    if linear is None or not linear.parameters:
        return
    own = [(layer, count) for layer, count in model.layer_kinds if not layer.shares_kv]
    each = (model.hidden_size or 0) * linear.resident_bytes / linear.parameters
    if model.k_eq_v and case.device.kind != "tpu":
        twice = sum(_rows(layer, ways) * n for layer, n in own if layer.attention == "full")
        yield _part("keys loaded twice", twice * each)
    copies = sum(
        2 * count * (_rows(layer, ways) - layer.kv_heads * layer.head_size / ways)
        for layer, count in own
    )
    if copies:
        yield _part("key-value copies", copies * each)


def _rows(layer: LayerShape, ways: int) -> int:
    return max(1, layer.kv_heads // ways) * layer.head_size


def _tables(case: Case) -> Iterator[MemoryPart]:
    model, element = case.model, case.known.element_bytes
    heads = {(layer.attention, layer.head_size) for layer, _ in model.layer_kinds}
    stretched = {"full": model.rope_factor, "sliding": 1.0}
    width = round(sum(size * stretched[attention] for attention, size in heads))
    rows = model.max_position_embeddings or 0
    yield _part("rope caches", rows * width * element)
    if model.per_layer_embedding_size and model.vision:
        tokens, wide = case.known.max_num_batched_tokens, model.per_layer_embedding_size
        yield _part("per-layer buffer", tokens * len(model.layers) * wide * element)


def _repack(case: Case) -> Iterator[MemoryPart]:
    model, device, flags, known = case
    fixed, linear, experts = overheads(), model.group("linear"), model.group("experts")
    int4 = model.quantization_bits == 4 and device.sm is not None and not case.uses_mxfp4
    fp8 = model.quantization_bits == 8 or flags.quantization == "fp8"
    if fp8 and not device.fp8_compute:
        both = sum(group.parameters for group in (linear, experts) if group)
        scales = both * fixed.marlin_fp8_scale_bytes / known.tensor_parallel
        yield _part("fp8 scales for Marlin", scales)
    elif not int4:
        return
    slack = fixed.repack_slack_gib * GIB
    if experts:  # one layer of them
        slack += experts.resident_bytes / len(model.layers) / known.tensor_parallel
    yield _part("repack slack", slack, uncertain=0.5)


def _transient(case: Case) -> MemoryPart | None:
    """Count the table that is made for the output layer, and freed when it is tied."""
    model, known = case.model, case.known
    if not model.tied or case.device.kind != "gpu":
        return None
    size = (model.vocab_size or 0) * (model.hidden_size or 0) * known.element_bytes
    return _part("second token table", size / known.tensor_parallel)


def plan_memory(model: ModelShape, accelerator: Accelerator, flags: Flags) -> MemoryPlan:
    """Foresee vLLM's memory on `flags.tensor_parallel_size` accelerators of one kind.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    case = Case.of(model, accelerator, flags)
    known, held, work = case.known, resident(case), _working_parts(case)
    cache, how = _cache(case, held, work)
    low, (expected, high) = case.divide(cache[0], surely=True), map(case.divide, cache[1:])
    reasons = (*_refusals(case), *_loading(case, held), *_room(case, held, work, low))
    return MemoryPlan(
        model=model.model,
        accelerator=accelerator.name,
        count=known.tensor_parallel,
        vllm_version=known.profile.version,
        max_model_len=known.max_model_len,
        max_num_seqs=known.max_num_seqs,
        max_num_batched_tokens=known.max_num_batched_tokens,
        gpu_memory_utilization=known.gpu_memory_utilization,
        visible_gib=accelerator.memory_gib,
        requested_gib=case.requested_gib,
        free_gib=accelerator.free_gib if accelerator.memory_gib else None,
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
        warnings=tuple(_warnings(case)),
        derivation=(*known.derivation, *how),
    )


_CPU_SHARES: Final = (0.5, 0.9)
"""Of the free memory, that a KV cache may take: the second where the first holds no request."""
Cache = tuple[int, int, int]
"""Bytes: low, expected, high."""


def _cache(
    case: Case, held: Resident, work: tuple[MemoryPart, ...]
) -> tuple[Cache, tuple[str, ...]]:
    device, flags, known, requested = case.device, case.flags, case.known, case.requested_gib
    if (given := flags.kv_cache_memory_bytes) is not None:
        return (given, given, given), (f"KV cache = --kv-cache-memory-bytes = {given:,}",)
    if requested is None:
        return (0, 0, 0), ("The memory of this accelerator is not known.",)
    if device.kind == "tpu":
        return _tpu_cache(requested, known, held)
    if device.kind == "cpu" and flags.gpu_memory_utilization is None:
        most = held.peak_gib + sum(each.gib.high for each in work)
        return _cpu_cache(case, requested - most)
    if held.peak_gib > device.free_gib:
        return (0, 0, 0), ("Nothing is left for a cache: the model cannot be loaded.",)
    counted = [
        each for each in work if known.profile.graphs_estimated or each.name != "CUDA graphs"
    ]
    taken = sum(each.gib.expected for each in counted)
    less = sum(each.gib.high - each.gib.expected for each in (*held.parts, *counted))
    more = sum(each.gib.expected - each.gib.low for each in (*held.parts, *counted))
    expected = requested - held.gib - taken
    names, util = ", ".join(each.name for each in counted), known.gpu_memory_utilization
    how = (
        f"KV cache = {requested:.2f} - {held.gib:.2f} weights - {taken:.2f} ({names})"
        f" = {expected:.2f} GiB, {less:.2f} less to {more:.2f} more"
    )
    return (_whole(expected - less), _whole(expected), _whole(expected + more)), (
        f"requested = {device.memory_gib} GiB x {util} = {requested:.2f} GiB",
        how,
    )


def _cpu_cache(case: Case, left_gib: float) -> tuple[Cache, tuple[str, ...]]:
    """Take half of what weights and processes leave free, more if one request needs it.

    vLLM's own default is 92 % of the host's memory, which is hardly ever free.
    """
    most = min(left_gib, case.device.cache_gib_most or left_gib)
    size = 0
    for share in _CPU_SHARES:
        size = _whole(most * share) // MIB * MIB
        kv = case.divide(size)
        if kv.fits:
            enough = (case.known.max_num_seqs * kv.blocks_per_request + 1) * kv.bytes_per_block
            size = min(size, -(-enough // MIB) * MIB)
            break
    return (size, size, size), (
        f"KV cache = {size / GIB:.2f} GiB of the {max(0.0, left_gib):.2f} GiB left of what is free",
    )


def _tpu_cache(requested: float, known: Resolved, held: Resident) -> tuple[Cache, tuple[str, ...]]:
    ways = known.tensor_parallel
    apart = held.gib * overheads().uncertain.tpu_weights * ways
    expected = (requested - held.gib) * ways
    how = (
        f"KV cache = {ways} x ({requested:.2f} - {held.gib:.2f} weights) = {expected:.2f} GiB "
        "of all chips; compiled programs live outside"
    )
    return (_whole(expected - apart), _whole(expected), _whole(expected + apart)), (how,)


def _whole(gib: float) -> int:
    return max(0, math.floor(gib * GIB))


def _loading(case: Case, held: Resident) -> Iterator[str]:
    free, passing = case.device.free_gib, held.transient
    if held.peak_gib <= free:
        return
    why = (
        f" ({held.peak_gib - passing.gib.expected:.2f} resident and {passing.gib.expected:.2f} for "
        "a second token table that is freed afterwards)"
        if passing
        else ""
    )
    offloaded = " even with its offload" if case.flags.cpu_offload_gb else ""
    yield (
        f"It runs out of memory while loading{offloaded}: needs {held.peak_gib:.2f} GiB to load"
        f"{why}, {case.device.memory_gib:.2f} GiB is visible and {free:.2f} free."
    )


def _room(case: Case, held: Resident, work: tuple[MemoryPart, ...], low: KvPlan) -> Iterator[str]:
    device, known, given = case.device, case.known, case.flags.kv_cache_memory_bytes
    free, chips = device.free_gib, known.tensor_parallel if device.kind == "tpu" else 1
    if held.peak_gib > free:
        return
    if given is None and device.memory_gib is None:
        yield "The memory of this accelerator is not known: give --kv-cache-memory-bytes."
        return
    beside = held.gib + sum(each.gib.high for each in work)
    most = min(free - beside, device.cache_gib_most or free)
    cache = low.kv_cache_bytes / GIB / chips
    if given is not None and cache > most:
        would = f"a cache of {int(most * chips * 1024)} MiB would fit" if most > 0 else "none would"
        yield (
            f"Weights, work and the cache asked for need {beside + cache:.2f} GiB, "
            f"{free:.2f} are free: {would}."
        )
    is_cpu, reserved = device.kind == "cpu", case.requested_gib or 0.0
    if is_cpu and given is None and reserved > free:
        yield (
            f"gpu_memory_utilization {case.flags.gpu_memory_utilization} is {reserved:.2f} GiB of"
            f" the host's {device.memory_gib:.2f}, {free:.2f} are free: at most"
            f" {int(device.free_at_start * 100) / 100} would fit; left out, it is computed."
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
    pinned: bool = False,
) -> MemoryPlan | None:
    """Plan a spec's memory; None where nothing can be said without guessing.

    `pinned`: where `pinned_cache` gives a size, the engine is started with it.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
    """
    if accelerator is None or not (model.layers and model.groups):
        return None
    if accelerator.memory_gib is None and spec.kv_cache_memory_bytes is None:
        return None
    flags = Flags.of(spec, vllm_version=vllm_version)
    found = plan_memory(model, accelerator, flags)
    size = pinned_cache(found, accelerator, flags) if pinned else None
    if size is None:
        return found
    held = flags.model_copy(update={"kv_cache_memory_bytes": size})
    return plan_memory(model, accelerator, held)


_EXACT: Final = 0.02
"""Of a KV cache that its low estimate may lie below the expected one. Of 58 published boots whose
plans are so narrow, vLLM had less than the low estimate in 5, by 2.6 % at most (the plans that
`make measure` prints, 2026-11); what `_OUTSIDE` leaves free is more than that."""
_OUTSIDE: Final = 0.05
"""Of a card that gpu_memory_utilization must leave free."""


def pinned_cache(found: MemoryPlan, device: Accelerator, flags: Flags) -> int | None:
    """Return the bytes of KV cache to start vLLM with, None where it had better measure itself.

    What vLLM measures depends on what its own start has in memory: a cold one was seen to leave a
    third of the cache of a warm one (vllm-project/vllm issue 54122, 2026). It is the low estimate
    of one GPU's plan, where that is as good as the expected one and the version is known.
    """
    low, expected = found.kv_low.kv_cache_bytes, found.kv_expected.kv_cache_bytes
    said = flags.kv_cache_memory_bytes is not None or flags.num_gpu_blocks_override is not None
    alone = device.kind == "gpu" and found.count == 1 and flags.vllm_version is not None
    narrow = found.fits and expected - low <= _EXACT * expected
    outside = device.free_at_start - found.gpu_memory_utilization
    return low if alone and narrow and not said and outside >= _OUTSIDE else None


_WIDTH: Final = 60
_WORK: Final = frozenset(
    {"activations", "sampler", "vision encoder", "experts' workspace"}
    | {"CUDA graphs", "libraries", "fused all-reduce", "processes"}
)


def work_gib(plan: MemoryPlan) -> float:
    """Give what one accelerator needs beside weights and cache, as vLLM profiles it."""
    return sum(part.gib.expected for part in plan.parts if part.name in _WORK)


def table(plan: MemoryPlan) -> Iterator[str]:
    """Give the verdict, a bar, what it is made of, and what the cache would hold."""
    kv, gib = plan.kv_expected, plan.kv_cache_gib
    shares = (
        ("#", "weights", plan.weights_gib),
        ("+", "work (profiled)", work_gib(plan)),
        ("=", "KV cache", gib.expected / (plan.count if plan.kv_is_shared else 1)),
    )
    head = f"{plan.model} on {plan.count} x {plan.accelerator}, vLLM {plan.vllm_version}"
    yield f"{head}: {'fits' if plan.fits else 'DOES NOT FIT'}"
    yield from (f"  ! {reason}" for reason in plan.reasons)
    yield ""
    total = max(plan.visible_gib or 0.0, sum(size for *_, size in shares)) or 1.0
    drawn, at = "", 0.0
    for mark, _, size in shares:
        at += size
        drawn = drawn.ljust(round(at / total * _WIDTH), mark)
    yield f"  [{drawn:.<{_WIDTH}}]"
    yield from (f"  {mark} {name:<22}{size:8.2f} GiB" for mark, name, size in shares)
    if plan.visible_gib is not None:
        requested = plan.requested_gib or 0.0
        yield f"    {'visible':<22}{plan.visible_gib:8.2f} GiB, of which {requested:.2f} requested"
    yield f"    {'at the loading peak':<22}{plan.load_peak_gib:8.2f} GiB"
    yield ""
    yield f"  KV cache {gib.low:.2f} to {gib.high:.2f} GiB, expected {gib.expected:.2f}:"
    yield f"    {kv.num_blocks:,} blocks, {kv.kv_tokens:,} tokens"
    yield f"    {kv.max_concurrency:.2f} requests of {plan.max_model_len:,} tokens at once"
    yield f"    longest request that surely fits: {plan.kv_low.max_len_that_fits:,} tokens"
    yield from (f"  note: {warning}" for warning in plan.warnings)
