"""Templates mined from lines: what stays the same, counted, in bounded memory, in any order.

After the idea of Drain (He et al., ICWS 2017): lines of so many words that begin alike are kept
together, and those of them that are alike enough become one. Two things differ. What varies is
masked before lines are compared, so that most lines are equal at once. And where too many
remain, they are compared more coarsely, by a rule that looks at one line alone; so the order in
which lines come, and in which pages of a log are read, changes nothing.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from logs.lines import Line
from logs.severity import Gravity, decisive

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

_ID: Final = re.compile(
    r"""\[redacted\]|\[(?:prompt|email|address|card|phone|user)\]
      | [0-9a-f]{8,}(?:-[0-9a-f]{4,})*
      | 0x[0-9a-fA-F]+
    """,
    re.VERBOSE | re.ASCII,
)
_DIGITS: Final = re.compile(r"[0-9]+")
_VARIABLE: Final = re.compile(
    r"""(?<![0-9A-Za-z])(?=(?:[A-Za-z]{0,24}0){3})[0-9A-Za-z]{16,}(?![0-9A-Za-z])
      | (?<![\w:])(?=[0A-Fa-f:]{0,39}0)(?=[0A-Fa-f]{0,4}:[0A-Fa-f]{0,4}:)[0A-Fa-f:]+(?![\w:])
      | 0(?:[.,:/T-]?0)*(?:Z\b)?
    """,
    re.VERBOSE | re.ASCII,
)
_REPEATED: Final = re.compile(r"<\*>(?:[-+.,:/_ ]*<\*>)+")
_BAR: Final = re.compile(r"[█▏▎▍▌▋▊▉#=▄▀]{2,}[█▏▎▍▌▋▊▉#=▄▀> ]*")
_PLACE: Final = re.compile(r"\[?[\w./-]+\.\w{1,4}:<\*>\]")
_WORD: Final = re.compile(r"[A-Za-z][\w.-]*[:,.]?", re.ASCII)
_PLAIN: Final = re.compile(r"[A-Za-z]+'?[A-Za-z]*[.,:;!?)]*|[^\w<]+|[^<]*\d[^<]*", re.ASCII)
"""A word of a sentence, a sign, or a number that `tokens` left: what tells lines apart."""
_LEVEL: Final = re.compile(r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE):?")

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
    text = _DIGITS.sub("0", _ID.sub(ANY, _BAR.sub("", text)))
    return _REPEATED.sub(ANY, _VARIABLE.sub(ANY, text))


def beginning(words: Tokens) -> tuple[str, str]:
    """Give what a message begins with: the place in the code, and its first word.

    >>> beginning(tokens("(APIServer pid=1) INFO 11-20 11:32:07 [model.py:733] Using 1 GPU"))
    ('[model.py:<*>]', 'Using')
    """
    place = next((word for word in words[:8] if _PLACE.fullmatch(word)), "")
    after = words.index(place) + 1 if place else 0
    spoken = (word for word in words[after:] if _WORD.fullmatch(word))
    return place, next((word for word in spoken if not _LEVEL.fullmatch(word)), "")


def coarser(words: Tokens, level: int) -> Tokens:
    """Give a line as the level compares it: 0 all of it, 3 nothing but its length."""
    if level == 0:
        return words
    if level == _COARSEST:
        return ()
    alike = tuple(word if _PLAIN.fullmatch(word) else ANY for word in words)
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
    """Groups of one length and beginning."""

    level: int = 0
    groups: dict[Tokens, Group] = field(default_factory=dict)

    def find(self, words: Tokens, fresh: Group) -> tuple[Group, bool]:
        own = self.groups.setdefault(coarser(words, self.level), fresh)
        own.words = common(own.words, words)
        if len(self.groups) <= MOST_ALIKE:
            return own, False
        self._coarsen()
        return self.groups[coarser(words, self.level)], True

    def take(self, other: "_Branch") -> None:
        """Become one with another branch, compared as coarsely as either."""
        self.level = max(self.level, other.level)
        self._fill([*self.groups.items(), *other.groups.items()])
        self._coarsen()

    def settled(self) -> list[Group]:
        """Give the groups; many that differ in no plain word become one."""
        alike: dict[Tokens, list[Group]] = {}
        for key, group in self.groups.items():
            alike.setdefault(coarser(key, 1), []).append(group)
        return [one for groups in alike.values() for one in _settled(groups)]

    def _coarsen(self) -> None:
        while len(self.groups) > MOST_ALIKE:
            self.level += 1
            self._fill(list(self.groups.items()))

    def _fill(self, every: list[tuple[Tokens, Group]]) -> None:
        self.groups = {}
        for key, group in every:
            own = self.groups.setdefault(coarser(key, self.level), group)
            if own is not group:
                own.take(group)


def _settled(groups: list[Group]) -> list[Group]:
    if len(groups) <= _FEW:
        return groups
    shared = groups[0].words
    for group in groups[1:]:
        shared = common(shared, group.words)
    if 2 * shared.count(ANY) > len(shared):
        return groups
    for group in groups[1:]:
        groups[0].take(group)
    return groups[:1]


class Forest:
    """All groups. How many there are at most is a matter of the constants above, not of lines."""

    def __init__(self) -> None:
        self._families: dict[tuple[Gravity, str], _Family] = {}

    def find(self, fresh: Group) -> tuple[Group, bool]:
        """Give the group of such lines, and whether groups became one; it may be the new one."""
        family = self._families.setdefault((fresh.gravity, fresh.first.platform), _Family())
        if fresh.gravity.is_detail:
            fresh.words = ("File", ANY) if "File" in fresh.words else (ANY,)
        return family.find(fresh.words, fresh)

    def groups(self) -> list[Group]:
        """Give every group; nothing may be added afterwards."""
        branches = (one for family in self._families.values() for one in family.branches.values())
        return [group for branch in branches for group in branch.settled()]


@dataclass(slots=True)
class _Family:
    """Branches of one gravity and platform."""

    is_coarse: bool = False
    """Whether beginnings no longer count."""
    branches: dict[tuple[int, tuple[str, str]], _Branch] = field(default_factory=dict)

    def find(self, words: Tokens, fresh: Group) -> tuple[Group, bool]:
        at = (len(words), ("", "") if self.is_coarse else beginning(words))
        branch = self.branches.setdefault(at, _Branch())
        group, is_moved = branch.find(words, fresh)
        if self.is_coarse or len(self.branches) <= MOST_BEGINNINGS:
            return group, is_moved
        self._coarsen()
        return self.find(words, group)[0], True

    def _coarsen(self) -> None:
        self.is_coarse = True
        every, self.branches = self.branches, {}
        for (length, _), branch in every.items():
            self.branches.setdefault((length, ("", "")), _Branch()).take(branch)
