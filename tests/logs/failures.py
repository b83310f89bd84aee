"""The lines that were seen of failures, and those that are none."""

import tomllib
from collections.abc import Iterable
from datetime import timedelta
from typing import Final, NamedTuple

from logs.failures import WRITERS, Finder, Finding, Writer
from logs.read import Line
from tests.logs.conftest import DATA, NOW

PLATFORM: Final = "platform"


class Seen(NamedTuple):
    """One row of tests/data/failures."""

    writer: Writer
    code: str
    line: str
    words: str = ""

    def __str__(self) -> str:
        """As a test's name shows it."""
        return f"{self.writer}-{self.code}"


def _rows(writer: Writer) -> Iterable[Seen]:
    path = DATA / "failures" / f"{writer}.toml"
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["seen"]:
        yield Seen(writer, **row)


SEEN: Final = [row for writer in WRITERS for row in _rows(writer)]


def healthy(writer: Writer) -> list[str]:
    """Give the lines of tests/data/healthy, without the notes on where they come from."""
    path = DATA / "healthy" / f"{writer}.txt"
    rows = path.read_text(encoding="utf-8").splitlines()
    return [row for row in rows if not row.startswith("#")]


def lines_of(texts: Iterable[str], writer: Writer = "engine") -> list[Line]:
    """Make lines of texts, a second apart; a platform's are its own."""
    platform = "" if writer == "engine" else PLATFORM
    return [
        Line(NOW + timedelta(seconds=number), text, platform) for number, text in enumerate(texts)
    ]


def found(texts: Iterable[str], writer: Writer = "engine") -> tuple[Finding, ...]:
    """Give what one page tells of."""
    finder = Finder(writer)
    finder.feed(lines_of(texts, writer))
    return finder.findings()
