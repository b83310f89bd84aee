"""What users read is plain operations English: no word of `words_not_written.toml`."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from core.environment import ROOT
from tests.readme import pages
from tests.words_not_written import unwanted_words
from tools.surface import TOOLS

_PACKAGES: Final = ("backends", "benchmark", "core", "logs", "operations", "planner", "tools")
"""Of whose code every string that a user may see is looked at."""
_WORDS_OF_PROMPTS: Final = {ROOT / "benchmark" / "workload.py"}
"""The words that benchmark prompts are made of."""
_ANSWERS: Final = re.compile(r"(?s)<!-- (questions|conversation) -->.*?<!-- /\1 -->")
"""Recorded answers on a page, which are tested where they are given."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It may as well be still: he is well known and will fill the grill.", 0),
        ("The engine is well. It is ILL; two husks were told of, and all went well.", 5),
        ("bold, untold, foretold, engraved, grave", 1),
    ],
)
def test_whole_words_are_found_and_ordinary_english_is_not(text: str, found: int) -> None:
    """A list that hits half of the language would soon be switched off."""
    assert len(unwanted_words(text)) == found


@pytest.mark.parametrize(
    "page",
    [*pages(), *ROOT.glob("skills/*/SKILL.md")],
    ids=lambda page: page.parent.name + page.stem,
)
def test_pages_and_skills_are_plain(page: Path) -> None:
    """The words that people search for."""
    assert unwanted_words(_ANSWERS.sub("", page.read_text(encoding="utf-8"))) == []


def test_tools_and_their_parameters_are_described_plainly() -> None:
    """Agents choose by them."""
    for name, one in TOOLS.items():
        words = [str(row.get("description", "")) for row in one.parameters.values()]
        assert unwanted_words(" ".join([one.tool.description or "", *words])) == [], name


@pytest.mark.parametrize("file", [*ROOT.glob("logs/failures/*.toml")], ids=lambda file: file.stem)
def test_causes_and_fixes_of_failures_are_plain(file: Path) -> None:
    """Patterns and seen lines are others' words."""
    for one in tomllib.loads(file.read_text(encoding="utf-8"))["failure"]:
        text = f"{one.get('cause', '')} {one.get('fix', '')}"
        assert unwanted_words(text) == [], one["code"]


@pytest.mark.parametrize("package", _PACKAGES)
def test_strings_of_the_code_are_plain(package: str) -> None:
    """Errors, warnings, notes and phases are made of them."""
    for file in {*(ROOT / package).rglob("*.py")} - _WORDS_OF_PROMPTS:
        for line, text in _strings(file):
            assert unwanted_words(text) == [], f"{file}:{line}"


def _strings(file: Path) -> Iterator[tuple[int, str]]:
    """Give a module's strings but for its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and id(one) not in documented:
            yield one.lineno, str(one.value)
