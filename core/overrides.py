"""A person's own values in place of constants of the `rules.toml` files: `overrides.toml`.

The file lies in the state folder and has a table for each cloud, in the form of that cloud's
`rules.toml`; what it does not name stays as it is shipped:

    [cloud_run.gpus.nvidia-l4]
    image = "docker.io/you/vllm-openai:v0.33.0"
"""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from core.errors import InvalidArgument
from core.record import Record

FILE: Final = "overrides.toml"
ROOMS: Final = ("aca", "cloud_run", "tpu")
"""The clouds whose constants can be replaced: the tables of the file."""

R = TypeVar("R", bound=Record)

_place: dict[str, Path] = {}
_shipped: dict[str, tuple[Path, type[Record]]] = {}


class _Read(NamedTuple):
    """One cloud's constants, and what the file did to them."""

    rules: Record
    changes: tuple[str, ...] = ()
    problem: str | None = None
    """Why the file is left aside, in which case `rules` are those that are shipped."""


def use(folder: Path) -> None:
    """Look for the file in this folder: a process has one state folder."""
    _place["file"] = folder / FILE


def read(room: str, shipped: Path, kind: type[R]) -> R:
    """Return a cloud's constants; those that are shipped where the file cannot be used.

    A file that is wrong must not keep anybody from looking and removing: only a plan refuses it.
    """
    _shipped[room] = (shipped, kind)
    found = _read(room).rules
    if not isinstance(found, kind):
        raise TypeError(f"{room} has other rules.")
    return found


def changes(room: str) -> tuple[str, ...]:
    """Return what the file replaces of a cloud's constants, each with both values.

    Raises:
        InvalidArgument: The file cannot be used.
    """
    if room not in _shipped:
        return ()
    found = _read(room)
    if found.problem:
        raise InvalidArgument(
            f"{_place['file']} cannot be used: {found.problem}.",
            fix="Correct it or take it away; its tables are written like the rules.toml files.",
        )
    return found.changes


def _read(room: str) -> _Read:
    shipped, kind = _shipped[room]
    file = _place.get("file")
    try:
        stamp = file.stat().st_mtime_ns if file else 0
    except OSError:
        stamp = 0
    return _merged(room, shipped, kind, file if stamp else None, stamp)


@functools.lru_cache(maxsize=16)
def _merged(room: str, shipped: Path, kind: type[Record], file: Path | None, _stamp: int) -> _Read:
    rows = tomllib.loads(shipped.read_text("utf-8"))
    plain = kind.model_validate(rows)
    if file is None:
        return _Read(plain)
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        return _Read(plain, problem=str(exc).partition("\n")[0])
    if unknown := sorted(set(tables) - set(ROOMS)):
        return _Read(plain, problem=f"it has a table {unknown[0]}; its tables are {ROOMS}")
    own = tables.get(room, {})
    if not isinstance(own, dict):
        return _Read(plain, problem=f"{room} is no table")
    if not own:
        return _Read(plain)
    try:
        rules = kind.model_validate(_with(rows, own))
    except ValidationError as exc:
        row = exc.errors(include_url=False)[0]
        where = ".".join(map(str, (room, *row["loc"])))
        return _Read(plain, problem=f"{where}: {row['msg']}")
    differing = tuple(_differences(plain.model_dump(), rules.model_dump()))
    return _Read(rules, changes=tuple(f"{FILE}: {room}.{line}" for line in differing))


def _with(rows: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(rows)
    for name, value in own.items():
        below = merged.get(name)
        is_table = isinstance(value, dict) and isinstance(below, dict)
        merged[name] = _with(below or {}, value) if is_table else value
    return merged


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    for name, value in after.items():
        old, here = before.get(name), f"{path}{name}"
        if isinstance(value, dict) and isinstance(old, dict):
            yield from _differences(old, value, f"{here}.")
        elif value != old:
            yield f"{here} is {value} (shipped: {old})"
