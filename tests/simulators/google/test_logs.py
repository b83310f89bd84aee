"""The simulated Cloud Logging, asked by Google's own client."""

from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.logging.type.log_severity_pb2 import INFO

from tests.simulators.google.conftest import Google
from tests.simulators.google.planted import LOG_BEGIN

pytestmark = pytest.mark.anyio


@pytest.fixture
def logging(google_with_a_past: Google) -> Any:
    return google_with_a_past.client(
        "google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient"
    )


async def _texts(logging: Any, words: str = "", order: str = "") -> list[str]:
    found = await logging.list_log_entries(
        request={"resource_names": ["projects/p-logged"], "filter": words, "order_by": order}
    )
    return [entry.text_payload async for entry in found]


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(LOG_BEGIN + seconds, UTC).isoformat()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", 3),
        ('resource.type="cloud_run_revision" AND resource.labels.service_name="one"', 2),
        ('resource.labels.service_name="one" severity>=ERROR', 1),
        ("severity>=warning", 1),
        ("severity<ERROR", 2),
        ('textPayload:"OUT OF"', 1),
        ('NOT textPayload:"memory"', 2),
        ('-textPayload:"memory" AND resource.labels.service_name="one"', 1),
        ('log_id("run.googleapis.com/stderr")', 3),
        ('log_id("run.googleapis.com/stdout")', 0),
        ('logName="projects/p-logged/logs/run.googleapis.com%2Fstderr"', 3),
        ('resource.labels.service_name=("one")', None),
        ('(severity="INFO" OR severity="ERROR") AND resource.labels.service_name="two"', 1),
        ('textPayload=~"^CUDA .* memory$"', 1),
        ('labels."run.googleapis.com/x"="y"', 0),
        ('"startup complete"', 1),
        (f'timestamp>"{_at(0)}" AND timestamp<="{_at(60)}"', 1),
        (f'timestamp>="{_at(0)}"', 3),
    ],
)
async def test_a_filter_finds_what_it_says(logging: Any, words: str, expected: int | None) -> None:
    """One form that the real language has and this one has not is refused, not ignored."""
    if expected is None:
        with pytest.raises(exceptions.InvalidArgument):
            await _texts(logging, words)
    else:
        assert len(await _texts(logging, words)) == expected


@pytest.mark.parametrize(
    "words",
    [
        'resource.type="x" AND',
        'colour="red"',
        "severity>=LOUD",
        'timestamp>="yesterday"',
        'timestamp>="2026-11-20T10:00:00"',
        'source("projects/x")',
        'textPayload=~"("',
        "(severity=ERROR",
        'severity="ERROR")',
    ],
)
async def test_a_filter_that_is_not_understood_is_refused(logging: Any, words: str) -> None:
    """Also where there is no entry that it could be asked of."""
    with pytest.raises(exceptions.InvalidArgument):
        await _texts(logging, words)


async def test_the_newest_come_first_where_that_is_asked(logging: Any) -> None:
    """Otherwise the oldest do."""
    first = [text.split()[0] for text in await _texts(logging, order="timestamp desc")]
    assert first == ["Application", "CUDA", "Loading"]
    assert [text.split()[0] for text in await _texts(logging)] == first[::-1]
    with pytest.raises(exceptions.InvalidArgument):
        await _texts(logging, order="severity")


async def test_entries_come_in_pages(logging: Any) -> None:
    """Each page says where the next begins; the last says nothing."""
    found = await logging.list_log_entries(
        request={"resource_names": ["projects/p-logged"], "page_size": 2}
    )
    pages = [page async for page in found.pages]
    assert [len(page.entries) for page in pages] == [2, 1]
    assert pages[-1].next_page_token == ""


async def test_an_entry_says_where_it_comes_from(logging: Any) -> None:
    """Resource, log and moment are those of what wrote it."""
    found = await logging.list_log_entries(
        request={"resource_names": ["projects/p-logged"], "order_by": "timestamp desc"}
    )
    entry = await anext(aiter(found))
    assert entry.resource.labels["service_name"] == "two"
    assert entry.log_name.endswith("/logs/run.googleapis.com%2Fstderr")
    assert (entry.severity, entry.timestamp.timestamp()) == (INFO, LOG_BEGIN + 120)


async def test_somebody_must_be_asked(logging: Any) -> None:
    """A request that names no project is refused."""
    with pytest.raises(exceptions.InvalidArgument):
        await logging.list_log_entries(request={"filter": ""})
