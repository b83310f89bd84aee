"""The form that an answer is held to, and what of an answer keeps it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError
from pydantic_core import from_json

from core.records import Record
from operations.analyst.words import Advice, Claim, Row, plain
from operations.diagnosis.records import Call

WIDE_TOKENS: Final = 768
"""An answer of so many tokens has room for the wide form: about 2,000 characters."""
_QUOTED: Final = 160
"""Characters of a line that is quoted beside a claim."""
_DANGEROUS: Final = re.compile(r"\b(?:destroy|delete|stop)_\w+", re.IGNORECASE)
_One = TypeVar("_One", bound=BaseModel)


class _Claim(BaseModel):
    model_config = ConfigDict(extra="ignore")
    text: StrictStr
    lines: list[StrictStr]


class _Step(BaseModel):
    model_config = ConfigDict(extra="ignore")
    tool: StrictStr
    why: StrictStr
    lines: list[StrictStr]


class Size(Record):
    """How much an answer may say."""

    claims: int
    steps: int
    lines: int
    characters: int
    """Of one sentence."""


WIDE: Final = Size(claims=5, steps=3, lines=4, characters=240)
NARROW: Final = Size(claims=2, steps=1, lines=2, characters=100)


def size_for(answer_tokens: int) -> Size:
    """Give what fits into an answer even where a token is a single character or two."""
    return WIDE if answer_tokens >= WIDE_TOKENS else NARROW


class Kept(Record):
    """What of an answer keeps the form."""

    claims: tuple[Claim, ...] = ()
    advice: tuple[Advice, ...] = ()
    dropped: Mapping[str, int] = {}
    """How many, by the reason."""


class Form:
    """For one question: its lines and its tools are the only ones there are."""

    def __init__(
        self, rows: Sequence[Row], tools: Sequence[Call], others: frozenset[str], size: Size
    ) -> None:
        """Make it; whoever names one of the `others`, tools that nothing calls for, is dropped."""
        self.size: Final = size
        self._rows: Final = {row.id: row for row in rows}
        self._tools: Final = {step.tool: step for step in tools}
        self._others: Final = others - self._tools.keys()

    @property
    def tools(self) -> tuple[str, ...]:
        """Give the tools that may be named."""
        return tuple(self._tools)

    @property
    def schema(self) -> dict[str, Any]:
        """Give it as JSON Schema, within what every guided decoder knows."""
        text = {"type": "string", "maxLength": self.size.characters}
        lines = _list({"type": "string", "enum": list(self._rows)}, self.size.lines, least=1)
        parts = {"claims": _list(_object(text=text, lines=lines), self.size.claims)}
        if self._tools:
            tool = {"type": "string", "enum": list(self._tools)}
            step = _object(tool=tool, why=text, lines=lines)
            parts["steps"] = _list(step, self.size.steps)
        return _object(**parts)

    def read(self, text: str) -> Kept | None:
        """Keep what cites lines that exist and names only tools that were offered.

        An answer that breaks off keeps what was whole; None is no JSON object at all.
        """
        said = _parsed(text)
        if said is None:
            return None
        dropped: dict[str, int] = {}
        claims = [self._claim(one, dropped) for one in _items(said, "claims", _Claim, dropped)]
        steps = [self._advice(one, dropped) for one in _items(said, "steps", _Step, dropped)]
        return Kept(
            claims=tuple(filter(None, claims))[: self.size.claims],
            advice=tuple(filter(None, steps))[: self.size.steps],
            dropped=dropped,
        )

    def _claim(self, one: _Claim, dropped: dict[str, int]) -> Claim | None:
        text, lines = self._cited(one.text, one.lines, dropped)
        return Claim(text=text, lines=lines) if text else None

    def _advice(self, one: _Step, dropped: dict[str, int]) -> Advice | None:
        step = self._tools.get(one.tool)
        if step is None:
            _count(dropped, "names a tool that was not offered")
            return None
        why, lines = self._cited(one.why, one.lines, dropped)
        if not why:
            return None
        return Advice(tool=step.tool, arguments=step.arguments, why=why, lines=lines)

    def _cited(
        self, text: str, ids: Sequence[str], dropped: dict[str, int]
    ) -> tuple[str, tuple[str, ...]]:
        """Give a sentence and its lines; nothing where it may not be said."""
        known = [self._rows[one] for one in dict.fromkeys(ids) if one in self._rows]
        sentence = plain(text, self.size.characters)
        if not known or not sentence:
            _count(dropped, "cites no line that exists")
            return "", ()
        if self._commands(sentence):
            _count(dropped, "names a tool that nothing here calls for")
            return "", ()
        return sentence, tuple(plain(str(row), _QUOTED) for row in known[: self.size.lines])

    def _commands(self, sentence: str) -> bool:
        named = set(re.findall(r"\w+", sentence.lower()))
        return bool(named & self._others or _DANGEROUS.search(sentence))


def _parsed(text: str) -> dict[str, Any] | None:
    """Read the first object in a text, even one that breaks off; models may put words around it."""
    begin, end = text.find("{"), text.rfind("}") + 1
    tries = ((text[begin:end], False), (text[begin:], True)) if begin >= 0 else ()
    for candidate, partial in tries:
        try:
            said = from_json(candidate, allow_partial=partial)
        except ValueError:
            continue
        return said if isinstance(said, dict) else None
    return None


def _items(
    said: Mapping[str, Any], name: str, kind: type[_One], dropped: dict[str, int]
) -> list[_One]:
    found = said.get(name)
    good: list[_One] = []
    for one in found if isinstance(found, list) else ():
        try:
            good.append(kind.model_validate(one))
        except ValidationError:
            _count(dropped, "does not keep the form")
    return good


def _count(dropped: dict[str, int], why: str) -> None:
    dropped[why] = dropped.get(why, 0) + 1


def _object(**parts: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": parts,
        "required": list(parts),
        "additionalProperties": False,
    }


def _list(items: Mapping[str, Any], most: int, *, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}
