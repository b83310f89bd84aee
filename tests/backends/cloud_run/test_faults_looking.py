"""Looking while Google answers wrongly: what only adds to the picture is noted, nothing changes."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from backends.cloud_run import service
from backends.cloud_run.site import Site
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


class Stage(NamedTuple):
    """How far a deployment is, and the looks at it."""

    knobs: Mapping[str, Any]
    prepare: Callable[[Site], Awaitable[None]]
    looks: Mapping[str, Work]


STAGES: Final = {
    "ready": Stage({"boot_seconds": 0.05}, deployed, LOOKING_AT_READY),
    "booting": Stage({"rollout": "never"}, lambda site: make(site, "gemma"), LOOKING_AT_BOOTING),
}
"""Of one that boots the log is read, and the model is not asked."""


@pytest.fixture(scope="module", params=STAGES)
def stage(plane: GooglePlane, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """One project for all looks at a stage, whose deployment is there: nothing here changes it."""
    controls, name = Controls(plane), request.param
    project = f"looked-at-{name}"
    controls.set(project, prepared=True, **STAGES[name].knobs)

    async def prepare() -> None:
        async with opened(plane, project) as site:
            await STAGES[name].prepare(site)

    event_loop.run(prepare)
    yield name, project
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


async def test_every_look_is_in_the_matrix(
    plane: GooglePlane, stage: tuple[str, str], wire: Wire
) -> None:
    """A call that is new here needs a row that says whether the look goes on without it."""
    name, project = stage
    for work in STAGES[name].looks.values():
        assert await _made(plane, project, wire, work) == set(work.calls)


async def test_a_look_fails_only_where_it_must(
    plane: GooglePlane, stage: tuple[str, str], wire: Wire
) -> None:
    """Else what is missing is noted, or told as the reason why it is not seen to be ready."""
    name, project = stage
    for what, method in cases(STAGES[name].looks):
        await _looked(plane, project, wire, STAGES[name].looks[what], method)


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
