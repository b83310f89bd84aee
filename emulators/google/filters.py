"""The filter language that Cloud Logging and Cloud Monitoring share, as far as it is used here."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T", str, float)
E = TypeVar("E")

FUNCTION: Final = "()"
"""The operator of a function call, such as `log_id("x")`: its name is the field."""

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<quoted>"(?:[^"\\]|\\.)*")
    | (?P<operator><=|>=|!=|=~|!~|[=<>:])
    | (?P<bracket>[()])
    | (?P<minus>-(?=\S))
    | (?P<word>(?:[^\s"()=<>!:]|"(?:[^"\\]|\\.)*")+)
    )""",
    re.VERBOSE,
)


class BadFilter(ValueError):
    """The filter cannot be read, or asks what is not known here."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`field operator value`."""

    field: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Every:
    """All of them hold; of none: always."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one holds."""

    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """It does not hold."""

    term: "Node"


Node = Comparison | Every | Some | Negation


def parse(text: str) -> Node:
    """Read a filter.

    Raises:
        BadFilter: It cannot be read.
    """
    parser = _Parser(_tokens(text))
    node = parser.some() if parser.left else Every(())
    if parser.left:
        raise BadFilter(f"Unparseable filter: unexpected {parser.left[0][1]!r}")
    return node


def comparisons(node: Node) -> Iterator[Comparison]:
    """Give every comparison in it."""
    match node:
        case Comparison():
            yield node
        case Negation(term):
            yield from comparisons(term)
        case Every(terms) | Some(terms):
            for term in terms:
                yield from comparisons(term)


def holds(node: Node, judge: Callable[[Comparison], bool]) -> bool:
    """Say whether it holds where `judge` says so of each comparison."""
    match node:
        case Comparison():
            return judge(node)
        case Negation(term):
            return not holds(term, judge)
        case Every(terms):
            return all(holds(term, judge) for term in terms)
        case Some(terms):
            return any(holds(term, judge) for term in terms)


def compiled(
    node: Node, test: Callable[[str, str, tuple[str, ...]], Callable[[E], bool]]
) -> Callable[[E], bool]:
    """Make one function of a filter, which is quicker than to look at the filter each time.

    `test` makes a function of field, operator and values: whether one of the values fits. There
    are several only of `:`, so that a text in which many are looked for is read once.
    """
    match node:
        case Comparison(field, operator, value):
            return test(field, operator, (value,))
        case Negation(term):
            inner = compiled(term, test)
            return lambda entry: not inner(entry)
        case Every(terms):
            needed = tuple(compiled(term, test) for term in terms)
            return lambda entry: all(one(entry) for one in needed)
        case Some(terms):
            enough = tuple(_alternatives(terms, test))
            return lambda entry: any(one(entry) for one in enough)


def _alternatives(
    terms: Iterable[Node], test: Callable[[str, str, tuple[str, ...]], Callable[[E], bool]]
) -> Iterator[Callable[[E], bool]]:
    words: dict[str, list[str]] = {}
    for term in terms:
        if isinstance(term, Comparison) and term.operator == ":":
            words.setdefault(term.field, []).append(term.value)
        else:
            yield compiled(term, test)
    for field, values in words.items():
        yield test(field, ":", tuple(values))


def compared(operator: str, actual: str, wanted: str) -> bool:
    """Compare words as Logging does: their case does not count, except in patterns."""
    one, other = actual.lower(), wanted.lower()
    match operator:
        case "=":
            return one == other
        case "!=":
            return one != other
        case ":":
            return other in one
        case "=~":
            return re.search(wanted, actual) is not None
        case "!~":
            return re.search(wanted, actual) is None
    return ordered(operator, one, other)


def ordered(operator: str, actual: T, wanted: T) -> bool:
    """Compare what has an order.

    Raises:
        BadFilter: The operator knows none.
    """
    match operator:
        case "=":
            return actual == wanted
        case "!=":
            return actual != wanted
        case "<":
            return actual < wanted
        case "<=":
            return actual <= wanted
        case ">":
            return actual > wanted
        case ">=":
            return actual >= wanted
    raise BadFilter(f"Unparseable filter: operator {operator!r} cannot be used here")


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.left = tokens

    def some(self) -> Node:
        terms = [self._every()]
        while self._take("word", "OR"):
            terms.append(self._every())
        return terms[0] if len(terms) == 1 else Some(tuple(terms))

    def _every(self) -> Node:
        terms = [self._one()]
        while self.left and self.left[0] not in {("bracket", ")"), ("word", "OR")}:
            self._take("word", "AND")
            terms.append(self._one())
        return terms[0] if len(terms) == 1 else Every(tuple(terms))

    def _one(self) -> Node:
        if self._take("word", "NOT") or self._take("minus", "-"):
            return Negation(self._one())
        if self._take("bracket", "("):
            inner = self.some()
            self._must("bracket", ")")
            return inner
        return self._comparison()

    def _comparison(self) -> Node:
        kind, field = self._next()
        if kind == "quoted":
            return Comparison("", ":", _unquoted(field))
        if kind != "word":
            raise BadFilter(f"Unparseable filter: unexpected {field!r}")
        if self._take("bracket", "("):
            value = _unquoted(self._must("quoted"))
            self._must("bracket", ")")
            return Comparison(field, FUNCTION, value)
        operator = self._must("operator")
        kind, value = self._next()
        if kind not in {"word", "quoted"}:
            raise BadFilter(f"Unparseable filter: unexpected {value!r}")
        return Comparison(_field(field), operator, _unquoted(value))

    def _next(self) -> tuple[str, str]:
        if not self.left:
            raise BadFilter("Unparseable filter: it ends too early")
        return self.left.pop(0)

    def _must(self, kind: str, text: str | None = None) -> str:
        found, words = self._next()
        if found != kind or text not in {None, words}:
            raise BadFilter(f"Unparseable filter: unexpected {words!r}")
        return words

    def _take(self, kind: str, text: str) -> bool:
        if not self.left or self.left[0] != (kind, text):
            return False
        self.left.pop(0)
        return True


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split; a line that begins with `--` is a comment."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadFilter(f"Unparseable filter: syntax error at {text[at : at + 20]!r}")
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        at = match.end()
    return found


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _field(text: str) -> str:
    """Give `labels."a/b"` as `labels.a/b`."""
    return re.sub(r'"((?:[^"\\]|\\.)*)"', r"\1", text)
