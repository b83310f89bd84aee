"""What vLLM refuses of a body before it reads the fields: how they go together, in its words.

source: vllm 0.32.0, entrypoints/openai/{completion,chat_completion}/protocol.py, read 2026-11-23.
"""

from collections.abc import Mapping
from typing import Any, Final

from emulators.engine.wire.errors import WireError, invalid

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
