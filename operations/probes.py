"""A few short questions that show what clients rely on: tools, schemas, thoughts, images."""

import base64
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import anyio

from core.endpoint import Endpoint
from core.errors import EndpointError, RequestRefused, Unreachable
from core.records import Record
from core.redaction import NotJson, in_quotes, read_json

_PATH: Final = "/v1/chat/completions"
_SECONDS: Final = 20.0
"""Of each question; all are asked at once."""
_LAST_SECONDS: Final = 2.0
"""Of a call, to say what was seen."""
_EXCERPT: Final = 120
_NO_PARSER: Final = "--tool-call-parser"
_WORDS: Final = ("amber-42", "violet-17")
"""What nobody answers to a greeting unless the schema makes them."""
_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_MARKS: Final = ("<|channel>", "<channel|>")
"""Of Gemma 4's thoughts; without a parser they are left out, and the word before them stays."""
Outcome = Literal["pass", "fail", "not tested"]


class Probe(Record):
    """One ability, and what was seen of it."""

    what: str
    outcome: Outcome
    detail: str
    """The evidence, or why it was not tested."""


Judge = Callable[[Mapping[str, Any], str], Probe]
"""Judges an answer; the second is why its words mean nothing, if they do not."""


async def probe(endpoint: Endpoint, model: str, *, made_up: str) -> tuple[Probe, ...]:
    """Ask all at once; `made_up` says why this model's words mean nothing, if they do not."""
    left = anyio.current_effective_deadline() - anyio.current_time() - _LAST_SECONDS
    limit = max(1.0, min(_SECONDS, left))
    found: dict[str, Probe] = {}

    async def ask(what: str, body: Mapping[str, Any], judge: Judge) -> None:
        found[what] = await _asked(endpoint, what, {"model": model, **body}, limit, judge, made_up)

    async with anyio.create_task_group() as asking:
        for what, (body, judge) in _QUESTIONS.items():
            asking.start_soon(ask, what, body, judge)
    return tuple(found[what] for what in _QUESTIONS)


async def _asked(
    endpoint: Endpoint,
    what: str,
    body: Mapping[str, Any],
    limit: float,
    judge: Judge,
    made_up: str,
) -> Probe:
    try:
        with anyio.fail_after(limit):
            reply = await endpoint.post(_PATH, {"temperature": 0, **body}, timeout=limit)
    except (TimeoutError, Unreachable):
        return Probe(what=what, outcome="not tested", detail=f"No answer within {limit:.0f} s.")
    except RequestRefused as exc:
        return _refused(what, exc.cause)
    except EndpointError as exc:
        detail = f"{exc.summary} {exc.cause}".strip()
        return Probe(what=what, outcome="fail", detail=detail)
    return judge(reply, made_up).model_copy(update={"what": what})


def _refused(what: str, words: str) -> Probe:
    """Tell what an engine was started without from what it should have taken."""
    if _NO_PARSER in words:
        detail = "The engine has no tool-call parser: deploy it with --tool-call-parser."
        return Probe(what=what, outcome="not tested", detail=detail)
    if what == "image" and ("multimodal" in words or "at most 0" in words.lower()):
        detail = f"The engine takes no images: {words}"
        return Probe(what=what, outcome="not tested", detail=detail)
    return Probe(what=what, outcome="fail", detail=f"The engine refuses it: {words}")


def _tools(reply: Mapping[str, Any], made_up: str) -> Probe:
    message = _message(reply)
    text = _text(message, "content")
    calls = message.get("tool_calls")
    for call in calls[:1] if isinstance(calls, list) else ():
        found = call.get("function") if isinstance(call, dict) else None
        said = found if isinstance(found, dict) else {}
        shown = f"{_excerpt(said.get('name'))}({_excerpt(said.get('arguments'))})"
        right = said.get("name") == "get_weather" and _is_call(said.get("arguments"))
        return _probe("pass" if right else "fail", shown if right else f"A call amiss: {shown}")
    if "get_weather" in text:
        return _probe("fail", f"The call stays in `content`: {_excerpt(text)}")
    if made_up:
        return _probe("not tested", f"The engine took the tool, but {made_up}.")
    return _probe("fail", f"No call; it said {_excerpt(text)}")


