"""How long a question is in tokens, as the model's own tokenizer counts."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from core.endpoint import Endpoint
from core.errors import EndpointError, RequestRefused, Unreachable

_SECONDS: Final = 20.0
_TOO_LONG: Final = 1 << 30
_BYTES_OF_TOKEN: Final = 1.5
"""For an estimate: digits, paths and hex of logs make short tokens; prose has 4 (2026-11)."""
_TURN_TOKENS: Final = 32
"""What a chat template adds, at most."""
UNKNOWN_CONTEXT: Final = 8192
"""Tokens, where an endpoint does not say: fewer than any model of 2026 that is worth asking."""


class Ruler(NamedTuple):
    """Counts for one model of one endpoint."""

    endpoint: Endpoint
    model: str
    exact: bool
    """The endpoint's `/tokenize` counts; False is an estimate, and a high one."""

    async def tokens(self, messages: Sequence[dict[str, Any]]) -> int:
        """Give the tokens of a conversation; very many for one that is refused as too long."""
        if not self.exact:
            return estimate(messages)
        try:
            return await _count(self.endpoint, self.model, messages)
        except RequestRefused:
            return _TOO_LONG


async def ruler_of(endpoint: Endpoint, model: str) -> Ruler:
    """See whether the endpoint counts tokens: vLLM does, others of OpenAI's kind do not.

    Raises:
        Unreachable: Nothing answers there.
    """
    try:
        await _count(endpoint, model, [{"role": "user", "content": "Hello"}])
    except Unreachable:
        raise
    except EndpointError:
        return Ruler(endpoint, model, exact=False)
    return Ruler(endpoint, model, exact=True)


def estimate(messages: Sequence[dict[str, Any]]) -> int:
    """Guess a number of tokens that is hardly ever too low.

    >>> estimate([{"role": "user", "content": "three words here"}])
    42
    """
    size = sum(len(str(one["content"]).encode()) for one in messages)
    return int(size / _BYTES_OF_TOKEN) + _TURN_TOKENS * len(messages)


async def _count(endpoint: Endpoint, model: str, messages: Sequence[dict[str, Any]]) -> int:
    body = {"model": model, "messages": list(messages)}
    reply = await endpoint.post("/tokenize", body, timeout=_SECONDS)
    count = reply.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise EndpointError("/tokenize tells no count.", fix="Estimate it.")
    return count
