"""Filters of lists: comparisons with AND and OR by AIP-160, or `eq` and `ne` by expressions.

Source: discovery document compute.v1, revision 20261106, on `filter` of instances.list.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from emulators.google.compute.refusing import Denied, wrong

Matches = Callable[[Mapping[str, Any]], bool]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<bracket>[()])|(?P<joint>AND\b|OR\b)
    |(?P<field>[A-Za-z][\w.\[\]-]*)\s*(?P<op>!=|<=|>=|=|<|>|:|\beq\b|\bne\b)\s*
     (?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|\*|[^\s()]+))""",
    re.VERBOSE,
)
_ORDERED: Final = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def matcher(expression: str) -> Matches:
    """Give what says whether a resource is meant; everything is without an expression.

    Raises:
        Denied: The expression cannot be read.
    """
    tokens = _tokens(expression)
    if not tokens:
        return lambda _row: True
    parser = _Parser(expression, tokens)
    matches = parser.all_of()
    if parser.left:
        raise _unreadable(expression)
    return matches


def _tokens(expression: str) -> list[re.Match[str]]:
    found, place = [], 0
    while expression[place:].strip():
        token = _TOKEN.match(expression, place)
        if token is None:
            raise _unreadable(expression)
        found.append(token)
        place = token.end()
    return found


class _Parser:
    """Reads tokens into one function; OR binds more closely than AND, as AIP-160 has it."""

    def __init__(self, expression: str, tokens: list[re.Match[str]]) -> None:
        self._expression = expression
        self.left = tokens

    def all_of(self) -> Matches:
        parts = [self._any_of()]
        while self.left and self.left[0]["bracket"] != ")":
            if self.left[0]["joint"] == "AND":
                self.left.pop(0)
            parts.append(self._any_of())
        return lambda row: all(part(row) for part in parts)

    def _any_of(self) -> Matches:
        parts = [self._one()]
        while self.left and self.left[0]["joint"] == "OR":
            self.left.pop(0)
            parts.append(self._one())
        return lambda row: any(part(row) for part in parts)

    def _one(self) -> Matches:
        if not self.left or self.left[0]["joint"] or self.left[0]["bracket"] == ")":
            raise _unreadable(self._expression)
        token = self.left.pop(0)
        if token["field"]:
            return _comparison(token["field"], token["op"], _unquoted(token["value"]))
        inner = self.all_of()
        if not self.left or self.left.pop(0)["bracket"] != ")":
            raise _unreadable(self._expression)
        return inner


def _comparison(field: str, op: str, value: str) -> Matches:
    if op in {"eq", "ne"}:
        pattern = re.compile(value)
        return lambda row: (pattern.fullmatch(_said(row, field)) is not None) == (op == "eq")
    if op == ":":
        return lambda row: _has(row, field, value)
    if op in _ORDERED:
        return lambda row: bool(_ORDERED[op](_said(row, field), value))
    return lambda row: (_said(row, field) == value) == (op == "=")


def _has(row: Mapping[str, Any], field: str, value: str) -> bool:
    found = _at(row, field)
    return found is not None and (value == "*" or value in str(found))


def _said(row: Mapping[str, Any], field: str) -> str:
    found = _at(row, field)
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)


def _at(row: Any, field: str) -> Any:
    for part in field.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def _unquoted(value: str) -> str:
    return value[1:-1].replace('\\"', '"') if value[:1] in {'"', "'"} else value


def _unreadable(expression: str) -> Denied:
    return wrong("filter", expression, "Invalid list filter expression.")
