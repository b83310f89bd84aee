"""A client's request made into sequences, and their text into answers, whole or in pieces."""

import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulators.engine import requests
from simulators.engine.engine import Ask, Chorus, Delta, Engine, Manner
from simulators.engine.errors import WireError, no_such_model
from simulators.engine.metrics import EngineMetrics
from simulators.engine.requests import ChatRequest, CompletionRequest

VERSION: Final = "0.32.0"
DONE: Final = "data: [DONE]\n\n"


def random_id() -> str:
    """Return the sixteen hexadecimal digits of vLLM's ids."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One model on one engine, as the flags say."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    vocab_size: int
    engine: Engine
    metrics: EngineMetrics
    multimodal: bool = False
    reasoning_parser: bool = False
    tool_parser: bool = False
    auto_tools: bool = False
    cache_details: bool = False

    @property
    def parses(self) -> bool:
        """Whether a parser stands between the model's text and a chat's reply."""
        return self.reasoning_parser or self.tool_parser

    @property
    def fingerprint(self) -> str:
        shape = f"{self.root}|{self.max_model_len}|{self.vocab_size}"
        return f"vllm-{VERSION}-{hashlib.sha256(shape.encode()).hexdigest()[:8]}"

    def check_name(self, model: str | None) -> None:
        """Refuse a model that is not served here; naming none is fine."""
        if model and model not in self.names:
            raise no_such_model(model, self.names)

    def cards(self) -> list[dict[str, Any]]:
        """Return what `/v1/models` lists."""
        created = int(time.time())
        permission = {
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": self.root,
                "parent": None,
                "max_model_len": self.max_model_len,
                "permission": [{"id": f"modelperm-{random_id()}", **permission}],
            }
            for name in self.names
        ]

    def tokens_of(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Return a prompt's tokens; refuses what the model cannot take."""
        tokenizer = self.engine.tokenizer
        tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        requests.check_prompt(
            tokens,
            max_model_len=self.max_model_len,
            vocab_size=max(self.vocab_size, tokenizer.vocab_size),
            from_text=isinstance(prompt, str),
        )
        return tokens

    def render(self, messages: Sequence[Mapping[str, Any]], *, open_turn: bool = True) -> str:
        """Return the prompt that the model sees of a conversation, in Gemma's turns."""
        if not messages:
            raise WireError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        turns = "".join(
            f"<|turn>{self._role(one)}\n{self._words(one).strip()}<turn|>\n" for one in messages
        )
        return f"<bos>{turns}<|turn>model\n" if open_turn else f"<bos>{turns}"

    def _role(self, message: Mapping[str, Any]) -> str:
        if "role" not in message:
            where = "body.messages.0.role"
            raise WireError("1 validation error: role", kind="Bad Request", param=where)
        return "model" if message["role"] == "assistant" else str(message["role"])

    def _words(self, message: Mapping[str, Any]) -> str:
        content = message.get("content")
        if content is None and message["role"] != "user":
            return ""  # what only calls tools has no words
        if isinstance(content, str):
            return content
        if not (isinstance(content, list) and all(isinstance(part, dict) for part in content)):
            where = "body.messages.0.content"
            raise WireError("1 validation error: content", kind="Bad Request", param=where)
        if not self.multimodal and any(part.get("type", "text") != "text" for part in content):
            raise WireError(f"{self.names[0]} is not a multimodal model")
        return "".join(part.get("text", "<image>") for part in content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that an answer is made of, but for the tokens."""

    served: Served
    request: CompletionRequest | ChatRequest
    prompts: tuple[Sequence[int], ...]
    asks: tuple[Ask, ...]
    id: str
    created: int
    tool: str | None = None

    @property
    def head(self) -> dict[str, Any]:
        """What every answer begins with."""
        kind = "text_completion" if self.id.startswith("cmpl-") else "chat.completion"
        name = self.served.names[0]
        return {"id": self.id, "object": kind, "created": self.created, "model": name}

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def details(self, chorus: Chorus) -> dict[str, int]:
        """What the prefix cache knew of the last prompt, and what it learned in whole blocks."""
        size = self.served.engine.scheduler.limits.block_size
        cached = chorus.generations[-1].request.cached or 0
        return {
            "cached_tokens": cached,
            "created_cache_tokens": len(self.prompts[0]) // size * size - cached,
        }

    def reasoning(self, chorus: Chorus) -> dict[str, int] | None:
        """How many tokens were reasoning; None without a reasoning parser."""
        if not self.served.reasoning_parser:
            return None
        spent = (min(g.reasoning_tokens, g.request.generated) for g in chorus.generations)
        return {"reasoning_tokens": sum(spent)}


def completion_job(served: Served, request: CompletionRequest, request_id: str | None) -> Job:
    """Read `POST /v1/completions`."""
    served.check_name(request.model)
    requests.check_output(request.max_tokens, served.max_model_len)
    prompts = tuple(served.tokens_of(prompt) for prompt in request.prompts)
    form = requests.guided_text(request)
    asks = [
        ask
        for prompt in prompts
        for ask in _asks(served, request, prompt, request.max_tokens, form)
    ]
    return Job(
        served=served,
        request=request,
        prompts=prompts,
        asks=tuple(asks),
        id=f"cmpl-{request_id or random_id()}",
        created=int(time.time()),
    )


def chat_job(served: Served, request: ChatRequest, request_id: str | None) -> Job:
    """Read `POST /v1/chat/completions`."""
    served.check_name(request.model)
    request.check_tools(parser=served.tool_parser, automatic=served.auto_tools)
    text = served.render(request.messages, open_turn=request.add_generation_prompt)
    name, asked = request.asked_tokens
    requests.check_output(asked, served.max_model_len, name)
    prompt = served.tokens_of(text)
    form = requests.tool_arguments(request) or requests.guided_text(request)
    thinking = (request.chat_template_kwargs or {}).get("enable_thinking")
    thinks = served.reasoning_parser and bool(
        thinking or request.reasoning_effort not in {None, "none"}
    )
    return Job(
        served=served,
        request=request,
        prompts=(prompt,),
        asks=tuple(_asks(served, request, prompt, asked, form, thinks=thinks)),
        id=f"chatcmpl-{request_id or random_id()}",
        created=int(time.time()),
        tool=request.forced_tool,
    )


def _asks(
    served: Served,
    request: CompletionRequest | ChatRequest,
    prompt: Sequence[int],
    asked: int | None,
    form: str,
    *,
    thinks: bool = False,
) -> list[Ask]:
    room = served.max_model_len - len(prompt)
    max_tokens = room if asked is None else min(asked, room)
    requests.check_sampling(request, max_tokens=max_tokens)
    return [
        Ask(
            prompt=prompt,
            max_tokens=max_tokens,
            manner=Manner(
                choice=choice,
                seed=request.seed,
                temperature=1.0 if request.temperature is None else request.temperature,
                top_p=1.0 if request.top_p is None else request.top_p,
                thinks=thinks,
                min_tokens=request.min_tokens,
                ignore_eos=request.ignore_eos,
                form=form,
            ),
            stops=request.stops,
            stop_tokens=frozenset(request.stop_token_ids or ()),
            keep_stop=request.include_stop_str_in_output,
            choices=request.n or 1,
        )
        for choice in range(request.n or 1)
    ]


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """Return the three numbers that every usage has."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def whole(job: Job, chorus: Chorus, deltas: list[Delta]) -> dict[str, Any]:
    """Return the body of an answer that is not streamed."""
    chat = isinstance(job.request, ChatRequest)
    made = sum(len(delta.tokens) for delta in deltas)
    details: dict[str, int | None] = {**job.details(chorus), "multimodal_tokens": None}
    if not chat:
        details["created_cache_tokens"] = None
    body = {
        **job.head,
        "choices": [_choice(job, index, delta) for index, delta in enumerate(deltas)],
        "service_tier": None,
        "system_fingerprint": job.served.fingerprint,
        "usage": {
            **usage(job.prompt_tokens, made),
            "prompt_tokens_details": details if job.served.cache_details else None,
            "completion_tokens_details": job.reasoning(chorus) if chat else None,
        },
    }
    if chat:
        tokens = list(job.prompts[0]) if job.request.return_token_ids else None
        body |= {"prompt_logprobs": None, "prompt_token_ids": tokens, "prompt_text": None}
    return body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _choice(job: Job, index: int, delta: Delta) -> dict[str, Any]:
    end = {
        "logprobs": None,
        "finish_reason": _finish_reason(job, delta),
        "stop_reason": delta.stop_reason,
        "token_ids": delta.tokens if job.request.return_token_ids else None,
    }
    if isinstance(job.request, CompletionRequest):
        tokens = list(job.asks[index].prompt) if job.request.return_token_ids else None
        prompt = {"prompt_logprobs": None, "prompt_token_ids": tokens, "routed_experts": None}
        return {"index": index, "text": delta.text, **end, **prompt}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": delta.text if job.tool is None else None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if job.tool is not None:
        message["tool_calls"] = [_tool_call(job, delta.text)]
    message["reasoning"] = (delta.reasoning or None) if job.request.include_reasoning else None
    return {"index": index, "message": message, **end, "routed_experts": None}


def _tool_call(job: Job, arguments: str) -> dict[str, Any]:
    function = {"name": job.tool, "arguments": arguments}
    return {"id": f"chatcmpl-tool-{random_id()}", "type": "function", "function": function}


def _finish_reason(job: Job, delta: Delta) -> str | None:
    """Return `tool_calls` for a required call that is over; a named one ends with `stop`."""
    request = job.request
    required = isinstance(request, ChatRequest) and request.tool_choice == "required"
    return "tool_calls" if required and delta.finish_reason == "stop" else delta.finish_reason


def event(body: object) -> str:
    """Return one server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def completion_events(job: Job, chorus: Chorus) -> AsyncIterator[str]:
    """Give the stream of `/v1/completions`."""
    request, made = job.request, [0] * len(job.asks)
    async for index, delta in chorus.deltas():
        first, prompt = made[index] == 0, job.asks[index].prompt
        made[index] += len(delta.tokens)
        choice = {
            "index": index,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": list(prompt) if first and request.return_token_ids else None,
            "token_ids": delta.tokens if request.return_token_ids else None,
        }
        chunk = {**job.head, "choices": [choice]}
        if delta.finish_reason and not request.wants_usage:
            chunk["system_fingerprint"] = job.served.fingerprint
        if request.wants_continuous_usage:
            chunk["usage"] = usage(len(prompt), made[index])
        yield event(chunk)
    if request.wants_usage:
        used = usage(job.prompt_tokens, sum(made))
        if job.served.cache_details:
            used["prompt_tokens_details"] = {"cached_tokens": job.details(chorus)["cached_tokens"]}
        yield event(_last(job, job.head, used))
    yield DONE


async def chat_events(job: Job, chorus: Chorus) -> AsyncIterator[str]:
    """Give the stream of `/v1/chat/completions`: the roles, the pieces, the usage."""
    made, opened = [0] * len(job.asks), False
    head = {**job.head, "object": "chat.completion.chunk"}
    async for index, delta in chorus.deltas():
        for opening in () if opened else _openings(job, head):
            yield event(opening)
        first, opened = made[index] == 0, True
        made[index] += len(delta.tokens)
        if not _is_silent(job, delta):
            yield event(_chunk(job, head, index, delta, made[index], first=first))
    if job.request.wants_usage:
        used = usage(job.prompt_tokens, sum(made))
        if job.served.cache_details:
            used["prompt_tokens_details"] = job.details(chorus)
        if details := job.reasoning(chorus):
            used["completion_tokens_details"] = details
        yield event(_last(job, head, used))
    yield DONE


def _last(job: Job, head: dict[str, Any], used: dict[str, Any]) -> dict[str, Any]:
    return {**head, "choices": [], "usage": used, "system_fingerprint": job.served.fingerprint}


def _openings(job: Job, head: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = list(job.prompts[0]) if job.request.return_token_ids else None
    delta = {"role": "assistant", "content": ""}
    used = {"usage": _continuous(job, 0)} if job.request.wants_continuous_usage else {}
    return [
        {
            **head,
            "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}],
            **used,
            "prompt_token_ids": tokens,
            "prompt_text": None,
        }
        for index in range(len(job.asks))
    ]


def _continuous(job: Job, made: int) -> dict[str, Any]:
    details = {"reasoning_tokens": 0} if job.served.reasoning_parser else None
    return {**usage(len(job.prompts[0]), made), "completion_tokens_details": details}


def _is_silent(job: Job, delta: Delta) -> bool:
    """Whether a parser has nothing to say of this: it then sends no chunk."""
    request = job.request
    shows = isinstance(request, ChatRequest) and request.include_reasoning
    spoken = delta.text or (delta.reasoning and shows)
    return job.served.parses and not (spoken or delta.finish_reason or request.return_token_ids)


def _chunk(
    job: Job, head: dict[str, Any], index: int, delta: Delta, made: int, *, first: bool
) -> dict[str, Any]:
    assert isinstance(job.request, ChatRequest)
    message: dict[str, Any] = {}
    if job.tool is not None:
        later = {"function": {"arguments": delta.text}}
        message["tool_calls"] = [{"index": 0, **(_tool_call(job, delta.text) if first else later)}]
    else:
        if delta.reasoning and job.request.include_reasoning:
            message["reasoning"] = delta.reasoning
        if delta.text or not job.served.parses:
            message["content"] = delta.text
    reason = _finish_reason(job, delta)
    choice = {"index": index, "delta": message, "logprobs": None, "finish_reason": reason}
    if delta.finish_reason:
        choice["stop_reason"] = delta.stop_reason
    choice["token_ids"] = delta.tokens if job.request.return_token_ids else None
    chunk = {**head, "choices": [choice]}
    if delta.finish_reason and not job.request.wants_usage:
        chunk["system_fingerprint"] = job.served.fingerprint
    if job.request.wants_continuous_usage:
        chunk["usage"] = _continuous(job, made)
    return chunk
