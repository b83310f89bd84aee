"""What clients may ask for, and what is refused of it, in vLLM's order and words."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulators.engine.errors import WireError, invalid, not_simulated

MOST_STOPS: Final = 4
Tokens = list[Annotated[int, Field(ge=0)]]
NOT_SIMULATED: Final = (
    "allowed_token_ids", "bad_words", "echo", "logit_bias", "logprob_token_ids", "logprobs",
    "prompt_embeds", "prompt_logprobs", "repetition_detection", "structural_tag", "suffix",
    "thinking_token_budget", "top_logprobs", "truncate_prompt_tokens", "use_beam_search",
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
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = []
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
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _parts_agree(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in NOT_SIMULATED:
            if data.get(name):
                raise not_simulated(name)
        if data.get("stream_options") and not data.get("stream"):
            message = "Stream options can only be defined when `stream=True`."
            raise invalid(message, "stream_options")
        return data

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

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

    @model_validator(mode="before")
    @classmethod
    def _prompt_is_there(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("prompt") in (None, ""):
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


class _Function(BaseModel):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class _ToolChoice(BaseModel):
    type: Literal["function"] = "function"
    function: _Function


class ChatRequest(Sampling):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ToolChoice | None = "none"
    include_reasoning: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def _tools_are_there(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("tool_choice") not in (None, "none") and data.get("tools") is None:
            raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if data.get("tools") == []:
            raise invalid("`tools` must not be an empty array.", "tools")
        if data.get("tools") and "tool_choice" not in data:
            return {**data, "tool_choice": "auto"}
        return data

    @property
    def asked_tokens(self) -> tuple[str, int | None]:
        """Name and value of the field that bounds the answer."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def forced_tool(self) -> str | None:
        """The function that must be called, if the client says so."""
        if isinstance(self.tool_choice, _ToolChoice):
            return self.tool_choice.function.name
        return (
            self.tools[0].function.name if self.tool_choice == "required" and self.tools else None
        )

    def check_tools(self, *, parser: bool, automatic: bool) -> None:
        """Refuse tools that no parser of the engine's would find in an answer."""
        if not self.tools or self.tool_choice in (None, "none"):
            return
        named = self.tool_choice.function.name if isinstance(self.tool_choice, _ToolChoice) else ""
        if named and named not in {tool.function.name for tool in self.tools}:
            raise WireError(
                "The tool specified in `tool_choice` does not match any of the specified `tools`"
            )
        if self.tool_choice == "auto" and not (automatic and parser):
            raise WireError(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be'
                " set"
            )
        if not parser:
            named = f'=function "{self.forced_tool}"'
            choice = '="required"' if self.tool_choice == "required" else named
            raise WireError(f"tool_choice{choice} requires --tool-call-parser to be set")


