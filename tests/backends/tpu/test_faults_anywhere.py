"""Wherever it ends: the connection or the server is gone at any one of the calls of a life."""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import pytest

from backends.tpu.site import PlaneKind, Search, Site, key_secret
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.faulty import WAYS, Way, Wire, ends, left, wire
from tests.backends.tpu.searches import planned
from tests.backends.tpu.sites import on, opened
from tests.google_plane import Controls

__all__ = ["wire"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]
PLANES: Final[tuple[PlaneKind, ...]] = ("queued", "compute")
ZONES: Final = {"us-east5-a": {"free": 0}, "us-east5-b": {}}
_MOST_CALLS: Final = 150
_FIRST: Final[dict[Way, int]] = {"lost": 1, "answered": 1, "killed": 2}
"""Every second call from here on: which one a number means differs from run to run."""


class Life(NamedTuple):
    """Deployments whose first zone has no chip; what is done with them may end at any call."""

    site: Site
    wire: Wire
    controls: Controls
    plane: PlaneKind

    async def deploy(self, name: str) -> None:
        """Deploy it, and follow it until it has a chip or has failed."""
        wish = {"zones": tuple(ZONES), "zone_wait_minutes": 10, "control_plane": self.plane}
        await on(self.site).apply(planned(self.site, name=name, **wish))
        await self.follow(name)

    async def follow(self, name: str) -> None:
        """Go on until there is nothing left to do."""

        async def look() -> Search | None:
            await on(self.site).go_on(name)
            return self.site.records.get(name)

        await wait_until(
            look,
            lambda kept: kept is None or bool(kept.placed or kept.failure),
            waiting_for="the end of the search",
            every=0.05,
            timeout=90,
        )

    def left(self, name: str) -> dict[str, list[str]]:
        """Name what is there of it."""
        return left(self.controls, self.site.clients.project, name)

    def serves(self, name: str) -> None:
        """Have one chip, in the second zone, with its key and its rule."""
        kept, there = self.site.records.get(name), self.left(name)
        assert kept is not None
        assert kept.placed == ("us-east5-b", self.plane), kept.failure
        assert [len(there[kind]) for kind in ("tpus", "firewalls", "secrets")] == [1, 1, 1]
        assert key_secret(name) in there["secrets"][0]


@pytest.fixture(params=PLANES)
async def life(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    wire: Wire,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Life]:
    controls.set(project, tpu_zones=ZONES, tpu_clock=1200, vm_trouble="image-missing")
    async with opened(plane, project, google_allowed_addresses=("127.0.0.1",)) as site:
        yield Life(site, wire, controls, request.param)


@pytest.mark.parametrize("way", WAYS)
async def test_a_deployment_that_ends_anywhere_is_made_by_the_next_call(
    life: Life, way: Way
) -> None:
    """There is one chip at the end, and none but it; deleted, nothing is left of it."""
    for number in range(_FIRST[way], _MOST_CALLS, 2):
        name = f"g{number}x"
        life.wire.cut(number, way)
        told = await ends(life.deploy(name))
        if not life.wire.mend():
            return
        assert told is None or " " not in told
        assert len(life.left(name).get("tpus", ())) <= 1
        await life.deploy(name)
        life.serves(name)
        assert (await on(life.site).delete(name)).gone
        assert life.left(name) == {}
    raise AssertionError


@pytest.mark.parametrize("way", WAYS)
async def test_a_deletion_that_ends_anywhere_is_finished_by_the_next_call(
    life: Life, way: Way
) -> None:
    """Without an error it is gone; with one, the next call takes the rest."""
    for number in range(1, _MOST_CALLS):
        name = f"g{number}x"
        await life.deploy(name)
        life.wire.cut(number, way)
        told = await ends(on(life.site).delete(name))
        if not life.wire.mend():
            return
        assert told or told is None or life.left(name) == {}
        assert (await on(life.site).delete(name)).gone
        assert life.left(name) == {}
        assert life.site.records.get(name) is None
    raise AssertionError
