"""What every backend promises, asked of each: a new one joins by one row of `ROWS`."""

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from backends.base import (
    Backend,
    Closes,
    GoesOn,
    HasLogs,
    LogQuery,
    Stops,
)
from backends.registry import BACKENDS
from core.errors import DeploymentNotFound, InvalidArgument, NotReady, OpsError, Unsupported
from core.records import DeploymentSpec, ModelShape, Plan, State
from logs.read import Line
from planner.model import read_model
from tests.backends.contract_rows import ABILITIES, ROWS, Ground, Lines
from tests.backends.local.conftest import Machine
from tests.backends.served import Served
from tests.soon import soon

pytestmark = pytest.mark.anyio

MARK = "said-here"
SAID = tuple(f"INFO {MARK} {number:04}" for number in range(2600))


class Place:
    """A backend, with what its row says of it."""

    def __init__(self, kind: str, ground: Ground) -> None:
        self.kind, self.row, self.state_dir = kind, ROWS[kind], ground.state_dir
        self.name = self.row.name
        self._ground, self._world = ground, self.row.world(ground)
        self._open: list[Backend] = []
        self.backend = self.opened()

    def opened(self) -> Backend:
        """Open it, as another server would."""
        kind = self.row.opens or BACKENDS[self.kind]
        self._open.append(kind()(self.row.target, self._world))
        return self._open[-1]

    async def close(self) -> None:
        """Let go of what every server held open: a channel must not outlive its loop."""
        for one in self._open:
            if isinstance(one, Closes):
                await one.aclose()

    def plan(self, name: str | None = None) -> Plan:
        spec = DeploymentSpec(name=name or self.name, model=self.row.model)
        return self.backend.plan(spec, read_model(spec.model))

    async def made(self) -> str:
        """See to it that there is a deployment; give its name."""
        if self.row.makes:
            await self.backend.apply(self.plan())
            await soon(self._is_reached, waiting_for="an address")
        return self.name

    async def said(self) -> Lines:
        """See to it that its deployment has written lines, one a second; give them."""
        assert self.row.say, "It streams logs, but its row cannot say a line."
        first = datetime.now(UTC).replace(microsecond=0) + self.row.said_from
        lines = [(first + timedelta(seconds=place), text) for place, text in enumerate(SAID)]
        self.row.say(self._ground, self._world, await self.made(), lines)
        return lines

    async def read(self, name: str = "", **asked: Any) -> list[Sequence[Line]]:
        """Give all pages of its log."""
        assert isinstance(self.backend, HasLogs)
        return [page async for page in self.backend.log_pages(name or self.name, LogQuery(**asked))]

    async def _is_reached(self) -> bool:
        if isinstance(self.backend, GoesOn):
            await self.backend.go_on(self.name)
        try:
            await self.backend.access(self.name)
        except NotReady:
            return False
        return True


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture
def ground(request: pytest.FixtureRequest, state_dir: Path, served: Served) -> Ground:
    return Ground(
        state_dir,
        served,
        lambda: request.getfixturevalue("plane"),
        lambda: request.getfixturevalue("azure"),
    )


