"""Text that others wrote: an endpoint, a log, a file, a caller. It is data, and made harmless here.

JSON of others is read here as well, with a bound on its size and its depth.
"""

import re
import unicodedata
from typing import Any, Final

MOST_JSON_BYTES: Final = 2 * 2**20
"""Objects made of it take up to thirty times as much memory."""
_DEEPEST: Final = 64
"""Objects and lists within each other; vLLM's answers have six."""
_MOST_NESTED: Final = 100_000
"""Objects and lists together: 2 MiB of empty ones take 60 MB; of log probabilities 35,000 fit."""
_HALVED: Final = 400
"""A secret that the cut halves is no longer than this; or it is long enough to be known."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_LAST_WORD: Final = re.compile(r"\S*\Z")
_LAST_NUMBER: Final = re.compile(r"[0-9 -]*\Z")
_JOINERS: Final = "\u200c\u200d"
"""Without which words of some languages, and some pictures, are not what they are."""


class NotJson(ValueError):
    """It is no JSON, or none that is read here."""


def read_json(text: bytes) -> Any:
    """Read JSON of a bounded size, depth and number of parts; NaN and the like are no JSON.

    Raises:
        NotJson: It is something else.
    """
    if len(text) > MOST_JSON_BYTES:
        raise NotJson("It is too large.")
    from orjson import JSONDecodeError, loads  # noqa: PLC0415  what listing the tools need not pay

    nested = text.count(b"[") + text.count(b"{")
    if nested > _MOST_NESTED:
        raise NotJson("It has too many parts.")
    try:
        value = loads(text)
    except JSONDecodeError as exc:
        raise NotJson(exc.msg) from exc
    if nested > _DEEPEST and _is_deep(value):
        raise NotJson("It is nested too deeply.")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [one for one in level if isinstance(one, dict | list)]
        if not inner:
            return False
        level = [one for row in inner for one in (row.values() if isinstance(row, dict) else row)]
    return True


def printable(text: str, *, keep: str = "") -> str:
    r"""Give a text without colours, and without characters that hide, turn or break others.

    >>> printable("\x1b[2J\u202eup\x00 and\n down")
    'up and  down'
    """
    if text.isprintable():
        return text
    text = _COLOUR.sub("", text)
    return "".join(one if one in keep else _printable(one) for one in text)


def one_line(text: object, most: int) -> str:
    r"""Give the beginning of a text as words on one line.

    >>> one_line("a\tb\x1b\n\u202ec", 9), one_line("several words", 9)
    ('a b c', 'several…')
    """
    said = str(text)
    if len(said) <= most and said.isprintable() and "  " not in said:
        return said.strip()
    line = " ".join(printable(shortened(said, 4 * most + _HALVED)).split())
    return line if len(line) <= most else f"{quoted(line, most - 1)}…"


def in_quotes(text: object, most: int = 300) -> str:
    r"""Give words of others as they stand in a sentence of ours; nothing where there are none.

    >>> in_quotes('it said "no"\n')
    '"it said \'no\'"'
    """
    line = one_line(text, most).replace('"', "'")
    return f'"{line}"' if line else ""


def shortened(text: str, most: int) -> str:
    """Give the beginning of a text, without the word or number that the cut would halve."""
    if len(text) <= most:
        return text
    rest, end = text[: max(0, most - _HALVED)], text[max(0, most - _HALVED) : most]
    return rest + _LAST_NUMBER.sub("", _LAST_WORD.sub("", end, count=1), count=1)


def quoted(text: str, most: int) -> str:
    """Give the beginning of a line as evidence; only of a single long word it is half a word.

    >>> quoted("the key is sk-abcdef", 15)
    'the key is'
    """
    return shortened(text, most) or text[:most]


_LINE: Final = frozenset(
    ("summary", "cause", "fix", "detail", "warnings", "code", "evidence", "errors", "lines", "rows")
)
"""Fields whose texts are each one line, wherever they stand in an answer."""
_SPOKEN: Final = frozenset(("answer", "reasoning", "answer_so_far"))
"""Fields that hold what a model said, in whatever language."""
_LONGEST_KEY: Final = 200


def harmless(value: Any, name: str = "") -> Any:
    """Give an answer with nothing in it that could hide, turn or pass for something else."""
    if isinstance(value, str):
        if name not in _LINE:
            return printable(value, keep="\n\t" + (_JOINERS if name in _SPOKEN else ""))
        return value if value.isprintable() else " ".join(printable(value).split())
    if isinstance(value, dict):
        return {
            _key(key): harmless(one, key if isinstance(key, str) else name)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [harmless(one, name) for one in value]
    return value


def _key(key: Any) -> Any:
    """Return a name as one line; ours are short and printable as they are."""
    plain = not isinstance(key, str) or (key.isprintable() and len(key) <= _LONGEST_KEY)
    return key if plain else one_line(key, _LONGEST_KEY)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    kind = unicodedata.category(character)
    if kind == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "" if kind in {"Cf", "Cc"} else " "
