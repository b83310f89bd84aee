"""Log Analytics, asked for what was written by replicas that are gone."""

import ast
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.aca import logs
from backends.aca.app import get_app
from backends.aca.logs import Place, Wanted
from core.errors import CloudRefused, NotConfigured, PermissionDenied
from core.reply import collecting_notes
from tests.backends.aca.planted import WORKSPACE, Planted, planting

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WANTED = Wanted(NOW - timedelta(hours=1), NOW)
CUSTOM = Place(WORKSPACE, custom=True)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        yield planted


async def console(there: Planted, wanted: Wanted = WANTED) -> list[str]:
    app = await get_app(there.site, "gemma")
    return [line.text for line in await logs.query_console(there.site, app, wanted)]


def environment(there: Planted, **logs: Any) -> None:
    body = {"name": "e", "location": "x", "properties": {"appLogsConfiguration": logs}}
    there.arm.on("GET .*/managedEnvironments/[^/]*", lambda _: (200, body))


async def test_lines_come_oldest_first(there: Planted) -> None:
    """The newest are asked for, in case there are too many."""
    rows = ["2026-11-21T11:30:00Z", "second\nthird"], ["2026-11-21T11:00:00.5Z", "first"]
    there.kept("ContainerAppConsoleLogs_CL", *rows)
    assert await console(there) == ["first", "second", "third"]


async def test_events_carry_their_reason(there: Planted) -> None:
    """As they do in the stream."""
    row = ["2026-11-21T11:30:00Z", "PulledImage", "Successfully pulled image"]
    there.kept("ContainerAppSystemLogs_CL", row)
    app = await get_app(there.site, "gemma")
    (line,) = await logs.query_system(there.site, app, WANTED)
    assert str(line) == "11-21 11:30:00 [Container Apps] PulledImage: Successfully pulled image"


async def test_a_partial_answer_is_given_and_said_to_be_one(there: Planted) -> None:
    """It comes with status 200."""
    row = ["2026-11-21T11:30:00Z", "a line"]
    there.kept("ContainerAppConsoleLogs_CL", row, error="The query was cut off.")
    with collecting_notes() as notes:
        assert await console(there) == ["a line"]
    assert any("only a part of the lines: The query was cut off." in note for note in notes)


async def test_a_table_that_is_not_there_yet_is_recognized(there: Planted) -> None:
    """It is made with its first line."""
    with pytest.raises(logs.NoTable):
        await console(there)


async def test_another_bad_query_is_an_error_of_its_own(there: Planted) -> None:
    """Not every refusal means that there is no table."""
    there.arm.refuse("POST .*/query", 400, "BadArgumentError", "too long")
    with pytest.raises(CloudRefused) as caught:
        await console(there)
    assert not isinstance(caught.value, logs.NoTable)


async def test_a_workspace_that_may_not_be_read_says_so(there: Planted) -> None:
    """Its permissions are its own."""
    there.arm.refuse("POST .*/query", 403, "InsufficientAccessError")
    with pytest.raises(PermissionDenied):
        await console(there)


async def test_an_environment_that_writes_through_azure_monitor_has_other_tables(
    tmp_path: Path,
) -> None:
    """Without the suffixes; where they are, only a setting can say."""
    async with planting(tmp_path, azure_log_analytics_workspace_id=WORKSPACE) as there:
        there.app()
        environment(there, destination="azure-monitor")
        app = await get_app(there.site, "gemma")
        place = await logs.place_of(there.site, app)
    assert place == Place(WORKSPACE, custom=False)
    asked = logs.query(place, place.table("ContainerAppConsoleLogs"), "gemma", WANTED)
    assert asked.startswith("ContainerAppConsoleLogs | where ContainerAppName == 'gemma' |")


async def test_an_environment_that_keeps_no_log_says_what_to_set(there: Planted) -> None:
    """Its streams are left."""
    environment(there)
    with pytest.raises(NotConfigured) as caught:
        await console(there)
    assert "AZURE_LOG_ANALYTICS_WORKSPACE_ID" in caught.value.fix


def test_the_query_is_of_one_app_and_bounded() -> None:
    """Everything else is left out there, not here."""
    wanted = WANTED._replace(revision="gemma--1", contains=("error",), newest=False)
    assert logs.query(CUSTOM, "T_CL", "gemma", wanted, reason="Reason_s") == (
        "T_CL | where ContainerAppName_s == 'gemma' and RevisionName_s == 'gemma--1'"
        " and (Reason_s contains 'error' or Log_s contains 'error')"
        " | project TimeGenerated, Reason_s, Log_s"
        " | order by TimeGenerated asc | take 1000"
    )


@pytest.mark.parametrize("text", ["a' or 'b", "back\\slash", "\\' | take 1 //", "two\nlines"])
def test_a_searched_text_cannot_change_the_query(text: str) -> None:
    """Quotes, backslashes and line ends are only text; Kusto itself reads them back."""
    asked = logs.query(CUSTOM, "T_CL", "gemma", WANTED._replace(contains=(text,)))
    texts = re.findall(r"'(?:[^'\\]|\\.)*'", asked)
    assert [ast.literal_eval(one) for one in texts] == ["gemma", text]
