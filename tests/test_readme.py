"""What the README promises."""

import re

from benchmark.records import MARKS, Code
from core import VERSION
from core.settings import ROOT
from tests.readme import README, refreshed


def test_the_readme_lists_the_tools_and_settings_that_there_are() -> None:
    """Its tables are the registered ones; `python -m tests.readme --write` makes them so."""
    text = README.read_text(encoding="utf-8")
    assert refreshed(text) == text


def test_every_code_of_a_benchmark_is_explained() -> None:
    """Those that spoil a cell first, then the marks."""
    text = README.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| \S", text.partition("\n## Measure")[2], re.MULTILINE)
    codes = [Code(row) for row in rows if row in Code.__members__]
    assert sorted(codes) == sorted(Code)
    assert [code in MARKS for code in codes] == sorted(code in MARKS for code in codes)


def test_the_changelog_begins_with_the_version_that_is_served() -> None:
    """The newest entry is the server's own version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.split("## [")[1].startswith(f"{VERSION}]")


def test_the_first_screen_shows_two_commands_that_make_knows() -> None:
    """What a person is told to type first exists."""
    screen = README.read_text(encoding="utf-8").splitlines()[:10]
    commands = [line.split()[1] for line in screen if line.startswith("    make ")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(commands) == 2
    assert all(f"\n{command}:" in makefile for command in commands)
