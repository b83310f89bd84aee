"""What clients may ask for, and what vLLM refuses of it, in its order and words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from simulators.engine.guided import ResponseFormat, StructuredOutputs, require_schema
from simulators.engine.wire_errors import EngineError, WireError, invalid

_USAGE: Final = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_LONGEST_SALT: Final = 128
_Data = Mapping[str, Any]


def check_any(data: _Data) -> None:
    """Refuse what neither completions nor chats may say."""
    _check_salt(data.get("cache_salt"))
    _check_structured_outputs(data)
    _check_prompt_logprobs(data)
    if data.get("stream_options") and not data.get("stream"):
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    if data.get("logprob_token_ids") and data.get("use_beam_search"):
        raise invalid("`logprob_token_ids` is not supported with beam search.", "logprob_token_ids")


def check_completion(data: _Data) -> None:
    """Refuse what completions may not say."""
    if data.get("logprob_token_ids") and data.get("logprobs") is None:
        message = "when using `logprob_token_ids`, `logprobs` must be set."
        raise invalid(message, "logprob_token_ids")
    _check_count(data, "logprobs")
    if data.get("prompt") in (None, "") and data.get("prompt_embeds") in (None, []):
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        raise invalid(message, "prompt")


def check_chat(data: _Data) -> None:
    """Refuse what chats may not say."""
    if data.get("continue_final_message") and data.get("add_generation_prompt"):
        raise WireError(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    if data.get("logprob_token_ids") and not data.get("logprobs"):
        message = "when using `logprob_token_ids`, `logprobs` must be set to true."
        raise invalid(message, "logprob_token_ids")
    _check_count(data, "top_logprobs")
    if data.get("top_logprobs") and not data.get("logprobs"):
        message = "when using `top_logprobs`, `logprobs` must be set to true."
        raise invalid(message, "top_logprobs")
    if data.get("tools") == []:
        raise invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the "
            "field entirely.",
            "tools",
        )
    if data.get("tool_choice") not in (None, "none"):
        _check_choice(data["tool_choice"], data.get("tools"))


def _check_salt(salt: object) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise invalid(message, "cache_salt")
    if len(salt) > _LONGEST_SALT or set("@/\\\x00") & set(salt):
        raise invalid(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', "
            "'\\\\', or NUL.",
            "cache_salt",
        )


def _check_structured_outputs(data: _Data) -> None:
    wanted = data.get("structured_outputs")
    if wanted is None:
        return
    if not isinstance(wanted, dict):
        raise WireError(
            f"'{type(wanted).__name__}' object has no attribute 'get'",
            kind="InternalServerError",
            code=500,
        )
    count = sum(wanted.get(kind) is not None for kind in ("json", "regex", "choice"))
    if count > 1:
        raise WireError(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or "
            "'choice')."
        )
    if count and data.get("tool_choice", "none") not in ("none", "auto", "required"):
        raise WireError(
            "You can only either use constraints for structured outputs or tools, not both."
        )


def _check_prompt_logprobs(data: _Data) -> None:
    _check_count(data, "prompt_logprobs")
    count = data.get("prompt_logprobs")
    if count is not None and data.get("stream") and (count > 0 or count == -1):
        message = "`prompt_logprobs` are not available when `stream=True`."
        raise invalid(message, "prompt_logprobs")


def _check_count(data: _Data, name: str) -> None:
    value = data.get(name)
    if value is None:
        return
    if not isinstance(value, (int, float)):
        raise invalid(f"`{name}` must be an integer.", name, value)
    if value < 0 and value != -1:
        raise invalid(f"`{name}` must be a positive value or -1.", name, value)


def _check_choice(choice: Any, tools: Any) -> None:
    if tools is None:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice in ("auto", "required"):
        return
    if not isinstance(choice, dict):
        raise invalid(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or '
            '"required" are supported.',
            "tool_choice",
        )
    function = choice.get("function")
    if not isinstance(function, dict):
        message = f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}"
        raise invalid(message, "tool_choice.function")
    if "name" not in function:
        message = f"Expected field `name` in `function` in `tool_choice`! {_USAGE}"
        raise invalid(message, "tool_choice.function.name")
    name = function["name"]
    if not isinstance(name, str) or not name:
        message = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}"
        raise invalid(message, "tool_choice.function.name")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise invalid(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            "tool_choice",
        )


MOST_STOPS: Final = 4
_MOST: Final = 2**63 - 1
_Long = Annotated[int, Field(ge=-_MOST - 1, le=_MOST)]
_Words = str | int | float
Tokens = list[Annotated[int, Field(ge=0)]]


class Body(BaseModel):
    """Unknown fields are fine, as they are for vLLM."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None


