"""The simulated Cloud Logging finds what a filter says, in its order, page by page."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from google.logging.type.log_severity_pb2 import ERROR

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google
from tests.simulators.google.planted import LOG_BEGIN
from tests.simulators.google.run_services import Services, wanted

pytestmark = pytest.mark.anyio
_CLIENT = ("google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient")


@pytest.fixture
def logging(google: Google) -> Any:
    return google.client(*_CLIENT)


async def _pages(client: Any, project: str, words: str = "", **asked: Any) -> list[list[Any]]:
    request = {"resource_names": [f"projects/{project}"], "filter": words, **asked}
    found = await client.list_log_entries(request=request)
    return [list(page.entries) async for page in found.pages]


async def _texts(client: Any, project: str, words: str = "", **asked: Any) -> list[str]:
    pages = await _pages(client, project, words, **asked)
    return [entry.text_payload or entry.json_payload["message"] for page in pages for entry in page]


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
        ('(severity="INFO" OR severity="ERROR") AND resource.labels.service_name="two"', 1),
        ('"memory" OR "complete" OR severity=DEFAULT', 3),
        ('textPayload=~"^CUDA .* memory$"', 1),
        ('labels."run.googleapis.com/x"="y"', 0),
        ('"startup complete"', 1),
        ("NOT memory", 2),
        ('-- a comment\n"weights"', 1),
        (f'timestamp>"{_at(0)}" AND timestamp<="{_at(60)}"', 1),
    ],
)
async def test_a_filter_finds_what_it_says(
    google_with_a_past: Google, words: str, expected: int
) -> None:
    """Of three entries."""
    logging = google_with_a_past.client(*_CLIENT)
    assert len(await _texts(logging, "p-logged", words)) == expected


@pytest.mark.parametrize("order", ["timestamp asc", "timestamp desc"])
async def test_said_and_written_lines_are_told_in_their_order(
    logging: Any, services: Services, controls: Controls, order: str
) -> None:
    """Whatever the size of a page, each comes once; they are those of the service's revision."""
    project = services.project
    service = await services.created(wanted(project))
    now = time.time()
    controls.say(project, [(now - 30, "c"), (now - 90, "a"), (now - 60, "b")], service="one")
    controls.say(project, [(now + 60, "z")], service="one", platform=True, severity="ERROR")
    controls.say(project, [(now - 80, 'a "quoted" word')], vm="gemma")
    whole = await _texts(logging, project, order_by=order)
    assert whole[:: 1 if order.endswith("asc") else -1][:4] == ["a", 'a "quoted" word', "b", "c"]
    pages = await _pages(logging, project, "NOT quoted", order_by=order, page_size=2)
    rows = [entry for page in pages for entry in page]
    assert [row.text_payload for row in rows] == [one for one in whole if "quoted" not in one]
    assert {len(page) for page in pages[:-1]} == {2}
    (told,) = (row for row in rows if row.text_payload == "z")
    assert (told.severity, told.log_name.rpartition("/")[2]) == (
        ERROR,
        "run.googleapis.com%2Fvarlog%2Fsystem",
    )
    assert told.resource.labels["revision_name"] == service.latest_created_revision.split("/")[-1]
    about = 'log_id("gcplogs-docker-driver") jsonPayload.container.metadata.deployment="gemma"'
    assert await _texts(logging, project, rf'{about} "a \"quoted\" word"')


async def test_an_unfinished_search_gives_empty_pages_first(
    google_with_a_past: Google, past_controls: Controls
) -> None:
    """As many as the controls say; then the entries."""
    past_controls.set("p-logged", log_empty_pages=2)
    pages = await _pages(google_with_a_past.client(*_CLIENT), "p-logged", page_size=2)
    past_controls.set("p-logged", log_empty_pages=0)
    assert [len(page) for page in pages] == [0, 0, 2, 1]


async def test_nobody_cannot_have_said_anything(
    logging: Any, project: str, controls: Controls
) -> None:
    """What was said is forgotten with its project."""
    with pytest.raises(AssertionError, match="no services/nobody"):
        controls.say(project, [(LOG_BEGIN, "x")], service="nobody")
    with pytest.raises(AssertionError, match="no nodes/vllm-devops-gemma"):
        controls.say(project, [(LOG_BEGIN, "burns")], vm="gemma", platform=True)
    controls.say(project, [(LOG_BEGIN, "x")], vm="one")
    controls.drop(project)
    controls.set(project, prepared=True)
    assert await _texts(logging, project) == []
