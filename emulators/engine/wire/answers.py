"""Whole answers, as vLLM sends them when nothing is streamed."""

from typing import Any

from emulators.engine.engine import Chorus
from emulators.engine.transcript import Delta
from emulators.engine.wire.jobs import Job
from emulators.engine.wire.logprobs import chat_logprobs, completion_logprobs
from emulators.engine.wire.requests import ChatRequest, CompletionRequest
from emulators.engine.wire.served import random_id

_NOTHING_TRANSFERRED = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The three numbers that every usage has."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def completion_answer(
    job: Job[CompletionRequest], chorus: Chorus, deltas: list[Delta]
) -> dict[str, Any]:
    """The body of `/v1/completions`."""
    made = sum(len(delta.tokens) for delta in deltas)
    details = {"cached_tokens": job.cached(chorus), "created_cache_tokens": None}
    return {
        **job.head,
        "choices": [_completion_choice(job, index, delta) for index, delta in enumerate(deltas)],
        "service_tier": None,
        "system_fingerprint": job.served.fingerprint,
        "usage": {
            **usage(sum(map(len, job.prompts)), made),
            "prompt_tokens_details": {**details, "multimodal_tokens": None}
            if job.served.cache_details
            else None,
            "completion_tokens_details": None,
        },
        **_NOTHING_TRANSFERRED,
    }


def _completion_choice(job: Job[CompletionRequest], index: int, delta: Delta) -> dict[str, Any]:
    request, prompt = job.request, list(job.prompt_of(index))
    text, tokens, echoed = delta.text, delta.tokens, 0
    if request.echo:
        echoed = len(prompt)
        before = "" if request.return_token_ids else job.prompt_text(index)
        text, tokens = (
            (before, prompt) if request.max_tokens == 0 else (before + text, prompt + tokens)
        )
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(job, tokens, echoed=echoed),
        "finish_reason": delta.finish_reason,
        "stop_reason": delta.stop_reason,
        "token_ids": delta.tokens if request.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt if request.return_token_ids else None,
        "routed_experts": None,
    }


def chat_answer(job: Job[ChatRequest], chorus: Chorus, deltas: list[Delta]) -> dict[str, Any]:
    """The body of `/v1/chat/completions`."""
    prompt = list(job.prompts[0])
    made = sum(len(delta.tokens) for delta in deltas)
    return {
        **job.head,
        "choices": [_chat_choice(job, index, delta) for index, delta in enumerate(deltas)],
        "service_tier": None,
        "system_fingerprint": job.served.fingerprint,
        "usage": {
            **usage(len(prompt), made),
            "prompt_tokens_details": {**cache_details(job, chorus), "multimodal_tokens": None}
            if job.served.cache_details
            else None,
            "completion_tokens_details": reasoning_details(job, chorus),
        },
        "prompt_logprobs": None,
        "prompt_token_ids": prompt if job.request.return_token_ids else None,
        "prompt_text": None,
        **_NOTHING_TRANSFERRED,
    }


def cache_details(job: Job[ChatRequest], chorus: Chorus) -> dict[str, int]:
    """What the prefix cache knew, and what it learned in whole blocks."""
    size = job.served.engine.scheduler.limits.block_size
    cached = job.cached(chorus)
    return {
        "cached_tokens": cached,
        "created_cache_tokens": len(job.prompts[0]) // size * size - cached,
    }


def reasoning_details(job: Job[ChatRequest], chorus: Chorus) -> dict[str, int] | None:
    """How many tokens were reasoning; nothing without a reasoning parser."""
    if not job.served.reasoning_parser:
        return None
    spent = (min(g.reasoning_tokens, g.request.generated) for g in chorus.generations)
    return {"reasoning_tokens": sum(spent)}


def tool_calls(job: Job[ChatRequest], arguments: str) -> list[dict[str, Any]]:
    """One call of the tool that had to be called."""
    function = {"name": job.tool, "arguments": arguments}
    return [{"id": f"chatcmpl-tool-{random_id()}", "type": "function", "function": function}]


def finish_reason(job: Job[ChatRequest], delta: Delta) -> str | None:
    """A required call ends with `tool_calls`, a named one with `stop`."""
    required = job.tool is not None and job.request.tool_choice == "required"
    return "tool_calls" if required and delta.finish_reason == "stop" else delta.finish_reason


def _chat_choice(job: Job[ChatRequest], index: int, delta: Delta) -> dict[str, Any]:
    request = job.request
    message: dict[str, Any] = {
        "role": "assistant",
        "content": delta.text if job.tool is None else None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if job.tool is not None:
        message["tool_calls"] = tool_calls(job, delta.text)
    message["reasoning"] = (delta.reasoning or None) if request.include_reasoning else None
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(job, delta.tokens),
        "finish_reason": finish_reason(job, delta),
        "stop_reason": delta.stop_reason,
        "token_ids": delta.tokens if request.return_token_ids else None,
        "routed_experts": None,
    }
