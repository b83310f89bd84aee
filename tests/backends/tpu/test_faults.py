"""What takes long, hangs, or happens between two calls: the truth is told, and nothing is left."""

import contextlib
from typing import Any, Final

import pytest

from backends.google import errors
from backends.tpu import compute, deployment, status
from backends.tpu import store as memory
from backends.tpu.site import ChipState, PlaneKind, Site
from backends.tpu.store import SearchRecord
from core.errors import CloudTimeout
from core.records import State
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu import planted
from tests.backends.tpu.faulty import KINDS
from tests.backends.tpu.searches import planned
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

HERE: Final = "us-east5-b"
THERE: Final = "us-east5-a"
PLANES: Final[tuple[PlaneKind, ...]] = ("queued", "compute")
CREATES: Final = {"queued": "Tpu/CreateQueuedResource", "compute": "instances.insert"}
DELETES: Final = {"queued": "Tpu/DeleteQueuedResource", "compute": "instances.delete"}
MINE: Final[dict[str, Any]] = {"google_allowed_addresses": ("127.0.0.1",)}


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(project, tpu_clock=1200, vm_trouble="image-missing")
    monkeypatch.setattr(errors, "WRITE_SECONDS", 1.0)
    monkeypatch.setattr(compute, "WRITE_SECONDS", 1.0)
    monkeypatch.setattr(deployment, "_LOOK_SECONDS", 0.05)


async def until_placed(site: Site) -> SearchRecord:
    """Go on until it has a chip or none is to be had."""

    async def look() -> SearchRecord | None:
        await deployment.go_on(site, "gemma")
        return memory.record_of(site, "gemma")

    kept = await wait_until(
        look,
        lambda kept: bool(kept and (kept.placed or kept.failure)),
        waiting_for="an end of the search",
        every=0.05,
        timeout=30,
    )
    assert kept is not None
    return kept


def nothing(controls: Controls, project: str) -> bool:
    """Whether nothing is left in the project."""
    seen = controls.get(project)
    return not any(seen[kind] for kind in KINDS)


@pytest.mark.parametrize("when", ["hang", "hang-after"])
@pytest.mark.parametrize("kind", PLANES)
async def test_a_call_that_never_answers_asks_for_one_chip(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind, when: str
) -> None:
    """Whether or not Google had heard it; a deletion that never answers happens once as well."""
    async with opened(plane, project, **MINE) as site:
        controls.set(project, faults=[fault(CREATES[kind], when=when)])
        await deployment.apply(site, planned(site, zones=(HERE,), control_plane=kind))
        assert (await until_placed(site)).placed == (HERE, kind)
        assert len(controls.get(project)["tpus"]) == 1
        controls.set(project, faults=[fault(DELETES[kind], when=when)])
        gone = await _deleted(site)
        assert gone
    assert nothing(controls, project)


async def _deleted(site: Site) -> bool:
    with contextlib.suppress(CloudTimeout):
        return (await deployment.delete(site, "gemma")).gone
    return (await deployment.delete(site, "gemma")).gone


@pytest.mark.parametrize("kind", PLANES)
async def test_a_deletion_of_ten_minutes_is_told_until_it_is_over(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    kind: PlaneKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is never said to be gone before."""
    monkeypatch.setattr(deployment, "_GONE_SECONDS", 0.2)
    async with opened(plane, project, **MINE) as site:
        await deployment.apply(site, planned(site, zones=(HERE,), control_plane=kind))
        await until_placed(site)
        controls.set(project, tpu_delete_seconds=600, tpu_clock=300)
        deleted = await deployment.delete(site, "gemma")
        assert not deleted.gone
        assert controls.get(project)["tpus"]
        assert (await status.describe(site, "gemma")).state is State.DELETING

        async def look() -> SearchRecord | None:
            await deployment.go_on(site, "gemma")
            return memory.record_of(site, "gemma")

        await wait_until(
            look, lambda kept: kept is None, waiting_for="its end", every=0.1, timeout=30
        )
    assert nothing(controls, project)


async def test_a_chip_that_somebody_takes_first_is_looked_for_elsewhere(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It was free when it was looked at."""
    controls.set(project, tpu_zones={HERE: {"free": 1}, THERE: {}})
    async with opened(plane, project, **MINE) as site:
        wish = {"zones": (HERE, THERE), "zone_wait_minutes": 10, "control_plane": "queued"}
        plan = planned(site, **wish)
        controls.set(project, tpu_clock=60)
        await planted.foreign(site, "theirs", zone=HERE)
        await planted.until(site, "theirs", ChipState.RUNNING, zone=HERE)
        controls.set(project, tpu_clock=1200)
        await deployment.apply(site, plan)
        kept = await until_placed(site)
        assert kept.placed == (THERE, "queued")
        assert kept.attempts[0].returned
        assert len(controls.get(project)["tpus"]) == 2
