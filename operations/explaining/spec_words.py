"""A spec changed by the words of a command line, and made plain."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from core.errors import InvalidArgument
from core.records import DeploymentSpec, apart, valid
from planner.flags import check_words, defaults, size_in_bytes

_Pair = tuple[str, str | None]
_SHORT: Final = {"-tp": "tensor_parallel_size", "-q": "quantization"}
_FIXED: Final = frozenset({"name", "model", "engine_args", "engine"})
"""What no flag changes."""
_TOKENS: Final = frozenset({"max_model_len", "max_num_batched_tokens"})
"""vLLM takes these as 32k (32,000) and 32K (32,768) as well."""
_SETTABLE: Final = frozenset(DeploymentSpec.model_fields) - _FIXED
_LOOSE: Final = re.compile(r"^(-{0,2}[A-Za-z][\w-]*)\s*=\s*")
_SWITCH: Final = "enforce_eager"


def changed(spec: DeploymentSpec, words: Sequence[str]) -> DeploymentSpec:
    """Give the spec with flags added or replaced: --max-model-len=8192, or min_replicas=1.

    >>> changed(DeploymentSpec(name="a", model="b"), ["--max-model-len 8k"]).max_model_len
    8000

    Raises:
        InvalidArgument: A word is no flag that may be given, or its value cannot be.
    """
    return _put(spec, _checked(_pairs(words)))


def _checked(pairs: Iterable[_Pair]) -> Iterator[_Pair]:
    for flag, value in pairs:
        given = () if value is None else (value,)
        check_words(given if _field(flag) else (flag, *given))
        yield flag, value


def _put(spec: DeploymentSpec, pairs: Iterable[_Pair]) -> DeploymentSpec:
    values: dict[str, Any] = {}
    others: list[tuple[str, ...]] = []
    for flag, value in pairs:
        field = _field(flag)
        if field is None:
            others.append((flag,) if value is None else (flag, value))
        else:
            values[field] = _value(field, flag, value)
    replaced = {flag for flag, *_ in others}
    kept = [word for pair in _known(spec) if pair[0] not in replaced for word in _written(pair)]
    added = [word for pair in others for word in _written(pair)]
    update = {**spec.model_dump(), **values, "engine_args": (*kept, *added)}
    return valid(DeploymentSpec, update)


def plain(spec: DeploymentSpec) -> DeploymentSpec:
    """Give the spec with its engine_args as fields wherever it has one: there they would win.

    Raises:
        InvalidArgument: A value in them cannot be.
    """
    return _put(spec.model_copy(update={"engine_args": ()}), _pairs(spec.engine_args))


def rest(spec: DeploymentSpec) -> tuple[str, ...]:
    """Give the other flags of a plain spec, one with its value each."""
    return tuple(" ".join(pair) for pair in _known(spec))


def _written(pair: tuple[str, ...]) -> tuple[str, ...]:
    """Return a flag as it was given; one that is added by default as it is added: no difference."""
    return ("=".join(pair),) if " ".join(pair) in defaults() else pair


def _known(spec: DeploymentSpec) -> Iterator[tuple[str, ...]]:
    for flag, value in _pairs(spec.engine_args):
        yield (flag,) if value is None else (flag, value)


def _pairs(words: Sequence[str]) -> Iterator[_Pair]:
    """Take a flag and its value apart, however they were written."""
    waiting: str | None = None
    for word in (part for said in words for part in _split(_tight(said)) if part != "="):
        if word[:1] == "-" or _is_assignment(word) or (waiting is None and word in _SETTABLE):
            if waiting is not None:
                yield waiting, None
            flag, sign, value = word.partition("=")
            waiting = None if sign else flag
            if sign:
                yield flag, value
        elif waiting is None:
            raise InvalidArgument(
                f"{word!r} is no flag.", fix="Give flags such as --max-model-len=8192."
            )
        else:
            yield waiting, word
            waiting = None
    if waiting is not None:
        yield waiting, None


def _tight(said: str) -> str:
    """Write `flag = value` without blanks; a value with blanks of its own stays."""
    return _LOOSE.sub(r"\1=", said.strip(), count=1)


def _split(said: str) -> Sequence[str]:
    """Take words apart that came as one; a value with blanks of its own, such as JSON, stays.

    >>> _split('--limit-mm-per-prompt {"image": 1}')
    ('--limit-mm-per-prompt', '{"image": 1}')
    """
    name = said.partition(" ")[0]
    if name in _SETTABLE:
        return (name, *apart(f"--{said}")[1:])
    return apart(said) if said else ()


def _is_assignment(word: str) -> bool:
    name, sign, _ = word.partition("=")
    return bool(sign) and name in _SETTABLE


def _field(flag: str) -> str | None:
    name = _SHORT.get(flag) or flag.lstrip("-").replace("-", "_")
    if name == f"no_{_SWITCH}":
        return _SWITCH
    return name if name in _SETTABLE else None


def _value(field: str, flag: str, value: str | None) -> object:
    if field == _SWITCH:
        off = "no-" in flag or (value or "").lower() in {"false", "0"}
        return not off
    if value is None:
        raise InvalidArgument(f"{flag} has no value.", fix=f"Give it as {flag}=VALUE.")
    if field in _TOKENS:
        return _tokens(flag, value)
    return tuple(value.split(",")) if field == "zones" else value


def _tokens(flag: str, value: str) -> int | None:
    try:
        return size_in_bytes(value)
    except InvalidArgument as exc:
        raise InvalidArgument(
            f"{value} is no number of tokens for {flag}.",
            fix="Give one such as 8192, 8k (8,000) or 8K (8,192).",
        ) from exc
