"""A deployment's log: live streams, what Log Analytics keeps, and both page by page."""

import ast
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr

from backends.aca import logs, replicas
from backends.aca.app import get_app
from backends.aca.logs import Wanted
from backends.aca.site import Site
from backends.base import LogQuery
from core.errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    NotConfigured,
    PermissionDenied,
)
from core.reply import collecting_notes
from core.settings import AzurePlane
from logs.read import Line
from tests.azure_plane import Controls
from tests.backends.aca.deployed import NAME, make
from tests.backends.aca.planted import (
    FORMER,
    NEWEST,
    STREAM_TOKEN,
    Planted,
    ago,
    planting,
)
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio
CONSOLE, SYSTEM = "ContainerAppConsoleLogs_CL", "ContainerAppSystemLogs_CL"
TOKEN = SecretStr(STREAM_TOKEN)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WANTED = Wanted(NOW - timedelta(hours=1), NOW)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def read(there: Planted, *contains: str) -> list[str]:
    """Give all lines as they are shown, oldest first."""
    found = logs.log_pages(there.site, "gemma", LogQuery(contains=contains))
    return [str(line) for page in [page async for page in found][::-1] for line in page]


async def noted(there: Planted, *contains: str) -> tuple[list[str], str]:
    with collecting_notes() as notes:
        return await read(there, *contains), "\n".join(notes)


async def test_every_replica_of_every_revision_is_read_the_newest_lines_last(
    there: Planted,
) -> None:
    """A former one may be the one that fails."""
    there.revision(FORMER, age=7200)
    there.wrote(there.replica(FORMER), "of the former", age=30)
    there.wrote(there.replica(NEWEST), "two", "three", age=20)
    assert await read(there) == ["of the former", "two", "three"]


async def test_containers_and_platform_are_merged_by_time(there: Planted) -> None:
    """Why a replica was started or ended, only Azure says."""
    name = there.replica()
    there.wrote(name, "hello", age=20)
    there.event("StoppingContainer", "Container failed liveness probe", replica=name, age=10)
    there.event("ContainerStarted", "Started container", replica=name, age=30)
    there.event("ConnectedToEventsServer", "Successfully connected to events server")
    first, second, third = await read(there)
    assert second == "hello"
    assert first.endswith("[Container Apps] ContainerStarted: Started container")
    assert "StoppingContainer" in third


async def test_what_ran_is_read_from_log_analytics(there: Planted) -> None:
    """It is minutes late, which is said; a row may be of several lines."""
    there.kept(CONSOLE, [ago(60), "last\nwords"], [ago(70), "before"])
    there.kept(SYSTEM, [ago(65), "ContainerStarted", "Started"])
    found, notes = await noted(there)
    assert [line.rpartition("] ")[2] for line in found] == [
        "before", "ContainerStarted: Started", "last", "words",
    ]  # fmt: skip
    assert "some minutes late" in notes
    there.kept(CONSOLE, [ago(60), "a line"], error="The query was cut off.")
    with collecting_notes() as noted_now:
        found_now = logs.log_pages(there.site, "gemma", LogQuery())
        assert [line.text for line in await anext(found_now)] == ["a line"]
        await found_now.aclose()
    assert "only a part of the lines: The query was cut off." in "\n".join(noted_now)


async def test_without_a_table_the_events_of_the_stream_have_to_do(there: Planted) -> None:
    """It is made with its first line."""
    there.event("AssigningReplica", "scheduled")
    found, notes = await noted(there)
    assert len(found) == 1
    assert "not received a line yet" in notes


async def test_a_searched_text_is_looked_for_in_what_was_kept_as_well(there: Planted) -> None:
    """A stream gives its last lines only; nothing is given twice."""
    there.wrote(there.replica(), "an Error", "nothing")
    there.kept(CONSOLE, [ago(60), "an Error"], [ago(900), "error of old"])
    there.kept(SYSTEM)
    assert await read(there, "ERROR") == ["error of old", "an Error"]


async def test_one_source_does_for_the_other_and_what_is_missing_is_said(there: Planted) -> None:
    """Each has permissions of its own; where neither can be read, that is an error."""
    there.wrote(there.replica(), "an error")
    there.arm.refuse("POST .*/query", 403, "InsufficientAccessError")
    found, notes = await noted(there, "error")
    assert found == ["an error"]
    assert "Older lines are missing" in notes
    there.arm.refuse("POST .*/getAuthtoken", 403, "AuthorizationFailed")
    with pytest.raises(PermissionDenied):
        await read(there)


async def pages(there: Planted, **asked: Any) -> list[list[str]]:
    found = logs.log_pages(there.site, "gemma", LogQuery(**asked))
    return [[line.text for line in page] async for page in found]


