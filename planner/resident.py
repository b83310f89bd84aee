"""What a loaded model holds on one accelerator, and what loading takes on top."""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from core.records import LayerShape, MemoryPart, ModelShape, ParameterGroup
from planner.accelerators import Accelerator
from planner.defaults import Resolved
from planner.flags import Flags
from planner.groups import QUANTIZABLE
from planner.overheads import GIB, overheads, part
from planner.quantization import MXFP4

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
