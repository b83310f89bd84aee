"""Safetensors headers: names, shapes and sizes of tensors, without the tensors."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from core.errors import ModelNotFound
from planner.folders import MOST_JSON_BYTES, parse_json
from planner.groups import Stored
from planner.sections import is_whole, is_word, shown

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
