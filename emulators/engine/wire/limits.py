"""What vLLM refuses about lengths and sampling parameters, in its order and words."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from emulators.engine.wire.errors import WireError, invalid
from emulators.engine.wire.requests import Sampling

_Rule = tuple[str, Callable[[Any], bool], str]
_RULES: Final[tuple[_Rule, ...]] = (
    ("n", lambda v: v >= 1, "n must be at least 1, got {}."),
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


def check_sampling(request: Sampling, *, max_tokens: int, logprobs: int, max_logprobs: int) -> None:
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
    if logprobs > max_logprobs:
        message = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: "
        raise invalid(f"{message}{max_logprobs}", "logprobs", logprobs)
