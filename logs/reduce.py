"""A stream of log lines reduced to what they say, in bounded memory, without personal data."""

import functools
import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from core.records import Record
from core.redaction import MASK, redact
from logs.read import (
    GRAVEST_FIRST,
    LONGEST,
    Gravity,
    Line,
    Severity,
    decisive,
    gravity,
    patterns,
    readable,
)

_SAYS: Final = patterns("reduce")


def mask(text: str, counts: Counter[str] | None = None) -> str:
    """Give the text without personal data; `counts` learns how many of each kind were masked.

    Addresses of private networks and of this machine stay: they name machines, not people.

    >>> mask("prompt: 'How do I', from 10.0.0.7, then 8.8.4.4:5000")
    'prompt: [prompt], from 10.0.0.7, then [address]:5000'
    """
    seen: Counter[str] = Counter() if counts is None else counts
    text = mask_words(text, seen)
    if "@" in text:
        text = _all(_SAYS["email"], "email", text, seen)
    if "user" in text or "?" in text:
        text = _all(_SAYS["user"], "user", text, seen)
    text = _where(_is_public, _SAYS["ipv4"], "address", text, seen)
    if text.count(":") > 1:
        text = _where(_is_public, _SAYS["ipv6"], "address", text, seen)
    text = _where(is_card, _SAYS["card"], "card", text, seen)
    return _all(_SAYS["phone"], "phone", text, seen) if "+" in text else text


def mask_words(text: str, counts: Counter[str]) -> str:
    """Give the text without what users wrote or were answered."""
    return _all(_SAYS["words"], "prompt", text, counts) if _SAYS["opened"].search(text) else text


def is_card(digits: str) -> bool:
    """Whether the number could be of a payment card: its first digits, its length, its check.

    >>> is_card("4111 1111 1111 1111"), is_card("4111 1111 1111 1112")
    (True, False)
    """
    number = [int(digit) for digit in digits if digit.isdigit()]
    if not _SAYS["card_begins"].match("".join(map(str, number))):
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in number[-2::-2])
    return (sum(number[::-2]) + sum(doubled)) % 10 == 0


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _all(pattern: re.Pattern[str], kind: str, text: str, counts: Counter[str]) -> str:
    before = r"\g<before>" if "before" in pattern.groupindex else ""
    text, found = pattern.subn(f"{before}[{kind}]", text)
    if found:
        counts[kind] += found
    return text


def _where(
    is_one: Callable[[str], bool],
    pattern: re.Pattern[str],
    kind: str,
    text: str,
    counts: Counter[str],
) -> str:
    def hidden(match: re.Match[str]) -> str:
        if not is_one(match[0]):
            return match[0]
        counts[kind] += 1
        return f"[{kind}]"

    return pattern.sub(hidden, text)


ANY: Final = "<*>"
MOST_TOKENS: Final = 64
"""Words of a line that count; the rest are one word."""
MOST_ALIKE: Final = 24
"""Templates of one length and beginning; with more, they are compared more coarsely."""
MOST_BEGINNINGS: Final = 256
"""Of one gravity and platform; with more, beginnings no longer count."""
_FEW: Final = 5
"""So many lines that differ in a path or a name say more apart than as one."""
_COARSEST: Final = 3


Tokens = tuple[str, ...]


def tokens(text: str) -> Tokens:
    """Split a line into words, with what varies masked, a decisive number excepted.

    >>> " ".join(tokens("Engine 000: Running: 12 reqs, GPU KV cache usage: 3.5%"))
    'Engine <*>: Running: <*> reqs, GPU KV cache usage: <*>%'
    >>> " ".join(tokens("worker 7 ended, exit code 137"))
    'worker <*> ended, exit code 137'
    """
    if status := decisive(text):
        at, until = status.span(1)
        text = f"{_masked(text[:at])}{status[1]}{_masked(text[until:])}"
    else:
        text = _masked(text)
    words = text.split(maxsplit=MOST_TOKENS)
    return (*words[:MOST_TOKENS], ANY) if len(words) > MOST_TOKENS else tuple(words)


