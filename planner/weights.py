"""Parameters and bytes by group: exact from headers, or computed from config.json."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from core.records import LayerShape, ParameterGroup, Provenance
from planner.configs import ModelConfig
from planner.groups import QUANTIZABLE, Stored, group_of, sum_up
from planner.headers import stored_tensors
from planner.quantization import Quantization
from planner.tensors import GATED, Tensor, decoder_tensors
from planner.towers import tower_tensors

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}

Layers = tuple[LayerShape, ...]


def from_headers(
    headers: Iterable[Mapping[str, Any]],
    config: ModelConfig,
    layers: Layers,
    quantization: Quantization | None,
) -> tuple[ParameterGroup, ...]:
    """Add up what the files hold, to the byte."""
    tensors = stored_tensors(headers, quantization.bits if quantization else None)
    return sum_up(tensors, layers, tied=config.tied, provenance="safetensors headers")


def from_config(
    config: ModelConfig,
    layers: Layers,
    quantization: Quantization | None,
    provenance: Provenance,
) -> tuple[ParameterGroup, ...]:
    """Compute what the files would hold; nothing, and why in `unknown`, where that is not known."""
    if config.model_type not in GATED:
        config.unknown.append(
            f"The parameters of a {config.model_type} are not known from config.json alone; "
            "give a folder with its safetensors files."
        )
    if quantization and quantization.bytes_per_parameter is None:
        config.unknown.append(
            f"How many bytes {quantization.method} stores is not known from config.json alone."
        )
    if config.unknown or not layers:
        return ()
    tensors = [*decoder_tensors(config, layers), *tower_tensors(config)]
    if config.unknown:
        return ()
    element = _BYTES.get(config.dtype or "", 2)
    stored = _stored(tensors, layers, quantization, element)
    return sum_up(stored, layers, tied=config.tied, provenance=provenance)


def _stored(
    tensors: Iterable[Tensor], layers: Layers, quantization: Quantization | None, element: int
) -> Iterator[Stored]:
    for tensor in tensors:
        name, dimensions = tensor.name, len(tensor.shape)
        group = group_of(name, dimensions, layers)
        if quantization and group == "shared_kv":
            continue  # Quantized checkpoints leave out what is never used.
        size: float = element
        module = name.rsplit(".", 1)[0]
        if quantization and group in QUANTIZABLE and quantization.applies(module):
            size = quantization.bytes_per_parameter or element
        yield Stored(name, dimensions, tensor.parameters, round(tensor.parameters * size))
