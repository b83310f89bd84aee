"""Folders in a cloud's storage, seen as models: which there are, and whether they are whole."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from backends.cloud_abilities import StoredModel
from backends.common import completeness
from backends.common.completeness import Verdict
from backends.common.side_by_side import side_by_side
from core.reply import note
from planner.folders import parse_json

ENDINGS: Final = ("safetensors", "gguf", "json", "model", "txt", "jinja", "tiktoken")
"""Of the files that models are made of."""
MOST_FILES: Final = 5000
_MOST_MODELS: Final = 50
_MOST_JSON_BYTES: Final = 20_000_000
_WEIGHTS: Final = (".safetensors", ".gguf")
_AT_ONCE: Final = 8


class File(NamedTuple):
    """A file that can be read in parts."""

    size_bytes: int
    read: Callable[[int, int], Awaitable[bytes]]
    """Gives its bytes from an offset on, so many; raises an error of ours."""


Files = Mapping[str, File]
"""By their paths, or those of one folder by their names in it."""


def folders(files: Files) -> dict[str, dict[str, File]]:
    """Sort files by the folder that they lie in."""
    found: dict[str, dict[str, File]] = {}
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, {})[name] = file
    return found


async def models_among(files: Files, root: str) -> list[StoredModel]:
    """Give every folder that holds weights, or a config that waits for them, in order of names.

    `root` is what their locations begin with. More than a few dozen are counted and not shown.
    """
    found = sorted((folder, held) for folder, held in folders(files).items() if _is_model(held))
    if len(found) > _MOST_MODELS:
        note(f"{root} holds {len(found)} models; the first {_MOST_MODELS} are shown.")
    return await side_by_side(
        [
            partial(stored, f"{root}/{folder}".rstrip("/"), held)
            for folder, held in found[:_MOST_MODELS]
        ]
    )


def limited(files: dict[str, File], where: str) -> dict[str, File]:
    """Keep no more files than are looked at, and say so if there were more."""
    if len(files) <= MOST_FILES:
        return files
    note(f"{where} holds more than {MOST_FILES} such files; only these were looked at.")
    return dict(list(files.items())[:MOST_FILES])


async def stored(location: str, files: Files) -> StoredModel:
    """Judge one folder by its names, its sizes and its index."""
    config = await json_of(files, completeness.CONFIG)
    index = await json_of(files, completeness.INDEX)
    verdict = completeness.judge(sizes_of(files), index)
    return StoredModel(
        location=location,
        model=completeness.model_of(config),
        files=len(files),
        size_bytes=sum(sizes_of(files).values()),
        complete=verdict.complete,
        detail=verdict.detail,
    )


async def whole(files: Files) -> Verdict:
    """Judge one folder as `stored` does, and every safetensors file by its own header."""
    index = await json_of(files, completeness.INDEX)
    sizes = sizes_of(files)
    verdict = completeness.judge(sizes, index)
    if verdict.complete is False:
        return verdict
    wrong = await _cut_off(files, index)
    if wrong:
        return Verdict(complete=False, detail=" ".join(wrong))
    seen = f"{len(files)} files, {sum(sizes.values()) / 2**30:.1f} GiB"
    return Verdict(verdict.complete, f"{seen}. {verdict.detail}".strip())


async def json_of(files: Files, name: str) -> Mapping[str, Any] | None:
    """Read a small JSON object, None where there is none or it is something else."""
    file = files.get(name)
    if file is None or not 0 < file.size_bytes <= _MOST_JSON_BYTES:
        return None
    try:
        said = parse_json(await file.read(0, file.size_bytes))
    except ValueError:
        return None
    return said if isinstance(said, Mapping) else None


def sizes_of(files: Files) -> dict[str, int]:
    """Give the bytes of each."""
    return {name: file.size_bytes for name, file in files.items()}


async def _cut_off(files: Files, index: Mapping[str, Any] | None) -> list[str]:
    """Compare every file with what its own header says: an index only knows their sum."""
    names = completeness.parts(sizes_of(files), index)
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def look(name: str) -> int | None:
        async with limiter:
            return await _expected(files[name])

    expected = await side_by_side([partial(look, name) for name in names])
    return [
        f"{name} is no safetensors file."
        if wanted is None
        else f"{name} has {files[name].size_bytes:,} bytes of {wanted:,}."
        for name, wanted in zip(names, expected, strict=True)
        if wanted != files[name].size_bytes
    ]


async def _expected(file: File) -> int | None:
    first = completeness.LENGTH_BYTES
    if file.size_bytes < first:
        return None
    length = completeness.header_length(await file.read(0, first))
    if length is None or first + length > file.size_bytes:
        return None
    return completeness.whole_size(await file.read(first, length))


def _is_model(names: Iterable[str]) -> bool:
    return any(name == completeness.CONFIG or name.endswith(_WEIGHTS) for name in names)