def _is_call(arguments: object) -> bool:
    try:
        given = read_json(str(arguments).encode(errors="replace"))
    except NotJson:
        return False
    return isinstance(given, dict) and isinstance(given.get("city"), str)


def _schema(reply: Mapping[str, Any], _made_up: str) -> Probe:
    """Judge the form alone: the grammar makes any model say one of the two words."""
    text = _text(_message(reply), "content")
    try:
        held = read_json(text.encode(errors="replace")) in _WORDS
    except NotJson:
        held = False
    if held:
        return _probe("pass", f"{_excerpt(text)}, as the schema wants.")
    return _probe("fail", f"The schema was not enforced: {_excerpt(text)}")


def _reasoning(reply: Mapping[str, Any], made_up: str) -> Probe:
    message = _message(reply)
    text = _text(message, "content")
    thoughts = _text(message, "reasoning") or _text(message, "reasoning_content")
    if text.startswith("thought\n") or any(mark in text for mark in _MARKS):
        return _probe("fail", f"Thoughts are in `content`: {_excerpt(text)}")
    if thoughts:
        return _probe("pass", f"Thoughts apart from the answer: {_excerpt(thoughts)}")
    usage = reply.get("usage")
    if not (isinstance(usage, dict) and usage.get("completion_tokens_details")):
        why = "No thoughts came and the engine counts none: it seems to have no reasoning parser."
        return _probe("not tested", why)
    why = f"no thoughts came; {made_up}" if made_up else "the model gave no thoughts"
    return _probe("not tested", f"The engine took it, but {why}.")


def _image(reply: Mapping[str, Any], made_up: str) -> Probe:
    text = _text(_message(reply), "content")
    if made_up:
        return _probe("not tested", f"The engine took the image, but {made_up}.")
    seen = "red" in text.lower()
    return _probe("pass" if seen else "fail", f"A red image is called {_excerpt(text)}")


def _probe(outcome: Outcome, detail: str) -> Probe:
    return Probe(what="", outcome=outcome, detail=detail)


def _message(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    found = first.get("message") if isinstance(first, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(message: Mapping[str, Any], field: str) -> str:
    found = message.get(field)
    return found if isinstance(found, str) else ""


def _excerpt(text: object) -> str:
    return in_quotes(text, _EXCERPT) or "nothing"


def _red_png(size: int = 64) -> str:
    """Return a red square as a data address."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = (b"\x00" + b"\xff\x00\x00" * size) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
    return f"data:image/png;base64,{png}"


def _user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


_WEATHER: Final[Mapping[str, Any]] = {
    "messages": _user("Use the tool: what is the weather in Paris now?"),
    "tools": [_TOOL],
    "max_tokens": 96,
}
_FORM: Final[Mapping[str, Any]] = {
    "type": "json_schema",
    "json_schema": {"name": "word", "schema": {"type": "string", "enum": list(_WORDS)}},
}
_SEEN: Final = (
    {"type": "text", "text": "Which colour fills this image? One word."},
    {"type": "image_url", "image_url": {"url": _red_png()}},
)
_QUESTIONS: Final[Mapping[str, tuple[Mapping[str, Any], Judge]]] = {
    "forced tool call": ({**_WEATHER, "tool_choice": "required"}, _tools),
    "automatic tool call": ({**_WEATHER, "tool_choice": "auto"}, _tools),
    "structured output": (
        {"messages": _user("Say hello."), "response_format": _FORM, "max_tokens": 32},
        _schema,
    ),
    "reasoning": (
        {
            "messages": _user("What is 17 times 23? Think first."),
            "chat_template_kwargs": {"enable_thinking": True},
            "max_tokens": 128,
        },
        _reasoning,
    ),
    "image": ({"messages": _user(list(_SEEN)), "max_tokens": 16}, _image),
}
"""What is asked, and who judges the answer."""
