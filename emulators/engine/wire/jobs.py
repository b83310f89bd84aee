"""A client's request made into sequences for the engine."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from emulators.engine.engine import Ask, Chorus
from emulators.engine.speech import Manner
from emulators.engine.tokens import decode
from emulators.engine.wire import limits
from emulators.engine.wire.errors import EngineError, WireError, invalid
from emulators.engine.wire.guided import guided
from emulators.engine.wire.requests import ChatRequest, CompletionRequest, Sampling
from emulators.engine.wire.served import Served, random_id
from emulators.engine.wire.turns import render

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
    limits.check_output(request.max_tokens, served.max_model_len)
    limits.check_truncation(request.truncate_prompt_tokens, served.max_model_len)
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
    limits.check_truncation(request.truncate_prompt_tokens, served.max_model_len)
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
    limits.check_output(asked, served.max_model_len, name)
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
        limits.check_text(prompt, max_model_len=longest, max_chars_per_token=per_token)
        tokens = tokenizer.encode(prompt)
    limits.check_prompt(
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
    limits.check_sampling(
        request,
        max_tokens=max_tokens,
        logprobs=logprobs,
        max_logprobs=served.max_logprobs,
        vocab_size=served.vocab_size,
    )
    limits.check_tokens(request, prompt=len(prompt), vocab_size=served.vocab_size)
    limits.check_thinking(request.thinking_token_budget, thinks=served.reasoning_parser)
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
