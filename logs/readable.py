"""A line made fit to keep: of bounded length, of printable characters, no secret cut in half."""

import re
import unicodedata
from typing import Final

from logs.lines import clean

LONGEST: Final = 2_000
"""Characters of a line that count; vLLM's longest, its configuration, has some 3,000."""
_LOOKED_AT: Final = 4 * LONGEST
"""Colours and control characters are not yet out of it."""
_HALVED: Final = 400
"""A secret that the cut halves is no longer than this; or it is long enough to be known."""
_LAST_WORD: Final = re.compile(r"\S*\Z")
_LAST_NUMBER: Final = re.compile(r"[0-9 -]*\Z")


def readable(text: str) -> tuple[str, bool]:
    r"""Give the line in printable characters, and whether it was too long to be kept whole.

    >>> readable("a\x1b[31m red\u202e line\ud800")
    ('a red line\ufffd', False)
    """
    looked_at = shortened(text, _LOOKED_AT)
    text = printable(looked_at)
    kept = shortened(text, LONGEST)
    return kept, len(looked_at) > _LOOKED_AT or kept is not text


def printable(text: str) -> str:
    r"""Give a text without colours, and without characters that hide or turn others.

    >>> printable("\x1b[2J\u202eup\x00")
    'up'
    """
    text = clean(text)
    return text if text.isprintable() else "".join(map(_printable, text))


def shortened(text: str, most: int) -> str:
    """Give the beginning of a text, without the word or number that the cut would halve."""
    if len(text) <= most:
        return text
    rest, end = text[: most - _HALVED], text[most - _HALVED : most]
    return rest + _LAST_NUMBER.sub("", _LAST_WORD.sub("", end, count=1), count=1)


def quoted(text: str, most: int) -> str:
    """Give the beginning of a line as evidence; only of a single long word it is half a word.

    >>> quoted("the key is sk-abcdef", 15)
    'the key is'
    """
    return shortened(text, most) or text[:most]


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    kind = unicodedata.category(character)
    if kind == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "" if kind in {"Cf", "Cc"} and character != "\t" else " "
