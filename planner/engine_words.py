"""The words of engine_args: one flag or value each, none that this project sets, none short."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from core.errors import InvalidArgument
from core.records import apart
from planner.flags import READ

_OURS: Final = {
    "--host": "it listens where the target can protect it",
    "--port": "give it as `port`",
    "--uds": "on this machine access=internal makes it listen on a unix socket",
    "--root-path": "the engine's key protects paths by how they begin",
    "--api-key": "every deployment gets a random key of its own",
    "--served-model-name": "it follows from the model",
    "--model": "give it as `model`",
    "--hf-token": "set HF_TOKEN; no secret belongs on a command line",
}
_GUARDED: Final = READ | {
    "--hf-overrides",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--load-format",
    "--safetensors-load-strategy",
    "--limit-mm-per-prompt",
}
"""Flags that are looked for by their whole names."""
_FLAG: Final = re.compile(r"(?:^|\s)(--[A-Za-z][\w-]*)")
_ATTACHED: Final = re.compile(r"-q[^=]")


def engine_words(words: Sequence[str]) -> tuple[str, ...]:
    """Give engine_args one flag or value each.

    Raises:
        InvalidArgument: One is a flag that this project sets itself, or an abbreviation.
    """
    found = tuple(part for word in words for part in apart(word))
    check_words(found)
    return found


def check_words(words: Sequence[str]) -> None:
    """Refuse flags that are set elsewhere, such as keys, and abbreviated ones; tell no value.

    Raises:
        InvalidArgument: One of them is so.
    """
    for flag in (flag for word in words for flag in _flags(word)):
        # argparse takes --api-k for --api-key as well.
        ours = next((name for name in _OURS if name.startswith(flag)), None)
        if ours:
            raise InvalidArgument(
                f"engine_args may not hold {flag}: {_OURS[ours]}.", fix=f"Leave {flag} out."
            )
    for word in words:
        _refuse_short(word)


def _flags(word: str) -> Iterator[str]:
    """Give the flags in a word, also where they stand in the value of another."""
    return (found.replace("_", "-") for found in _FLAG.findall(word))


def _refuse_short(word: str) -> None:
    given = re.split(r"[=.]", word, maxsplit=1)[0].replace("_", "-")
    if _ATTACHED.match(word):
        given, whole = "-q", ["--quantization"]
    elif given[2:] and given.startswith("--") and given not in _GUARDED:
        whole = sorted(name for name in _GUARDED if name.startswith(given))
    else:
        return
    if whole:
        raise InvalidArgument(
            f"engine_args abbreviates a flag: {given}.", fix=f"Write {' or '.join(whole)}."
        )
