"""The failures that a log tells of, found page by page in bounded memory."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from core.foreign import quoted
from core.records import Failure, Record
from logs.catalogue import (
    LINE_CHARACTERS,
    USERS,
    Row,
    Writer,
    advised,
    hinted,
    known_by,
    table,
    told,
)
from logs.lines import Line, clean
from logs.severity import gravity
from logs.shippers import bare

_COLOUR: Final = "\x1b"
"""Begins one; its end is a letter, right before the first word."""


class Finding(Record):
    """A failure that a log tells of."""

    failure: Failure
    writer: Writer
    """Whose file of the catalogue knows it."""
    line: str
    """The newest that says so, cut."""
    first: datetime
    last: datetime
    count: int
    """Lines that say so."""


class Finder:
    """Takes the pages of a log and keeps what the catalogue knows of them."""

    def __init__(self, writer: Writer | None = None) -> None:
        """Know whose platform the lines come from; none is an engine without one."""
        self._platform: Writer = writer or "engine"
        self._table = table(self._platform)
        self._hints = hinted(self._platform)
        self._found: dict[tuple[int, bool, int], Finding] = {}

    def feed(self, page: Sequence[Line]) -> None:
        """Take one page, oldest line first; the newest page comes first."""
        for line, text in reversed(list(self._candidates(page))):
            self._judge(line, text)

    def findings(self) -> tuple[Finding, ...]:
        """Give each failure once, the cause before its consequences, warnings last."""
        by_code: dict[str, Finding] = {}
        for place in sorted(self._found):
            new = self._found[place]
            old = by_code.get(new.failure.code)
            by_code[new.failure.code] = _merged(old, new) if old else new
        return tuple(by_code.values())

    def _candidates(self, page: Sequence[Line]) -> Iterable[tuple[Line, str]]:
        """Give the lines that hold a hint; one pass over the whole page at once."""
        texts = [line.text[:LINE_CHARACTERS].replace("\n", " ") for line in page]
        whole = "\n".join(("", *texts)).lower()
        if _COLOUR in whole:
            texts = [clean(text) for text in texts]
            whole = "\n".join(("", *texts)).lower()
        number, place, given = -1, 0, -1
        for match in self._hints.finditer(whole):
            number += whole.count("\n", place, match.start() + 1)
            place = match.start() + 1
            if number != given:
                given = number
                yield page[number], clean(texts[number])

    def _judge(self, line: Line, text: str) -> None:
        if USERS.search(text):
            return
        text = bare(text)
        grave = gravity(text, line.platform)
        if known := known_by(self._table, text, grave, platform=line.platform):
            self._keep(*known, line)

    def _keep(self, one: Row, match: re.Match[str], line: Line) -> None:
        new = Finding(
            failure=told(advised(one.entry, self._platform), match),
            writer=one.writer,
            line=quoted(match.string.strip(), 400),
            first=line.at,
            last=line.at,
            count=1,
        )
        old = self._found.get(one.place)
        self._found[one.place] = _merged(old, new) if old else new


def _merged(old: Finding, new: Finding) -> Finding:
    """Count lines of one failure together; the words are those of the older record."""
    return old.model_copy(
        update={
            "first": min(old.first, new.first),
            "last": max(old.last, new.last),
            "count": old.count + new.count,
        }
    )
