"""What a body may hold: `shapes.toml`, and how a body is read by it."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from emulators.google.compute.refusing import Denied, bad, wrong

_FILE: Final = Path(__file__).with_name("shapes.toml")
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_OUT: Final = "out"


@functools.cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Give the fields of every schema with their types."""
    return tomllib.loads(_FILE.read_text("utf-8"))


def read(schema: str, body: Any) -> dict[str, Any]:
    """Give a body without what only Google sets, and without nulls.

    Raises:
        Denied: A field is unknown, a value is of another type, or none of its words.
    """
    if not isinstance(body, dict):
        raise bad("Invalid JSON payload received. Root element must be a message.")
    return _object(schema, body, "resource")


def _object(schema: str, body: Any, at: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _mistyped(at, schema, body)
    known = shapes()[schema]
    for name in body:
        if name not in known:
            raise bad(
                f"Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find"
                " field."
            )
    return {
        name: _value(known[name], value, f"{at}.{name}")
        for name, value in body.items()
        if known[name] != _OUT and value is not None
    }


def _value(kind: Any, value: Any, at: str) -> Any:
    if isinstance(kind, list):
        if value not in kind:
            raise wrong(at, value, f"Must be one of: {', '.join(kind)}.")
        return value
    if kind.startswith("["):
        items = _a(list, value, at)
        return [_value(kind[1:-1], one, f"{at}[{number}]") for number, one in enumerate(items)]
    if kind.startswith("{"):
        held = _a(dict, value, at)
        return {key: _value(kind[1:-1], one, f"{at}.{key}") for key, one in held.items()}
    if kind == "int64":
        return _int64(value, at)
    return _a(_KINDS[kind], value, at) if kind in _KINDS else _object(kind, value, at)


def _int64(value: Any, at: str) -> str:
    """Give a long number as JSON has it: in a string."""
    said = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(said, str) or not said.removeprefix("-").isdecimal():
        raise _mistyped(at, "TYPE_INT64", value)
    return said


def _a(kind: Any, value: Any, at: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _mistyped(at, getattr(kind, "__name__", "number"), value)
    return value


def _mistyped(at: str, kind: str, value: Any) -> Denied:
    return bad(f"Invalid value at '{at}' ({kind}), {value!r:.80}")
