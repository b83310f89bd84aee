"""What vLLM refuses about lengths and sampling parameters, in its order and words."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from emulators.engine.wire.errors import EngineError, WireError, invalid
from emulators.engine.wire.requests import Sampling

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
