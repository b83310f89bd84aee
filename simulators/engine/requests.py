"""What clients may ask for, what is refused of it in vLLM's words, and what it comes to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulators.engine.engine import Ask
from simulators.engine.model import Tokenizer


class WireError(Exception):
    """A request that is answered with vLLM's error object."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "BadRequestError",
        code: int = 400,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        said = {"message": message, "type": kind, "param": param, "code": code}
        self.body: Final = {"error": said}


def invalid(message: str, param: str, value: object = None) -> WireError:
    """Name the parameter in the message, as vLLM does."""
    named = f"parameter={param}" + ("" if value is None else f", value={value}")
    return WireError(f"{message} ({named})", param=param)


def not_simulated(what: str) -> WireError:
    """Say what vLLM takes and the simulated engine does not."""
    return WireError(
        f"vLLM takes {what}; the simulated engine does not.", kind="NotImplementedError", code=501
    )


NOT_SIMULATED: Final = (
    "allowed_token_ids", "bad_words", "echo", "logit_bias", "logprob_token_ids", "logprobs",
    "prompt_embeds", "prompt_logprobs", "repetition_detection", "return_token_ids", "stop",
    "stop_token_ids", "structural_tag", "structured_outputs", "suffix", "thinking_token_budget",
    "top_logprobs", "truncate_prompt_tokens", "use_beam_search",
)  # fmt: skip
"""Fields that vLLM honours: here they are refused, so that nobody takes silence for an answer."""


class StreamOptions(BaseModel):
    """When a stream tells how much it used."""

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class Sampling(BaseModel):
    """What completions and chats have in common; unknown fields are fine, as they are for vLLM."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    n: int | None = 1
    seed: int | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0)
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0)
    response_format: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_simulated(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in NOT_SIMULATED:
                if data.get(name):
                    raise not_simulated(name)
            if data.get("n") not in {None, 1}:
                raise not_simulated("several choices")
        return data

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_continuous_usage(self) -> bool:
        options = self.stream_options
        return bool(self.wants_usage and options and options.continuous_usage_stats)


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: list[Annotated[int, Field(ge=0)]] | str
    max_tokens: int | None = 16


class _Function(BaseModel):
    name: str
    parameters: dict[str, Any] = {}


class _Tool(BaseModel):
    function: _Function


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    tools: list[_Tool] = []
    tool_choice: Literal["none", "auto", "required"] | None = None
    chat_template_kwargs: dict[str, Any] = {}


class TokenizeRequest(BaseModel):
    """`POST /tokenize` of a text or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    return_token_strs: bool = False


_Body = TypeVar("_Body", bound=BaseModel)


