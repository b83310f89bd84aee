"""What an engine's events and refusals say."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from orjson import loads

from benchmark.client.sse import END, payloads
from benchmark.errors import Finish, Outcome
from benchmark.samples import UNKNOWN

LOOKED_AT: Final = 3
"""Events at the end that can matter: the last token, usage or error, and the end mark."""
_MARKED: Final = b"data: " + END
_OPENS: Final = b"data: {"
_AT_LENGTH: Final = b'"finish_reason":"length"'
_TEXT: Final = b'"text":"'
_NO_TEXT: Final = b'"text":""'
_SHORT: Final = 4
"""What splitting an answer of one token gives: it, its usage, the end mark, and nothing."""
_ENDS: Final = (b" " + END, END)
_FINISHES: Final = {"stop": Finish.STOP, "length": Finish.LENGTH, None: Finish.UNKNOWN}
_LENGTH_WORDS: Final = re.compile(
    rb"context length|max_model_len|maximum[^.]{0,30}length|too long|too many tokens"
    rb"|input_tokens|max_tokens|max_completion_tokens",
    re.IGNORECASE,
)
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([0-9]+(?:\.[0-9]+)?)\s", re.IGNORECASE)
_SHOWN: Final = ("content", "reasoning", "reasoning_content", "tool_calls")
# Members of an enumeration are slow to look up, and these are looked up for each request.
_OK: Final = Outcome.OK
_OTHER: Final = Finish.OTHER
_new: Final = tuple.__new__
"""What the constructor of a named tuple calls, without a frame of Python in between."""
_BY_STATUS: Final = {401: Outcome.UNAUTHORIZED, 403: Outcome.UNAUTHORIZED} | dict.fromkeys(
    (429, 503), Outcome.THROTTLED
)
_BY_HUNDRED: Final = {3: Outcome.REDIRECT, 4: Outcome.REFUSED, 5: Outcome.SERVER_ERROR}


_ODD: Final = (ValueError, AttributeError, TypeError, LookupError)
"""What comes of reading an event that is not what an engine sends."""


class GarbageError(ValueError):
    """An event is no JSON, or none of an engine's."""


class Usage(NamedTuple):
    """Token counts; `UNKNOWN` where the engine does not say."""

    prompt: int = UNKNOWN
    output: int = UNKNOWN
    reasoning: int = UNKNOWN
    cached: int = UNKNOWN


_UNSAID: Final = Usage()


class Ending(NamedTuple):
    """What the last events say of the whole answer."""

    outcome: Outcome
    """Of an answer that had tokens."""
    tokenless: int
    """Events at the very end that carry no token."""
    finish: Finish = Finish.UNKNOWN
    usage: Usage = _UNSAID
    last_is_empty: bool = False
    """Whether the last event with a choice shows no text: it may carry no token."""


def token_event(payload: bytes) -> dict[str, Any] | None:
    """Give an event for which a token was made, be its text empty or not; a chat's role is none.

    Raises:
        GarbageError: It is none of an engine's.
    """
    if payload in _ENDS:
        return None
    try:
        event: dict[str, Any] = loads(payload)
        choices = event.get("choices")
        if not choices or ((usage := event.get("usage")) and usage["completion_tokens"] == 0):
            return None
        delta = choices[0].get("delta")
        made = delta is None or "role" not in delta or _shows(choices[0])
    except _ODD as exc:
        raise GarbageError from exc
    return event if made else None


def is_chat(event: dict[str, Any]) -> bool:
    """Whether a token's event is of the chat API, where there may be reasoning."""
    return "delta" in event["choices"][0]


def thinks(text: bytes) -> bool:
    """Whether an event holds reasoning; counts of reasoning tokens alone do not."""
    return b'"reasoning":"' in text or b'"reasoning_content":"' in text


def reasoning_tokens(usage: Usage, thought: bytes) -> int:
    """Trust the engine's own count, but for the 0 that its running counts always say.

    Else it is how many tokens had been made at the last event with reasoning.
    """
    if usage.reasoning > 0 or not thought:
        return usage.reasoning
    last = next((event for event in reversed(payloads(thought)) if thinks(event)), None)
    try:
        return UNKNOWN if last is None else loads(last)["usage"]["completion_tokens"]
    except _ODD:
        return UNKNOWN


