"""A deployment's whole log: engine, startup script and node, page by page."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.base import LogQuery
from backends.tpu import logs
from backends.tpu.logs import WORKER
from backends.tpu.planes import Place
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