class TokenizeRequest(BaseModel):
    """`POST /tokenize` of a text or of a conversation."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if self.prompt is None and self.messages is None:
            raise ValueError("prompt or messages")
        return self


class DetokenizeRequest(BaseModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


class _Rule(NamedTuple):
    name: str
    holds: Callable[[Any], bool]
    words: str


_BETWEEN_TWOS: Final = "{name} must be in [-2, 2], got {value}."
_RULES: Final = (
    _Rule("n", lambda v: v >= 1, "{name} must be at least 1, got {value}."),
    _Rule("presence_penalty", lambda v: -2 <= v <= 2, _BETWEEN_TWOS),
    _Rule("frequency_penalty", lambda v: -2 <= v <= 2, _BETWEEN_TWOS),
    _Rule("repetition_penalty", lambda v: v > 0, "{name} must be greater than zero, got {value}."),
    _Rule("temperature", lambda v: v >= 0, "{name} must be non-negative, got {value}."),
    _Rule("temperature", lambda v: v <= 2, "{name} must be in [0, 2], got {value}."),
    _Rule("top_p", lambda v: 0 < v <= 1, "{name} must be in (0, 1], got {value}."),
    _Rule("top_k", lambda v: v >= -1, "{name} must be 0 (disable), or at least 1, got {value}."),
    _Rule("min_p", lambda v: 0 <= v <= 1, "{name} must be in [0, 1], got {value}."),
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
    if max(prompt) >= vocab_size:
        raise WireError(f"Token id {max(prompt)} is out of vocabulary")


def check_output(asked: int | None, max_model_len: int, name: str = "max_tokens") -> None:
    """Refuse more output than any request can have."""
    if asked is not None and asked > max_model_len:
        raise invalid(
            f"{name}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            name,
            asked,
        )


def check_sampling(request: Sampling, *, max_tokens: int) -> None:
    """Refuse parameters that make no sense."""
    for name, holds, words in _RULES:
        value = getattr(request, name)
        if value is not None and not holds(value):
            message = words.format(name=name, value=value)
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
    if temperature < _GREEDY and (request.n or 1) > 1:
        raise WireError(f"n must be 1 when using greedy sampling, got {request.n}.")
    if not all(request.stops):
        raise WireError("stop cannot contain an empty string.")


_MOST_NESTING: Final = 64
_WORDS: Final = "words that the simulated engine made up and that mean nothing "
_KINDS: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})


def guided_text(request: Sampling) -> str:
    """Return the text that a schema, or a choice, holds the answer to; empty for free prose."""
    form, wanted = request.response_format or {}, request.structured_outputs or {}
    if form.get("type") == "json_object" or wanted.get("json_object"):
        return "{}"
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise invalid(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided.",
                "response_format",
            )
        return json.dumps(_sample(schema, schema, 0, 0), ensure_ascii=False)
    if wanted.get("choice"):
        return str(wanted["choice"][0])
    if wanted.get("json") is not None:
        schema = wanted["json"] if isinstance(wanted["json"], dict) else json.loads(wanted["json"])
        return json.dumps(_sample(schema, schema, 0, 0), ensure_ascii=False)
    for name in ("regex", "grammar", "structural_tag"):
        if wanted.get(name):
            raise not_simulated(f"structured_outputs.{name}")
    return ""


def tool_arguments(request: ChatRequest) -> str:
    """Return arguments that fit the tool that must be called; empty where none must be."""
    for tool in request.tools or ():
        if tool.function.name == request.forced_tool:
            schema = {"type": "object", **(tool.function.parameters or {})}
            return json.dumps(_sample(schema, schema, 0, 0))
    return ""


def _sample(schema: Mapping[str, Any], whole: Mapping[str, Any], depth: int, number: int) -> Any:
    """Return one value that fits a schema; `number` is which of several siblings it is for."""
    if depth > _MOST_NESTING:
        raise WireError("Grammar error: the JSON schema is nested too deeply")
    if "const" in schema:
        return schema["const"]
    if options := schema.get("enum"):
        return options[number % len(options)]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], whole, depth + 1, number)
    if "$ref" in schema:
        return _sample(_referred(str(schema["$ref"]), whole), whole, depth + 1, number)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind not in _KINDS:
        raise WireError(f"Grammar error: Invalid type: {kind}")
    if kind == "object":
        parts = schema.get("properties", {})
        names = dict.fromkeys([*parts, *schema.get("required", ())])
        return {name: _sample(parts.get(name, {}), whole, depth + 1, number) for name in names}
    if kind == "array":
        count = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
        items = schema.get("items", {})
        return [_sample(items, whole, depth + 1, place) for place in range(count)]
    return _plain(str(kind), schema)


def _plain(kind: str, schema: Mapping[str, Any]) -> Any:
    if kind in {"integer", "number"}:
        least, most = schema.get("minimum", 1), schema.get("maximum")
        value = least if most is None else min(least, most)
        return int(value) if kind == "integer" else float(value)
    if kind == "string":
        if "pattern" in schema or "format" in schema:
            raise not_simulated("a pattern or a format in a schema")
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(_WORDS))
        return (_WORDS * (1 + least // len(_WORDS)))[: max(least, min(most, len(_WORDS) - 1))]
    return True if kind == "boolean" else None


def _referred(pointer: str, whole: Any) -> Mapping[str, Any]:
    found = whole
    for step in pointer.removeprefix("#").strip("/").split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise WireError(f"Grammar error: Pointer '{pointer.removeprefix('#')}' does not exist")
    return found
