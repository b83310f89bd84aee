"""A client's request made into sequences, and their text into answers, whole or in pieces."""

import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from simulators.engine import requests
from simulators.engine.engine import Ask, Chorus, Delta, Engine, Manner, likelihoods
from simulators.engine.guided import guided
from simulators.engine.metrics import EngineMetrics
from simulators.engine.model import decode
from simulators.engine.requests import ChatRequest, CompletionRequest, Sampling
from simulators.engine.wire_errors import EngineError, WireError, invalid, no_such_model

VERSION: Final = "0.32.0"


def random_id() -> str:
    """The sixteen hexadecimal digits of vLLM's ids."""
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
    max_logprobs: int = 20
    multimodal: bool = False
    reasoning_parser: bool = False
    tool_parser: bool = False
    auto_tools: bool = False
    cache_details: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

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

    def cards(self, created: int) -> list[dict[str, Any]]:
        """`/v1/models`."""
        return [self._card(name, created) for name in self.names]

    def _card(self, name: str, created: int) -> dict[str, Any]:
        allowed = {
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
        }
        permission: Mapping[str, Any] = {
            "id": f"modelperm-{random_id()}",
            "object": "model_permission",
            "created": created,
            **allowed,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self.root,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [permission],
        }


_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_MARKERS: Final = (("<|turn>", "<turn|>"), ("<start_of_turn>", "<end_of_turn>"))


def render(
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    *,
    model_name: str,
    multimodal: bool = False,
    open_turn: bool = True,
) -> str:
    """The prompt that the model sees."""
    if not messages:
        raise WireError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    start, end = next((pair for pair in _MARKERS if pair[0] in special), _MARKERS[0])
    turns = "".join(
        f"{start}{_role(one)}\n{_text(one, model_name, multimodal=multimodal).strip()}{end}\n"
        for one in messages
    )
    return f"<bos>{turns}{start}model\n" if open_turn else f"<bos>{turns}"


def _role(message: Mapping[str, Any]) -> str:
    if "role" not in message:
        raise WireError(
            "1 validation error: role", kind="Bad Request", param="body.messages.0.role"
        )
    return "model" if message["role"] == "assistant" else str(message["role"])


def _text(message: Mapping[str, Any], model_name: str, *, multimodal: bool) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if not multimodal and any(part.get("type", "text") not in _TEXTS for part in content):
        raise WireError(f"{model_name} is not a multimodal model")
    return "".join(part.get("text", "<image>") for part in content)


_EXAMPLES: Final[Mapping[str, Any]] = {
    "string": "example",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
}
_NO_BEAM: Final = "Streaming is not currently supported with beam search"
_Asked = TypeVar("_Asked", CompletionRequest, ChatRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[_Asked]):
    """Everything that an answer is made of, but for the tokens."""

    served: Served
    request: _Asked
    prompts: tuple[Sequence[int], ...]
    asks: tuple[Ask, ...]
    id: str
    created: int
    tool: str | None = None

    @property
    def head(self) -> dict[str, Any]:
        """What every answer and every chunk begins with."""
        kind = "text_completion" if self.id.startswith("cmpl-") else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    def prompt_of(self, index: int) -> Sequence[int]:
        return self.asks[index].prompt

    def prompt_text(self, index: int) -> str:
        return decode(self.served.engine.tokenizer, self.prompt_of(index))

    def cached(self, chorus: Chorus) -> int:
        """Prompt tokens that the prefix cache knew, of the last prompt."""
        return chorus.generations[-1].request.cached or 0


def completion_job(
    served: Served, request: CompletionRequest, request_id: str | None = None
) -> Job[CompletionRequest]:
    """Read `POST /v1/completions`."""
    served.check_name(request.model)
    requests.check_output(request.max_tokens, served.max_model_len)
    requests.check_truncation(request.truncate_prompt_tokens, served.max_model_len)
    if request.suffix is not None:
        message = "suffix is only supported for models with FIM completion rendering"
        raise WireError(message, param="suffix")
    if request.use_beam_search and request.stream:
        raise WireError(_NO_BEAM)
    if request.prompt_embeds is not None and request.prompt_embeds != []:
        message = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."
        raise invalid(message, "prompt_embeds")
    prompts = tuple(_prompt_tokens(served, prompt) for prompt in request.prompts)
    only_echo = bool(request.echo) and request.max_tokens == 0
    asked = 1 if only_echo else request.max_tokens
    manner = Manner(form=guided(request.response_format, request.structured_outputs))
    asks = tuple(
        ask
        for prompt in prompts
        for ask in _asks(served, request, prompt, asked, request.logprobs or 0, manner)
    )
    return Job(
        served=served,
        request=request,
        prompts=prompts,
        asks=asks,
        id=f"cmpl-{request_id or random_id()}",
        created=int(time.time()),
    )


