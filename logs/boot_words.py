"""The wordings of boot logs, as data: `boot.toml`."""

import functools
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

_FILE: Final = Path(__file__).with_name("boot.toml")
_FIGURES: Final = {
    "{number}": r"([0-9]{1,9}(?:\.[0-9]{1,9})?)",
    "{signed}": r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)",
    "{count}": r"([0-9][0-9,]{0,15})",
}


class Wording(NamedTuple):
    """How something is said."""

    name: str
    """Of the phase that has begun, or of the figure that is told."""
    rank: int
    """Of a figure's wordings the least is the most exact."""
    hints: tuple[str, ...]
    pattern: re.Pattern[str]

    def find(self, line: str) -> re.Match[str] | None:
        """Find it in a line."""
        return self.pattern.search(line) if any(hint in line for hint in self.hints) else None


class Words(NamedTuple):
    """Every wording that is known."""

    phases: tuple[Wording, ...]
    """In the order of a boot."""
    facts: tuple[Wording, ...]
    hint: re.Pattern[str]
    """Fits every line that anything fits; most lines of a log it does not."""

    def phase(self, line: str) -> str | None:
        """Name the phase that a line tells of."""
        return next((each.name for each in self.phases if each.find(line)), None)


@functools.cache
def words() -> Words:
    """Read the file, once."""
    rows: dict[str, list[dict[str, Any]]] = tomllib.loads(_FILE.read_text("utf-8"))
    hints = {hint for kind in ("phase", "fact") for row in rows[kind] for hint in row["hints"]}
    return Words(
        phases=_wordings(rows["phase"]),
        facts=_wordings(rows["fact"]),
        hint=re.compile("|".join(map(re.escape, sorted(hints)))),
    )


def _wordings(rows: Iterable[dict[str, Any]]) -> tuple[Wording, ...]:
    return tuple(
        Wording(row["name"], rank, tuple(row["hints"]), _pattern(row["pattern"]))
        for rank, row in enumerate(rows)
    )


def _pattern(text: str) -> re.Pattern[str]:
    for name, figure in _FIGURES.items():
        text = text.replace(name, figure)
    return re.compile(text)
