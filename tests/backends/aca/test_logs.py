"""A deployment's log, from the streams of what runs and from what was kept of what ran."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.aca import logs
from backends.base import LogLines, LogQuery
from core.errors import DeploymentNotFound, PermissionDenied
from core.reply import collecting_notes
from tests.backends.aca.planted import FORMER, NEWEST, Planted, ago, planting

pytestmark = pytest.mark.anyio

CONSOLE, SYSTEM = "ContainerAppConsoleLogs_CL", "ContainerAppSystemLogs_CL"


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def read(there: Planted, lines: int = 9, contains: str | None = None) -> LogLines:
    return await logs.read_logs(there.site, "gemma", lines=lines, contains=contains)


async def noted(there: Planted, **more: str) -> tuple[LogLines, str]:
    with collecting_notes() as notes:
        return await read(there, **more), "\n".join(notes)  # type: ignore[arg-type]


async def test_the_newest_lines_stand_last(there: Planted) -> None:
    """And all that there are are counted."""
    there.wrote(there.replica(), "one", "two", "three")
    found = await read(there, lines=2)
    assert (found.lines, found.total) == (("two", "three"), 3)


async def test_containers_and_platform_are_merged_by_time(there: Planted) -> None:
    """Why a replica was started or ended, only Azure says."""
    name = there.replica()
    there.wrote(name, "hello", age=20)
    there.event("StoppingContainer", "Container failed liveness probe", replica=name, age=10)
    there.event("ContainerStarted", "Started container", replica=name, age=30)
    first, second, third = (await read(there)).lines
    assert second == "hello"
    assert first.endswith("[Container Apps] ContainerStarted: Started container")
    assert "StoppingContainer" in third


async def test_every_replica_of_every_revision_is_read(there: Planted) -> None:
    """A former one may be the one that fails."""
    there.revision(FORMER, age=7200)
    there.wrote(there.replica(FORMER), "of the former", age=30)
    there.wrote(there.replica(NEWEST), "of the newest", age=20)
    assert (await read(there)).lines == ("of the former", "of the newest")


async def test_what_ran_is_read_from_log_analytics(there: Planted) -> None:
    """It is minutes late, which is said."""
    there.kept(CONSOLE, [ago(60), "last words"], [ago(70), "before"])
    there.kept(SYSTEM, [ago(65), "ContainerStarted", "Started"])
    found, notes = await noted(there)
    assert [line.rpartition("] ")[2] for line in found.lines] == [
        "before", "ContainerStarted: Started", "last words",
    ]  # fmt: skip
    assert "some minutes late" in notes


async def test_without_a_table_the_events_of_the_stream_have_to_do(there: Planted) -> None:
    """It is made with its first line."""
    there.event("AssigningReplica", "scheduled")
    found, notes = await noted(there)
    assert found.total == 1
    assert "not received a line yet" in notes


async def test_a_searched_text_is_looked_for_in_what_was_kept_as_well(there: Planted) -> None:
    """A stream gives its last lines only; nothing is given twice."""
    there.wrote(there.replica(), "an Error", "nothing")
    there.kept(CONSOLE, [ago(60), "an Error"], [ago(900), "error of old"])
    there.kept(SYSTEM)
    found = await read(there, contains="ERROR")
    assert (found.lines, found.total) == (("error of old", "an Error"), 2)


async def test_without_log_analytics_what_runs_is_read_all_the_same(there: Planted) -> None:
    """What is missing is said."""
    there.wrote(there.replica(), "an error")
    there.arm.refuse("POST .*/query", 403, "InsufficientAccessError")
    found, notes = await noted(there, contains="error")
    assert found.lines == ("an error",)
    assert "Older lines are missing" in notes


async def test_without_streams_what_was_kept_is_read(there: Planted) -> None:
    """Their token is a permission of its own."""
    there.replica()
    there.arm.refuse("POST .*/getAuthtoken", 403, "AuthorizationFailed")
    there.kept(CONSOLE, [ago(60), "kept"])
    there.kept(SYSTEM)
    found, notes = await noted(there)
    assert found.lines == ("kept",)
    assert "open the log streams" in notes


async def test_a_log_that_may_not_be_read_at_all_says_so(there: Planted) -> None:
    """Asked for by itself it is an error."""
    there.arm.refuse("POST .*/getAuthtoken", 403, "AuthorizationFailed")
    there.arm.refuse("POST .*/query", 403, "InsufficientAccessError")
    with pytest.raises(PermissionDenied):
        await read(there)


async def test_the_log_of_nothing_is_not_found(there: Planted) -> None:
    """An empty one would say that it is silent."""
    with pytest.raises(DeploymentNotFound):
        await logs.read_logs(there.site, "nobody", lines=9)


async def pages(there: Planted, **asked: Any) -> list[list[str]]:
    found = logs.log_pages(there.site, "gemma", LogQuery(**asked))
    return [[line.text for line in page] async for page in found]


async def test_what_runs_is_the_first_page_and_nothing_of_it_comes_again(there: Planted) -> None:
    """The same words of another time are not the same line."""
    there.wrote(there.replica(), "200 OK", "200 OK", "ready", age=10)
    rows = [9, "200 OK"], [10, "200 OK"], [600, "200 OK"], [900, "200 OK"], [901, "begun"]
    there.kept(CONSOLE, *([ago(float(age)), str(text)] for age, text in rows))  # type: ignore[arg-type]
    there.kept(SYSTEM)
    assert await pages(there) == [["200 OK", "200 OK", "ready"], ["begun", "200 OK", "200 OK"]]


async def test_what_the_streams_have_is_there_before_log_analytics_answers(there: Planted) -> None:
    """Where it is slow or silent, the newest lines were read all the same."""
    there.wrote(there.replica(), "one", "two")
    found = logs.log_pages(there.site, "gemma", LogQuery())
    assert [line.text for line in await anext(found)] == ["one", "two"]
    assert not any("/query" in call for call in map(str, there.arm.calls))
    await found.aclose()


async def test_what_the_streams_have_is_chosen_as_well(there: Planted) -> None:
    """They themselves cannot be asked for a text or a time."""
    there.wrote(there.replica(), "an Error", "nothing", "error", age=60)
    there.kept(CONSOLE)
    there.kept(SYSTEM)
    assert await pages(there, contains=("ERROR",)) == [["an Error", "error"]]
    since = datetime.now(UTC) - timedelta(seconds=59.5)
    assert await pages(there, since=since) == [["nothing", "error"]]