def chat_job(
    served: Served, request: ChatRequest, request_id: str | None = None
) -> Job[ChatRequest]:
    """Read `POST /v1/chat/completions`."""
    served.check_name(request.model)
    _check_tools(served, request)
    _check_template(request)
    if request.use_beam_search and request.stream:
        raise EngineError(_NO_BEAM)
    requests.check_truncation(request.truncate_prompt_tokens, served.max_model_len)
    text = render(
        request.messages,
        served.engine.tokenizer.special,
        model_name=served.name,
        multimodal=served.multimodal,
        open_turn=request.add_generation_prompt,
    )
    in_new_name = request.max_completion_tokens is not None
    asked = request.max_completion_tokens if in_new_name else request.max_tokens
    name = "max_completion_tokens" if in_new_name else "max_tokens"
    requests.check_output(asked, served.max_model_len, name)
    prompt = _prompt_tokens(served, text)
    form = _tool_arguments(request) or guided(request.response_format, request.structured_outputs)
    manner = Manner(thinks=_thinks(served, request), form=form)
    shown = request.top_logprobs or 0
    return Job(
        served=served,
        request=request,
        prompts=(prompt,),
        asks=tuple(_asks(served, request, prompt, asked, shown, manner)),
        id=f"chatcmpl-{request_id or random_id()}",
        created=int(time.time()),
        tool=request.forced_tool,
    )


def _prompt_tokens(served: Served, prompt: str | Sequence[int]) -> Sequence[int]:
    tokenizer, longest = served.engine.tokenizer, served.max_model_len
    if not isinstance(prompt, str):
        tokens: Sequence[int] = prompt
    else:
        per_token = tokenizer.max_chars_per_token
        requests.check_text(prompt, max_model_len=longest, max_chars_per_token=per_token)
        tokens = tokenizer.encode(prompt)
    requests.check_prompt(
        tokens,
        max_model_len=longest,
        vocab_size=max(served.vocab_size, tokenizer.vocab_size),
        from_text=isinstance(prompt, str),
    )
    return tokens


def _asks(
    served: Served,
    request: Sampling,
    prompt: Sequence[int],
    asked: int | None,
    logprobs: int,
    manner: Manner,
) -> list[Ask]:
    room = served.max_model_len - len(prompt)
    max_tokens = room if asked is None else min(asked, room)
    requests.check_sampling(
        request,
        max_tokens=max_tokens,
        logprobs=logprobs,
        max_logprobs=served.max_logprobs,
        vocab_size=served.vocab_size,
    )
    requests.check_tokens(request, prompt=len(prompt), vocab_size=served.vocab_size)
    requests.check_thinking(request.thinking_token_budget, thinks=served.reasoning_parser)
    return [
        Ask(
            prompt=prompt,
            max_tokens=max_tokens,
            manner=_manner(request, manner, choice),
            stops=request.stops,
            stop_tokens=frozenset(request.stop_token_ids or ()),
            keep_stop=request.include_stop_str_in_output,
            choices=request.choices,
        )
        for choice in range(request.choices)
    ]


def _manner(request: Sampling, manner: Manner, choice: int) -> Manner:
    return Manner(
        choice=choice,
        seed=request.seed,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        thinks=manner.thinks,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        form=manner.form,
    )


def _thinks(served: Served, request: ChatRequest) -> bool:
    asked = (request.chat_template_kwargs or {}).get("enable_thinking")
    effort = request.reasoning_effort not in {None, "none"}
    return served.reasoning_parser and bool(asked or effort)


