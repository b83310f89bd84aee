"""Whatever Google answers: a coded error or none, the truth afterwards, and nothing left over."""

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

import pytest

from backends.cloud_run.service import get_service, is_stopped
from backends.cloud_run.site import Site
from backends.google.clients import HF_SECRET, key_secret
from core.settings import GooglePlane
from tests.backends.cloud_run.faulty import Answer, Cloud, Told, Wire, answers_to, cloud_of, wire
from tests.backends.cloud_run.sites import backend_of, opened
from tests.backends.cloud_run.works import (
    BUILDING,
    CHANGING,
    DELETING,
    KEEPING,
    LOOKS,
    MAKING,
    UNBUILDING,
    Work,
    cases,
)
from tests.backends.google_secrets import remove_secret

__all__ = ["wire"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]
EVERY: Final = {**MAKING, **CHANGING, **DELETING, **KEEPING, **BUILDING, **UNBUILDING}


class World(NamedTuple):
    """A project in which nothing ever boots."""

    cloud: Cloud
    site: Site


@pytest.fixture
async def world(plane: GooglePlane, project: str, wire: Wire) -> AsyncIterator[World]:
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        await cloud.set(rollout="never", quotas={"l4": 50})
        yield World(cloud, site)


async def tried(world: World, work: Work, method: str, answer: Answer, name: str) -> Told:
    """Do a work whose call is answered wrongly; it fails exactly where it must."""
    if work.begin:
        await work.begin(world.site, name)
    told = await world.cloud.wrong(method, answer, work.do(world.site, name))
    if answer.code in work.calls[method]:
        assert told.code is None
    elif answer.when in {"before", "hang"}:
        assert told.code == answer.code
    return told


@pytest.mark.parametrize("what", EVERY)
async def test_every_call_that_is_made_is_in_the_matrix(world: World, what: str) -> None:
    """A call that is new here needs a row that says whether the work goes on without it."""
    work = EVERY[what]
    if work.begin:
        await work.begin(world.site, "gemma")
    before = (await world.cloud.set())["calls"]
    await work.do(world.site, "gemma")
    made = (await world.cloud.set())["calls"][len(before) :]
    calls = {call.rpartition(".")[2] for call in made if not call.startswith("metadata/")}
    assert calls - LOOKS <= set(work.calls) <= calls


@pytest.mark.parametrize(("what", "method"), cases(MAKING))
async def test_a_deployment_is_whole_or_not_there(world: World, what: str, method: str) -> None:
    """There is never a key without a service; the next call makes the rest of it, once."""
    work = MAKING[what]
    for number, answer in enumerate(answers_to(method)):
        name = f"gemma-{number}"
        told = await tried(world, work, method, answer, name)
        there = await world.cloud.whole(name)
        assert there is (told.code is None or work.begin is not None)
        await work.do(world.site, name)
        assert await world.cloud.whole(name)
    listed = await backend_of(world.site).list()
    assert len(listed) == len(answers_to(method))


@pytest.mark.parametrize(("what", "method"), cases(CHANGING))
async def test_a_change_is_as_it_is_told(world: World, what: str, method: str) -> None:
    """No error means that it is so; the next call does it in any case."""
    work = CHANGING[what]
    for answer in answers_to(method):
        told = await tried(world, work, method, answer, "gemma")
        assert told.code or await _holds(world.site, what)
        await work.do(world.site, "gemma")
        assert await _holds(world.site, what)
    assert await world.cloud.whole("gemma")


async def _holds(site: Site, what: str) -> bool:
    service = await get_service(site, "gemma")
    if what == "scale":
        return bool(service.scaling.max_instance_count == 2)
    return is_stopped(service) is (what == "stop")


@pytest.mark.parametrize(("what", "method"), cases(DELETING))
async def test_a_deletion_leaves_nothing_that_it_does_not_tell(
    world: World, what: str, method: str
) -> None:
    """An error leaves the key to the next call, which takes it."""
    for number, answer in enumerate(answers_to(method)):
        name = f"gemma-{number}"
        told = await tried(world, DELETING[what], method, answer, name)
        seen = await world.cloud.set()
        assert told.code or _nothing_of(seen, name)
        assert key_secret(name) in seen["secrets"] or name not in seen["services"]
        assert (await backend_of(world.site).delete(name)).gone
        assert _nothing_of(await world.cloud.set(), name)


def _nothing_of(seen: Mapping[str, list[str]], name: str) -> bool:
    return name not in seen["services"] and key_secret(name) not in seen["secrets"]


@pytest.mark.parametrize(("what", "method"), cases(KEEPING))
async def test_a_token_is_kept_and_readable_or_not_there(
    world: World, what: str, method: str
) -> None:
    """A secret that nobody may read is of no use to anybody."""
    for answer in answers_to(method):
        told = await tried(world, KEEPING[what], method, answer, "")
        assert (HF_SECRET in (await world.cloud.set())["secrets"]) is (told.code is None)
        await KEEPING[what].do(world.site, "")
        kept = (await world.cloud.set())["secrets"][HF_SECRET]
        assert kept["versions"] == 1
        assert list(kept["bindings"]) == ["roles/secretmanager.secretAccessor"]
        assert await remove_secret(world.site, HF_SECRET)


@pytest.mark.parametrize(("what", "method"), cases(BUILDING))
async def test_an_image_is_built_once_or_not_at_all(world: World, what: str, method: str) -> None:
    """No error means that its build was begun, and a second call begins no second one."""
    for number, answer in enumerate(answers_to(method)):
        name = f"gemma-{number}"
        before = len((await world.cloud.set())["builds"])
        told = await tried(world, BUILDING[what], method, answer, name)
        assert len((await world.cloud.set())["builds"]) - before == (told.code is None)
        await BUILDING[what].do(world.site, name)
        assert len((await world.cloud.set())["builds"]) - before == 1


@pytest.mark.parametrize(("what", "method"), cases(UNBUILDING))
async def test_what_is_being_built_can_be_taken_away(world: World, what: str, method: str) -> None:
    """No error means that its build was ended, but where nobody may see whether there is one."""
    if method == "CloudBuild/CancelBuild":
        await world.cloud.set(boot_seconds=60)  # else it has ended before the call is given up
    for number, answer in enumerate(answers_to(method)):
        name = f"gemma-{number}"
        told = await tried(world, UNBUILDING[what], method, answer, name)
        left = [one.name for one in await backend_of(world.site).list()]
        assert told.code or answer.code == "PERMISSION_DENIED" or name not in left
        assert (await backend_of(world.site).delete(name)).gone
        assert name not in [one.name for one in await backend_of(world.site).list()]
