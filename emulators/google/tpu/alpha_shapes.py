"""What a body of v2alpha1 may hold: `v2alpha1.toml`, and how a body is judged by it."""

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from emulators.google.refusing import Refused, invalid

_FILE: Final = Path(__file__).with_name("v2alpha1.toml")
_KINDS: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int}
_WORDS: Final[Mapping[str, re.Pattern[str]]] = {
    "int64": re.compile(r"^-?[0-9]+$"),
    "duration": re.compile(r"^-?[0-9]+(\.[0-9]{1,9})?s$"),
    "datetime": re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"),
}
_OUT: Final = "out"
_TIERS: Final = ("bestEffort", "guaranteed", "spot")
_ROOT: Final = "queued_resource"


@functools.cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Give the fields of every schema with their types."""
    return tomllib.loads(_FILE.read_text("utf-8"))


def check(body: Any) -> None:
    """Judge the body of a queued resource.

    Stricter than Google, which overlooks what only it sets: such a field is refused.

    Raises:
        Refused: A field is unknown, a value is of another type, or none of its words.
    """
    _object("QueuedResource", body, _ROOT)
    if len([tier for tier in _TIERS if tier in body]) > 1:
        raise _invalid_payload(f"Only one of {', '.join(_TIERS)} can be set at '{_ROOT}'.")


def _object(schema: str, body: Any, at: str) -> None:
    if not isinstance(body, dict):
        raise _mistyped(at, schema, body)
    known = shapes()[schema]
    for name, value in body.items():
        if name not in known:
            raise _invalid_payload(f"Unknown name \"{name}\" at '{at}': Cannot find field.")
        if known[name] == _OUT:
            raise invalid(f"The field '{at}.{_snake(name)}' is output only.")
        _value(known[name], value, f"{at}.{_snake(name)}")


def _value(kind: Any, value: Any, at: str) -> None:
    if isinstance(kind, list):
        if value not in kind:
            raise _mistyped(at, "TYPE_ENUM", value)
    elif kind.startswith(("[", "{")):
        _several(kind, value, at)
    elif kind in _WORDS:
        if not _WORDS[kind].match(_a(str, value, at)):
            raise _mistyped(at, kind, value)
    elif kind in _KINDS:
        _a(_KINDS[kind], value, at)
    else:
        _object(kind, value, at)


def _several(kind: str, value: Any, at: str) -> None:
    if kind.startswith("["):
        items = list(enumerate(_a(list, value, at)))
    else:
        items = list(_a(dict, value, at).items())
    for key, one in items:
        _value(kind[1:-1], one, f"{at}[{key}]")


def _a(kind: type, value: Any, at: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _mistyped(at, kind.__name__, value)
    return value


def _mistyped(at: str, kind: str, value: Any) -> Refused:
    return invalid(f"Invalid value at '{at}' ({kind}), {value!r:.80}")


def _invalid_payload(told: str) -> Refused:
    return invalid(f"Invalid JSON payload received. {told}")


def _snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()