def _masked(text: str) -> str:
    text = _SAYS["digits"].sub("0", _SAYS["id"].sub(ANY, _SAYS["bar"].sub("", text)))
    return _SAYS["repeated"].sub(ANY, _SAYS["variable"].sub(ANY, text))


def beginning(words: Tokens) -> tuple[str, str]:
    """Give what a message begins with: the place in the code, and its first word.

    >>> beginning(tokens("(APIServer pid=1) INFO 11-20 11:32:07 [model.py:733] Using 1 GPU"))
    ('[model.py:<*>]', 'Using')
    """
    place = next((word for word in words[:8] if _SAYS["place"].fullmatch(word)), "")
    after = words.index(place) + 1 if place else 0
    spoken = (word for word in words[after:] if _SAYS["word"].fullmatch(word))
    return place, next((word for word in spoken if not _SAYS["level"].fullmatch(word)), "")


def coarser(words: Tokens, level: int) -> Tokens:
    """Give a line as the level compares it: 0 all of it, 3 nothing but its length."""
    if level == 0:
        return words
    if level == _COARSEST:
        return ()
    alike = tuple(word if _SAYS["plain"].fullmatch(word) else ANY for word in words)
    return alike if level == 1 or len(alike) <= 4 else (*alike[:3], alike[-1])


@dataclass(slots=True, eq=False)
class Group:
    """Lines that are alike. A new one knows a line that is not yet counted."""

    words: Tokens
    """What they have in common; `<*>` where they differ."""
    gravity: Gravity
    first_number: int
    """The place of the first line in the log."""
    first: Line
    count: int = 0
    last_number: int = 0
    last: Line = field(init=False)

    def __post_init__(self) -> None:
        """Have a last line as well."""
        self.last_number, self.last = self.first_number, self.first

    def take(self, other: "Group") -> None:
        """Become one with another."""
        self.words = common(self.words, other.words)
        self.count += other.count
        if other.first_number < self.first_number:
            self.first_number, self.first = other.first_number, other.first
        if other.last_number > self.last_number:
            self.last_number, self.last = other.last_number, other.last


def common(one: Tokens, other: Tokens) -> Tokens:
    """Give what two lines of one length have in common."""
    if one == other:
        return one
    return tuple(a if a == b else ANY for a, b in zip(one, other, strict=True))


@dataclass(slots=True)
class _Branch:
    """Groups of one gravity, platform, length and beginning, compared as coarsely as must be."""

    level: int = 0
    groups: dict[Tokens, Group] = field(default_factory=dict)

    def take(self, every: Iterable[tuple[Tokens, Group]], level: int = 0) -> None:
        """Add groups, and compare all more coarsely until they are few."""
        every, self.level = [*self.groups.items(), *every], max(self.level, level)
        while True:
            self.groups = {}
            for key, group in every:
                own = self.groups.setdefault(coarser(key, self.level), group)
                if own is not group:
                    own.take(group)
            if len(self.groups) <= MOST_ALIKE:
                return
            every, self.level = list(self.groups.items()), self.level + 1

    def settled(self) -> list[Group]:
        """Give the groups; many that differ in no plain word become one."""
        alike: dict[Tokens, list[Group]] = {}
        for key, group in self.groups.items():
            alike.setdefault(coarser(key, 1), []).append(group)
        return [one for groups in alike.values() for one in _settled(groups)]


def _settled(groups: list[Group]) -> list[Group]:
    shared = functools.reduce(common, (group.words for group in groups))
    if len(groups) <= _FEW or 2 * shared.count(ANY) > len(shared):
        return groups
    for group in groups[1:]:
        groups[0].take(group)
    return groups[:1]