async def test_what_runs_is_the_first_page_and_nothing_of_it_comes_again(there: Planted) -> None:
    """The same words of another time are not the same line; nobody waits for Log Analytics."""
    there.wrote(there.replica(), "200 OK", "200 OK", "ready", age=10)
    rows = [9, "200 OK"], [10, "200 OK"], [600, "200 OK"], [900, "200 OK"], [901, "begun"]
    there.kept(CONSOLE, *([ago(float(age)), str(text)] for age, text in rows))  # type: ignore[arg-type]
    there.kept(SYSTEM)
    assert await pages(there) == [["200 OK", "200 OK", "ready"], ["begun", "200 OK", "200 OK"]]
    asked = len(there.arm.calls)
    found = logs.log_pages(there.site, "gemma", LogQuery())
    assert [line.text for line in await anext(found)] == ["200 OK", "200 OK", "ready"]
    assert not any("/query" in call for call in map(str, there.arm.calls[asked:]))
    await found.aclose()


async def test_lines_of_a_container_lose_the_mark_of_its_runtime(there: Planted) -> None:
    """And a bar that rewrites itself is one line for each step."""
    name = there.replica()
    there.wrote(name, "10%\r20%", "INFO ready")
    own = {"TimeStamp": "2026-11-21T10:00:00Z", "Log": "Connecting to the container 'vllm'..."}
    there.console[name].append(own)
    (held,) = await replicas.read_revisions(there.site, "gemma")
    lines = await logs.stream_console(held.replicas[0], TOKEN)
    assert [line.text for line in lines] == ["10%", "20%", "INFO ready"]
    assert {line.instance for line in lines} == {name}


async def test_a_stream_that_cannot_be_read_says_why_and_holds_no_token(there: Planted) -> None:
    """The token is fetched of the app, and shows itself to nobody."""
    app, token = await get_app(there.site, "gemma"), await logs.token_of(there.site, "gemma")
    assert token.get_secret_value() == STREAM_TOKEN
    assert STREAM_TOKEN not in repr(token)
    with pytest.raises(PermissionDenied) as caught:
        await logs.stream_events(app, SecretStr("wrong-token"))
    assert "getAuthToken" in caught.value.fix
    assert "wrong-token" not in f"{caught.value.summary} {caught.value.cause}"
    there.stream_status = 502
    with pytest.raises(CloudUnavailable):
        await logs.stream_events(app, TOKEN)
    there.app(eventStreamEndpoint="http://127.0.0.1:9/events")
    with pytest.raises(CloudUnavailable):
        await logs.stream_events(await get_app(there.site, "gemma"), TOKEN)


@pytest.mark.parametrize(
    ("said", "at"),
    [
        ("2023-10-06T21:41:33Z", 33),
        ("2023-10-06 21:41:33 +0000 UTC", 33),
        ("2023-10-06T23:41:33+02:00", 33),
        (None, None),
        ("yesterday", None),
        (7, None),
    ],
)
def test_every_form_of_a_moment_is_read_and_a_row_without_one_left_out(
    said: object, at: int | None
) -> None:
    """Azure writes several."""
    moment = datetime(2023, 10, 6, 21, 41, at, tzinfo=UTC) if at else None
    assert logs.moment(said) == moment
    assert bool(logs.lines_of({"TimeStamp": said, "Log": "F x"}, "r")) == bool(at)
    assert bool(logs.event_of({"TimeStamp": said, "Reason": "x"})) == bool(at)


def environment(there: Planted, **logs: Any) -> None:
    body = {"name": "e", "location": "x", "properties": {"appLogsConfiguration": logs}}
    there.arm.on("GET .*/managedEnvironments/[^/]*", lambda _: (200, body))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (None, "", logs.NoTable),
        (400, "BadArgumentError", CloudRefused),
        (403, "InsufficientAccessError", PermissionDenied),
    ],
)
async def test_a_table_that_is_not_there_is_told_from_a_query_that_is_refused(
    there: Planted, status: int | None, code: str, kind: type[CloudError]
) -> None:
    """Not every refusal means that there is no table."""
    if status:
        there.arm.refuse("POST .*/query", status, code, "too long")
    with pytest.raises(CloudError) as caught:
        await logs.query_console(there.site, await get_app(there.site, "gemma"), WANTED)
    assert type(caught.value) is kind


async def test_an_environment_that_keeps_its_lines_elsewhere_says_where(there: Planted) -> None:
    """What runs is still read."""
    environment(there, destination="azure-monitor")
    with pytest.raises(NotConfigured, match="azure-monitor") as caught:
        await logs.query_console(there.site, await get_app(there.site, "gemma"), WANTED)
    assert "get_logs" in caught.value.fix


def test_the_query_is_of_one_app_and_bounded() -> None:
    """Everything else is left out there, not here."""
    wanted = WANTED._replace(revision="gemma--1", contains=("error",), newest=False, platform=True)
    assert logs.query("gemma", wanted, 7) == (
        "ContainerAppSystemLogs_CL | where ContainerAppName_s == 'gemma'"
        " and RevisionName_s == 'gemma--1'"
        " and (Reason_s contains 'error' or Log_s contains 'error')"
        " | project TimeGenerated, Reason_s, Log_s"
        " | order by TimeGenerated asc | take 7"
    )