def read_ending(
    events: Sequence[bytes], *, complete: bool, first: bytes = b"", first_event: Any = None
) -> Ending:
    """Read the last events, as they stand; `complete`: HTTP says that nothing is missing.

    `first_event` is what was parsed before of the first one with a token: it may be the last one.

    Raises:
        GarbageError: One is none of an engine's.
    """
    said, tokenless, usage = False, 0, _UNSAID
    try:
        for event in reversed(events):
            payload = event[5:]
            if payload in _ENDS:
                said = True
            else:
                read = first_event if payload == first else loads(payload)
                if usage is _UNSAID and (told := read.get("usage")):
                    usage = _usage(told)
                if choices := read.get("choices"):
                    return _last(choices[0], usage, tokenless, whole=said, complete=complete)
                if "error" in read:
                    return Ending(Outcome.SERVER_ERROR, tokenless + 1)
            tokenless += 1
    except _ODD as exc:
        raise GarbageError from exc
    return Ending(Outcome.OK if said else Outcome.BROKEN_STREAM, tokenless, usage=usage)


def whole_ending(
    tail: Sequence[bytes],
    *,
    is_streaming: bool,
    words: bytes,
    complete: bool,
    first: bytes = b"",
    first_event: Any = None,
) -> Ending:
    """Say how an answer of status 200 ended, by its last reads of events.

    `is_streaming`: a token had come; `words`: something that may be no event had.
    """
    events = _last_events(tail) if tail else []
    try:
        ending = read_ending(events, complete=complete, first=first, first_event=first_event)
    except GarbageError:
        return Ending(Outcome.GARBAGE, 0)
    if not tail and words:
        return ending._replace(outcome=Outcome.GARBAGE)
    if ending.outcome is _OK and not is_streaming:
        return ending._replace(outcome=Outcome.NO_TOKENS)
    return ending


def _last_events(tail: Sequence[bytes]) -> list[bytes]:
    ends = tail[-1].rsplit(b"\n\n", LOOKED_AT + 1)
    if len(ends) <= LOOKED_AT:
        ends = b"".join(tail).rsplit(b"\n\n", LOOKED_AT + 1)
    return ends[-LOOKED_AT - 1 : -1]


def read_short(body: bytes) -> Usage | None:
    """Read the usage of one token that ended at the length asked for, of the completions API.

    The body is that token, the usage and the end mark. Anything else is left to `read_ending`.
    """
    events = body.split(b"\n\n")
    if len(events) != _SHORT or events[2] != _MARKED or events[3] or b"\r" in body:
        return None
    token, counts, _, _ = events
    if token[:7] != _OPENS or counts[:7] != _OPENS or b"\n" in token or b"\n" in counts:
        return None
    # In JSON a quote within a text is escaped: these are members, and no words of the model.
    if _AT_LENGTH not in token or _TEXT not in token or _NO_TEXT in token:
        return None
    try:
        told = loads(counts[6:])
        return None if told["choices"] else _usage(told["usage"])
    except _ODD:
        return None


def _last(
    choice: dict[str, Any], usage: Usage, tokenless: int, *, whole: bool, complete: bool
) -> Ending:
    reason = choice.get("finish_reason")
    outcome = _OK if whole or (complete and reason is not None) else Outcome.BROKEN_STREAM
    finish = _FINISHES.get(reason, _OTHER)
    return _new(Ending, (outcome, tokenless, finish, usage, not _shows(choice)))


def refusal(status: int, words: bytes) -> Outcome:
    """Class an answer whose status is not 200."""
    if status == 400 and _LENGTH_WORDS.search(words):
        return Outcome.TOO_LONG
    return _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, Outcome.GARBAGE)


def retry_after_seconds(head: bytes) -> float | None:
    """Read it from the head of an answer; None where it is a date or missing."""
    found = _RETRY_AFTER.search(head)
    return float(found[1]) if found else None


def _shows(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    shown = choice.get("delta") or choice
    return any(shown.get(name) for name in _SHOWN) or bool(choice.get("token_ids"))


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    inner, outer = usage.get("completion_tokens_details"), usage.get("prompt_tokens_details")
    counts = (
        prompt if type(prompt) is int else UNKNOWN,
        output if type(output) is int else UNKNOWN,
        _count(inner, "reasoning_tokens") if inner else UNKNOWN,
        _count(outer, "cached_tokens") if outer else UNKNOWN,
    )
    return _new(Usage, counts)


def _count(details: dict[str, Any], name: str) -> int:
    value = details.get(name)
    return value if type(value) is int else UNKNOWN