def read(content: bytes, kind: type[_Body]) -> _Body:
    """Read a body, or refuse it."""
    try:
        return kind.model_validate_json(content or b"null")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("body", *first["loc"])))
        said = f"{error.error_count()} validation error: {where}: {first['msg']}"
        raise WireError(said, kind="Bad Request", param=where) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One model, as the flags say it is served."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    tokenizer: Tokenizer
    multimodal: bool = False
    reasoning_parser: bool = False
    tool_parser: bool = False
    auto_tools: bool = False

    def check_name(self, model: str | None) -> None:
        """Refuse a model that is not served here; naming none is fine."""
        if model and model not in self.names:
            raise WireError(
                f"The model `{model}` does not exist. Valid aliases: {', '.join(self.names)}.",
                kind="NotFoundError",
                code=404,
                param="model",
            )

    def tokens_of(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Return a prompt's tokens; refuses what the model cannot take."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise WireError("The decoder prompt cannot be empty")
        if len(tokens) > self.max_model_len:
            # A text is tokenized no further than one token past the limit.
            is_text = isinstance(prompt, str)
            count = self.max_model_len + 1 if is_text else len(tokens)
            raise invalid(
                f"This model's maximum context length is {self.max_model_len} tokens. However, "
                f"your prompt contains {'at least ' if is_text else ''}{count} input tokens, which "
                "exceeds this limit even without any output tokens. Please reduce the length of "
                "the input prompt.",
                "input_tokens",
                count,
            )
        if max(tokens) >= self.tokenizer.vocab_size:
            raise WireError(f"Token id {max(tokens)} is out of vocabulary")
        return tokens

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt that the model sees of a conversation, in Gemma's turns."""
        if not messages:
            raise WireError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        turns = "".join(
            f"<|turn>{'model' if one.get('role') == 'assistant' else one.get('role')}\n"
            f"{self._words(one).strip()}<turn|>\n"
            for one in messages
        )
        return f"<bos>{turns}<|turn>model\n"

    def _words(self, message: Mapping[str, Any]) -> str:
        content = message.get("content") or ""
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
    """A request that can be answered."""

    request: CompletionRequest | ChatRequest
    ask: Ask
    tool: str | None = None
    """The function that is called in place of words."""


def completion_job(served: Served, request: CompletionRequest) -> Job:
    """Judge `POST /v1/completions`."""
    served.check_name(request.model)
    prompt = served.tokens_of(request.prompt)
    form = _form(request)
    return Job(request=request, ask=_ask(served, request, prompt, "max_tokens", form))


def chat_job(served: Served, request: ChatRequest) -> Job:
    """Judge `POST /v1/chat/completions`."""
    served.check_name(request.model)
    choice = request.tool_choice or ("auto" if request.tools else "none")
    tool = _tool_called(served, request, choice)
    prompt = served.tokens_of(served.render(request.messages))
    bound = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    schema = {"type": "object", **tool.parameters} if tool else {}
    form = json.dumps(_sample(schema, 0)) if tool else _form(request)
    thinks = served.reasoning_parser and bool(request.chat_template_kwargs.get("enable_thinking"))
    ask = _ask(served, request, prompt, bound, form, thinks=thinks)
    return Job(request=request, ask=ask, tool=tool.name if tool else None)


def _tool_called(served: Served, request: ChatRequest, choice: str) -> _Function | None:
    """Return what must be called; refuses tools that no parser would find in an answer."""
    if choice == "none":
        return None
    if not request.tools:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice == "auto" and not (served.auto_tools and served.tool_parser):
        raise WireError(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    if not served.tool_parser:
        raise WireError('tool_choice="required" requires --tool-call-parser to be set')
    if request.stream:
        raise not_simulated("tools in a stream")
    return request.tools[0].function if choice == "required" else None


def _ask(
    served: Served,
    request: CompletionRequest | ChatRequest,
    prompt: Sequence[int],
    bound: str,
    form: str,
    *,
    thinks: bool = False,
) -> Ask:
    asked: int | None = getattr(request, bound)
    if asked is not None and asked > served.max_model_len:
        raise invalid(
            f"{bound}={asked} cannot be greater than max_model_len={served.max_model_len}. "
            "Please request fewer output tokens.",
            bound,
            asked,
        )
    left = served.max_model_len - len(prompt)
    most = left if asked is None else min(asked, left)
    if most < 1:
        raise invalid(f"max_tokens must be at least 1, got {most}.", "max_tokens", most)
    if request.min_tokens > most:
        raise WireError(
            f"min_tokens must be less than or equal to max_tokens={most}, got {request.min_tokens}."
        )
    return Ask(
        prompt=prompt,
        max_tokens=most,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        sampling=f"{request.seed}|{request.temperature}|{request.top_p}",
        thinks=thinks,
        form=form,
    )


_MADE_UP: Final = "words that the simulated engine made up and that mean nothing"
_KINDS: Final = {"integer": 1, "number": 1.0, "boolean": True, "null": None}


def _form(request: Sampling) -> str:
    """Return the text that a schema holds the answer to; empty for free prose."""
    form = request.response_format or {"type": "text"}
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise invalid(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided.",
                "response_format",
            )
        return json.dumps(_sample(schema, 0))
    return "{}" if form.get("type") == "json_object" else ""


def _sample(schema: Mapping[str, Any], number: int) -> Any:
    """Return one value that fits a schema; `number` is which of several siblings it is for."""
    if options := schema.get("enum"):
        return options[number % len(options)]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        return {name: _sample(part, number) for name, part in schema.get("properties", {}).items()}
    if kind == "array":
        count = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
        return [_sample(schema.get("items", {}), place) for place in range(count)]
    if kind == "string" and not {"pattern", "format", "minLength"} & schema.keys():
        return _MADE_UP[: schema.get("maxLength", len(_MADE_UP))]
    if kind in _KINDS and not {"minimum", "maximum"} & schema.keys():
        return _KINDS[kind]
    raise not_simulated(f"such a schema: {json.dumps(schema)[:200]}")
