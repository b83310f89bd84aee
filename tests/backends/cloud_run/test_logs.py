"""A deployment's log, read from Cloud Logging."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.cloud.logging_v2.types import LogEntry

from backends.cloud_run import logs
from backends.google.logs import lines_of
from core.errors import DeploymentNotFound, PermissionDenied
from core.reply import collecting_notes
from tests.backends.cloud_run.planted import Planted, planting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.service()
        yield planted


async def test_the_newest_lines_stand_last(there: Planted) -> None:
    """And all that there are are counted."""
    there.log("one", "two", "three")
    found = await logs.read_logs(there.site, "gemma", lines=2)
    assert (found.lines, found.total) == (("two", "three"), 3)


async def test_the_platforms_own_lines_are_among_them_and_marked(there: Planted) -> None:
    """Why an instance was started or ended, only Cloud Run says."""
    there.log("hello", ago=20)
    there.log("Container called exit(1).", ago=10, log="varlog/system")
    lines = (await logs.read_logs(there.site, "gemma", lines=9)).lines
    assert lines[0] == "hello"
    assert lines[1].endswith("[Cloud Run] Container called exit(1).")


async def test_lines_are_found_by_a_text_whatever_its_case(there: Planted) -> None:
    """Only those that hold it are given and counted."""
    there.log("an Error", "nothing", "error again")
    found = await logs.read_logs(there.site, "gemma", lines=1, contains="ERROR")
    assert (found.lines, found.total) == (("error again",), 2)


@pytest.mark.parametrize("text", ['a" OR "b', "back\\slash", 'x") OR timestamp>="1970', "%"])
async def test_a_searched_text_cannot_change_the_query(there: Planted, text: str) -> None:
    """Quotes and backslashes are only text."""
    there.log("b", "unrelated", f"here is {text} indeed")
    found = await logs.read_logs(there.site, "gemma", lines=9, contains=text)
    assert found.lines == (f"here is {text} indeed",)


async def test_of_an_entry_with_several_lines_only_those_with_the_text_are_given(
    there: Planted,
) -> None:
    """Google finds entries, and in whatever field the text is."""
    there.log("wanted\nunwonted\nwanted too")
    found = await logs.read_logs(there.site, "gemma", lines=9, contains="wanted")
    assert (found.lines, found.total) == (("wanted", "wanted too"), 2)


async def test_other_deployments_and_former_ones_of_that_name_are_left_out(there: Planted) -> None:
    """Bounded by when the service was made, so that not a day of everything is read."""
    there.log("from before it was made", ago=3600)
    there.log("from another", name="other")
    there.log("ours")
    assert (await logs.read_logs(there.site, "gemma", lines=9)).lines == ("ours",)


async def test_requests_are_no_lines_of_the_log(there: Planted) -> None:
    """Cloud Run keeps those in a log of their own."""
    there.log("GET /v1/models", log="requests")
    assert (await logs.read_logs(there.site, "gemma", lines=9)).total == 0


async def test_a_bar_that_rewrites_itself_is_one_line_for_each_step(there: Planted) -> None:
    """As in a local log."""
    there.log("10%\r20%\r\n\n30%")
    assert (await logs.read_logs(there.site, "gemma", lines=9)).lines == ("10%", "20%", "30%")


def test_an_entry_that_google_took_for_json_is_told_by_its_message() -> None:
    """Cloud Run parses a line that is JSON."""
    now = datetime.now(UTC)
    said = LogEntry(timestamp=now, json_payload={"message": "hello", "level": "info"})
    other = LogEntry(timestamp=now, json_payload={"step": 1.0})
    assert [line.text for line in lines_of(said)] == ["hello"]
    assert [line.text for line in lines_of(other)] == ['{"step": 1.0}']


async def test_more_than_one_page_is_said_to_be_there(there: Planted) -> None:
    """The count is of what was read, and says so."""
    there.log(*(f"line {number}" for number in range(1001)), ago=200)
    there.service(age_seconds=300)
    with collecting_notes() as notes:
        found = await logs.read_logs(there.site, "gemma", lines=1)
    assert (found.lines, found.total) == (("line 1000",), 1000)
    assert any("more than 1000" in note for note in notes)


async def test_the_log_of_nothing_is_not_found(there: Planted) -> None:
    """Cloud Logging would just give nothing."""
    with pytest.raises(DeploymentNotFound):
        await logs.read_logs(there.site, "nobody", lines=9)


async def test_a_log_that_may_not_be_read_says_so(there: Planted) -> None:
    """Asked for by itself it is an error."""
    there.fail("google.logging.*", "PERMISSION_DENIED", message="logging.logEntries.list denied")
    with pytest.raises(PermissionDenied) as caught:
        await logs.read_logs(there.site, "gemma", lines=9)
    assert "logging.logEntries.list" in caught.value.cause