@pytest.fixture(params=ROWS)
async def place(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[Place]:
    place = Place(request.param, ground)
    yield place
    await place.close()


@pytest.fixture(params=[kind for kind, row in ROWS.items() if row.makes])
async def maker(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[Place]:
    place = Place(request.param, ground)
    yield place
    await place.close()


@pytest.fixture(params=[kind for kind, row in ROWS.items() if HasLogs in row.abilities])
async def streamer(request: pytest.FixtureRequest, ground: Ground) -> AsyncIterator[Place]:
    place = Place(request.param, ground)
    yield place
    await place.close()


@pytest.fixture(params=[kind for kind, row in ROWS.items() if not row.makes])
def looker(request: pytest.FixtureRequest, ground: Ground) -> Place:
    return Place(request.param, ground)


def test_every_backend_has_its_row() -> None:
    """None joins untested."""
    assert {kind for kind, row in ROWS.items() if row.opens is None} == set(BACKENDS)


async def test_opening_does_nothing(place: Place) -> None:
    """No file and no folder before anything is asked for."""
    assert place.opened().target.name == place.row.target.name
    assert not place.state_dir.exists()


async def test_abilities_are_what_it_can_do(place: Place) -> None:
    """Each of those its row names, and no other."""
    able = tuple(one for one in ABILITIES if isinstance(place.backend, one))
    assert able == place.row.abilities


async def test_a_plan_is_the_same_twice_and_changes_nothing(maker: Place) -> None:
    """Pure: it can be shown, thrown away and made again."""
    assert maker.plan() == maker.plan()
    assert maker.plan().steps
    assert not maker.state_dir.exists()


async def test_a_plan_refuses_what_the_model_cannot_do(maker: Place) -> None:
    """Before anything is paid for."""
    spec = DeploymentSpec(name="one", model="m", max_model_len=8192)
    with pytest.raises(InvalidArgument):
        maker.backend.plan(spec, ModelShape(model="m", max_position_embeddings=4096))


async def test_a_check_only_looks(maker: Place) -> None:
    """Everything it looked at is said, and nothing was made."""
    preflight = await maker.backend.check(maker.plan())
    assert preflight.checks
    assert all(check.fix for check in preflight.failed)
    assert not await maker.backend.list()


async def test_applying_twice_makes_one(maker: Place) -> None:
    """The second call goes on with what the first began, also in another server."""
    first = await maker.backend.apply(maker.plan())
    second = await maker.opened().apply(maker.plan())
    assert (first.created_at, first.revision) == (second.created_at, second.revision)
    assert [one.name for one in await maker.backend.list()] == [maker.name]


async def test_what_was_made_is_found_by_every_server(place: Place) -> None:
    """Described, listed and reached alike."""
    name = await place.made()
    other = place.opened()
    for backend in (place.backend, other):
        seen = await backend.describe(name)
        assert (seen.name, seen.target) == (name, place.row.target.name)
        assert [one.name for one in await backend.list()] == [name]
    access, again = await other.access(name), await place.backend.access(name)
    assert access.model_copy(update={"identity_token": again.identity_token}) == again
    assert access.base_url == (await other.describe(name)).url
    assert access.protection


async def test_looking_twice_says_the_same(place: Place) -> None:
    """A look changes nothing."""
    name = await place.made()
    assert (await place.backend.describe(name)).revision == (
        await place.backend.describe(name)
    ).revision


async def test_nobody_is_not_found(place: Place) -> None:
    """Whatever is asked of a name that was never made, the error says what to do."""
    for ask in (place.backend.describe, place.backend.access):
        with pytest.raises(DeploymentNotFound) as caught:
            await ask("nobody")
        assert caught.value.fix
    if isinstance(place.backend, Stops):
        for change in (place.backend.stop, place.backend.start):
            with pytest.raises(DeploymentNotFound):
                await change("nobody")
    if isinstance(place.backend, HasLogs):
        with pytest.raises(DeploymentNotFound):
            await place.read("nobody")


async def test_every_line_of_a_log_comes_once_and_the_newest_page_first(streamer: Place) -> None:
    """Each page has its oldest line first, and none is too long."""
    lines = await streamer.said()
    pages = await streamer.read(since=lines[0][0])
    said = [line for page in reversed(pages) for line in page if MARK in line.text]
    assert [line.text[-len(SAID[0]) :] for line in said] == list(SAID)
    assert [line.at for line in said] == [at for at, _ in lines]
    assert max(len(page) for page in pages) <= 5000


async def test_lines_of_a_log_are_chosen_by_time_and_words(streamer: Place) -> None:
    """Both ends included, words in any case; none of them can ask for more."""
    lines = await streamer.said()

    async def found(*words: str, begin: int = 0, end: int = 2599) -> list[str]:
        since, until = lines[begin][0], lines[end][0]
        pages = await streamer.read(since=since, until=until, contains=words)
        return [line.text[-4:] for page in reversed(pages) for line in page]

    assert await found(MARK, begin=700, end=703) == ["0700", "0701", "0702", "0703"]
    assert await found(f"{MARK} 0007".upper(), f"{MARK} 1042") == ["0007", "1042"]
    for word in ('" OR "', "') or 1==1 //", f'{MARK}" OR textPayload:"', "\\"):
        assert await found(word) == []


async def test_nobodys_log_has_no_pages(streamer: Place) -> None:
    """That is an error, not an empty log."""
    with pytest.raises(DeploymentNotFound):
        await streamer.read("nobody")


async def test_deleting_takes_away_for_good(maker: Place) -> None:
    """Seen to be gone, by every server; once more is quiet."""
    name = await maker.made()
    gone = await maker.backend.delete(name)
    assert gone.gone
    assert gone.removed
    assert not await maker.opened().list()
    again = await maker.backend.delete(name)
    assert (again.gone, again.removed) == (True, ())


async def test_deleting_nobody_is_quiet(maker: Place) -> None:
    """Already gone is not an error, and nothing else is touched."""
    name = await maker.made()
    assert (await maker.backend.delete("nobody")).gone
    assert (await maker.backend.describe(name)).state is not State.DELETING


async def test_a_place_that_makes_nothing_refuses_in_words(looker: Place) -> None:
    """Plan, check, apply and delete: each refusal has a code and a way out."""
    machine = Machine(looker.state_dir)
    plan = machine.backend.plan(machine.spec(), ModelShape(model="m"))
    with pytest.raises(Unsupported):
        looker.plan()
    backend = looker.backend
    for refused in (backend.check(plan), backend.apply(plan), backend.delete(looker.name)):
        with pytest.raises(Unsupported) as caught:
            await refused
        assert caught.value.fix


async def test_a_place_that_makes_nothing_has_nobody_to_delete(looker: Place) -> None:
    """It is not quiet about it: what is there was made by somebody else, whatever its name."""
    with pytest.raises(OpsError) as caught:
        await looker.backend.delete("nobody")
    assert caught.value.code == "DEPLOYMENT_NOT_FOUND"