class StreamOptions(BaseModel):
    """When a stream tells how much it used."""

    model_config = ConfigDict(extra="allow", frozen=True)

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class RepetitionDetection(BaseModel):
    """When an answer that repeats itself is ended; the simulated one never does."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        most, least = self.max_pattern_size, self.min_pattern_size
        if most < 0 or least < 0 or least > most:
            raise WireError(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= "
                "max_pattern_size. Set both to 0 to disable repetitive pattern detection."
            )
        if most and self.min_count < 2:
            raise WireError(
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do "
                "not wish to detect repetitive patterns, set max_pattern_size to 0."
            )
        return self


class Sampling(Body):
    """What completions and chats have in common; what the simulated engine ignores is checked."""

    n: int | None = 1
    seed: _Long | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = []
    user: str | None = None
    use_beam_search: bool = False
    watermarking: bool | None = None
    length_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_MOST)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    add_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    priority: _Long = 0
    request_id: str = ""
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, _Words | list[_Words]] | None = None
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: Any = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="before")
    @classmethod
    def _parts_agree(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_any(data)
            require_schema(data)
        return data

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_continuous_usage(self) -> bool:
        options = self.stream_options
        return bool(self.wants_usage and options and options.continuous_usage_stats)


class CompletionRequest(Sampling):
    """`POST /v1/completions`."""

    prompt: Tokens | list[Tokens] | str | list[str] | None = None
    n: int = 1
    max_tokens: int | None = 16
    suffix: str | None = None
    prompt_embeds: bytes | list[bytes] | None = None
    echo: bool | None = False
    logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt_is_there(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        check_completion(data)
        return data if data.get("max_tokens") is not None else {**data, "max_tokens": 16}

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        given = self.prompt
        if not given:
            raise WireError("You must pass at least one prompt")
        if isinstance(given, str):
            return [given]
        whole = [token for token in given if isinstance(token, int)]
        return [whole] if whole else [part for part in given if not isinstance(part, int)]


class Function(BaseModel):
    """What a tool is called and takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(BaseModel):
    """One function that may be called."""

    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None


class _Named(BaseModel):
    name: str


class ToolChoice(BaseModel):
    """One function that has to be called."""

    type: Literal["function"] = "function"
    function: _Named


