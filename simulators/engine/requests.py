"""What clients may ask for, what is refused of it in vLLM's words, and what it comes to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from simulators.engine.engine import Ask, Tokenizer
from simulators.engine.flags import FAILURES


class WireError(Exception):
    """A request that is answered with vLLM's error object: a row of `failures.toml`."""

    def __init__(self, name: str, /, **words: object) -> None:
        row = FAILURES["wire"][name]
        message = row["message"].format(**words)
        super().__init__(message)
        self.code: Final[int] = row.get("code", 400)
        self.body: Final = {
            "error": {
                "message": message,
                "type": row.get("kind", "BadRequestError"),
                "param": row["param"].format(**words) if "param" in row else None,
                "code": self.code,
            }
        }


NOT_SIMULATED: Final = (
    "allowed_token_ids", "bad_words", "echo", "logit_bias", "logprob_token_ids", "logprobs",
    "prompt_embeds", "prompt_logprobs", "repetition_detection", "return_token_ids", "stop",
    "stop_token_ids", "structural_tag", "structured_outputs", "suffix", "thinking_token_budget",
    "top_logprobs", "truncate_prompt_tokens", "use_beam_search",
)  # fmt: skip
"""Fields that vLLM honours: here they are refused, so that nobody takes silence for an answer."""


class Sampling(BaseModel):
    """What completions and chats have in common; unknown fields are fine, as they are for vLLM."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    n: int | None = 1
    seed: int | None = None
    max_tokens: int | None = None
    stream: bool | None = False
    stream_options: dict[str, bool | None] | None = None
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
                    raise WireError("not-simulated", what=name)
            if data.get("n") not in {None, 1}:
                raise WireError("not-simulated", what="several choices")
        return data

    def tells_usage(self, *, each: bool = False) -> bool:
        """Whether a stream tells how much it used, at its end or with each piece."""
        options = self.stream_options
        if options is None or not options.get("include_usage", True):
            return False
        return not each or bool(options.get("continuous_usage_stats"))


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
        raise WireError(
            "unread", count=error.error_count(), where=where, why=first["msg"]
        ) from error


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
            raise WireError("model", model=model, names=", ".join(self.names))

    def tokens_of(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Return a prompt's tokens; refuses what the model cannot take."""
        is_text, length = isinstance(prompt, str), self.max_model_len
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not tokens:
            raise WireError("empty")
        if len(tokens) > length:
            # A text is tokenized no further than one token past the limit.
            count, least = (length + 1, "at least ") if is_text else (len(tokens), "")
            raise WireError("prompt", length=length, count=count, least=least)
        if max(tokens) >= self.tokenizer.vocab_size:
            raise WireError("vocabulary", token=max(tokens))
        return tokens

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt that the model sees of a conversation, in Gemma's turns."""
        if not messages:
            raise WireError("conversation")
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
            raise WireError("content")
        if not self.multimodal and any(part.get("type", "text") != "text" for part in content):
            raise WireError("image", name=self.names[0])
        return "".join(part.get("text", "<image>") for part in content)


def completion_ask(served: Served, request: CompletionRequest) -> Ask:
    """Judge `POST /v1/completions`."""
    served.check_name(request.model)
    prompt = served.tokens_of(request.prompt)
    return _ask(served, request, prompt, "max_tokens", form=_form(request))


def chat_ask(served: Served, request: ChatRequest) -> Ask:
    """Judge `POST /v1/chat/completions`."""
    served.check_name(request.model)
    tool = _tool_called(served, request)
    prompt = served.tokens_of(served.render(request.messages))
    bound = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    schema = {"type": "object", **tool.parameters} if tool else {}
    form = json.dumps(_sample(schema, 0)) if tool else _form(request)
    thinks = served.reasoning_parser and bool(request.chat_template_kwargs.get("enable_thinking"))
    called = tool.name if tool else None
    return _ask(served, request, prompt, bound, form=form, thinks=thinks, tool=called)


def _tool_called(served: Served, request: ChatRequest) -> _Function | None:
    """Return what must be called; refuses tools that no parser would find in an answer."""
    choice = request.tool_choice or ("auto" if request.tools else "none")
    if choice == "none":
        return None
    if not request.tools:
        raise WireError("no-tools")
    if choice == "auto" and not (served.auto_tools and served.tool_parser):
        raise WireError("auto-tools")
    if not served.tool_parser:
        raise WireError("required-tools")
    if request.stream:
        raise WireError("not-simulated", what="tools in a stream")
    return request.tools[0].function if choice == "required" else None


def _ask(
    served: Served,
    request: CompletionRequest | ChatRequest,
    prompt: Sequence[int],
    bound: str,
    **more: Any,
) -> Ask:
    """Bound what is asked for; `more` is of `Ask`."""
    asked: int | None = getattr(request, bound)
    if asked is not None and asked > served.max_model_len:
        raise WireError("bound", bound=bound, asked=asked, length=served.max_model_len)
    left = served.max_model_len - len(prompt)
    most = left if asked is None else min(asked, left)
    if most < 1:
        raise WireError("least", most=most)
    if request.min_tokens > most:
        raise WireError("min-tokens", most=most, asked=request.min_tokens)
    return Ask(
        prompt=prompt,
        max_tokens=most,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        sampling=f"{request.seed}|{request.temperature}|{request.top_p}",
        **more,
    )


_MADE_UP: Final = "words that the simulated engine made up and that mean nothing"
_KINDS: Final = {"integer": 1, "number": 1.0, "boolean": True, "null": None}


def _form(request: Sampling) -> str:
    """Return the text that a schema holds the answer to; empty for free prose."""
    form = request.response_format or {"type": "text"}
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if not isinstance(schema, dict):
            raise WireError("schema")
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
    raise WireError("not-simulated", what=f"such a schema: {json.dumps(schema)[:200]}")
