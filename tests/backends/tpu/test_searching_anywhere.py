"""Wherever it ends: the connection or the server is gone at any one of the calls of a search."""

from pathlib import Path
from typing import Final

import pytest

from backends.tpu import search
from backends.tpu.site import ChipState, Ended, Place, Search
from core.errors import CloudTimeout, NoCapacity, QuotaExceeded
from tests.backends.tpu.fake_planes import BEGIN, Cloud, Cut, Script
from tests.backends.tpu.searches import (
    WAIT_SECONDS,
    A,
    B,
    C,
    D,
    carried_on,
    of,
    outcomes,
    site_on,
    wanted,
)

pytestmark = pytest.mark.anyio

WAYS: Final[tuple[Cut, ...]] = ("lost", "answered", "late", "killed-before", "killed")
_EVERY: Final = 300.0
_NONE: Final = NoCapacity("None.", cause="No more capacity in the zone.", fix="Wait.")
WORLDS: Final[dict[str, dict[Place, Script]]] = {
    "given at once": {},
    "given after a wait": {A: Script(after=300, making=60)},
    "refused, then leftover, then given": {A: Script(refuse=QuotaExceeded("No.", fix="Ask.")),
         B: Script(becomes=ChipState.FAILED, after=90, refusal=_NONE)},
    "timed out, then fails by itself, then given": {A: Script(after=1e9, delete_seconds=600),
         B: Script(becomes=ChipState.SUSPENDED, taken_by="service", after=120),
         C: Script(becomes=None, after=120, refusal=_NONE)},
    "nowhere": {A: Script(after=1e9), B: Script(after=1e9), C: Script(becomes=None, after=60,
         ended=Ended("NOT_KNOWN", BEGIN, "Nobody knows.")), D: Script(becomes=ChipState.FAILED,
         why="Odd.")},
}  # fmt: skip


_LONGEST: Final = ("timed out, then fails by itself, then given", "nowhere")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "world",
    [pytest.param(one, marks=[pytest.mark.life] if one in _LONGEST else []) for one in WORLDS],
)
async def test_a_search_that_is_cut_anywhere_comes_to_the_same_end(
    tmp_path: Path, world: str, way: Cut
) -> None:
    """There are never two requests, and at the end one chip at most and no leftover."""
    whole = Cloud(scripts=dict(WORLDS[world]))
    site = site_on(whole, tmp_path / "whole")
    wanted(site, whole)
    expected = _known(await carried_on(site, whole, every=_EVERY))
    for number in range(1, whole.calls + 1):
        cloud = Cloud(scripts=dict(WORLDS[world]), cut=(number, way))
        site = site_on(cloud, tmp_path / str(number))
        wanted(site, cloud)
        kept = await carried_on(site, cloud, every=_EVERY)
        assert cloud.cut is None
        assert _known(kept) == expected
        cloud.wait(3600)
        assert cloud.alive() == ([kept.placed] if kept.placed else [])


def _known(kept: Search) -> list[tuple[Place, str]]:
    """Give how each place ended; without its operation, no request tells why it failed."""
    return [
        (place, "FAILED" if outcome in {"NO_CAPACITY", "VANISHED"} else outcome)
        for place, outcome in outcomes(kept)
    ]


async def test_a_request_that_comes_into_being_late_is_given_back(tmp_path: Path) -> None:
    """No answer came, and it was not there when its time was over: it is looked for again."""
    cloud = Cloud(scripts={A: Script(after=1e9)})
    site = site_on(cloud, tmp_path)
    kept = await search.carry_on(site, wanted(site, cloud, (A, B)), (), seconds=0)
    cloud.wait(WAIT_SECONDS + 115)
    cloud.cut = (2, "late")
    with pytest.raises(CloudTimeout):
        await search.carry_on(site, kept, (), seconds=0)
    cloud.wait(10)
    kept = await search.carry_on(site, of(site), (), seconds=0)
    assert outcomes(kept) == [(A, "TIMED_OUT")]
    assert await search.carry_on(site, kept, (), seconds=0) is kept
    cloud.wait(10)
    assert cloud.alive() == [A]
    assert outcomes(await carried_on(site, cloud)) == [(A, "TIMED_OUT"), (B, "GIVEN")]
    assert cloud.alive() == [B]
