"""How three agents talk to a model: what they offer it, what they tell it, what it answers."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from operations.clients import SERVER_KEY

Body = Mapping[str, Any]
Event = Mapping[str, Any]

_DONE: Final = "That is all."


class Wish(NamedTuple):
    """A tool that the model wants called."""

    tool: str
    arguments: Mapping[str, Any]


class Dialect(Protocol):
    """One way of talking to a model."""

    def offered(self, body: Body) -> tuple[str, ...]:
        """Name our tools among those that the model may call, as our server calls them."""

    def told(self, body: Body) -> tuple[str, ...]:
        """Give what the tools have answered so far, as text, oldest first."""

    def events(self, wish: Wish | None, number: int) -> Iterable[Event]:
        """Give the stream in which the model wishes for a call, or says that it is done."""


class Anthropic:
    """`POST /v1/messages`, as Claude Code does."""

    _PREFIX: Final = f"mcp__{SERVER_KEY}__"

    def offered(self, body: Body) -> tuple[str, ...]:
        return _without(self._PREFIX, (tool["name"] for tool in body.get("tools", ())))

    def told(self, body: Body) -> tuple[str, ...]:
        blocks = [
            block
            for message in body["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        return tuple(_text(one["content"]) for one in blocks if one["type"] == "tool_result")

    def events(self, wish: Wish | None, number: int) -> Iterable[Event]:
        start: Event = {"type": "text", "text": ""}
        said: Event = {"type": "text_delta", "text": _DONE}
        if wish:
            named = {"id": f"toolu_{number}", "name": f"{self._PREFIX}{wish.tool}"}
            start = {"type": "tool_use", "input": {}, **named}
            said = {"type": "input_json_delta", "partial_json": json.dumps(wish.arguments)}
        reason = {"stop_reason": "tool_use" if wish else "end_turn", "stop_sequence": None}
        head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "none"}
        message = {**head, "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}
        yield {"type": "message_start", "message": message}
        yield {"type": "content_block_start", "index": 0, "content_block": start}
        yield {"type": "content_block_delta", "index": 0, "delta": said}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 1}}
        yield {"type": "message_stop"}


class Gemini:
    """`POST …:streamGenerateContent`, as Gemini CLI does."""

    _PREFIX: Final = f"mcp_{SERVER_KEY}_"

    def offered(self, body: Body) -> tuple[str, ...]:
        declared = [row for tool in body.get("tools", ()) for row in tool["functionDeclarations"]]
        return _without(self._PREFIX, (row["name"] for row in declared))

    def told(self, body: Body) -> tuple[str, ...]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        return tuple(_text(one["response"]) for one in answers)

    def events(self, wish: Wish | None, number: int) -> Iterable[Event]:
        part: dict[str, Any] = {"text": _DONE}
        if wish:
            call = {"name": f"{self._PREFIX}{wish.tool}", "args": wish.arguments}
            part = {"functionCall": call}
        content = {"role": "model", "parts": [part]}
        yield {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}


class Responses:
    """`POST /v1/responses`, as Codex does; a server's tools are a namespace."""

    _NAMESPACE: Final = f"mcp__{SERVER_KEY.replace('-', '_')}"

    def offered(self, body: Body) -> tuple[str, ...]:
        ours = [one for one in body.get("tools", ()) if one.get("name") == self._NAMESPACE]
        return tuple(tool["name"] for one in ours for tool in one["tools"])

    def told(self, body: Body) -> tuple[str, ...]:
        rows = [one for one in body["input"] if one["type"] == "function_call_output"]
        return tuple(_text(one["output"]) for one in rows)

    def events(self, wish: Wish | None, number: int) -> Iterable[Event]:
        item: dict[str, Any] = {"id": f"item_{number}", "status": "completed"}
        if wish:
            item |= {"type": "function_call", "call_id": f"call_{number}", "name": wish.tool}
            item |= {"namespace": self._NAMESPACE, "arguments": json.dumps(wish.arguments)}
        else:
            text = {"type": "output_text", "text": _DONE, "annotations": []}
            item |= {"type": "message", "role": "assistant", "content": [text]}
        response = {"id": f"resp_{number}", "status": "completed", "output": [item]}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        yield {"type": "response.created", "response": {"id": response["id"]}}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        yield {"type": "response.completed", "response": {**response, "usage": usage}}


def _without(prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def _text(value: Any) -> str:
    """Give what a model reads: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
