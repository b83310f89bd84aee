"""Answers in pieces: server-sent events, chunk by chunk as vLLM makes them."""

import json
from collections.abc import AsyncIterator
from typing import Any

from emulators.engine.engine import Chorus
from emulators.engine.transcript import Delta
from emulators.engine.wire import answers
from emulators.engine.wire.jobs import Job
from emulators.engine.wire.logprobs import chat_logprobs, completion_logprobs
from emulators.engine.wire.requests import ChatRequest, CompletionRequest

DONE = "data: [DONE]\n\n"


def event(body: object) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def completion_events(job: Job[CompletionRequest], chorus: Chorus) -> AsyncIterator[str]:
    """The stream of `/v1/completions`."""
    made = [0] * len(job.asks)
    async for index, delta in chorus.deltas():
        first = made[index] == 0
        made[index] += len(delta.tokens)
        chunk = {**job.head, "choices": [_completion_choice(job, index, delta, first=first)]}
        if delta.finish_reason and not job.request.wants_usage:
            chunk["system_fingerprint"] = job.served.fingerprint
        if job.request.wants_continuous_usage:
            chunk["usage"] = answers.usage(len(job.prompt_of(index)), made[index])
        yield event(chunk)
    if job.request.wants_usage:
        used = answers.usage(sum(map(len, job.prompts)), sum(made))
        if job.served.cache_details:
            used["prompt_tokens_details"] = {"cached_tokens": job.cached(chorus)}
        fingerprint = job.served.fingerprint
        yield event({**job.head, "choices": [], "usage": used, "system_fingerprint": fingerprint})
    yield DONE


def _completion_choice(
    job: Job[CompletionRequest], index: int, delta: Delta, *, first: bool
) -> dict[str, Any]:
    request, prompt = job.request, list(job.prompt_of(index))
    text, tokens, shown_prompt = delta.text, delta.tokens, None
    if first and (request.echo or request.return_token_ids):
        shown_prompt = prompt
    if first and request.echo:
        before = "" if request.return_token_ids else job.prompt_text(index)
        text = before if request.max_tokens == 0 else before + text
        tokens = prompt + tokens
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(job, tokens, echoed=len(prompt) if first else 0)
        if request.echo
        else completion_logprobs(job, tokens),
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "prompt_token_ids": shown_prompt,
        "token_ids": delta.tokens if request.return_token_ids else None,
    }


async def chat_events(job: Job[ChatRequest], chorus: Chorus) -> AsyncIterator[str]:
    """The stream of `/v1/chat/completions`: the roles, the pieces, the usage."""
    made = [0] * len(job.asks)
    opened = False
    async for index, delta in chorus.deltas():
        if not opened:
            opened = True
            for chunk in _openings(job):
                yield event(chunk)
        first = made[index] == 0
        made[index] += len(delta.tokens)
        if not _is_silent(job, delta):
            yield event(_chat_chunk(job, index, delta, made[index], first=first))
    if job.request.wants_usage:
        yield event(_chat_usage(job, chorus, sum(made)))
    yield DONE


def _head(job: Job[ChatRequest]) -> dict[str, Any]:
    return {**job.head, "object": "chat.completion.chunk"}


def _openings(job: Job[ChatRequest]) -> list[dict[str, Any]]:
    prompt = list(job.prompts[0])
    chunks = []
    for index in range(len(job.asks)):
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {**_head(job), "choices": [choice]}
        if job.request.wants_continuous_usage:
            chunk["usage"] = _continuous(job, 0)
        chunk["prompt_token_ids"] = prompt if job.request.return_token_ids else None
        chunk["prompt_text"] = None
        chunks.append(chunk)
    return chunks


def _continuous(job: Job[ChatRequest], made: int) -> dict[str, Any]:
    details = {"reasoning_tokens": 0} if job.served.reasoning_parser else None
    return {**answers.usage(len(job.prompts[0]), made), "completion_tokens_details": details}


def _is_silent(job: Job[ChatRequest], delta: Delta) -> bool:
    """A parser that has nothing to say sends no chunk."""
    spoken = delta.text or (delta.reasoning and job.request.include_reasoning)
    needed = delta.finish_reason or job.request.return_token_ids or job.request.logprobs
    return job.served.parses and not spoken and not needed


def _chat_chunk(
    job: Job[ChatRequest], index: int, delta: Delta, made: int, *, first: bool
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "delta": _message(job, delta, first=first),
        "logprobs": chat_logprobs(job, delta.tokens),
        "finish_reason": answers.finish_reason(job, delta),
    }
    if delta.finish_reason:
        choice["stop_reason"] = delta.stop_reason
    choice["token_ids"] = delta.tokens if job.request.return_token_ids else None
    chunk = {**_head(job), "choices": [choice]}
    if delta.finish_reason and not job.request.wants_usage:
        chunk["system_fingerprint"] = job.served.fingerprint
    if job.request.wants_continuous_usage:
        chunk["usage"] = _continuous(job, made)
    return chunk


def _message(job: Job[ChatRequest], delta: Delta, *, first: bool) -> dict[str, Any]:
    if job.tool is not None:
        call = answers.tool_calls(job, delta.text)[0]
        later = {"function": {"arguments": delta.text}}
        return {"tool_calls": [{"index": 0, **(call if first else later)}]}
    message: dict[str, Any] = {}
    if delta.reasoning and job.request.include_reasoning:
        message["reasoning"] = delta.reasoning
    if delta.text or not job.served.parses:
        message["content"] = delta.text
    return message


def _chat_usage(job: Job[ChatRequest], chorus: Chorus, made: int) -> dict[str, Any]:
    used = answers.usage(len(job.prompts[0]), made)
    if job.served.cache_details:
        used["prompt_tokens_details"] = answers.cache_details(job, chorus)
    details = answers.reasoning_details(job, chorus)
    if details is not None:
        used["completion_tokens_details"] = details
    fingerprint = job.served.fingerprint
    return {**_head(job), "choices": [], "usage": used, "system_fingerprint": fingerprint}
