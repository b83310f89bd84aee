"""Parameters by how they are treated: quantized, sharded, tied or dropped together."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from core.records import GroupName, LayerShape, ParameterGroup, Provenance

_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")
_SHARED: Final = re.compile(r"\.(k_proj|v_proj|k_norm)\.")
_MARKS: Final[tuple[tuple[str, GroupName], ...]] = (
    ("vision_tower", "vision"),
    ("vision_model", "vision"),
    ("embed_vision", "vision"),
    ("multi_modal_projector", "vision"),
    ("visual.", "vision"),
    ("audio_tower", "audio"),
    ("embed_audio", "audio"),
    ("embed_tokens_per_layer", "per_layer_embedding"),
    ("per_layer_input_gate.", "per_layer_linear"),
    ("per_layer_projection.", "per_layer_linear"),
    ("per_layer_model_projection.", "per_layer_linear"),
    ("embed_tokens", "embedding"),
    ("wte.", "embedding"),
    ("lm_head", "lm_head"),
    (".experts.", "experts"),
)
QUANTIZABLE: Final[frozenset[GroupName]] = frozenset({"linear", "experts", "per_layer_linear"})
_SMALL: Final = ("norm", "router", ".mlp.gate.", "layer_scalar")


class Stored(NamedTuple):
    """One tensor, as its checkpoint stores it."""

    name: str
    dimensions: int
    parameters: int
    """0 for a scale or zero point."""
    stored_bytes: int


def group_of(name: str, dimensions: int, layers: tuple[LayerShape, ...]) -> GroupName:
    """Tell a tensor's group from its name.

    >>> group_of("model.layers.0.mlp.up_proj.weight", 2, ())
    'linear'
    """
    for mark, group in _MARKS:
        if mark in name:
            return group
    layer = _LAYER.search(name)
    if layer and _SHARED.search(name) and _shares(int(layer.group(1)), layers):
        return "shared_kv"
    small = dimensions < 2 or any(mark in name for mark in _SMALL)
    return "other" if small else "linear"


def sum_up(
    tensors: Iterable[Stored],
    layers: tuple[LayerShape, ...],
    *,
    tied: bool,
    provenance: Provenance,
) -> tuple[ParameterGroup, ...]:
    """Add tensors up by group, the largest group first."""
    parameters: dict[GroupName, int] = defaultdict(int)
    stored: dict[GroupName, int] = defaultdict(int)
    for tensor in tensors:
        name = group_of(tensor.name, tensor.dimensions, layers)
        parameters[name] += tensor.parameters
        stored[name] += tensor.stored_bytes
    # A tied output layer and what a KV-sharing layer never uses are not loaded.
    dropped = {"shared_kv", "lm_head"} if tied else {"shared_kv"}
    return tuple(
        ParameterGroup(
            name=name,
            parameters=parameters[name],
            stored_bytes=size,
            resident_bytes=0 if name in dropped else size,
            provenance=provenance,
        )
        for name, size in sorted(stored.items(), key=lambda row: -row[1])
    )


def _shares(index: int, layers: tuple[LayerShape, ...]) -> bool:
    return index < len(layers) and layers[index].shares_kv
