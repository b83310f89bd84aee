"""A stream of log lines reduced to what they say, in bounded memory."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from core.redaction import MASK, redact
from logs.lines import Line
from logs.masking import mask, mask_words
from logs.readable import LONGEST, readable
from logs.reduced import Reduced, Sample, Template
from logs.severity import GRAVEST_FIRST, decisive, gravity
from logs.templates import Forest, Group, tokens

_SAMPLE: Final = 400
_RARE: Final = 2
_BIG: Final = 1_000
_REMEMBERED: Final = 65_536
"""Shapes of lines of which the group is known at once: some 8 MB."""
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_HEX: Final = re.compile(rb"[0a-f]{8,}(?:-[0a-f]{4,})*")
"""As `logs.templates` masks it: what is one shape must be one template."""
_RUN: Final = re.compile(b"00+")


class Reducer:
    """Takes pages of a log and says what it comes down to.

    Memory does not grow with the number of lines, only with the number of templates, and that
    has bounds (`logs.templates`). The result is the same whatever the order of the pages.
    """

    def __init__(self, *, newest_first: bool = True, known: Iterable[str] = ()) -> None:
        """Pages come newest first or oldest first; `known` are secrets to mask wherever seen."""
        self._newest_first = newest_first
        self._secrets = sorted((one for one in known if one), key=len, reverse=True)
        self._forest = Forest()
        self._groups: dict[int, Group] = {}
        """By the hash of a line's shape, and of the number in it that decides, if one does."""
        self._lowest = self._highest = 0
        self._characters = self._cut = 0

    def feed(self, page: Sequence[Line]) -> None:
        """Take one page, its oldest line first."""
        if self._newest_first:
            number = self._lowest = self._lowest - len(page)
        else:
            number, self._highest = self._highest, self._highest + len(page)
        groups, has_secrets = self._groups, bool(self._secrets)
        for at, line in enumerate(page, start=number):
            text = line.text
            self._characters += len(text)
            if len(text) > LONGEST or has_secrets or not text.isprintable():
                line = self._made_readable(line)  # noqa: PLW2901 - the same line, fit to keep
                text = line.text
            shape = hash(text.encode().translate(_ZEROS)) ^ hash(line.platform)
            group = groups.get(shape) or self._found(at, line, shape)
            group.count += 1
            if at > group.last_number:
                group.last_number, group.last = at, line
            elif at < group.first_number:
                group.first_number, group.first = at, line

    def reduced(self, most: int = 40) -> Reduced:
        """Give the log's `most` gravest templates, and how much that leaves out."""
        groups = sorted(self._forest.groups(), key=lambda group: group.last_number)
        chosen = list(_ranked(groups))[:most]
        masked: Counter[str] = Counter()
        templates = tuple(self._template(group, masked) for group in chosen)
        lines = self._highest - self._lowest
        kept = sum(group.count for group in chosen)
        return Reduced(
            lines=lines,
            characters=self._characters,
            since=min((group.first.at for group in groups), default=None),
            until=max((group.last.at for group in groups), default=None),
            templates=templates,
            templates_left_out=len(groups) - len(chosen),
            lines_left_out=lines - kept,
            cut=self._cut,
            masked=dict(sorted(masked.items())),
        )

    def _made_readable(self, line: Line) -> Line:
        text = line.text
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text, is_cut = readable(text)
        self._cut += is_cut
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return line if text == line.text else line._replace(text=text)

    def _found(self, number: int, line: Line, shape: int) -> Group:
        """Give the group of a line that has a new shape, or a number that decides."""
        if decided := decisive(line.text):
            shape ^= hash(decided[1])
            if group := self._groups.get(shape):
                return group
        speech = mask_words(line.text, Counter())
        plain, ids = _LONG_HEX.subn(b"#", speech.encode().translate(_ZEROS))
        # Another room of the same memory: this shape is coarser.
        coarse = ~(hash(_RUN.sub(b"0", plain)) ^ hash(decided and decided[1]) ^ hash(line.platform))
        group = self._groups.get(coarse) or self._mined(number, line)
        self._groups[coarse] = group
        if not ids and speech == line.text:
            self._groups[shape] = group
        return group

    def _mined(self, number: int, line: Line) -> Group:
        text = mask(redact(line.text))
        fresh = Group(tokens(text), gravity(text, line.platform), number, line)
        group, is_moved = self._forest.find(fresh)
        if is_moved or len(self._groups) > _REMEMBERED:
            self._groups.clear()
        return group

    def _template(self, group: Group, masked: Counter[str]) -> Template:
        return Template(
            text=_safe(" ".join(group.words), masked)[:_SAMPLE],
            count=group.count,
            severity=group.gravity.severity,
            first=_sample(group.first, group.first_number - self._lowest, masked),
            last=_sample(group.last, group.last_number - self._lowest, masked),
            platform=group.first.platform,
            rare=group.count <= _RARE and self._highest - self._lowest >= _BIG,
        )


def _sample(line: Line, place: int, masked: Counter[str]) -> Sample:
    return Sample(at=line.at, text=_safe(line.text, masked)[:_SAMPLE], number=place + 1)


def _safe(text: str, masked: Counter[str]) -> str:
    redacted = redact(text)
    if found := redacted.count(MASK):
        masked["secret"] += found
    return mask(redacted, masked)


def _ranked(groups: Sequence[Group]) -> Iterator[Group]:
    """Give groups in the order of their worth; they come in the order of their last lines."""
    for severity in GRAVEST_FIRST:
        for is_detail in (False, True):
            wanted = severity, is_detail
            yield from _in_turns(
                [one for one in groups if (one.gravity.severity, one.gravity.is_detail) == wanted]
            )


def _in_turns(groups: Sequence[Group]) -> Iterator[Group]:
    """Give the most frequent and the newest in turns, each group once."""
    frequent = sorted(groups, key=lambda group: (-group.count, -group.last_number))
    pairs = zip(frequent, reversed(groups), strict=True)
    yield from {id(group): group for pair in pairs for group in pair}.values()
