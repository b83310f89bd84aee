"""Many lines put into a simulated log at once, and the search through them."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.logging.type.log_severity_pb2 import ERROR
from hypothesis import given
from hypothesis import strategies as st

from simulators.google.logging import (
    Comparison,
    Every,
    Negation,
    Node,
    Some,
    compared,
    compiled,
    holds,
)
from tests.backends.cloud_run.planted import PROJECT, Planted, planting
from tests.google_plane import Controls
from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import Services, wanted

pytestmark = pytest.mark.anyio

BEGIN = 1763790000.5
FIELDS = st.sampled_from("ab")
LEAVES = st.builds(Comparison, FIELDS, st.sampled_from((":", "=", "!=")), st.sampled_from("xyz"))
NODES = st.recursive(
    LEAVES,
    lambda node: st.one_of(
        st.builds(Negation, node),
        st.builds(lambda terms: Every(tuple(terms)), st.lists(node, max_size=3)),
        st.builds(lambda terms: Some(tuple(terms)), st.lists(node, max_size=4)),
    ),
)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


async def _pages(client: Any, project: str, words: str = "", **asked: Any) -> list[list[Any]]:
    request = {"resource_names": [f"projects/{project}"], "filter": words, **asked}
    found = await client.list_log_entries(request=request)
    return [list(page.entries) async for page in found.pages]


async def _texts(client: Any, project: str, words: str = "", **asked: Any) -> list[str]:
    pages = await _pages(client, project, words, **asked)
    return [entry.text_payload or entry.json_payload["message"] for page in pages for entry in page]


@pytest.fixture
def logging(google: Google) -> Any:
    return google.client(
        "google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient"
    )


async def test_tens_of_thousands_of_lines_are_searched_in_one_call(
    logging: Any, services: Services, controls: Controls
) -> None:
    """As a service's own, by many words at once; whoever needs a page is given a page.

    It takes a second, nearly all of it to put the lines there.
    """
    project = services.project
    await services.created(wanted(project))
    lines = [(BEGIN + number / 10, f"INFO noise {number}") for number in range(30_000)]
    lines[4711] = (lines[4711][0], "torch.OutOfMemoryError: CUDA out of memory.")
    controls.say(project, lines, service="one")
    words = " OR ".join(f'"nothing {number}"' for number in range(29))
    about = f'resource.labels.service_name="one" AND ({words} OR "outofmemory")'
    assert await _texts(logging, project, about) == [lines[4711][1]]
    request = {
        "resource_names": [f"projects/{project}"],
        "filter": 'resource.labels.location="us-central1" AND "noise"',
        "order_by": "timestamp desc",
        "page_size": 1000,
    }
    page = (await logging.list_log_entries(request=request))._response
    assert [page.entries[0].text_payload, page.entries[-1].text_payload] == [
        "INFO noise 29999",
        "INFO noise 29000",
    ]
    assert page.next_page_token


@pytest.mark.parametrize("order", ["timestamp asc", "timestamp desc"])
async def test_said_and_written_lines_are_told_in_their_order(
    logging: Any, services: Services, controls: Controls, order: str
) -> None:
    """Whatever the size of a page, each comes once."""
    project = services.project
    await services.created(wanted(project))
    now = time.time()
    controls.say(project, [(now - 30, "c"), (now - 90, "a"), (now - 60, "b")], service="one")
    controls.say(project, [(now + 60, "z")], service="one", platform=True)
    whole = await _texts(logging, project, order_by=order)
    assert whole[:: 1 if order.endswith("asc") else -1][:3] == ["a", "b", "c"]
    assert "z" in (whole[0], whole[-1])
    pages = await _pages(logging, project, order_by=order, page_size=2)
    assert [entry.text_payload for page in pages for entry in page] == whole
    assert {len(page) for page in pages[:-1]} == {2}


async def test_said_lines_are_those_of_a_service_or_of_its_platform(
    logging: Any, services: Services, controls: Controls
) -> None:
    """With the labels and in the log that its own have."""
    project = services.project
    service = await services.created(wanted(project))
    controls.say(project, [(BEGIN, "out")], service="one")
    controls.say(project, [(BEGIN + 1, "told")], service="one", platform=True, severity="ERROR")
    out, told = (await _pages(logging, project, f'timestamp<="{_rfc(BEGIN + 1)}"'))[0]
    assert out.log_name.endswith("/run.googleapis.com%2Fstderr")
    assert told.log_name.endswith("/run.googleapis.com%2Fvarlog%2Fsystem")
    assert told.severity == ERROR
    own = next(
        entry
        for page in await _pages(logging, project, 'NOT ("out" OR "told")')
        for entry in page
        if entry.resource.type == "cloud_run_revision"
    )
    assert dict(out.resource.labels) == dict(own.resource.labels) == dict(told.resource.labels)
    assert out.resource.labels["revision_name"] == service.latest_created_revision.split("/")[-1]


async def test_said_lines_of_a_vm_are_its_containers(
    logging: Any, project: str, controls: Controls
) -> None:
    """As docker's driver writes them; of a node Google tells only where there is one."""
    controls.say(project, [(BEGIN, 'a "quoted" word')], vm="gemma")
    about = 'jsonPayload.container.metadata.deployment="gemma"'
    assert await _texts(logging, project, f'log_id("gcplogs-docker-driver") AND {about}')
    assert await _texts(logging, project, r'"a \"quoted\" word"')
    with pytest.raises(AssertionError, match="no nodes/vllm-devops-gemma"):
        controls.say(project, [(BEGIN, "burns")], vm="gemma", platform=True)


