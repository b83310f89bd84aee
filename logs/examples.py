"""Lines of failures that people met: what no entry of the catalogue knows may be worded like one.

`failures/examples.tsv` holds one a row: whose log, the kind ("-" where nobody named it, or nothing
was wrong) and the words. It is written from tests/data/public by tests/measure_diagnosis.py.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from logs.read import body_of

FILE: Final = Path(__file__).with_name("failures") / "examples.tsv"
NO_KIND: Final = "-"
LONGEST: Final = 240
"""Characters of an example, and of a line that is held against them."""
_PLACES: Final = re.compile(r"https?://\S+|(?:[\w.~-]*/){2,}[\w.~-]*|0x[0-9a-fA-F]+")
_WORD: Final = re.compile(r"[A-Za-z_]{2,}|\b[1-9]\d\d\b")
"""A number of three digits is an HTTP status, or an error of CUDA."""
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]{2,}|[A-Z]{3,}")
_SAYS_NOTHING: Final = re.compile(
    r"\s*(?:File \"|raise\b)|Traceback|Process \w+:|\w*(?:Error|Exception):?\s*$"
    r"|\w+Error: \[Errno \d+\] [A-Z][\w ]{1,40}: \S+$"
)
_FEWEST_WORDS: Final = 3
_NEIGHBOURS: Final = 6
_LEAST: Final = 0.4
"""Likeness of the nearest times the neighbours' agreement. Of 330 failures that no entry
of their day knew it named 51, 34 of them right (ten draws, 2026-11-30). Higher bounds are hardly
better (0.7: 9 of 12), and linear models and naive Bayes over the same lines are worse."""


class Example(NamedTuple):
    """A line as somebody met it."""

    writer: str
    kind: str
    text: str


class Likeness(NamedTuple):
    """What a line is worded like."""

    line: str
    example: Example
    degree: float


@cache
def examples() -> tuple[Example, ...]:
    """Return all examples."""
    rows = FILE.read_text("utf-8").splitlines()
    return tuple(Example(*row.split("\t", 2)) for row in rows)


def wording(line: str) -> str:
    """Return of a line what is compared: no places, no addresses, nothing a shipper put before."""
    return " ".join(_PLACES.sub(" ", body_of(line)).split())[:LONGEST]


def words_of(text: str) -> set[str]:
    """Return the words of a line, the parts of those that are written together, and pairs of all.

    >>> sorted(words_of("CUDAError 802"))
    ['802', 'cuda', 'cuda error', 'cudaerror', 'cudaerror cuda', 'error', 'error 802']
    """
    found: list[str] = []
    for word in _WORD.findall(text):
        parts = _PART.findall(word)
        found += [word.lower(), *(part.lower() for part in parts if len(parts) > 1)]
    return {*found, *(f"{one} {two}" for one, two in pairwise(found))}


def says_enough(line: str) -> bool:
    """Whether a line can be compared: no frame or header, and no mere word."""
    enough = len(_WORD.findall(wording(line))) >= _FEWEST_WORDS
    return enough and not _SAYS_NOTHING.match(body_of(line))


class _Index:
    """The examples by their words; a word counts for more the fewer of them hold it."""

    def __init__(self, held: Iterable[Example]) -> None:
        self.examples: Final = tuple(held)
        words = [words_of(one.text) for one in self.examples]
        self._holds: Final = Counter(word for one in words for word in one)
        self._by: Final[dict[str, list[tuple[int, float]]]] = defaultdict(list)
        for number, own in enumerate(words):
            length = self._length(own)
            for word in own:
                self._by[word].append((number, self._weight(word) / length))

    def near(self, words: Collection[str]) -> list[tuple[Example, float]]:
        """Return the examples nearest to some words, and the cosine of each."""
        length = self._length(words)
        alike: defaultdict[int, float] = defaultdict(float)
        for word in words:
            own = self._weight(word) / length
            for number, weight in self._by.get(word, ()):
                alike[number] += own * weight
        nearest = sorted(alike.items(), key=itemgetter(1), reverse=True)[:_NEIGHBOURS]
        return [(self.examples[number], one) for number, one in nearest]

    def _weight(self, word: str) -> float:
        return math.log((len(self.examples) + 1) / (self._holds[word] + 0.5))

    def _length(self, words: Collection[str]) -> float:
        return math.sqrt(sum(self._weight(word) ** 2 for word in words)) or 1.0


@cache
def _index(writers: tuple[str, ...]) -> _Index:
    return _Index(one for one in examples() if one.writer in writers)


def closest(lines: Iterable[str], writers: tuple[str, ...]) -> Likeness | None:
    """Return the line that is worded most like a failure of a named kind, None where none is."""
    found: Likeness | None = None
    for line in lines:
        if not says_enough(line):
            continue
        near = _index(writers).near(words_of(wording(line)))
        votes: defaultdict[str, float] = defaultdict(float)
        for one, degree in near:
            votes[one.kind] += degree**3
        if not votes:
            continue
        kind, most = max(votes.items(), key=itemgetter(1))
        best, alike = next((one, degree) for one, degree in near if one.kind == kind)
        degree = alike * most / sum(votes.values())
        if kind != NO_KIND and degree >= max(_LEAST, found.degree if found else 0):
            found = Likeness(line, best, degree)
    return found
