"""What takes long, hangs, or happens between two calls: the truth is told, and nothing is left."""

import contextlib
from typing import Any, Final

import pytest

from backends.google import errors
from backends.tpu import compute
from backends.tpu.site import PlaneKind, Search, Site
from core.errors import CloudTimeout
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.faulty import KINDS
from tests.backends.tpu.searches import planned
from tests.backends.tpu.sites import fault, on, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

HERE: Final = "us-east5-b"
PLANES: Final[tuple[PlaneKind, ...]] = ("queued", "compute")
CREATES: Final = {"queued": "Tpu/CreateQueuedResource", "compute": "instances.insert"}
DELETES: Final = {"queued": "Tpu/DeleteQueuedResource", "compute": "instances.delete"}
MINE: Final[dict[str, Any]] = {"google_allowed_addresses": ("127.0.0.1",)}


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(project, tpu_clock=1200, vm_trouble="image-missing")
    monkeypatch.setattr(errors, "WRITE_SECONDS", 1.0)
    monkeypatch.setattr(compute, "WRITE_SECONDS", 1.0)


async def until_placed(site: Site) -> Search:
    """Go on until it has a chip or none is to be had."""

    async def look() -> Search | None:
        await on(site).go_on("gemma")
        return site.records.get("gemma")

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
        await on(site).apply(planned(site, zones=(HERE,), control_plane=kind))
        assert (await until_placed(site)).placed == (HERE, kind)
        assert len(controls.get(project)["tpus"]) == 1
        controls.set(project, faults=[fault(DELETES[kind], when=when)])
        gone = await _deleted(site)
        assert gone
    assert nothing(controls, project)


async def _deleted(site: Site) -> bool:
    with contextlib.suppress(CloudTimeout):
        return (await on(site).delete("gemma")).gone
    return (await on(site).delete("gemma")).gone
