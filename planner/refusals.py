"""What vLLM or the accelerator refuses, whatever the memory."""

from collections.abc import Iterator

from core.records import ModelShape
from planner.accelerators import Accelerator
from planner.defaults import (
    Resolved,
    most_tokens_of_an_item,
    needs_float32,
    refuses_fp16,
)
from planner.flags import Flags, positions
from planner.overheads import overheads
from planner.quantization import MXFP4
from planner.upstream import upstream_doubts
from planner.versions import numbers


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
