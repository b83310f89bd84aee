"""Words of a command line that came as one, taken apart."""

import re
import shlex
from collections.abc import Iterator
from json import JSONDecoder
from typing import Final

_SEVERAL: Final = re.compile(
    r"--?[A-Za-z][^=\s]*\s|--?[A-Za-z].*\s-(?:-[A-Za-z]|[a-z]+\s)", re.DOTALL
)
"""A flag with a blank before any `=`, or with another flag behind it."""
_JOINED: Final = re.compile(r"--?[A-Za-z][\w.+-]*=")
_BLANKS: Final = re.compile(r"\s*")
_TOKEN: Final = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|['"\\])+""", re.DOTALL)
_JSON: Final = JSONDecoder()


def apart(said: str) -> tuple[str, ...]:
    """Give flags and values one by one; a value with blanks of its own, such as JSON, stays.

    >>> apart('--limit-mm-per-prompt {"image": 1} --seed=4')
    ('--limit-mm-per-prompt', '{"image": 1}', '--seed=4')
    """
    end = _end_of_json(said, 0)
    several = _SEVERAL.match(said.lstrip()) if end is None else said[end:].strip()
    return tuple(_parts(said)) if several else (said,)


def _parts(said: str) -> Iterator[str]:
    at, awaited = _after_blanks(said, 0), True
    while at < len(said):
        flag = said[at] == "-"
        end = _end_of_json(said, at) if flag or awaited else None
        if end is None:
            token = _TOKEN.match(said, at)
            end = token.end() if token else len(said)
            yield from _unquoted(said[at:end])
        else:
            yield said[at:end]
        at, awaited = _after_blanks(said, end), flag


def _after_blanks(said: str, at: int) -> int:
    found = _BLANKS.match(said, at)
    return found.end() if found else at


def _end_of_json(said: str, at: int) -> int | None:
    """Where the JSON ends that begins here, or behind a flag's `=`; None if there is none."""
    joined = _JOINED.match(said, at)
    start = joined.end() if joined else at
    if said[start : start + 1] not in {"{", "["}:
        return None
    try:
        _, end = _JSON.raw_decode(said, start)
    except (ValueError, RecursionError):
        return None
    return end if not said[end : end + 1].strip() else None


def _unquoted(token: str) -> tuple[str, ...]:
    """Take a shell's quotes off; a value that then has blanks leaves its flag."""
    try:
        (word,) = shlex.split(token)
    except ValueError:
        return (token,)
    joined = _JOINED.match(word)
    if joined and re.search(r"\s", word):
        return word[: joined.end() - 1], word[joined.end() :]
    # What would come apart once more, as a flag with an escaped blank, stays as it was written.
    return (word,) if joined or apart(word) == (word,) else (token,)
