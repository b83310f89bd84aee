"""What an engine needs beside weights and cache: activations, sampler, graphs, libraries."""

from collections.abc import Iterator
from typing import Final

from core.records import MemoryPart, ModelShape
from planner.accelerators import Accelerator
from planner.defaults import Resolved, most_tokens_of_an_item
from planner.flags import Flags
from planner.overheads import GIB, MIB, overheads, part
from planner.quantization import MXFP4

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
