"""What a client shows of our server, and what is wrong with it."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tests.clients.desk import PLANTED
from tests.clients.wire import Wire

HELP: Final = "get_help"


class _Destroy(NamedTuple):
    tool: str
    arguments: dict[str, Any]


DESTROY: Final = _Destroy("destroy_vllm", {"target": "local", "name": PLANTED})
"""The call that a human has to agree to."""


class Seen(NamedTuple):
    """What the client has of us, by its own words."""

    tools: Sequence[str]
    told: Sequence[str]
    """What it, or its model, was given for `get_help`, then for `destroy_vllm`."""
    agreed: bool = False
    """Whether a human, or somebody with the token, has agreed to the deletion."""


def halves(told: str) -> str:
    """Say which half of our answers arrives: the text, the structured one, or both."""
    return " and ".join(name for name, words in _HALVES.items() if words.search(told))


def complaints(seen: Seen, wire: Wire, names: Sequence[str], *, kept: bool) -> list[str]:
    """Say what is not as it should be; nothing if all is well."""
    answers = {call.tool: call.code for call in wire.calls}
    asked = bool(wire.asked)
    ends = {"ok"} if seen.agreed else {"CANCELLED"} if wire.elicitation else {_ASKS_FIRST}
    checks = {
        f"The client has other tools: {_apart(seen.tools, names)}": _same(seen.tools, names),
        f"The server listed other tools: {_apart(wire.tools, names)}": _same(wire.tools, names),
        f"{HELP} ended as {answers.get(HELP)!r}.": answers.get(HELP) == "ok",
        f"Of its answer there arrived: {seen.told[:1]}": bool(halves("".join(seen.told[:1]))),
        f"{DESTROY.tool} ended as {answers.get(DESTROY.tool)!r}, not as one of {sorted(ends)}.": (
            answers.get(DESTROY.tool) in ends
        ),
        f"A human was asked {wire.asked} times, by a client that declares {wire.elicitation}.": (
            asked is bool(wire.elicitation)
        ),
        f"The deployment is {'there' if kept else 'gone'}.": kept is not seen.agreed,
    }
    return [said for said, good in checks.items() if not good]


def _same(some: Sequence[str], others: Sequence[str]) -> bool:
    return sorted(some) == sorted(others)


def _apart(some: Sequence[str], others: Sequence[str]) -> str:
    missing, more = sorted({*others} - {*some}), sorted({*some} - {*others})
    return f"{len(some)} of {len(others)}, without {missing}, with {more}."


_ASKS_FIRST: Final = "CONFIRMATION_REQUIRED"
_HALVES: Final = {
    "text": re.compile(r"\*\*\d+ tools and"),
    "structured": re.compile(r'\\*"ok\\*":\s*true'),
}
"""How each begins; within a text, quotes are escaped."""
