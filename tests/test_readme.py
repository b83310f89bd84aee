"""What README and docs promise."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmark.records import MARKS, Code
from core import VERSION
from core.environment import ROOT
from tests.readme import DOCS, README, generated, pages, part

pytestmark = pytest.mark.anyio

_MAX_BYTES: Final = 9_000
"""Of the README: what a person reads before the first command."""
_MAX_WORDS: Final = 35
"""Of a sentence."""
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK: Final = re.compile(
    r"<!-- (\w+) -->.*?<!-- /\1 -->|```.*?```|^ {4,}.*?$", re.DOTALL | re.MULTILINE
)
"""What is no prose: generated parts, blocks of code."""


@pytest.fixture(params=pages(), ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


async def test_what_is_generated_is_fresh() -> None:
    """Tables and answers are those of now; `python -m tests.readme --write` makes them so."""
    for name, content in (await generated()).items():
        assert part(name) == content, name


def test_the_readme_is_short() -> None:
    """The rest is in docs."""
    assert len(README.read_bytes()) <= _MAX_BYTES


def test_no_link_is_dead(page: Path) -> None:
    """Each leads to a file of this checkout, and to a heading that it has."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        file, _, heading = link.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), link
        assert not heading or heading in set(_headings(there)), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    """Directly, or over another page."""
    found, todo = {README}, [README]
    while todo:
        here = todo.pop()
        for link in _LINK.findall(here.read_text(encoding="utf-8")):
            there = (here.parent / link.partition("#")[0]).resolve()
            if there.suffix == ".md" and there.is_file() and there not in found:
                found.add(there)
                todo.append(there)
    assert found >= set(pages())


def test_no_sentence_is_long(page: Path) -> None:
    """Who reads it is looking for something."""
    for sentence in _sentences(page.read_text(encoding="utf-8")):
        assert len(sentence.split()) <= _MAX_WORDS, sentence


def test_every_command_is_one_that_make_knows(page: Path) -> None:
    """What a person is told to type exists."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"(?:^ {4,}|`)make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command


def test_ci_runs_the_commands_of_the_first_screen() -> None:
    """From a fresh clone, as a new user does."""
    start = README.read_text(encoding="utf-8").partition("\n## Start\n")[2].partition("\n## ")[0]
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = re.findall(r"^ {4,}make ([a-z-]+)", start, re.MULTILINE)
    assert commands
    for command in [*commands, "demo ENGINE=simulated"]:
        assert re.search(rf"\bmake {command}\b", run), command


def test_the_clients_list_as_many_tools_as_the_server() -> None:
    listed = json.loads((ROOT / "tests/golden/tools.default.json").read_text(encoding="utf-8"))
    rows = [row.split("|") for row in part("clients").splitlines()[2:]]
    assert {int(row[5]) for row in rows} == {len(listed)}


def test_every_code_of_a_benchmark_is_explained() -> None:
    """Those that spoil a cell first, then the marks."""
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| \S", text, re.MULTILINE)
    codes = [Code(row) for row in rows]
    assert sorted(codes) == sorted(Code)
    assert [code in MARKS for code in codes] == sorted(code in MARKS for code in codes)


def test_the_changelog_begins_with_the_version_that_is_served() -> None:
    """The newest entry is the server's own version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.split("## [")[1].startswith(f"{VERSION}]")


def _headings(page: Path) -> Iterator[str]:
    """Give the anchors of a page, as GitHub makes them."""
    for title in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _sentences(text: str) -> Iterator[str]:
    """Give the sentences of prose and of table cells."""
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d\. |\|)|\|", _BLOCK.sub("", text)):
        yield from re.split(r"(?<=[.:;!?])\s", _LINK.sub("link", paragraph))
