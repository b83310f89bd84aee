"""The words of a Kusto query: names, literals and signs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

Kind = Literal["name", "text", "number", "span", "time", "sign", "end"]
Value = str | float

_WORDS: Final = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
    |(?P<time>datetime\((?P<moment>[^)]*)\))
    |(?P<verbatim>@'(?:[^']|'')*'|@"(?:[^"]|"")*")
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<span>\d+(?:\.\d+)?(?:ms|[smhd])\b)
    |(?P<number>\d+(?:\.\d+)?\b)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>==|!=|=~|!~|>=|<=|[|,()<>=])
    """,
    re.VERBOSE,
)
_SPANS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class BadWords(Exception):
    """The text is no query."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word; a literal has a value: text as it is, spans and times in seconds."""

    kind: Kind
    text: str
    value: Value = ""


def words_of(query: str) -> Iterator[Word]:
    """Read a query; two texts in a row are one text, as in Kusto.

    Raises:
        BadWords: Something is no word of the language.
    """
    place = 0
    kept: Word | None = None
    while place < len(query):
        match = _WORDS.match(query, place)
        if match is None:
            raise BadWords(f"Unexpected character at position {place}: {query[place]!r}")
        place = match.end()
        if match.lastgroup == "space":
            continue
        word = _word(match)
        if kept and kept.kind == word.kind == "text":
            kept = Word("text", kept.text + word.text, str(kept.value) + str(word.value))
            continue
        if kept:
            yield kept
        kept = word
    if kept:
        yield kept
    yield Word("end", "")


def _word(match: re.Match[str]) -> Word:
    text = match.group()
    if match["name"] or match["sign"]:
        return Word("name" if match["name"] else "sign", text)
    if match["time"]:
        return Word("time", text, _moment(match["moment"]))
    if match["verbatim"]:
        quote = text[1]
        return Word("text", text, text[2:-1].replace(quote * 2, quote))
    if match["text"]:
        return Word("text", text, re.sub(r"\\(.)", _unescaped, text[1:-1]))
    if match["span"]:
        number = text.rstrip("mshd")
        return Word("span", text, float(number) * _SPANS[text.removeprefix(number)])
    return Word("number", text, float(text))


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


def _moment(text: str) -> float:
    try:
        read = datetime.fromisoformat(text.strip().strip("'\""))
    except ValueError as exc:
        raise BadWords(f"'{text}' is no datetime") from exc
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
