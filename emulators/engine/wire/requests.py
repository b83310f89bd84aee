"""What clients may ask for, as far as the simulated engine reads it."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from emulators.engine.wire.errors import WireError
from emulators.engine.wire.guided import ResponseFormat, StructuredOutputs, require_schema
from emulators.engine.wire.rules import check_any, check_chat, check_completion

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