@pytest.mark.parametrize("text", ["a' or 'b", "back\\slash", "\\' | take 1 //", "two\nlines"])
def test_a_searched_text_cannot_change_the_query(text: str) -> None:
    """Quotes, backslashes and line ends are only text; Kusto itself reads them back."""
    asked = logs.query("gemma", WANTED._replace(contains=(text,)))
    texts = re.findall(r"'(?:[^'\\]|\\.)*'", asked)
    assert [ast.literal_eval(one) for one in texts] == ["gemma", text]


HOUR: Final = timedelta(hours=1)
HOUR_END: Final = datetime.now(UTC).replace(microsecond=0)
BEGIN: Final = HOUR_END - HOUR
OWN: Final = LogQuery(since=BEGIN, platform=False)
"""What containers alone wrote in the last hour."""


class Logged:
    """A deployment that waits for a GPU, so that it writes nothing but what a test says."""

    def __init__(self, site: Site, controls: Controls) -> None:
        self.site = site
        self.controls = controls

    def set(self, **knobs: Any) -> None:
        self.controls.set(self.site.ground.subscription, **knobs)

    def say(self, *lines: tuple[float, str], app: str = NAME, **more: str) -> None:
        """Put lines in, each so many seconds after the hour began."""
        said = [(BEGIN.timestamp() + at, text) for at, text in lines]
        self.controls.say(self.site.ground.subscription, app, said, **more)

    def pages(self, query: LogQuery = OWN, name: str = NAME) -> AsyncIterator[Sequence[Line]]:
        return logs.log_pages(self.site, name, query)

    async def texts(self, query: LogQuery = OWN) -> list[str]:
        """Give all lines, oldest first."""
        pages = [page async for page in self.pages(query)]
        return [line.text for page in pages[::-1] for line in page]


@pytest.fixture
async def logged(azure: AzurePlane, subscription: str, controls: Controls) -> AsyncIterator[Logged]:
    async with opened(azure, subscription) as site:
        controls.set(subscription, rollout="no-host")
        await make(site)
        yield Logged(site, controls)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAGE_ROWS", 4)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("same", [2, 3, 4])
async def test_lines_of_one_moment_are_neither_lost_nor_doubled_at_a_border(
    logged: Logged, same: int
) -> None:
    """However many logged are: also more than one question gives."""
    said = [(5.0, f"same {n}") for n in range(same)]
    logged.say((1, "before"), *said, (5.000001, "just after"), (7, "after"), (8, "last"))
    found = await logged.texts()
    assert sorted(found) == sorted(["before", "just after", "after", "last", *(s[1] for s in said)])
    assert (found[0], found[-3:]) == ("before", ["just after", "after", "last"])


@pytest.mark.usefixtures("small_pages")
async def test_containers_and_platform_come_in_the_order_of_their_moments(
    logged: Logged,
) -> None:
    """Where one of the two has many more lines, it does not run ahead."""
    logged.say(*((second, f"line {second}") for second in range(0, 40, 2)))
    logged.say((7, "one"), (33, "two"), table="system", reason="ProbeFailed")
    pages = [page async for page in logged.pages(OWN.model_copy(update={"platform": True}))]
    lines = [line for page in pages[::-1] for line in page if line.at < HOUR_END - HOUR / 2]
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    told = [str(line) for line in lines if line.platform]
    assert [text.partition("] ")[2] for text in told] == ["ProbeFailed: one", "ProbeFailed: two"]
    assert len(lines) == 22


async def test_an_event_of_long_ago_is_not_told_before_what_was_written_since(
    logged: Logged,
) -> None:
    """Its stream holds the newest of all time; nothing is given twice."""
    logged.say((7, "one"), table="system", reason="ProbeFailed")
    logged.say((9, "later"), (9, "later"))
    asked = LogQuery(since=BEGIN, until=HOUR_END - HOUR / 2)
    assert await logged.texts(asked) == ["ProbeFailed: one", "later", "later"]


async def test_events_of_the_stream_are_given_where_nothing_else_can_be_read(
    logged: Logged,
) -> None:
    """They may say why."""
    logged.say((7, "one"), table="system", reason="ProbeFailed")
    logged.set(faults=[fault("POST query", 403, times=-1)])
    with collecting_notes() as notes:
        found = await logged.texts(LogQuery(since=BEGIN, until=HOUR_END - HOUR / 2))
    assert found == ["ProbeFailed: one"]
    assert any("Older lines are missing" in one for one in notes)


async def test_another_apps_lines_are_never_given(logged: Logged) -> None:
    """All apps of an environment write into the same tables."""
    await make(logged.site, "other")
    logged.say((1, "of the other"), app="other")
    logged.say((2, "of ours"))
    assert await logged.texts() == ["of ours"]


@pytest.mark.usefixtures("small_pages")
async def test_what_was_read_before_a_failure_stays_read(logged: Logged) -> None:
    """That older lines are missing is said."""
    logged.say(*((second, f"line {second}") for second in range(11)))
    found: list[str] = []
    with collecting_notes() as notes:
        async for page in logged.pages():
            found += [line.text for line in page]
            logged.set(faults=[fault("POST query", 403, times=-1)])
    assert found == ["line 8", "line 9", "line 10"]
    assert any("Older lines are missing" in one for one in notes)
