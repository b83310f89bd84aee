"""Arguments that people know from earlier servers: taken as what they mean today, and told."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from mcp.types import CallToolRequestParams

from core.reply import noted_first


class _Old(NamedTuple):
    """What one means today."""

    argument: str
    means: str
    """Of the argument that takes its place, where the old one is true."""


_OLD: Final[Mapping[str, Mapping[str, _Old]]] = {
    "deploy_vllm": {"low_latency": _Old("layout", "speed")},
    "plan_deployment": {"low_latency": _Old("layout", "speed")},
}
"""By tool and name. They are in no schema: nobody has to learn them."""
_NO: Final = frozenset({"", "none", "false", "0", "no", "off"})


@contextmanager
def understood(message: CallToolRequestParams) -> Iterator[None]:
    """Put today's arguments in the place of old ones; the answer says which."""
    known = _OLD.get(message.name, {})
    given = message.arguments or {}
    said = [name for name in known if name in given]
    if said:
        message.arguments = _translated(given, known)
    with noted_first(tuple(_words(name, known[name]) for name in said)):
        yield


def _translated(given: Mapping[str, Any], known: Mapping[str, _Old]) -> dict[str, Any]:
    """What is said in today's words wins."""
    today = {name: value for name, value in given.items() if name not in known}
    true = [old for name, old in known.items() if str(given.get(name)).lower() not in _NO]
    return {**{old.argument: old.means for old in true}, **today}


def _words(name: str, old: _Old) -> str:
    return f"{name} is an old name of {old.argument}='{old.means}'."
