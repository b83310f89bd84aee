"""A model's configuration, overridden by --hf-overrides."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from core.errors import InvalidArgument

_Size = Callable[[str], int | None]

_FLAG: Final = "--hf-overrides"
_POSITIONS: Final = "max_position_embeddings"


def overrides_in(words: Sequence[str], size: _Size) -> dict[str, Any]:
    """Give what a command line overrides: its last JSON, or all of its dotted keys, which win.

    >>> overrides_in(["--hf-overrides.text_config.rope_theta", "10"], int)
    {'text_config.rope_theta': 10}

    Raises:
        ValueError: It is no JSON of an object.
    """
    whole: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for position, word in enumerate(words):
        given, joined, value = word.partition("=")
        name, dot, key = given.partition(".")
        if name.replace("_", "-") != _FLAG:
            continue
        value = value if joined else "".join(words[position + 1 : position + 2])
        if dot:
            dotted[key] = _value(value, size)
        else:
            whole = _object(value)
    return dotted or whole


def limit(overrides: Mapping[str, Any], own: int | None) -> int | None:
    """Give the positions of a model that has `own`; None where nobody knows them.

    >>> limit({"text_config": {"max_position_embeddings": 4096}}, 131072)
    4096
    """
    said = list(_leaves(overrides))
    if any("rope" in key for key, _ in said):
        return None
    named = [value for key, value in said if key.rpartition(".")[2] == _POSITIONS]
    sizes = [value for value in named if isinstance(value, int) and value > 0]
    return sizes[-1] if sizes else own


def _leaves(overrides: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    waiting: list[tuple[str, object]] = list(overrides.items())
    while waiting:
        key, value = waiting.pop(0)
        yield key, value
        if isinstance(value, Mapping):
            waiting += value.items()


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError as exc:
        raise ValueError(text[:60]) from exc
    if not isinstance(found, dict):
        raise ValueError(text[:60])  # noqa: TRY004  of a text, not of our own types
    return found


def _value(text: str, size: _Size) -> object:
    """Read a dotted key's value as vLLM does: JSON, a size such as 32k, or words."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return size(text)
    except InvalidArgument:
        return text
