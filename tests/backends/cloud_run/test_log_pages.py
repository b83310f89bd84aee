"""A deployment's log, read from Cloud Logging page by page."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud.logging_v2.types import LogEntry

from backends.base import LogQuery
from backends.cloud_run import status as logs
from backends.google.logs import lines_of
from core.errors import PermissionDenied
from core.reply import collecting_notes
from logs.read import Line
from tests.backends.cloud_run.planted import Planted

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(there: Planted) -> Planted:
    """The same with a service that is an hour old."""
    there.service(age_seconds=3600)
    return there


async def pages(there: Planted, name: str = "gemma", **asked: Any) -> list[Sequence[Line]]:
    return [page async for page in logs.log_pages(there.site, name, LogQuery(**asked))]


async def texts(there: Planted, **asked: Any) -> list[str]:
    """Read all pages, oldest line first."""
    return [line.text for page in reversed(await pages(there, **asked)) for line in page]


async def test_pages_without_entries_are_gone_over(there: Planted) -> None:
    """Google gives them while it searches; only the last has no token."""
    there.project.knobs = there.project.knobs.model_copy(update={"log_empty_pages": 9})
    there.log("found at last")
    assert await texts(there) == ["found at last"]


async def test_lines_are_chosen_by_time(there: Planted) -> None:
    """Never from before the service was made."""
    there.log("long ago", ago=7200)
    there.log("first", ago=300)
    there.log("second", ago=200)
    there.log("third", ago=100)
    now = datetime.now(UTC)
    assert await texts(there) == ["first", "second", "third"]
    assert await texts(there, since=now - timedelta(hours=9)) == ["first", "second", "third"]
    since, until = now - timedelta(seconds=250), now - timedelta(seconds=150)
    assert await texts(there, since=since) == ["second", "third"]
    assert await texts(there, since=since, until=until) == ["second"]


async def test_lines_are_chosen_by_any_of_some_words(there: Planted) -> None:
    """Google sends no others; of an entry with several lines only those are given."""
    there.log("an ERROR", "fine", "out of memory\nfine too", "Error again")
    assert await texts(there, contains=("error", "OUT OF")) == [
        "an ERROR",
        "out of memory",
        "Error again",
    ]


async def test_google_sends_no_line_without_one_of_the_words(there: Planted) -> None:
    """A needle in a haystack takes one call of the minute's 60."""
    there.log("needle", *(f"hay {number}" for number in range(1500)), ago=1000)
    assert await texts(there, contains=("nothing", "NEEDLE")) == ["needle"]
    assert len([call for call in there.project.calls if call.endswith("/ListLogEntries")]) == 1


async def test_more_words_than_google_reads_are_looked_for_here(there: Planted) -> None:
    """A filter has 20,000 characters at most: one without words gives more, never less."""
    there.log("the needle", "hay")
    words = tuple(f"{'w' * 200} {number}" for number in range(200))
    assert await texts(there, contains=("needle", *words)) == ["the needle"]


async def test_others_lines_are_never_shown(there: Planted) -> None:
    """Another service's, another place's, and requests."""
    there.service("other", age_seconds=3600)
    there.log("theirs", name="other")
    there.log("GET /v1/models", log="requests")
    there.log("ours")
    assert await texts(there) == ["ours"]
    assert await texts(there, contains=("theirs",)) == []


async def test_what_the_platform_says_can_be_left_out(there: Planted) -> None:
    """It is marked where it is not."""
    there.log("hello", ago=20)
    there.log("Container called exit(1).", ago=10, log="varlog/system")
    (page,) = await pages(there)
    assert [(line.text, line.platform) for line in page] == [
        ("hello", ""),
        ("Container called exit(1).", "Cloud Run"),
    ]
    assert await texts(there, platform=False) == ["hello"]


async def test_no_page_is_long_though_entries_are(there: Planted) -> None:
    """A progress bar's steps are lines, and many of them one entry."""
    there.log(*("\r".join(f"{entry} {step}%" for step in range(100)) for entry in range(50)))
    found = await pages(there)
    assert [len(page) for page in found] == [2000, 2000, 1000]
    assert (found[0][-1].text, found[-1][0].text) == ("49 99%", "0 0%")


async def test_calls_that_are_used_up_are_waited_for(there: Planted) -> None:
    """60 a minute for a project; it is said, for it takes its time: here half a second."""
    there.log("patience")
    quota = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute'"
    there.fail("google.logging.*", "RESOURCE_EXHAUSTED", times=1, message=quota)
    with collecting_notes() as notes:
        assert await texts(there) == ["patience"]
    assert any("60 times a minute" in note for note in notes)


async def test_a_log_that_may_not_be_read_says_so(there: Planted) -> None:
    """That is not waited for."""
    there.fail("google.logging.*", "PERMISSION_DENIED", message="logging.logEntries.list denied")
    with pytest.raises(PermissionDenied):
        await pages(there)


def test_an_entry_that_google_took_for_json_is_told_by_its_message() -> None:
    """Cloud Run parses a line that is JSON."""
    now = datetime.now(UTC)
    said = LogEntry(timestamp=now, json_payload={"message": "hello", "level": "info"})
    other = LogEntry(timestamp=now, json_payload={"step": 1.0})
    assert [line.text for line in lines_of([said, other])] == ["hello", '{"step": 1.0}']