class Forest:
    """All groups. How many there are at most is a matter of the constants above, not of lines."""

    def __init__(self) -> None:
        self._families: dict[tuple[Gravity, str], dict[tuple[int, tuple[str, str]], _Branch]] = {}
        """By gravity and platform: branches by length and beginning."""
        self._coarse: set[tuple[Gravity, str]] = set()
        """Those whose beginnings no longer count."""

    def find(self, fresh: Group) -> tuple[Group, bool]:
        """Give the group of such lines, and whether groups became one; it may be the new one."""
        if fresh.gravity.is_detail:
            fresh.words = ("File", ANY) if "File" in fresh.words else (ANY,)
        words, name = fresh.words, (fresh.gravity, fresh.first.platform)
        family = self._families.setdefault(name, {})
        begins = ("", "") if name in self._coarse else beginning(words)
        branch = family.setdefault((len(words), begins), _Branch())
        known = branch.groups.get(coarser(words, branch.level))
        if known:
            known.words = common(known.words, words)
            return known, False
        level = branch.level
        branch.take([(words, fresh)])
        is_moved = branch.level > level
        if name not in self._coarse and len(family) > MOST_BEGINNINGS:
            self._coarsen(name)
            is_moved, branch = True, self._families[name][len(words), ("", "")]
        return branch.groups[coarser(words, branch.level)], is_moved

    def groups(self) -> list[Group]:
        """Give every group; nothing may be added afterwards."""
        branches = (one for family in self._families.values() for one in family.values())
        return [group for branch in branches for group in branch.settled()]

    def _coarsen(self, name: tuple[Gravity, str]) -> None:
        self._coarse.add(name)
        every, self._families[name] = self._families[name], {}
        for (length, _), branch in every.items():
            whole = self._families[name].setdefault((length, ("", "")), _Branch())
            whole.take(branch.groups.items(), branch.level)


class Sample(Record):
    """One line of the log, without secrets and personal data."""

    at: datetime
    text: str
    """At most 400 characters."""
    number: int
    """Its place among the lines read, from 1, in the order of time."""


class Template(Record):
    """Lines that say the same of different things."""

    text: str
    """What they have in common; `<*>` is what varies."""
    count: int
    severity: Severity
    first: Sample
    last: Sample
    platform: str = ""
    """Who said it, where it was not the container."""
    rare: bool = False
    """Seen once or twice in a log of a thousand lines or more."""

    def __str__(self) -> str:
        """Say it in one line, by the newest of its lines."""
        by = f" by {self.platform}" if self.platform else ""
        rare = ", rare" if self.rare else ""
        return f"[{self.severity}{by}{rare}, {times(self.count, self.last.at)}] {self.last.text}"


def times(count: int, last: datetime) -> str:
    """Say how often, and when last.

    >>> times(3, datetime(2026, 11, 22, 6, 0))
    '3 times, last 11-22 06:00:00'
    """
    at = f"{last:%m-%d %H:%M:%S}"
    return at if count == 1 else f"{count} times, last {at}"


class Reduced(Record):
    """What any number of lines come down to."""

    lines: int
    characters: int
    since: datetime | None
    """The time of the first line; None without lines."""
    until: datetime | None
    templates: tuple[Template, ...]
    """Gravest first; among those, the most frequent and the newest take turns."""
    templates_left_out: int = 0
    """Less grave, or less frequent and older, than all that are here."""
    lines_left_out: int = 0
    """Lines of those; with the counts of `templates` they make `lines`."""
    cut: int = 0
    """Lines that were too long and of which only the beginning counted."""
    masked: dict[str, int] = {}
    """What was taken out of the texts that are here, by kind: secret, prompt, email, address."""


_SAMPLE: Final = 400
_RARE: Final = 2
_BIG: Final = 1_000
_REMEMBERED: Final = 65_536
"""Shapes of lines of which the group is known at once: some 8 MB."""
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_HEX: Final = re.compile(rb"[0a-f]{8,}(?:-[0a-f]{4,})*")
"""As `logs.reduce` masks it: what is one shape must be one template."""
_RUN: Final = re.compile(b"00+")


class Reducer:
    """Takes pages of a log and says what it comes down to.

    Memory does not grow with the number of lines, only with the number of templates, and that
    has bounds (`logs.reduce`). The result is the same whatever the order of the pages.
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
