"""A deployment's log: engine, startup script and node, in the order of time and page by page."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.base import LogQuery
from backends.tpu import logs
from backends.tpu.logs import WORKER
from backends.tpu.site import Place
from logs.read import Line
from tests.backends.tpu.stage import HERE, NOW, Stage, attempt, staged

pytestmark = pytest.mark.anyio
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
OTHER = PEM.replace("MIIB", "MIIC")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        made.kept(attempt(), placed=HERE)
        yield made


async def lines(stage: Stage, *contains: str) -> list[str]:
    """Give all lines as they are shown, oldest first."""
    found = logs.log_pages(stage.site, "gemma", LogQuery(contains=contains))
    return [str(line) for page in [page async for page in found][::-1] for line in page]


async def test_script_and_engine_are_merged_by_time(stage: Stage) -> None:
    """Of the script's lines it is said whose they are, and when they came."""
    stage.chip()
    stage.told("starting engine", "vllm serve m", ago=70)
    stage.wrote("INFO one", "INFO two", ago=60)
    stage.told("booting", "6.8", ago=90)
    stage.told("ready", ago=30)
    found = await lines(stage)
    assert [line.partition("] ")[2] or line for line in found] == [
        "booting: 6.8",
        "starting engine: vllm serve m",
        "INFO one",
        "INFO two",
        "ready",
    ]
    assert "[startup script]" in found[0]


@pytest.mark.parametrize(("empty", "found"), [(0, 1), (3, 1), (4, 0)])
async def test_a_search_that_takes_google_long_goes_on_at_its_next_page(
    stage: Stage, empty: int, found: int
) -> None:
    """It gives empty pages until then; without end it is not asked for the state of a boot."""
    stage.project.knobs = stage.project.knobs.model_copy(update={"log_empty_pages": empty})
    stage.told("booting", "6.8", ago=90)
    told = await logs.read_script(stage.site, "gemma", NOW - timedelta(hours=1))
    assert len(told) == found


async def test_a_certificate_is_no_line(stage: Stage) -> None:
    """That it was made is said, its text is not; nor is it found by what it holds."""
    stage.chip()
    stage.told("certificate", PEM)
    assert "MIIB" not in " ".join(await lines(stage))
    assert "certificate" in (await lines(stage))[0]
    assert not await lines(stage, "MIIB")


async def test_anothers_lines_are_never_among_them(stage: Stage) -> None:
    """Nor those of a former deployment of the same name."""
    stage.chip()
    stage.wrote("INFO other", name="other")
    stage.told("booting", name="gemma2")
    stage.wrote("INFO former", ago=3600)
    stage.wrote("INFO mine")
    assert await lines(stage) == ["INFO mine"]


async def test_they_outlive_the_vm(stage: Stage) -> None:
    """A chip that was taken leaves its log."""
    stage.wrote("INFO last words")
    assert await lines(stage) == ["INFO last words"]


async def test_a_boot_of_many_lines_is_read_from_its_first_to_its_newest(stage: Stage) -> None:
    """The arrays that a TPU's engine prints go over thousands of lines."""
    chip = stage.chip()
    stage.told("starting engine", ago=250)
    stage.wrote("INFO first", *(f"INFO {number}" for number in range(2200)), "INFO last", ago=240)
    found = [line.text for line in (await logs.read_newest_boot(stage.site, chip)).boot]
    assert (found[0], found[-1]) == ("INFO first", "INFO last")
    assert len(found) == len(set(found))


async def test_the_newest_certificate_counts(stage: Stage) -> None:
    """A VM that boots again makes another; whoever may write logs may write anything."""
    chip = stage.chip()
    stage.told("certificate", "trust me", ago=200)
    assert await logs.certificate(stage.site, chip) is None
    stage.told("certificate", PEM, ago=100)
    stage.told("certificate", OTHER, ago=50)
    assert await logs.certificate(stage.site, chip) == OTHER


async def test_a_certificate_from_before_the_request_is_not_its_own(stage: Stage) -> None:
    """The name may have been another VM's."""
    chip = stage.chip(created_at=NOW - timedelta(minutes=5))
    stage.told("certificate", PEM, ago=600)
    assert await logs.certificate(stage.site, chip) is None


async def test_a_search_has_no_lines_yet(tmp_path: Path) -> None:
    """And nobody's else are taken for its own."""
    async with staged(tmp_path) as stage:
        stage.kept(attempt(""))
        assert not await lines(stage)


@pytest.mark.parametrize("called", ["vllm-devops-gemma", "4711"])
async def test_what_google_tells_of_a_node_is_shown_among_the_lines(
    stage: Stage, called: str
) -> None:
    """Warnings and worse of this node alone, by its id or its number; never of another's."""
    stage.chip(place=Place("us-east5-b", "queued"), node="vllm-devops-gemma", node_number="4711")
    stage.kept(attempt(place=Place("us-east5-b", "queued")), placed=Place("us-east5-b", "queued"))
    stage.wrote("INFO one", ago=60)
    stage.happened("The chip overheats.", node=called)
    stage.happened("All is well.", node=called, severity="INFO")
    stage.happened("Theirs burns.", node="theirs")
    stage.happened("Elsewhere it burns.", node=called, zone="us-east5-a")
    found = await lines(stage)
    assert found[0] == "INFO one"
    assert [line.partition("[tpu_worker] ")[2] for line in found[1:]] == ["The chip overheats."]


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


def test_a_boot_is_what_was_written_since_the_engine_was_started_last() -> None:
    """What a former start of it wrote tells nothing of this one."""
    again = "The engine ended and is started again."
    script = [
        logs.ScriptLine(NOW - timedelta(seconds=100), logs.ENGINE, "vllm serve m"),
        logs.ScriptLine(NOW - timedelta(seconds=50), logs.ENGINE, again),
    ]
    output = [
        Line(NOW - timedelta(seconds=90), "INFO former"),
        Line(NOW - timedelta(seconds=55), "INFO now"),
    ]
    assert [line.text for line in logs.VmLog(script, output).boot] == ["INFO now"]
