"""One question put to a model that may be slow, and its answer heard within bounds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from core.endpoint import Endpoint
from core.errors import RequestRefused

SILENCE_SECONDS: Final = 180.0
"""Before the first token of a long question, on a CPU."""
MOST_CHARACTERS: Final = 32_000
"""Of an answer: ten times what the form allows. What is longer is no answer."""

Hears = Callable[[int], None]


class Answer(NamedTuple):
    """What came."""

    text: str
    cut: bool
    """It broke off at its limit of tokens or at ours of characters."""
    guided: bool
    """The endpoint held it to the schema."""


async def put(
    endpoint: Endpoint,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    schema: Mapping[str, Any],
    *,
    answer_tokens: int,
    hears: Hears,
) -> Answer:
    """Ask for JSON of this schema; an endpoint that knows no schemas is asked without.

    Raises:
        EndpointError: It refuses, breaks off or sends nonsense.
    """
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": answer_tokens,
        "temperature": 0,
        "stream": True,
    }
    form = {"type": "json_schema", "json_schema": {"name": "reading", "schema": schema}}
    try:
        return await _heard(endpoint, {**body, "response_format": form}, hears, guided=True)
    except RequestRefused:
        return await _heard(endpoint, body, hears, guided=False)


async def _heard(
    endpoint: Endpoint, body: Mapping[str, Any], hears: Hears, *, guided: bool
) -> Answer:
    pieces: list[str] = []
    size, reason = 0, ""
    async with endpoint.stream("/v1/chat/completions", body, timeout=SILENCE_SECONDS) as events:
        async for chunk in events:
            text, ended = _said(chunk)
            pieces.append(text)
            size, reason = size + len(text), ended or reason
            hears(size)
            if size > MOST_CHARACTERS:
                break
    return Answer("".join(pieces)[:MOST_CHARACTERS], reason == "length" or size > MOST_CHARACTERS,
                  guided)  # fmt: skip


def _said(chunk: Mapping[str, Any]) -> tuple[str, str]:
    """Give the text of a chunk and why the answer ends, nothing where it does not say."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    delta = first.get("delta") if isinstance(first, dict) else None
    content = delta.get("content") if isinstance(delta, dict) else None
    ended = first.get("finish_reason") if isinstance(first, dict) else None
    return content if isinstance(content, str) else "", ended if isinstance(ended, str) else ""