class _Part(BaseModel):
    """A piece of a message; of its kinds only text is looked into."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _text_has_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("text is missing")
        return self


class _CalledFunction(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: _CalledFunction


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str = ""
    content: str | list[_Part] | Annotated[dict[str, Any], Field(max_length=0)] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @model_validator(mode="after")
    def _only_an_assistant_says_nothing(self) -> Self:
        if self.content is None and "content" in self.model_fields_set and self.role != "assistant":
            raise ValueError("Input should be a valid string")
        return self


_MESSAGES: Final = TypeAdapter(list[_Message])


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = "none"
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="before")
    @classmethod
    def _chat_agrees(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        check_chat(data)
        if data.get("tools") and "tool_choice" not in data:
            return {**data, "tool_choice": "auto"}
        return data

    @field_validator("messages")
    @classmethod
    def _messages_are_messages(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        _MESSAGES.validate_python(messages)
        return messages

    @property
    def forced_tool(self) -> str | None:
        """The function that must be called, if the client says so."""
        if isinstance(self.tool_choice, ToolChoice):
            return self.tool_choice.function.name
        if self.tool_choice == "required" and self.tools:
            return self.tools[0].function.name
        return None


class TokenizeCompletion(Body):
    """`POST /tokenize` of a text."""

    prompt: str
    return_token_strs: bool | None = False


class TokenizeChat(Body):
    """`POST /tokenize` of a conversation."""

    messages: list[dict[str, Any]]
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True


class DetokenizeRequest(Body):
    """`POST /detokenize`."""

    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


_Rule = tuple[str, Callable[[Any], bool], str]
_RULES: Final[tuple[_Rule, ...]] = (
    ("n", lambda v: v >= 1, "n must be at least 1, got {}."),
    (
        "n",
        lambda v: v <= 16384,
        (
            "n must be at most 16384, got {}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable."
        ),
    ),
    ("presence_penalty", lambda v: -2 <= v <= 2, "presence_penalty must be in [-2, 2], got {}."),
    ("frequency_penalty", lambda v: -2 <= v <= 2, "frequency_penalty must be in [-2, 2], got {}."),
    (
        "repetition_penalty",
        lambda v: v > 0,
        "repetition_penalty must be greater than zero, got {}.",
    ),
    ("temperature", lambda v: v >= 0, "temperature must be non-negative, got {}."),
    ("temperature", lambda v: v <= 2, "temperature must be in [0, 2], got {}."),
    ("top_p", lambda v: 0 < v <= 1, "top_p must be in (0, 1], got {}."),
    ("top_k", lambda v: v >= -1, "top_k must be 0 (disable), or at least 1, got {}."),
    ("min_p", lambda v: 0 <= v <= 1, "min_p must be in [0, 1], got {}."),
)
_NAMED: Final = frozenset({"temperature", "top_p"})
"""The parameters whose errors repeat name and value."""
_GREEDY: Final = 1e-5
"""Temperatures below this are greedy sampling."""


def check_prompt(
    prompt: Sequence[int], *, max_model_len: int, vocab_size: int, from_text: bool
) -> None:
    """Refuse a prompt that is too long or holds ids that the model does not know."""
    count = len(prompt)
    if not count:
        raise WireError("The decoder prompt cannot be empty")
    if count > max_model_len:
        # A text is tokenized no further than one token past the limit.
        shown = max_model_len + 1 if from_text else count
        raise invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {'at least ' if from_text else ''}{shown} input tokens, which exceeds this "
            "limit even without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            shown,
        )
    if prompt and max(prompt) >= vocab_size:
        raise WireError(f"Token id {max(prompt)} is out of vocabulary")


def check_text(text: str, *, max_model_len: int, max_chars_per_token: int) -> None:
    """Refuse a text so long that it need not even be tokenized."""
    limit = max_model_len * max_chars_per_token
    if len(text) > limit:
        raise invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {len(text)} characters (more than {limit} characters, which is the upper "
            f"bound for {max_model_len} input tokens). Please reduce the length of the input "
            "prompt.",
            "input_text",
            len(text),
        )


def check_output(asked: int | None, max_model_len: int, name: str = "max_tokens") -> None:
    """Refuse more output than any request can have."""
    if asked is not None and asked > max_model_len:
        raise invalid(
            f"{name}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            name,
            asked,
        )


def check_tokens(request: Sampling, *, prompt: int, vocab_size: int) -> None:
    """Refuse ids of tokens that there are none of, and places outside the prompt."""

    def foreign(ids: Iterable[int]) -> list[int]:
        return [token for token in ids if not 0 <= token < vocab_size]

    named = {"stop_token_ids": request.stop_token_ids, "logit_bias": _biased(request)}
    for name, ids in named.items():
        if bad := foreign(ids or ()):
            raise invalid(
                f"token_id(s) {bad} in {name} contain out-of-vocab token ids. Vocabulary size: "
                f"{vocab_size}",
                name,
                bad,
                kind=EngineError,
            )
    if request.allowed_token_ids == []:
        raise invalid(
            "allowed_token_ids is not None and empty!", "allowed_token_ids", [], kind=EngineError
        )
    if bad := foreign(request.allowed_token_ids or ()):
        raise invalid(
            "allowed_token_ids contains out-of-vocab token id!",
            "allowed_token_ids",
            bad,
            kind=EngineError,
        )
    if bad := foreign(request.logprob_token_ids or ()):
        raise invalid(
            "logprob_token_ids contain out-of-vocab ids.",
            "logprob_token_ids",
            bad,
            kind=EngineError,
        )
    start = request.routed_experts_prompt_start
    if start > prompt:
        name = "routed_experts_prompt_start"
        message = f"{name} must be between 0 and the prompt length ({prompt}), inclusive."
        raise invalid(message, name, start, kind=EngineError)


def _biased(request: Sampling) -> list[int]:
    try:
        return [int(token) for token in request.logit_bias or {}]
    except ValueError as error:
        keys = [key for key in request.logit_bias or {} if not key.lstrip("-").isdigit()]
        raise invalid(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}",
            "logit_bias",
            keys,
            kind=EngineError,
        ) from error


def check_truncation(asked: int | None, max_model_len: int) -> None:
    """Refuse a prompt that is cut to nothing, or to more than there can be."""
    if asked == 0:
        raise WireError("The decoder prompt cannot be empty")
    if asked is not None and asked > max_model_len:
        name = "truncate_prompt_tokens"
        raise invalid(
            f"{name}={asked} cannot be greater than max_model_len = {max_model_len}. Please "
            "request a smaller truncation size.",
            name,
            asked,
        )


def check_thinking(budget: object, *, thinks: bool) -> None:
    """Refuse a budget that is no number, or for a model whose thoughts nobody parses."""
    if budget is None:
        return
    name = "thinking_token_budget"
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < -1:
        message = f"`{name}` must be a non-negative integer or -1 for unlimited."
        raise invalid(message, name, budget)
    if budget >= 0 and not thinks:
        raise WireError(
            f"{name} is set but reasoning_config is not configured. Please set --reasoning-parser "
            f"and/or --reasoning-config to use {name}."
        )


def check_sampling(
    request: Sampling, *, max_tokens: int, logprobs: int, max_logprobs: int, vocab_size: int
) -> None:
    """Refuse parameters that make no sense."""
    for name, holds, text in _RULES:
        value = getattr(request, name)
        if value is not None and not holds(value):
            message = text.format(value)
            raise invalid(message, name, value) if name in _NAMED else WireError(message)
    if max_tokens < 1:
        raise invalid(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if request.min_tokens < 0:
        least = "min_tokens must be greater than or equal to 0"
        raise WireError(f"{least}, got {request.min_tokens}.")
    if request.min_tokens > max_tokens:
        raise WireError(
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, "
            f"got {request.min_tokens}."
        )
    temperature = 1.0 if request.temperature is None else request.temperature
    if temperature < _GREEDY and request.choices > 1:
        raise WireError(f"n must be 1 when using greedy sampling, got {request.choices}.")
    if not all(request.stops):
        raise WireError("stop cannot contain an empty string.")
    if not all(request.bad_words):
        raise WireError(f"bad_words cannot contain an empty string. Got {request.bad_words=}")
    for kind, name, count in (
        ("sample", "logprobs", logprobs),
        ("prompt", "prompt_logprobs", request.prompt_logprobs or 0),
    ):
        wanted = vocab_size if count == -1 else count
        if wanted > max_logprobs:
            message = f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: "
            raise invalid(f"{message}{max_logprobs}", name, wanted, kind=EngineError)
