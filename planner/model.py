"""A model, read from its own files, from the Hub or from the catalog."""

import functools
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import SecretStr

from core.errors import ModelNotFound, Unsupported, did_you_mean
from core.records import LayerShape, ModelShape, ParameterGroup, Provenance
from planner import catalog
from planner.tensors import (
    GATED,
    MOST,
    QUANTIZABLE,
    ModelConfig,
    Section,
    Stored,
    Tensor,
    decoder_tensors,
    group_of,
    is_unicode,
    is_whole,
    is_word,
    shown,
    sum_up,
    tower_tensors,
)

_IGNORING: Final = ("ignore", "modules_to_not_convert", "ignored_layers")
MXFP4: Final = "mxfp4"
"""Four bits and a scale of eight for every 32; vLLM reads experts so, and nothing else."""
_WIDEST: Final = 64
"""Bits of a stored number."""


class Quantization(NamedTuple):
    """How the linear layers of a checkpoint are stored."""

    method: str
    bits: int | None
    bytes_per_parameter: float | None
    """With scales and zero points; None where the config does not tell."""
    ignored: tuple[str, ...]

    def applies(self, module: str) -> bool:
        """Whether a linear layer of this name is quantized."""
        if self.method == MXFP4:
            return module.endswith(".experts")
        return not any(_matches(pattern, module) for pattern in self.ignored)


def read_quantization(config: Section) -> Quantization | None:
    """Read a quantization_config; None means there is none."""
    if not config:
        return None
    method = config.word("quant_method") or "unknown"
    ignored = tuple(name for key in _IGNORING for name in config.words(key))
    broken = [name for name in ignored if name.startswith("re:") and not _compiles(name[3:])]
    config.unknown += [f"{name} is no pattern: it was passed over." for name in broken]
    bits, size = _stored_quantization(method, config)
    return Quantization(method, bits, size, tuple(name for name in ignored if name not in broken))


def _stored_quantization(method: str, config: Section) -> tuple[int | None, float | None]:
    match method:
        case "compressed-tensors":
            groups = config.section("config_groups").sections()
            weights = next((found for group in groups if (found := group.section("weights"))), None)
            return _compressed(weights) if weights else (None, None)
        case "awq" | "gptq":
            bits = config.number("bits", default=4, least=1, most=_WIDEST)
            group = config.number("group_size", default=128, least=-MOST)
            return bits, bits / 8 + _scales(group, bits=bits, zeros=True)
        case method if method == MXFP4:
            return 4, 0.5 + 1 / 32
        case "fp8":
            block = config.numbers("weight_block_size", 2)
            return 8, 1 + (4 / (block[0] * block[1]) if block else 0)
        case _:
            return None, None


def _compressed(weights: Section) -> tuple[int, float]:
    bits = weights.number("num_bits", default=8, least=1, most=_WIDEST)
    group = weights.number("group_size", least=-MOST)
    zeros = not weights.on("symmetric", default=True)
    return bits, bits / 8 + _scales(group, bits=bits, zeros=zeros)


def _scales(group: int, *, bits: int, zeros: bool) -> float:
    if group <= 0:
        return 0.0
    return (2 + (bits / 8 if zeros else 0)) / group


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or f".{module}.".find(f".{pattern}.") >= 0


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


MOST_JSON_BYTES: Final = 100_000_000
"""What safetensors allows a header; no other JSON of a model comes near."""
_INDEX: Final = "model.safetensors.index.json"
_NAMED: Final = 5
"""Files that a sentence lists."""


def folder_of(model: str) -> Path:
    """Give the real path of a folder, however it was named.

    Raises:
        ModelNotFound: There is none, or its path is none that can be written down.
    """
    cause = ""
    try:
        folder = Path(model).expanduser().resolve()
        if folder.is_dir() and is_unicode(str(folder)):
            return folder
    except (OSError, RuntimeError, ValueError) as exc:  # Nobody's home, a loop, a NUL, too long.
        cause = shown(str(exc))
    raise ModelNotFound(
        f"There is no folder {shown(model)}.",
        fix="Check the path, or give a Hub id such as google/gemma-4-E4B-it.",
        cause=cause,
    )