async def test_nobody_cannot_have_said_anything(project: str, controls: Controls) -> None:
    """Nor are lines without a moment taken."""
    with pytest.raises(AssertionError, match="no services/nobody"):
        controls.say(project, [(BEGIN, "x")], service="nobody")
    with pytest.raises(AssertionError, match="lines"):
        controls.say(project, [("yesterday", "x")], vm="one")  # type: ignore[list-item]


async def test_said_lines_are_forgotten_with_their_project(
    logging: Any, project: str, controls: Controls
) -> None:
    """Whoever has its name next begins anew."""
    controls.say(project, [(BEGIN, "x")], vm="one")
    controls.drop(project)
    controls.set(project, prepared=True)
    assert await _texts(logging, project) == []


async def test_a_page_begins_where_the_last_one_ended(there: Planted) -> None:
    """Whatever is written meanwhile, before it or after it."""
    client = await there.site.clients.logging()
    there.log(*(f"line {number}" for number in range(9)), ago=100)
    request = {
        "resource_names": [f"projects/{PROJECT}"],
        "order_by": "timestamp desc",
        "page_size": 3,
    }
    found = list[str]()
    async for page in (await client.list_log_entries(request=request)).pages:
        found += [entry.text_payload for entry in page.entries]
        there.log("later", ago=1)
    assert found == [f"line {number}" for number in range(8, -1, -1)]


@pytest.mark.parametrize(
    "asked",
    [
        {"page_size": -1},
        {"page_token": "7"},
        {"page_token": "after-x-1"},
        {"filter": " OR ".join(['"word"'] * 2500)},
    ],
)
async def test_what_google_refuses_is_refused(logging: Any, project: str, asked: Any) -> None:
    """Foreign tokens, no size, and a filter of more than 20,000 characters."""
    with pytest.raises(exceptions.InvalidArgument):
        await logging.list_log_entries(request={"resource_names": [f"projects/{project}"], **asked})


@given(NODES, st.dictionaries(FIELDS, st.text("xyz", max_size=2)))
def test_a_compiled_filter_says_what_the_filter_says(node: Node, entry: dict[str, str]) -> None:
    """However its terms are put together."""

    def test(field: str, operator: str, values: tuple[str, ...]) -> Callable[[Any], bool]:
        return lambda row: any(compared(operator, row.get(field, ""), value) for value in values)

    def judge(one: Comparison) -> bool:
        return compared(one.operator, entry.get(one.field, ""), one.value)

    assert compiled(node, test)(entry) == holds(node, judge)


def _rfc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".900Z"
