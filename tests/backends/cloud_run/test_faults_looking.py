"""Looking while Google answers wrongly: what only adds to the picture is noted, nothing changes."""

from collections.abc import Iterator

import pytest

from backends.cloud_run import service
from core.settings import GooglePlane
from tests import event_loop
from tests.backends.cloud_run.faulty import Wire, answers_to, cloud_of, told_of, wire
from tests.backends.cloud_run.server import describe
from tests.backends.cloud_run.sites import deployed, opened
from tests.backends.cloud_run.works import (
    LOOKING_AT_BOOTING,
    LOOKING_AT_READY,
    MAY,
    Work,
    cases,
    make,
)
from tests.google_plane import Controls

__all__ = ["wire"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]


@pytest.fixture(scope="module")
def ready(plane: GooglePlane) -> Iterator[str]:
    """One project for this module, whose deployment stands: nothing here changes it."""
    controls, project = Controls(plane), "looked-at-ready"
    controls.set(project, prepared=True, boot_seconds=0.05)

    async def prepare() -> None:
        async with opened(plane, project) as site:
            await deployed(site)

    event_loop.run(prepare)
    yield project
    controls.drop(project)


@pytest.fixture(scope="module")
def booting(plane: GooglePlane) -> Iterator[str]:
    """One whose deployment never comes up."""
    controls, project = Controls(plane), "looked-at-booting"
    controls.set(project, prepared=True, rollout="never")

    async def prepare() -> None:
        async with opened(plane, project) as site:
            await make(site, "gemma")

    event_loop.run(prepare)
    yield project
    controls.drop(project)


async def _made(plane: GooglePlane, project: str, wire: Wire, work: Work) -> set[str]:
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        before = (await cloud.set())["calls"]
        await work.do(site, "gemma")
        made = (await cloud.set())["calls"][len(before) :]
    return {call.rpartition(".")[2] for call in made if not call.startswith("metadata/")}


async def _looked(plane: GooglePlane, project: str, wire: Wire, work: Work, method: str) -> None:
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        before = await service.get_service(site, "gemma")
        for answer in answers_to(method):
            site.answered.clear()
            told = await cloud.wrong(method, answer, work.do(site, "gemma"))
            assert told.code == (None if answer.code in work.calls[method] else answer.code)
            if work.calls[method] is MAY and "Access" not in method and "GetS" not in method:
                assert told.notes
        assert await service.get_service(site, "gemma") == before


@pytest.mark.parametrize("what", LOOKING_AT_READY)
async def test_every_look_at_what_is_ready_is_in_the_matrix(
    plane: GooglePlane, ready: str, wire: Wire, what: str
) -> None:
    """A call that is new here needs a row that says whether the look goes on without it."""
    work = LOOKING_AT_READY[what]
    assert await _made(plane, ready, wire, work) == set(work.calls)


@pytest.mark.parametrize("what", LOOKING_AT_BOOTING)
async def test_every_look_at_what_boots_is_in_the_matrix(
    plane: GooglePlane, booting: str, wire: Wire, what: str
) -> None:
    """There the log is read, and the model is not asked."""
    work = LOOKING_AT_BOOTING[what]
    assert await _made(plane, booting, wire, work) == set(work.calls)


@pytest.mark.parametrize(("what", "method"), cases(LOOKING_AT_READY))
async def test_a_look_at_what_is_ready_fails_only_where_it_must(
    plane: GooglePlane, ready: str, wire: Wire, what: str, method: str
) -> None:
    """Else what is missing is noted, or told as the reason why it is not seen to be ready."""
    await _looked(plane, ready, wire, LOOKING_AT_READY[what], method)


@pytest.mark.parametrize(("what", "method"), cases(LOOKING_AT_BOOTING))
async def test_a_look_at_what_boots_fails_only_where_it_must(
    plane: GooglePlane, booting: str, wire: Wire, what: str, method: str
) -> None:
    """Else what is missing is noted."""
    await _looked(plane, booting, wire, LOOKING_AT_BOOTING[what], method)


@pytest.mark.parametrize("answer", answers_to("CloudBuild/ListBuilds"))
async def test_whether_something_missing_is_being_built_is_noted_when_nobody_can_say(
    plane: GooglePlane, project: str, wire: Wire, answer: tuple[str, str, str]
) -> None:
    """That there is no service is known all the same."""
    status, _when, _code = answer
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        await cloud.set(faults=[{"method": "*/ListBuilds", "status": status, "times": -1}])
        told = await told_of(describe(site, "gemma"))
    assert told.code == "DEPLOYMENT_NOT_FOUND"
    assert told.notes