def weights_in(folder: Path) -> tuple[Path, ...]:
    """Give the safetensors files that are there; a link to nothing is none."""
    return tuple(sorted(file for file in folder.glob("*.safetensors") if _is_there(file)))


def faults(folder: Path) -> Iterator[str]:
    """Say what should be in the folder and is not."""
    lost = [file.name for file in folder.glob("*.safetensors") if not _is_there(file)]
    if lost:
        yield f"There is no file behind {_list(lost)}."
    index = folder / _INDEX
    if not (index.is_symlink() or index.exists()):
        return
    try:
        listed = _listed(read_json(index))
    except (OSError, ValueError) as exc:
        yield f"{_INDEX} cannot be read: {shown(str(exc))}"
        return
    if missing := listed - {file.name for file in weights_in(folder)}:
        yield f"The index lists files that are not there: {_list(missing)}."


def read_json(file: Path) -> Any:
    """Read JSON of a size that a model may have.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON, or none that anybody wrote for a model.
    """
    size = file.stat().st_size
    if not file.is_file():
        raise ValueError("It is no file.")
    if size > MOST_JSON_BYTES:
        raise ValueError(f"It has {size:,} bytes.")
    with file.open("rb") as stream:
        return parse_json(stream.read(MOST_JSON_BYTES))


def parse_json(text: bytes) -> Any:
    """Parse JSON of unknown origin.

    Raises:
        ValueError: It is none, or too deep.
    """
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError as exc:
        raise ValueError("It is nested too deeply.") from exc


def _is_there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # A link into a folder of somebody else's.
        return False


