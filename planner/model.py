"""A model, read from its own files, from the Hub or from the catalog."""

import dataclasses
import functools
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import SecretStr

from core.errors import ModelNotFound, Unsupported, did_you_mean
from core.records import LayerShape, ModelShape, Provenance, listed
from planner import catalog
from planner.tensors import (
    GATED,
    MOST,
    QUANTIZABLE,
    ModelConfig,
    Section,
    Stored,
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
        return not any(
            re.match(pattern[3:], module)
            if pattern.startswith("re:")
            else f".{pattern}." in f".{module}."
            for pattern in self.ignored
        )


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
    """Return the bits of a weight, and its bytes with scales and zero points."""
    match method:
        case "compressed-tensors":
            named = config.section("config_groups")
            groups = (named.section(name) for name in named.values)
            weights = next((found for group in groups if (found := group.section("weights"))), None)
            if weights is None:
                return None, None
            bits = weights.number("num_bits", default=8, least=1, most=_WIDEST)
            group = weights.number("group_size", least=-MOST)
            zeros = not weights.on("symmetric", default=True)
        case "awq" | "gptq":
            bits = config.number("bits", default=4, least=1, most=_WIDEST)
            group, zeros = config.number("group_size", default=128, least=-MOST), True
        case "mxfp4":
            return 4, 0.5 + 1 / 32
        case "fp8":
            block = config.numbers("weight_block_size", 2)
            return 8, 1 + (4 / (block[0] * block[1]) if block else 0)
        case _:
            return None, None
    scales = (2 + (bits / 8 if zeros else 0)) / group if group > 0 else 0.0
    return bits, bits / 8 + scales


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
        is_file = folder.is_file()
    except (OSError, RuntimeError, ValueError) as exc:  # Nobody's home, a loop, a NUL, too long.
        cause, is_file = shown(str(exc)), False
    if is_file:
        raise ModelNotFound(f"{shown(model)} is no folder.", fix=_instead_of(folder.parent))
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
    return listed([shown(name) for name in sorted(names)], most=_NAMED)


Header = Mapping[str, Any]
"""Of a safetensors file: by the name of a tensor its dtype, shape and data_offsets."""
_LENGTH_BYTES: Final = 8
_MOST_DIMENSIONS: Final = 16
_SCALE: Final = re.compile(
    r"(weight_scale(_inv)?|weight_zero_point|weight_g_idx|weight_shape|scales|qzeros|g_idx"
    r"|(in|out)put_(global_)?scale|weight_(global|packed)_scale|[qkv]_scale|absmax|quant_map"
    r"|nested_absmax|quant_state\..*)$"
)
_PACKED: Final = re.compile(r"(weight_packed|qweight)$")
_BITS: Final = {"I64": 64, "I32": 32, "U8": 8, "I8": 8}


def read_headers(files: Iterable[Path]) -> tuple[Header, ...]:
    """Read the headers of safetensors files.

    Raises:
        ModelNotFound: A file is no safetensors file.
    """
    headers = []
    for file in files:
        try:
            headers.append(_header(file))
        except (OSError, ValueError) as exc:
            raise ModelNotFound(
                f"{shown(str(file))} is not a safetensors file.",
                fix="Copy it again; it may be cut off, or a Git LFS pointer.",
                cause=str(exc),
            ) from exc
    return tuple(headers)


def _header(file: Path) -> Header:
    """Read a header, of which every tensor lies within its file.

    Raises:
        ValueError: It is none.
    """
    size = file.stat().st_size - _LENGTH_BYTES
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if length > min(size, MOST_JSON_BYTES):
            raise ValueError(f"Its header would have {length:,} bytes.")
        header = parse_json(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("Its header is no JSON object.")  # noqa: TRY004  the file's error, not ours
    for name, entry in header.items():
        if name != "__metadata__" and not (is_word(name) and _is_tensor(entry, size - length)):
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
    whole = short and all(type(each) is int and is_whole(each) for each in values)
    return values if whole else None


def _stored(headers: Iterable[Header], bits: int | None) -> Iterator[Stored]:
    """Give every tensor of the headers; `bits` unpacks the weights of a packed checkpoint."""
    for header in headers:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            parameters, dtype = math.prod(entry["shape"]), entry["dtype"]
            if _SCALE.search(name):
                parameters = 0
            elif bits and (_PACKED.search(name) or dtype == "U8"):
                parameters = parameters * _BITS.get(dtype, bits) // bits
            yield Stored(name, len(entry["shape"]), parameters, last - first)


_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def _from_config(
    config: ModelConfig,
    layers: tuple[LayerShape, ...],
    quantization: Quantization | None,
) -> list[Stored]:
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
        return []
    tensors = [*decoder_tensors(config, layers), *tower_tensors(config)]
    if config.unknown:
        return []
    element, stored = _BYTES.get(config.dtype or "", 2), []
    for name, shape in tensors:
        group = group_of(name, len(shape), layers)
        if quantization and group == "shared_kv":
            continue  # Quantized checkpoints leave out what is never used.
        size: float = element
        if quantization and group in QUANTIZABLE and quantization.applies(name.rsplit(".", 1)[0]):
            size = quantization.bytes_per_parameter or element
        parameters = math.prod(shape)
        stored.append(Stored(name, len(shape), parameters, round(parameters * size)))
    return stored


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


def near_names(model: str) -> str:
    """Ask for the names of the catalog that a misspelt one is near to; empty if none is."""
    return did_you_mean(model, (*catalog.names(), *(one.model for one in catalog.entries())))


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
            f"{near_names(model)}{model} is not in the catalog and was not looked up on the Hub.",
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
    headers: Sequence[Header] = (),
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
    provenance: Provenance = "catalog" if catalogued else "config.json"
    if headers:
        provenance = "safetensors headers"
        stored = list(_stored(headers, quantization.bits if quantization else None))
    else:
        stored = _from_config(read, layers, quantization)
    groups = sum_up(stored, layers, tied=read.tied, provenance=provenance)
    names, text = {group.name for group in groups}, read.text
    vision = read.whole.section("vision_config")
    experts = read.experts
    if "experts" in names and not read.experts_per_token:
        read.unknown.append(
            "config.json does not say how many experts a token takes: speeds count all of them."
        )
    wide = text.on("use_double_wide_mlp") and read.first_sharing < read.depth
    return ModelShape(
        model=model,
        architecture=next(iter(read.whole.words("architectures")), None),
        max_position_embeddings=text.number("max_position_embeddings") or None,
        rope_factor=read.rope_factor,
        dtype=read.dtype,
        quantization=quantization.method if quantization else None,
        weight_bytes=weight_bytes,
        model_type=read.model_type,
        layers=layers,
        hidden_size=read.hidden or None,
        intermediate_size=text.number("intermediate_size") * (2 if wide else 1) or None,
        num_attention_heads=read.heads or None,
        vocab_size=text.number("vocab_size") or None,
        tied=read.tied,
        k_eq_v=text.on("attention_k_eq_v"),
        num_experts=experts,
        experts_per_token=read.experts_per_token,
        moe_intermediate_size=experts and read.expert_width,
        per_layer_embedding_size=text.number("hidden_size_per_layer_input"),
        vision="vision" in names or bool(vision),
        audio="audio" in names or bool(read.whole.section("audio_config")),
        vision_hidden_size=vision.number("hidden_size"),
        vision_intermediate_size=vision.number("intermediate_size"),
        bidirectional_images=text.values.get("use_bidirectional_attention") == "vision",
        quantization_bits=quantization.bits if quantization else None,
        quantization_ignored=quantization.ignored if quantization else (),
        groups=groups,
        unknown=(*unknown, *read.unknown),
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
            fix=_instead_of(path.parent),
            cause=str(exc),
        ) from exc


def _instead_of(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
        return (
            "It is a LoRA adapter: give the model that it adapts, which its adapter_config.json"
            f' names, and engine_args=["--enable-lora", "--lora-modules", "NAME={folder}"].'
        )
    if any(folder.glob("*.gguf")):
        return "A GGUF file is not planned: give the model that it was made from."
    return "Give the folder that holds config.json and the safetensors files."


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
    try:  # Both take a while to import, and nothing else here needs them.
        hub = importlib.import_module("huggingface_hub")
        errors = importlib.import_module("huggingface_hub.errors")
    except ImportError as exc:
        raise Unsupported(
            "Models of the Hub cannot be read: huggingface_hub is not installed.",
            fix="Run ./init.sh again, or give a folder or a catalog name.",
        ) from exc
    unreadable = (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError)
    api = hub.HfApi(endpoint, token=token.get_secret_value() if token else None)
    try:
        config = api.hf_hub_download(model, "config.json", revision=revision)
        found = api.get_safetensors_metadata(model, revision=revision)
    except (*unreadable, errors.HTTPError, OSError) as exc:
        raise ModelNotFound(
            f"{model} could not be read from the Hub.",
            fix="Check its name and, if it is gated, that HF_TOKEN may read it.",
            cause=(str(exc).splitlines() or [""])[0],
        ) from exc
    headers = [
        {name: dataclasses.asdict(tensor) for name, tensor in file.tensors.items()}
        for file in found.files_metadata.values()
    ]
    sizes = (max((row["data_offsets"][1] for row in one.values()), default=0) for one in headers)
    read = read_config(Path(config))
    return shape_of(model, read, headers=headers, weight_bytes=sum(sizes))
