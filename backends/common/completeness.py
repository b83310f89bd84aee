"""Whether a folder of files is a whole model, judged by names, sizes and its own index."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from planner.folders import MOST_JSON_BYTES, parse_json

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
LENGTH_BYTES: Final = 8
"""Before a safetensors header: its length."""
_PART: Final = re.compile(r"^(?P<stem>.*)-(?P<number>\d+)-of-(?P<all>\d+)(?P<end>\.\w+)$")
_HUB_ID: Final = re.compile(r"^[\w.-]+/[\w.-]+$")
_NAMED: Final = 5


class Verdict(NamedTuple):
    """What was found; None cannot be told."""

    complete: bool | None
    detail: str


def judge(files: Mapping[str, int], index: Mapping[str, Any] | None) -> Verdict:
    """Judge a folder by the sizes of its files in bytes and its index, if it has one."""
    missing = [*_missing(files, index)]
    if missing:
        return Verdict(complete=False, detail=" ".join(missing))
    if index is None and not _weights(files, ".safetensors"):
        return Verdict(complete=None, detail="GGUF files have no index: only names were compared.")
    return Verdict(complete=True, detail="")


def model_of(config: Mapping[str, Any] | None) -> str | None:
    """Give the Hub's id that a config names; a path of whoever saved it is none."""
    name = (config or {}).get("_name_or_path")
    return name if isinstance(name, str) and _HUB_ID.match(name) else None


def parts(files: Mapping[str, int], index: Mapping[str, Any] | None) -> list[str]:
    """Give the safetensors files that there are of those that count."""
    listed = _listed(index) if index is not None else set(files)
    return sorted(name for name in listed if name in files and name.endswith(".safetensors"))


def header_length(start: bytes) -> int | None:
    """Read how long a safetensors header is; None where that is none."""
    length = int.from_bytes(start, "little")
    return length if len(start) == LENGTH_BYTES and length <= MOST_JSON_BYTES else None


def whole_size(header: bytes) -> int | None:
    """Give the bytes that a safetensors file with this header has; None where that is none."""
    try:
        entries = parse_json(header)
        ends = [
            entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"
        ]
        return LENGTH_BYTES + len(header) + int(max(ends, default=0))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def listed(names: list[str]) -> str:
    """Write names in a sentence, not more than a few."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _missing(files: Mapping[str, int], index: Mapping[str, Any] | None) -> Iterator[str]:
    weights = [*_weights(files, ".safetensors"), *_weights(files, ".gguf")]
    empty = [name for name in weights if not files[name]]
    if not weights:
        yield "No weights: neither safetensors nor GGUF files."
    if empty:
        yield f"Empty: {listed(empty)}."
    if index is not None:
        yield from _short_of(files, index)
    yield from _unnumbered(files, weights)
    if _weights(files, ".gguf"):
        return  # which hold config and tokenizer
    if CONFIG not in files:
        yield f"No {CONFIG}."
    if not any(name in files for name in TOKENIZERS):
        yield "No tokenizer."


def _short_of(files: Mapping[str, int], index: Mapping[str, Any]) -> Iterator[str]:
    wanted = _listed(index)
    lost = sorted(wanted - set(files))
    if not wanted:
        yield f"{INDEX} names no file."
    if lost:
        yield f"The index names what is not there: {listed(lost)}."
        return
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    there = sum(files[name] for name in wanted)
    if isinstance(total, int | float) and there < total:
        yield f"The index counts {int(total):,} bytes of tensors, the files have {there:,}."


def _unnumbered(files: Mapping[str, int], weights: list[str]) -> Iterator[str]:
    """Find the gaps among files that count themselves."""
    for name in weights:
        found = _PART.match(name)
        if found and int(found["number"]) == _first(files, found):
            width, end = len(found["number"]), int(found["all"])
            wanted = (
                f"{found['stem']}-{number:0{width}}-of-{found['all']}{found['end']}"
                for number in range(1, min(end, 10_000) + 1)
            )
            lost = [each for each in wanted if each not in files]
            if lost:
                yield f"Not there: {listed(lost)}."


def _first(files: Mapping[str, int], found: re.Match[str]) -> int:
    same = (_PART.match(name) for name in files)
    alike = (one for one in same if one and one.group("stem", "all") == found.group("stem", "all"))
    return min(int(one["number"]) for one in alike)


def _listed(index: Mapping[str, Any]) -> set[str]:
    named = index.get("weight_map")
    return {str(name) for name in named.values()} if isinstance(named, Mapping) else set()


def _weights(files: Mapping[str, int], ending: str) -> list[str]:
    return sorted(name for name in files if name.endswith(ending))
