"""The part of Kusto's query language that logs are asked in."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeVar

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


T = TypeVar("T")
Row = Mapping[str, Value]
Judge = Callable[[Row], bool]
Tables = Mapping[str, tuple[Mapping[str, str], Sequence[Row]]]
"""By name: the type of each column, and the rows, oldest first."""


class BadQuery(Exception):
    """Kusto does not understand it; `code` is its own, such as SEM0100."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True, slots=True)
class Found:
    """A table that answers a query."""

    columns: Mapping[str, str]
    """Their types, by name."""
    rows: Sequence[Row]


_TERMS: Final = re.compile(r"[^0-9a-z]+")
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "=~": lambda a, b: a.lower() == b.lower(),
    "!~": lambda a, b: a.lower() != b.lower(),
    "contains_cs": lambda a, b: b in a,
    "startswith": lambda a, b: a.lower().startswith(b.lower()),
    "has": lambda a, b: b.lower() in _TERMS.split(a.lower()),
}
_NUMBERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def answered(query: str, tables: Tables, now: float) -> Found:
    """Answer a query.

    Raises:
        BadQuery: It is not understood, or names a table or column that is not there.
    """
    try:
        return _Reader(list(words_of(query)), tables, now).read()
    except BadWords as exc:
        raise BadQuery("SYN0002", f"Query could not be parsed: {exc}") from exc


class _Reader:
    """Reads one query from left to right, and does what it says."""

    def __init__(self, words: Sequence[Word], tables: Tables, now: float) -> None:
        self._words = words
        self._place = 0
        self._tables = tables
        self._now = now
        self._columns: Mapping[str, str] = {}
        self._rows: Sequence[Row] = ()
        self._operator = ""

    def read(self) -> Found:
        name = self._next("name").text
        operators = {
            "where": self._where,
            "filter": self._where,
            "project": self._project,
            "order": self._order,
            "sort": self._order,
            "take": self._take,
            "limit": self._take,
            "top": self._top,
        }
        following = self._words[min(2, len(self._words) - 1)].text
        if name not in self._tables:
            where = f"'{following}' operator: " if following in operators else ""
            raise BadQuery(
                "SEM0100", f"{where}Failed to resolve table or column expression named '{name}'"
            )
        self._columns, self._rows = self._tables[name]
        while self._is("|"):
            self._operator = self._next("name").text
            if self._operator not in operators:
                raise self._wrong(self._words[self._place - 1])
            operators[self._operator]()
        self._next("end")
        return Found(self._columns, self._rows)

    def _where(self) -> None:
        judge = self._either()
        self._rows = [row for row in self._rows if judge(row)]

    def _project(self) -> None:
        chosen = dict(self._listed(self._projected))
        self._rows = [{new: row[old] for new, old in chosen.items()} for row in self._rows]
        self._columns = {new: self._columns[old] for new, old in chosen.items()}

    def _projected(self) -> tuple[str, str]:
        name = self._next("name").text
        old = self._next("name").text if self._is("=") else name
        return name, self._column(old)

    def _order(self) -> None:
        self._word("by")
        for name, ascending in reversed(list(self._listed(self._ordered))):
            self._rows = sorted(self._rows, key=lambda row: row[name], reverse=not ascending)

    def _ordered(self) -> tuple[str, bool]:
        name = self._column(self._next("name").text)
        if self._is("asc"):
            return name, True
        self._is("desc")
        return name, False

    def _take(self) -> None:
        self._rows = self._rows[: int(self._next("number").value)]

    def _top(self) -> None:
        count = self._next("number")
        self._order()
        self._rows = self._rows[: int(count.value)]

    def _either(self) -> Judge:
        judge = self._both()
        while self._is("or"):
            judge = _or(judge, self._both())
        return judge

    def _both(self) -> Judge:
        judge = self._single()
        while self._is("and"):
            judge = _and(judge, self._single())
        return judge

    def _single(self) -> Judge:
        if self._is("("):
            judge = self._either()
            self._word(")")
            return judge
        name = self._column(self._next("name").text)
        operator = self._next()
        if operator.text == "in":
            self._word("(")
            chosen = tuple(self._listed(self._value))
            self._word(")")
            return lambda row: row[name] in chosen
        value = self._value()
        if isinstance(value, str) and operator.text == "contains":
            return _Contains(name, (value.lower(),))
        if isinstance(value, str) and operator.text in _TEXTS:
            texts = _TEXTS[operator.text]
            return lambda row: texts(str(row[name]), value)
        if isinstance(value, float) and operator.text in _NUMBERS:
            numbers = _NUMBERS[operator.text]
            return lambda row: numbers(float(row[name]), value)
        raise self._wrong(operator)

    def _value(self) -> Value:
        word = self._next()
        if word.kind == "name" and word.text in {"ago", "now"}:
            self._word("(")
            back = 0.0 if self._at(")") else float(self._next("span").value)
            self._word(")")
            return self._now - back
        if word.kind not in {"text", "number", "span", "time"}:
            raise self._wrong(word)
        return word.value

    def _column(self, name: str) -> str:
        if name not in self._columns:
            raise BadQuery(
                "SEM0100",
                f"'{self._operator}' operator: Failed to resolve column or scalar expression"
                f" named '{name}'",
            )
        return name

    def _listed(self, read: Callable[[], T]) -> Iterator[T]:
        yield read()
        while self._is(","):
            yield read()

    def _at(self, text: str) -> bool:
        return self._words[self._place].text == text

    def _is(self, text: str) -> bool:
        """Go past a word, if it comes."""
        found = self._at(text) and self._words[self._place].kind in {"name", "sign"}
        self._place += found
        return found

    def _word(self, text: str) -> None:
        if not self._is(text):
            raise self._wrong(self._words[self._place])

    def _next(self, kind: str = "") -> Word:
        word = self._words[self._place]
        if kind and word.kind != kind:
            raise self._wrong(word)
        self._place += word.kind != "end"
        return word

    def _wrong(self, word: Word) -> BadQuery:
        return BadQuery("SYN0002", f"Query could not be parsed at '{word.text}'")


@dataclass(frozen=True, slots=True)
class _Contains:
    """Whether a column holds one of some texts, whatever their case."""

    column: str
    texts: tuple[str, ...]
    """In lower case."""

    def __call__(self, row: Row) -> bool:
        return any(map(str(row[self.column]).lower().__contains__, self.texts))


def _or(one: Judge, other: Judge) -> Judge:
    if isinstance(one, _Contains) and isinstance(other, _Contains) and one.column == other.column:
        return _Contains(one.column, one.texts + other.texts)
    return lambda row: one(row) or other(row)


def _and(one: Judge, other: Judge) -> Judge:
    return lambda row: one(row) and other(row)