def _listed(index: Any) -> set[str]:
    files = index.get("weight_map", {}) if isinstance(index, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError("It maps no tensors to files.")
    return set(files.values())


def _list(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    rest = f" and {len(others) + 1 - _NAMED} more" if len(others) >= _NAMED else ""
    return ", ".join(shown(name) for name in [first, *others][:_NAMED]) + rest


_LENGTH_BYTES: Final = 8
_MOST_DIMENSIONS: Final = 16
_SCALE: Final = re.compile(
    r"(weight_scale(_inv)?|weight_zero_point|weight_g_idx|weight_shape|scales|qzeros|g_idx"
    r"|(in|out)put_(global_)?scale|weight_(global|packed)_scale|[qkv]_scale|absmax|quant_map"
    r"|nested_absmax|quant_state\..*)$"
)
_PACKED: Final = re.compile(r"(weight_packed|qweight)$")
_BITS: Final = {"I64": 64, "I32": 32, "U8": 8, "I8": 8}


def read_headers(files: Iterable[Path]) -> tuple[Mapping[str, Any], ...]:
    """Read the headers of safetensors files.

    Raises:
        ModelNotFound: A file is no safetensors file.
    """
    return tuple(_header(file) for file in files)


def stored_tensors(headers: Iterable[Mapping[str, Any]], bits: int | None) -> Iterator[Stored]:
    """Give every tensor of the headers; `bits` unpacks the weights of a packed checkpoint."""
    for header in headers:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            shape = entry["shape"]
            yield Stored(
                name=name,
                dimensions=len(shape),
                parameters=_parameters(name, math.prod(shape), entry["dtype"], bits),
                stored_bytes=last - first,
            )


def _header(file: Path) -> Mapping[str, Any]:
    try:
        return _checked(*_start(file))
    except (OSError, ValueError) as exc:
        raise ModelNotFound(
            f"{shown(str(file))} is not a safetensors file.",
            fix="Copy it again; it may be cut off, or a Git LFS pointer.",
            cause=str(exc),
        ) from exc


def _start(file: Path) -> tuple[Any, int]:
    """Read the header of a file, and how many bytes of numbers follow it."""
    size = file.stat().st_size - _LENGTH_BYTES
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if length > min(size, MOST_JSON_BYTES):
            raise ValueError(f"Its header would have {length:,} bytes.")
        return parse_json(stream.read(length)), size - length


def _checked(header: Any, size: int) -> Mapping[str, Any]:
    if not isinstance(header, dict):
        raise ValueError("Its header is no JSON object.")  # noqa: TRY004  the file's error, not ours
    for name, entry in header.items():
        if name != "__metadata__" and not (is_word(name) and _is_tensor(entry, size)):
            raise ValueError(f"{shown(name)} is no tensor, or not within the file.")
    return header


def _is_tensor(entry: Any, size: int) -> bool:
    if not (isinstance(entry, dict) and is_word(entry.get("dtype"))):
        return False
    shape, offsets = _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        return False
    first, last = offsets
    # No type of number takes less than a bit.
    return first <= last <= size and math.prod(shape) <= 8 * (last - first)


def _counts(values: Any) -> list[int] | None:
    short = isinstance(values, list) and len(values) <= _MOST_DIMENSIONS
    return (
        values if short and all(type(each) is int and is_whole(each) for each in values) else None
    )


def _parameters(name: str, numbers: int, dtype: str, bits: int | None) -> int:
    if _SCALE.search(name):
        return 0
    if bits and (_PACKED.search(name) or dtype == "U8"):
        return numbers * _BITS.get(dtype, bits) // bits
    return numbers


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
    stored = _stored_weights(tensors, layers, quantization, element)
    return sum_up(stored, layers, tied=config.tied, provenance=provenance)


def _stored_weights(
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


_LIBRARY: Final = "huggingface_hub"


def read_hub_model(
    model: str,
    *,
    revision: str | None = None,
    token: SecretStr | None = None,
    endpoint: str | None = None,
) -> ModelShape:
    """Read a model of the Hub: a few ranges of a few kB, never its weights.

    `endpoint` is another Hub than the public one.

    Raises:
        ModelNotFound: The Hub has no such model, it is gated, or it cannot be reached.
        Unsupported: huggingface_hub is not installed.
    """
    hub, errors = _libraries()
    api = hub.HfApi(endpoint, token=token.get_secret_value() if token else None)
    try:
        config = api.hf_hub_download(model, "config.json", revision=revision)
        found = api.get_safetensors_metadata(model, revision=revision)
    except errors as exc:
        raise ModelNotFound(
            f"{model} could not be read from the Hub.",
            fix="Check its name and, if it is gated, that HF_TOKEN may read it.",
            cause=(str(exc).splitlines() or [""])[0],
        ) from exc
    headers = tuple(header_of(file.tensors) for file in found.files_metadata.values())
    return shape_of(
        model,
        read_config(Path(config)),
        headers=headers,
        weight_bytes=sum(_size(header) for header in headers),
    )


def header_of(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Write huggingface_hub's records of tensors as the file's own header."""
    fields = ("dtype", "shape", "data_offsets")
    return {
        name: {field: getattr(tensor, field) for field in fields}
        for name, tensor in tensors.items()
    }


def _size(header: Mapping[str, Mapping[str, Any]]) -> int:
    ends: Iterable[int] = (entry["data_offsets"][1] for entry in header.values())
    return max(ends, default=0)


def _libraries() -> tuple[Any, tuple[type[Exception], ...]]:
    # Both take a while to import, and nothing else here needs them.
    try:
        hub = importlib.import_module(_LIBRARY)
        errors = importlib.import_module(f"{_LIBRARY}.errors")
    except ImportError as exc:
        raise Unsupported(
            "Models of the Hub cannot be read: huggingface_hub is not installed.",
            fix="Run ./init.sh again, or give a folder or a catalog name.",
        ) from exc
    unreadable = (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError)
    return hub, (*unreadable, errors.HTTPError, OSError)
