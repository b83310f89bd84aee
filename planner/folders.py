"""A model's folder: where it is, what lies in it, and what should."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from core.errors import ModelNotFound
from planner.sections import is_unicode, shown

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
