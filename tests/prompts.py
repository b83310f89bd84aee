"""`tests/prompts.md`, read: what people type, and the tools that answer."""

import re
from pathlib import Path
from typing import Final, NamedTuple

from core.environment import ROOT

PROMPTS: Final = ROOT / "tests" / "prompts.md"
HELD_OUT: Final = ROOT / "tests" / "held_out.md"
"""Written after the descriptions, and never tuned for."""
PARAPHRASES: Final = "Paraphrases"


class Prompt(NamedTuple):
    """One line."""

    section: str
    words: str
    tools: tuple[str, ...]
    """Of which one has to be called."""


def prompts(file: Path = PROMPTS) -> tuple[Prompt, ...]:
    """Give every line, in order."""
    found, section = [], ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif row := re.fullmatch(r"- `(?P<words>.+)` → (?P<tools>\w+(?:, \w+)*)", line):
            found.append(Prompt(section, row["words"], tuple(row["tools"].split(", "))))
        else:
            assert not line.startswith("- "), line
    return tuple(found)


TYPED: Final = {one.words: one for one in prompts() if one.section != PARAPHRASES}
"""What `tests/questions` asks, by its words."""
