"""What an engine says, made into answers of vLLM's API, whole or in pieces."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from simulators.engine.engine import Delta, Generation
from simulators.engine.requests import ChatRequest, Job, Served


def _random_id() -> str:
    return uuid.uuid4().hex[:16]


def cards(served: Served) -> list[dict[str, Any]]:
    """Return what `/v1/models` lists."""
    return [
        {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": served.root,
            "parent": None,
            "max_model_len": served.max_model_len,
        }
        for name in served.names
    ]


def _head(served: Served, job: Job, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if isinstance(job.request, ChatRequest) else "cmpl"
    return {
        "id": f"{prefix}-{_random_id()}",
        "object": kind,
        "created": int(time.time()),
        "model": served.names[0],
    }


def _usage(generation: Generation, made: int) -> dict[str, Any]:
    prompt = len(generation.request.prompt)
    return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}


def _thoughts(served: Served, generation: Generation) -> dict[str, Any]:
    """Count the tokens of reasoning, where a parser tells them apart."""
    if not served.reasoning_parser:
        return {}
    spent = min(generation.reasoning_tokens, generation.request.generated)
    return {"completion_tokens_details": {"reasoning_tokens": spent}}


def whole(served: Served, job: Job, generation: Generation, said: Delta) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    usage = _usage(generation, said.tokens)
    end: dict[str, Any] = {
        "index": 0,
        "finish_reason": said.finish_reason,
        "stop_reason": None,
    }
    if not isinstance(job.request, ChatRequest):
        choice = {**end, "text": said.text, "logprobs": None}
        return {**_head(served, job, "text_completion"), "choices": [choice], "usage": usage}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": said.text,
        "reasoning": said.reasoning or None,
    }
    if job.tool:
        call = {"name": job.tool, "arguments": said.text}
        calls = [{"id": f"chatcmpl-tool-{_random_id()}", "type": "function", "function": call}]
        message |= {"content": None, "tool_calls": calls}
        if said.finish_reason == "stop":
            end["finish_reason"] = "tool_calls"
    return {
        **_head(served, job, "chat.completion"),
        "choices": [{**end, "message": message}],
        "usage": {**usage, **_thoughts(served, generation)},
    }


async def events(served: Served, job: Job, generation: Generation) -> AsyncIterator[str]:
    """Give a stream: of a chat the role first; the pieces; the usage, if it is wanted; the end."""
    chat, request, made = isinstance(job.request, ChatRequest), job.request, 0
    head = _head(served, job, "chat.completion.chunk" if chat else "text_completion")

    def chunk(choice: dict[str, Any], reason: str | None) -> str:
        choices = [{"index": 0, **choice, "logprobs": None, "finish_reason": reason}]
        used = {"usage": _usage(generation, made)} if request.tells_usage(each=True) else {}
        return _event({**head, "choices": choices, **used})

    async for delta in generation.deltas():
        if chat and not made:
            yield chunk({"delta": {"role": "assistant", "content": ""}}, None)
        made += delta.tokens
        if not chat:
            yield chunk({"text": delta.text}, delta.finish_reason)
        elif delta.reasoning:
            content = {"content": delta.text} if delta.text else {}
            yield chunk({"delta": {"reasoning": delta.reasoning, **content}}, delta.finish_reason)
        else:
            yield chunk({"delta": {"content": delta.text}}, delta.finish_reason)
    if request.tells_usage():
        used = {**_usage(generation, made), **(_thoughts(served, generation) if chat else {})}
        yield _event({**head, "choices": [], "usage": used})
    yield "data: [DONE]\n\n"


def _event(body: object) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