def _check_tools(served: Served, request: ChatRequest) -> None:
    if not request.tools or request.tool_choice is None or request.tool_choice == "none":
        return
    if request.tool_choice == "auto" and not (served.auto_tools and served.tool_parser):
        raise WireError(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    if served.tool_parser or request.tool_choice == "auto":
        return
    if request.tool_choice == "required":
        raise WireError('tool_choice="required" requires --tool-call-parser to be set')
    name = request.forced_tool
    raise WireError(f'tool_choice=function "{name}" requires --tool-call-parser to be set')


def _check_template(request: ChatRequest) -> None:
    inner = request.chat_template_kwargs or {}
    if request.chat_template is not None or inner.get("chat_template") is not None:
        raise WireError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    if request.continue_final_message and request.add_generation_prompt:
        raise WireError(
            "continue_final_message and add_generation_prompt are not compatible. Use "
            "continue_final_message when you want the model to continue the final message, and "
            "add_generation_prompt when you want to add a header that will prompt it to start a "
            "new assistant message instead."
        )
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            raise WireError(f"Per-request {name} are disabled by default.", param=name)


def _tool_arguments(request: ChatRequest) -> str:
    name = request.forced_tool
    for tool in request.tools or ():
        if tool.function.name == name:
            properties = (tool.function.parameters or {}).get("properties") or {}
            kinds = {key: value.get("type", "string") for key, value in properties.items()}
            return json.dumps({key: _EXAMPLES.get(kind) for key, kind in kinds.items()})
    return ""


def completion_logprobs(
    job: Job[CompletionRequest], tokens: Sequence[int], *, echoed: int = 0
) -> dict[str, Any] | None:
    """Those of `/v1/completions`; the very first token of a prompt has none."""
    count = job.request.logprobs
    if count is None:
        return None
    tokenizer = job.served.engine.tokenizer
    texts = [decode(tokenizer, [token]) for token in tokens]
    tops: list[dict[str, float] | None] = []
    for position, token in enumerate(tokens):
        pairs = likelihoods(token, count, tokenizer.vocab_size)
        tops.append({decode(tokenizer, [other]): value for other, value in pairs})
        if echoed and position == 0:
            tops[0] = None
    offsets = [sum(map(len, texts[:position])) for position in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [None if top is None else -0.1 for top in tops],
        "tokens": texts,
        "top_logprobs": tops,
    }


def chat_logprobs(job: Job[ChatRequest], tokens: Sequence[int]) -> dict[str, Any] | None:
    """Those of `/v1/chat/completions`."""
    if not job.request.logprobs:
        return None
    shown = job.request.top_logprobs or 0
    content = []
    for token in tokens:
        pairs = likelihoods(token, shown, job.served.engine.tokenizer.vocab_size)
        top = [_entry(job, other, value) for other, value in pairs[:shown]]
        content.append({**_entry(job, *pairs[0]), "top_logprobs": top})
    return {"content": content}


def _entry(job: Job[ChatRequest], token: int, logprob: float) -> dict[str, Any]:
    piece = job.served.engine.tokenizer.bytes_of(token)
    return {
        "token": piece.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(piece),
    }


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
        chunk = {
            **job.head,
            "choices": [_completion_choice_streams(job, index, delta, first=first)],
        }
        if delta.finish_reason and not job.request.wants_usage:
            chunk["system_fingerprint"] = job.served.fingerprint
        if job.request.wants_continuous_usage:
            chunk["usage"] = usage(len(job.prompt_of(index)), made[index])
        yield event(chunk)
    if job.request.wants_usage:
        used = usage(sum(map(len, job.prompts)), sum(made))
        if job.served.cache_details:
            used["prompt_tokens_details"] = {"cached_tokens": job.cached(chorus)}
        fingerprint = job.served.fingerprint
        yield event({**job.head, "choices": [], "usage": used, "system_fingerprint": fingerprint})
    yield DONE


def _completion_choice_streams(
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
    return {**usage(len(job.prompts[0]), made), "completion_tokens_details": details}


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
        "finish_reason": finish_reason(job, delta),
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
        call = tool_calls(job, delta.text)[0]
        later = {"function": {"arguments": delta.text}}
        return {"tool_calls": [{"index": 0, **(call if first else later)}]}
    message: dict[str, Any] = {}
    if delta.reasoning and job.request.include_reasoning:
        message["reasoning"] = delta.reasoning
    if delta.text or not job.served.parses:
        message["content"] = delta.text
    return message


def _chat_usage(job: Job[ChatRequest], chorus: Chorus, made: int) -> dict[str, Any]:
    used = usage(len(job.prompts[0]), made)
    if job.served.cache_details:
        used["prompt_tokens_details"] = cache_details(job, chorus)
    details = reasoning_details(job, chorus)
    if details is not None:
        used["completion_tokens_details"] = details
    fingerprint = job.served.fingerprint
    return {**_head(job), "choices": [], "usage": used, "system_fingerprint": fingerprint}
