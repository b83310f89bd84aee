"""A deployment's whole log, read page by page back through time."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from backends.aca import logs
from backends.aca.site import Site
from backends.base import LogQuery
from core.reply import collecting_notes
from core.settings import AzurePlane
from logs.read import Line
from tests.azure_plane import Controls
from tests.backends.aca.deployed import NAME, make
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

HOUR: Final = timedelta(hours=1)
NOW: Final = datetime.now(UTC).replace(microsecond=0)
BEGIN: Final = NOW - HOUR
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
async def there(azure: AzurePlane, subscription: str, controls: Controls) -> AsyncIterator[Logged]:
    async with opened(azure, subscription) as site:
        controls.set(subscription, host_seconds=600)
        await make(site)
        yield Logged(site, controls)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PAGE_ROWS", 4)


@pytest.mark.usefixtures("small_pages")
async def test_the_newest_page_comes_first_and_each_begins_with_its_oldest_line(
    there: Logged,
) -> None:
    """Put together from the last page on, it is the log as it was written."""
    there.say(*((second, f"line {second}") for second in range(11)))
    pages = [[line.text for line in page] async for page in there.pages()]
    assert pages[0][-1] == "line 10"
    assert len(pages) > 2
    assert [text for page in pages[::-1] for text in page] == [f"line {n}" for n in range(11)]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("same", [2, 3, 4, 5, 9, 50])
async def test_lines_of_one_moment_are_neither_lost_nor_doubled_at_a_border(
    there: Logged, same: int
) -> None:
    """However many there are: also more than one question gives."""
    said = [(5.0, f"same {n}") for n in range(same)]
    there.say((1, "before"), *said, (5.000001, "just after"), (7, "after"), (8, "last"))
    found = await there.texts()
    assert sorted(found) == sorted(["before", "just after", "after", "last", *(s[1] for s in said)])
    assert (found[0], found[-3:]) == ("before", ["just after", "after", "last"])


@pytest.mark.usefixtures("small_pages")
async def test_containers_and_platform_come_in_the_order_of_their_moments(there: Logged) -> None:
    """Where one of the two has many more lines, it does not run ahead."""
    there.say(*((second, f"line {second}") for second in range(0, 40, 2)))
    there.say((7, "one"), (33, "two"), table="system", reason="ProbeFailed")
    pages = [page async for page in there.pages(OWN.model_copy(update={"platform": True}))]
    lines = [line for page in pages[::-1] for line in page if line.at < NOW - HOUR / 2]
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    told = [str(line) for line in lines if line.platform]
    assert [text.partition("] ")[2] for text in told] == ["ProbeFailed: one", "ProbeFailed: two"]
    assert len(lines) == 22


async def test_an_event_of_long_ago_is_not_told_before_what_was_written_since(
    there: Logged,
) -> None:
    """Its stream holds the newest of all time; nothing is given twice."""
    there.say((7, "one"), table="system", reason="ProbeFailed")
    there.say((9, "later"), (9, "later"))
    asked = LogQuery(since=BEGIN, until=NOW - HOUR / 2)
    assert await there.texts(asked) == ["ProbeFailed: one", "later", "later"]


async def test_events_of_the_stream_are_given_where_nothing_else_can_be_read(
    there: Logged,
) -> None:
    """They may say why."""
    there.say((7, "one"), table="system", reason="ProbeFailed")
    there.set(faults=[fault("POST query", 403, times=-1)])
    with collecting_notes() as notes:
        found = await there.texts(LogQuery(since=BEGIN, until=NOW - HOUR / 2))
    assert found == ["ProbeFailed: one"]
    assert any("Older lines are missing" in one for one in notes)


async def test_the_platform_is_left_out_when_it_is_not_wanted(there: Logged) -> None:
    """Neither its stream nor its table is read then."""
    there.say((1, "line"))
    there.say((2, "event"), table="system", reason="ProbeFailed")
    before = len(there.controls.get(there.site.ground.subscription)["calls"])
    assert await there.texts() == ["line"]
    calls = there.controls.get(there.site.ground.subscription)["calls"][before:]
    assert "GET eventstream" not in calls
    assert calls.count("POST query") == 1


async def test_without_a_beginning_nothing_older_than_the_deployment_is_read(
    there: Logged,
) -> None:
    """A former one of the same name is another one."""
    there.say((1, "of a former one"))
    there.say(
        (datetime.now(UTC).timestamp() - BEGIN.timestamp(), "of this one"),
        (datetime.now(UTC).timestamp() - BEGIN.timestamp() + 600, "of the future"),
    )
    assert await there.texts(LogQuery(platform=False)) == ["of this one"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("memory",), ["CUDA out of MEMORY"]),
        (("nothing", "STARTED"), ["ContainerStarted: by the platform"]),
        (("it's",), ["it's \\ odd"]),
        (("\\",), ["it's \\ odd"]),
        (("' or 'a' == 'a",), []),
        (("') or (Log_s contains '",), []),
        (("x\\' | take 1 //",), []),
        (("two\nlines",), []),
    ],
)
async def test_only_lines_with_one_of_the_texts_are_given(
    there: Logged, words: tuple[str, ...], found: list[str]
) -> None:
    """Whatever their case; a text is never more than a text."""
    there.say((1, "CUDA out of MEMORY"), (2, "it's \\ odd"), (3, "two"), (4, "lines"))
    there.say((5, "by the platform"), table="system", reason="ContainerStarted")
    asked = LogQuery(since=BEGIN, until=NOW - HOUR / 2, contains=words)
    with collecting_notes() as notes:
        assert await there.texts(asked) == found
    assert not any("Older lines" in one for one in notes)  # as of a query that is none


async def test_the_texts_are_looked_for_where_the_lines_are(there: Logged) -> None:
    """A hundred thousand lines are not sent to find one; to put them in takes a second."""
    there.say(*((n / 100, f"INFO: 200 OK {n}") for n in range(100_000)), (500.5, "CUDA error"))
    texts = await there.texts(OWN.model_copy(update={"contains": ("cuda", "oom", "kv cache")}))
    assert texts == ["CUDA error"]
    calls = there.controls.get(there.site.ground.subscription)["calls"]
    assert calls.count("POST query") == 1


async def test_what_is_more_than_one_question_gives_is_all_read(there: Logged) -> None:
    """Each page is small enough to be held; it takes a second, most of it the SDK's."""
    there.say(*((n / 100, str(n)) for n in range(12_000)))
    sizes, oldest = [], 12_000
    async for page in there.pages():
        assert [int(line.text) for line in page] == list(range(oldest - len(page), oldest))
        oldest -= len(page)
        sizes.append(len(page))
    assert oldest == 0
    assert max(sizes) <= 5000
    assert len(sizes) == 3


async def test_another_apps_lines_are_never_given(there: Logged) -> None:
    """All apps of an environment write into the same tables."""
    await make(there.site, "other")
    there.say((1, "of the other"), app="other")
    there.say((2, "of ours"))
    assert await there.texts() == ["of ours"]


async def test_a_part_of_an_answer_is_gone_on_from(there: Logged) -> None:
    """What is older comes with the next questions; that something may be missing is said."""
    there.say(*((second, f"line {second}") for second in range(40)))
    there.set(partial_queries=True)
    with collecting_notes() as notes:
        found = await there.texts()
    assert found == [f"line {second}" for second in range(40)][-len(found) :]
    assert len(found) > 35
    assert any("only a part of the lines" in one for one in notes)


@pytest.mark.usefixtures("small_pages")
async def test_what_was_read_before_a_failure_stays_read(there: Logged) -> None:
    """That older lines are missing is said."""
    there.say(*((second, f"line {second}") for second in range(11)))
    found: list[str] = []
    with collecting_notes() as notes:
        async for page in there.pages():
            found += [line.text for line in page]
            there.set(faults=[fault("POST query", 403, times=-1)])
    assert found == ["line 8", "line 9", "line 10"]
    assert any("Older lines are missing" in one for one in notes)
