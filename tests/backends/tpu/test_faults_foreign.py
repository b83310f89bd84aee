"""A zone full of others' resources: what is done here changes none of them."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from backends.tpu.site import ChipState, PlaneKind, Request, vm_id
from core.errors import NotOurs
from core.settings import GooglePlane
from tests.backends.tpu import orders, planted
from tests.backends.tpu.searches import planned
from tests.backends.tpu.sites import on, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

HERE: Final = "us-east5-b"
MINE: Mapping[str, Any] = {"google_allowed_addresses": ("127.0.0.1",)}
KINDS: Final = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources")
PLANES: Final[tuple[PlaneKind, ...]] = ("queued", "compute")


def seen(controls: Controls, project: str) -> dict[str, Any]:
    """Give everything that there is, but for what the machine itself changes."""
    there = controls.get(project)
    return {kind: there[kind] for kind in KINDS}


@pytest.mark.parametrize("plane_kind", PLANES)
async def test_what_has_the_id_and_is_not_ours_stays_as_it_was(
    plane: GooglePlane, project: str, controls: Controls, plane_kind: PlaneKind
) -> None:
    """Neither a deployment nor a deletion touches it."""
    controls.set(project, vm_trouble="image-missing")
    async with opened(plane, project, **MINE) as site:
        if plane_kind == "queued":
            await planted.foreign(site, vm_id("gemma"))
        else:
            wish = Request(orders.blueprint(site), HERE, "", {"owner": "somebody"})
            await site.planes["compute"].create(wish)
        await orders.becomes(site.planes[plane_kind], ChipState.RUNNING, vm_id("gemma"), HERE)
        before = seen(controls, project)
        for work in (on(site).apply(planned(site)), on(site).delete("gemma")):
            with pytest.raises(NotOurs):
                await work
    assert seen(controls, project) == before


async def test_a_rule_of_that_name_that_is_not_ours_stays_as_it_was(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Nothing is asked for then, and the key that was made goes again."""
    async with opened(plane, project, **MINE) as site:
        await planted.rule_of_others(site, vm_id("gemma"))
        before = seen(controls, project)
        with pytest.raises(NotOurs):
            await on(site).apply(planned(site))
        assert (await on(site).delete("gemma")).gone
    assert seen(controls, project) == before
