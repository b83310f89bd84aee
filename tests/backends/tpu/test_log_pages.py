"""A deployment's whole log: engine, startup script and node, page by page."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.base import LogQuery
from backends.tpu import logs
from backends.tpu.logs import WORKER
from backends.tpu.site import Place
from core.errors import DeploymentNotFound
from logs.read import Line
from tests.backends.tpu.stage import HERE, NOW, Stage, attempt, staged

pytestmark = pytest.mark.anyio

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        made.kept(attempt(), placed=HERE)
        yield made


async def pages(stage: Stage, name: str = "gemma", **asked: Any) -> list[Sequence[Line]]:
    return [page async for page in logs.log_pages(stage.site, name, LogQuery(**asked))]


async def texts(stage: Stage, **asked: Any) -> list[str]:
    """Read all pages, oldest line first."""
    return [line.text for page in reversed(await pages(stage, **asked)) for line in page]


async def test_every_line_comes_once_and_the_newest_page_first(stage: Stage) -> None:
    """A thousand entries a call, of script and engine together."""
    stage.chip()
    stage.wrote(*(f"INFO {number}" for number in range(1500)), ago=200)
    stage.told("booting", ago=300)
    stage.told("ready", ago=10)
    found = await pages(stage)
    assert [len(page) for page in found] == [1000, 502]
    assert [line.text for page in reversed(found) for line in page] == [
        "booting",
        *(f"INFO {number}" for number in range(1500)),
        "ready",
    ]


async def test_lines_are_chosen_by_time(stage: Stage) -> None:
    """Never from before the chip was asked for."""
    stage.chip()
    stage.wrote("former", ago=3600)
    stage.wrote("first", ago=300)
    stage.told("second", ago=200)
    stage.wrote("third", ago=100)
    since, until = NOW - timedelta(seconds=250), NOW - timedelta(seconds=150)
    assert await texts(stage, since=NOW - timedelta(days=9)) == ["first", "second", "third"]
    assert await texts(stage, since=since) == ["second", "third"]
    assert await texts(stage, since=since, until=until) == ["second"]


async def test_lines_are_chosen_by_any_of_some_words(stage: Stage) -> None:
    """In what the engine writes and in what the script tells, whatever their case."""
    stage.chip()
    stage.told("failed", "Docker is out of disk", ago=90)
    stage.told("booting", "6.8", ago=95)
    stage.wrote("an ERROR", "fine", "Out of memory")
    assert await texts(stage, contains=("error", "OUT OF")) == [
        "failed: Docker is out of disk",
        "an ERROR",
        "Out of memory",
    ]


@pytest.mark.parametrize("platform", [True, False])
async def test_google_sends_no_line_without_one_of_the_words(
    stage: Stage, *, platform: bool
) -> None:
    """A needle in a haystack takes one call of the minute's 60."""
    stage.chip()
    stage.wrote("needle", *(f"hay {number}" for number in range(1500)), ago=300)
    words = ("nothing", "NEEDLE")
    assert await texts(stage, contains=words, platform=platform) == ["needle"]
    assert len([call for call in stage.project.calls if call.endswith("/ListLogEntries")]) == 1


@pytest.mark.parametrize("word", ['a" OR "b', "back\\slash", 'x")) OR timestamp>="1970'])
async def test_no_word_can_change_the_query(stage: Stage, word: str) -> None:
    """Nor more words than a filter may have."""
    stage.chip()
    stage.wrote("b", f"theirs {word}", name="other")
    stage.wrote("b", f"here is {word} indeed")
    more = tuple(f"{'w' * 200} {number}" for number in range(200))
    for words in ((word,), (word, "nothing"), (word, *more)):
        assert await texts(stage, contains=words) == [f"here is {word} indeed"]


async def test_a_certificate_is_no_line(stage: Stage) -> None:
    """That it was made is said, its text is not; nor is it found by what it holds."""
    stage.chip()
    stage.told("certificate", PEM)
    assert "MIIB" not in " ".join(await texts(stage))
    assert await texts(stage, contains=("made; get_endpoint",))
    assert not await texts(stage, contains=("MIIB",))


async def test_what_the_platform_says_can_be_left_out(stage: Stage) -> None:
    """The script's words, and what Google tells of the node; of this node alone."""
    place = Place("us-east5-b", "queued")
    stage.chip(place=place, node="vllm-devops-gemma", node_number="4711")
    stage.kept(attempt(place=place), placed=place)
    stage.told("ready", ago=80)
    stage.wrote("INFO one", ago=60)
    stage.happened("The chip overheats.", node="4711")
    stage.happened("Theirs burns.", node="theirs")
    (page,) = await pages(stage)
    assert [(line.text, line.platform) for line in page] == [
        ("ready", "startup script"),
        ("INFO one", ""),
        ("The chip overheats.", WORKER),
    ]
    assert await texts(stage, platform=False) == ["INFO one"]
    assert await texts(stage, platform=False, contains=("overheats",)) == []


async def test_a_vm_without_a_log_shows_its_serial_port(stage: Stage) -> None:
    """Whenever it was written, for it tells no times; not where there is a log."""
    stage.chip()
    stage.compute.port = ["Linux version 6.8", *PEM.splitlines(), "login:"]
    assert await texts(stage) == ["Linux version 6.8", "login:"]
    assert await texts(stage, since=NOW, contains=("LOGIN",)) == ["login:"]
    assert await texts(stage, platform=False) == []
    stage.told("booting", ago=200)
    assert await texts(stage, since=NOW - timedelta(seconds=10)) == []
    assert await texts(stage, contains=("login",)) == []


async def test_a_search_has_no_lines_yet(tmp_path: Path) -> None:
    """And nobody's else are taken for its own."""
    async with staged(tmp_path) as stage:
        stage.kept(attempt(""))
        stage.wrote("theirs", name="other")
        assert await pages(stage) == []


async def test_nobodys_log_is_not_there(stage: Stage) -> None:
    """Nothing of that name was ever made."""
    with pytest.raises(DeploymentNotFound):
        await pages(stage, "nobody")
