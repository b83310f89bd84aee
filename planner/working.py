"""What an engine needs beside weights and cache: activations, sampler, graphs, libraries."""

from collections.abc import Iterator

from core.plans import MemoryPart
from core.records import ModelShape
from planner.accelerators import Accelerator
from planner.defaults import Resolved, most_tokens_of_an_item
from planner.flags import Flags
from planner.overheads import GIB, MIB, overheads, part


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
    parts = [max(_peaks(model, flags, known), key=lambda peak: peak.gib.expected)]
    if not flags.enforce_eager:
        parts.append(_graphs(model, accelerator, known))
    apart = numbers.non_torch_gib + (numbers.nccl_gib if known.tensor_parallel > 1 else 0)
    why = "growth of the CUDA context" + (" and NCCL" if known.tensor_parallel > 1 else "")
    parts.append(part("libraries", apart * GIB, why, uncertain=numbers.uncertain.non_torch))
    return tuple(parts)


def _peaks(model: ModelShape, flags: Flags, known: Resolved) -> Iterator[MemoryPart]:
    # They come one after another, so only the largest counts.
    uncertain, ways = overheads().uncertain.activations, known.tensor_parallel
    tokens, element, hidden = (
        known.max_num_batched_tokens,
        known.element_bytes,
        model.hidden_size or 0,
    )
    inner = 3 * (model.intermediate_size or 0) / ways
    if model.num_experts:
        wide = model.moe_intermediate_size / ways
        inner += model.experts_per_token * (max(2 * wide, hidden) + wide)
    width = round(inner + 3 * hidden)
    what = f"{tokens:,} tokens x {width:,} x {element}"
    yield part("activations", tokens * width * element, what, uncertain=uncertain)

    seqs, vocab, copies = known.max_num_seqs, model.vocab_size or 0, overheads().sampler_copies
    size = seqs * vocab * 4 * copies + tokens * hidden * element
    what = f"{seqs:,} sequences x {vocab:,} tokens x 4 bytes x {copies}, and the hidden states"
    yield part("sampler", size, what, uncertain=uncertain)

    if most_tokens_of_an_item(model, flags) and model.vision_intermediate_size:
        patches = overheads().vision_patches
        width = 3 * model.vision_intermediate_size + 4 * model.vision_hidden_size
        what = f"{patches:,} patches of a video x {width:,} x {element}"
        yield part("vision encoder", patches * width * element, what, uncertain=uncertain)


def _graphs(model: ModelShape, accelerator: Accelerator, known: Resolved) -> MemoryPart:
    most = min(2 * known.max_num_seqs, 1024 if accelerator.sm == 10.0 else 512)
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
