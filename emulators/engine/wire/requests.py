"""What clients may ask for, as far as the simulated engine reads it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from emulators.engine.wire.errors import WireError, invalid
from emulators.engine.wire.guided import ResponseFormat, require_schema

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


class Sampling(Body):
    """What completions and chats have in common."""

    n: int | None = 1
    seed: int | None = None
    stop: str | list[str] | None = []
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
    def _stream_options_need_a_stream(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
            raise invalid(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _a_schema_is_there(cls, data: Any) -> Any:
        if isinstance(data, dict):
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
    max_tokens: int | None = 16
    echo: bool | None = False
    logprobs: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt_is_there(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        prompt = data.get("prompt")
        if prompt is None or prompt == "":
            message = "Either prompt or prompt_embeds must be provided and non-empty."
            raise invalid(message, "prompt")
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


class ToolChoice(BaseModel):
    """One function that has to be called."""

    type: Literal["function"] = "function"
    function: dict[str, Any]


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = "none"
    include_reasoning: bool = True
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="before")
    @classmethod
    def _parts_agree(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise WireError(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )
        if data.get("top_logprobs") and not data.get("logprobs"):
            message = "when using `top_logprobs`, `logprobs` must be set to true."
            raise invalid(message, "top_logprobs")
        wants_tool = data.get("tool_choice") is not None and data["tool_choice"] != "none"
        if wants_tool and not data.get("tools"):
            raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if data.get("tools") and "tool_choice" not in data:
            return {**data, "tool_choice": "auto"}
        return data

    @property
    def forced_tool(self) -> str | None:
        """The function that must be called, if the client says so."""
        if isinstance(self.tool_choice, ToolChoice):
            return str(self.tool_choice.function.get("name"))
        if self.tool_choice == "required" and self.tools:
            return str(self.tools[0]["function"]["name"])
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
