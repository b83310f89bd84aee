"""A model, read from its own files or from the catalog."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from core.errors import ModelNotFound, did_you_mean
from core.records import ModelShape, ParameterGroup
from planner import catalog
from planner.configs import ModelConfig
from planner.folders import faults, folder_of, read_json, weights_in
from planner.headers import read_headers
from planner.quantization import Quantization, read_quantization
from planner.weights import from_config, from_headers


def is_path(model: str) -> bool:
    """Whether a model's name means a folder rather than a Hub id."""
    return model[:1] in {"/", "~", "."}


def full_name(model: str) -> str:
    """Give the Hub id of a model of the catalog that goes by a short name, others as they are.

    >>> full_name("26b qat")
    'google/gemma-4-26B-A4B-it-qat-w4a16-ct'
    """
    entry = catalog.find(model) if "/" not in model else None
    return entry.model if entry else model


def read_model(model: str) -> ModelShape:
    """Read a folder, or a name of the catalog; another Hub id is not looked up and says nothing.

    Raises:
        ModelNotFound: The folder does not exist or has no readable config.json.
    """
    if is_path(model):
        return _read_folder(folder_of(model))
    if entry := catalog.find(model):
        return catalog_shape(entry.model)
    return ModelShape(
        model=model,
        unknown=(
            f"{model} is not in the catalog and was not looked up on the Hub. "
            + did_you_mean(model, (*catalog.names(), *(one.model for one in catalog.entries()))),
        ),
    )


@functools.cache
def catalog_shape(model: str) -> ModelShape:
    """Compute the shape of a model of the catalog, by its Hub id."""
    entry = catalog.entry(model)
    shape = shape_of(entry.model, entry.config, catalogued=True)
    stored = entry.stored_bytes or sum(group.stored_bytes for group in shape.groups)
    return shape.model_copy(update={"weight_bytes": stored})


def shape_of(
    model: str,
    config: Any,
    *,
    headers: Iterable[Mapping[str, Any]] = (),
    weight_bytes: int | None = None,
    catalogued: bool = False,
    unknown: Iterable[str] = (),
) -> ModelShape:
    """Put together what a config and, if there are any, the headers of its files say.

    A config that makes no sense is read as far as it does; `unknown` says what was passed over.
    """
    read = ModelConfig(config)
    layers = read.layers()
    quantization = read_quantization(read.whole.section("quantization_config"))
    groups = (
        from_headers(headers, read, layers, quantization)
        if headers
        else from_config(read, layers, quantization, "catalog" if catalogued else "config.json")
    )
    known = {**_figures(read), **_kinds(read, quantization, groups)}
    return ModelShape(
        model=model,
        weight_bytes=weight_bytes,
        layers=layers,
        groups=groups,
        unknown=(*unknown, *read.unknown),
        **known,
    )


def _read_folder(folder: Path) -> ModelShape:
    config = read_config(folder / "config.json")
    unknown = tuple(faults(folder))
    # A half-copied model is not planned as a smaller one.
    files = () if unknown else weights_in(folder)
    return shape_of(
        str(folder),
        config,
        headers=read_headers(files),
        weight_bytes=sum(file.stat().st_size for file in files) or None,
        unknown=unknown,
    )


def read_config(path: Path) -> Any:
    """Read a config.json, whatever JSON it holds.

    Raises:
        ModelNotFound: It is missing or no JSON.
    """
    try:
        return read_json(path)
    except (OSError, ValueError) as exc:
        raise ModelNotFound(
            f"{path} is not a model's configuration.",
            fix="Give the folder that holds config.json and the safetensors files.",
            cause=str(exc),
        ) from exc


def _figures(read: ModelConfig) -> dict[str, Any]:
    moe = read.number("num_experts", "num_local_experts")
    wide = read.text.on("use_double_wide_mlp") and read.first_sharing < read.depth
    inner = read.number("intermediate_size")
    vision = read.whole.section("vision_config")
    return {
        "max_position_embeddings": read.number("max_position_embeddings") or None,
        "rope_factor": read.rope_factor,
        "hidden_size": read.hidden or None,
        "intermediate_size": inner * (2 if wide else 1) or None,
        "num_attention_heads": read.heads or None,
        "vocab_size": read.number("vocab_size") or None,
        "num_experts": moe,
        "experts_per_token": read.number("top_k_experts", "num_experts_per_tok") if moe else 0,
        "moe_intermediate_size": read.number("moe_intermediate_size", "intermediate_size")
        if moe
        else 0,
        "per_layer_embedding_size": read.number("hidden_size_per_layer_input"),
        "vision_hidden_size": vision.number("hidden_size"),
        "vision_intermediate_size": vision.number("intermediate_size"),
    }


def _kinds(
    read: ModelConfig, quantization: Quantization | None, groups: tuple[ParameterGroup, ...]
) -> dict[str, Any]:
    names = {group.name for group in groups}
    return {
        "architecture": next(iter(read.whole.words("architectures")), None),
        "model_type": read.model_type,
        "dtype": read.dtype,
        "quantization": quantization.method if quantization else None,
        "quantization_bits": quantization.bits if quantization else None,
        "quantization_ignored": quantization.ignored if quantization else (),
        "tied": read.tied,
        "k_eq_v": read.text.on("attention_k_eq_v"),
        "vision": "vision" in names or bool(read.whole.section("vision_config")),
        "audio": "audio" in names or bool(read.whole.section("audio_config")),
        "bidirectional_images": read.text.values.get("use_bidirectional_attention") == "vision",
    }
