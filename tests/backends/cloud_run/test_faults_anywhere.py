"""Wherever it ends: the connection or the server is gone at any one of the calls of a work."""

from collections.abc import AsyncIterator, Awaitable
from typing import Final, NamedTuple

import pytest

from backends.cloud_run.site import Site
from backends.google import errors as google_errors
from core.settings import GooglePlane
from tests.backends.cloud_run.faulty import (
    Cloud,
    Killed,
    Told,
    Wire,
    cloud_of,
    impatient,
    told_of,
    wire,
)
from tests.backends.cloud_run.sites import backend_of, opened, planned
from tests.backends.cloud_run.works import make, replace

__all__ = ["wire"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]
WAYS: Final = ("lost", "answered", "killed")
"""The request is lost, its answer is, or the server dies before it gets it."""
MAKING: Final = ((1, 5), (6, 9), (10, 12))
REPLACING: Final = ((1, 5), (6, 10))
DELETING: Final = ((1, 3), (4, 6))
"""The first and last of some calls of a work, each of which is cut for one deployment."""


class World(NamedTuple):
    """A project in which nothing ever boots."""

    cloud: Cloud
    site: Site
    wire: Wire

    async def cut(self, number: int, way: str, work: Awaitable[object]) -> Told | None:
        """Do it; None where the server was killed."""
        self.wire.cut(number, way)
        try:
            told = await told_of(work)
        except Killed:
            return None
        assert self.wire.whole, f"It makes {len(self.wire.calls)} calls only."
        return told


@pytest.fixture
async def world(plane: GooglePlane, project: str, wire: Wire) -> AsyncIterator[World]:
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        await cloud.set(rollout="never", quotas={"l4": 50})
        yield World(cloud, site, wire)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "last"), MAKING)
async def test_a_deployment_that_ends_anywhere_is_made_by_the_next(
    world: World, first: int, last: int, way: str
) -> None:
    """It is whole or not there, unless the server died; nothing is there twice."""
    for number in range(first, last + 1):
        name = f"gemma-{number}"
        told = await world.cut(number, way, make(world.site, name))
        if told:
            assert await world.cloud.whole(name) or told.code
        await make(world.site, name)
        assert await world.cloud.whole(name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "last"), REPLACING)
async def test_a_replacement_that_ends_anywhere_is_made_by_the_next(
    world: World, first: int, last: int, way: str
) -> None:
    """Until then it is the one or the other, with its key."""
    for number in range(first, last + 1):
        name = f"gemma-{number}"
        await make(world.site, name)
        told = await world.cut(number, way, replace(world.site, name))
        assert await world.cloud.whole(name)
        assert told is None or told.code or await _length(world.site, name) == 2048
        await replace(world.site, name)
        assert await _length(world.site, name) == 2048


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "last"), DELETING)
async def test_a_deletion_that_ends_anywhere_is_finished_by_the_next(
    world: World, first: int, last: int, way: str
) -> None:
    """Without an error it is gone; with one, the next call takes the rest."""
    for number in range(first, last + 1):
        name = f"gemma-{number}"
        await make(world.site, name)
        told = await world.cut(number, way, backend_of(world.site).delete(name))
        if told and told.code is None:
            assert not await world.cloud.whole(name)
        assert (await backend_of(world.site).delete(name)).gone
        assert not await world.cloud.whole(name)


async def _length(site: Site, name: str) -> int | None:
    spec = await backend_of(site).spec(name)
    return spec.max_model_len if spec else None


async def test_a_short_outage_is_not_noticed(plane: GooglePlane, project: str, wire: Wire) -> None:
    """A look is repeated; a change is not, and need not be."""
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        await cloud.set(rollout="never")
        for method in ("Services/GetService", "SecretManagerService/GetIamPolicy"):
            await cloud.set(faults=[{"method": f"*{method}", "times": 2}])
            assert await told_of(make(site, "gemma")) == Told(None, ())


async def test_a_cloud_that_is_down_for_long_is_told_before_anything_is_made(
    plane: GooglePlane, project: str, wire: Wire
) -> None:
    """A look is repeated for seconds, not for the minute of the SDK's own."""
    async with cloud_of(plane, project, wire) as cloud, opened(plane, project) as site:
        await cloud.set(faults=[{"method": "*", "times": -1}])
        plan = planned(site)
        for work in (
            backend_of(site).apply(plan),
            backend_of(site).stop("gemma"),
            backend_of(site).delete("gemma"),
            backend_of(site).describe("gemma"),
            backend_of(site).list(),
        ):
            assert (await told_of(work)).code == "CLOUD_UNAVAILABLE"
        await cloud.set(faults=[])
        assert not await cloud.whole("gemma")


def test_the_patience_of_the_product_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five seconds, well within the time of a tool; a change has no second try at all."""
    assert google_errors.reading()["retry"].timeout <= 5
    assert google_errors.writing()["retry"] is None
    monkeypatch.setattr(google_errors, "patient", impatient)
    assert google_errors.reading()["retry"].timeout < 1
