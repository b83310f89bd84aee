"""The nouns of a reading: what a model is given, and what is left of its words."""

import re
from collections.abc import Mapping
from typing import Any, Final

from core.records import Record
from core.redaction import one_line
from operations.diagnosis.records import Call

_ADDRESS: Final = re.compile(r"(?:https?|ftp)://\S+|\bwww\.\S+", re.IGNORECASE)


class Row(Record):
    """One line of what is known, with the id that it is cited by."""

    id: str
    """L1, L2 … in the order of their weight."""
    text: str
    """Without secrets, without control characters, cut."""

    def __str__(self) -> str:
        """Give it as it is shown."""
        return f"{self.id} {self.text}"


class Case(Record):
    """What a model is given to read."""

    task: str
    """Ours: one sentence."""
    facts: tuple[str, ...] = ()
    """Ours: no word of a log is in them."""
    rows: tuple[Row, ...] = ()
    """Of logs, so not to be trusted; what weighs most comes first."""
    tools: tuple[Call, ...] = ()
    """The only ones that it may name, with the only arguments that they get."""
    others: frozenset[str] = frozenset()
    """Tools that it must not name."""


class Claim(Record):
    """One sentence of a model, with the lines that it says it stands on."""

    text: str
    lines: tuple[str, ...]
    """Each with its id; they exist, which does not make the sentence true."""


class Advice(Record):
    """A tool that the facts call for, in the order in which a model would use them."""

    tool: str
    arguments: Mapping[str, Any] = {}
    """Ours, not the model's."""
    why: str
    lines: tuple[str, ...]


class Words(Record):
    """What a model says: not verified."""

    model: str
    claims: tuple[Claim, ...] = ()
    advice: tuple[Advice, ...] = ()
    complete: bool = False
    """It has read all that it was given and said its last word."""
    rows_read: int = 0
    rows_given: int = 0
    calls: int = 0
    tokens_counted: bool = False
    """By the model's own tokenizer; False is an estimate of ours."""
    notes: tuple[str, ...] = ()
    """What was dropped, cut or left out, and why."""


def plain(text: str, most: int) -> str:
    """Give a model's words on one line, without addresses: nobody is sent anywhere by them.

    >>> plain("see http://evil.example/x now", 40)
    'see [address left out] now'
    """
    return one_line(_ADDRESS.sub("[address left out]", text), most)
