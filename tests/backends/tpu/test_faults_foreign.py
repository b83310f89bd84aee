"""A zone full of others' resources: what is done here changes none of them."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from google.cloud.compute_v1.types import Firewall

from backends.google.errors import strictly
from backends.tpu import deployment, firewall
from backends.tpu import store as memory
from backends.tpu.compute import write_call
from backends.tpu.site import ChipState, PlaneKind, Request, Site, vm_id
from backends.tpu.store import SearchRecord
from core.errors import NotOurs
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu import orders, planted
from tests.backends.tpu.searches import planned
from tests.backends.tpu.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

HERE: Final = "us-east5-b"
THERE: Final = "us-east5-a"
MINE: Mapping[str, Any] = {"google_allowed_addresses": ("127.0.0.1",)}
KINDS: Final = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources")
PLANES: Final[tuple[PlaneKind, ...]] = ("queued", "compute")


async def filled(site: Site) -> None:
    """Put others' requests, nodes, instances and rules into a zone, and see them run."""
    await planted.foreign(site, "theirs")
    await orders.foreign_node(site, "bare")
    made = orders.blueprint(site, "their-vm")
    await site.planes["compute"].create(Request(made, HERE, "", {"owner": "somebody"}))
    await planted.until(site, "theirs", ChipState.RUNNING)
    await orders.becomes(site.planes["compute"], ChipState.RUNNING, made.id, HERE)
    await rule(site, "their-rule")


async def rule(site: Site, name: str) -> None:
    """Make a rule as somebody else would."""
    said = firewall.rule(orders.blueprint(site), site.target.name, ("10.0.0.0/8",))
    said.name, said.description = name, "Of somebody else."
    client, request = await site.clients.firewalls(), {"project": site.clients.project}
    with strictly("make their rule"):
        await write_call(
            "make it", client.insert_unary, request={**request, "firewall_resource": said}
        )
    assert isinstance(said, Firewall)


def seen(controls: Controls, project: str) -> dict[str, Any]:
    """Give everything that there is, but for what the machine itself changes."""
    there = controls.get(project)
    return {kind: there[kind] for kind in KINDS}


async def followed(site: Site) -> SearchRecord:
    """Go on until the search has an end."""

    async def look() -> SearchRecord | None:
        await deployment.go_on(site, "gemma")
        return memory.record_of(site, "gemma")

    kept = await wait_until(
        look,
        lambda kept: bool(kept and (kept.placed or kept.failure)),
        waiting_for="an end of the search",
        every=0.1,
        timeout=30,
    )
    assert kept is not None
    return kept


@pytest.mark.parametrize("plane_kind", PLANES)
async def test_a_whole_life_beside_others_changes_nothing_of_theirs(
    plane: GooglePlane, project: str, controls: Controls, plane_kind: PlaneKind
) -> None:
    """A search over a zone that they have filled, a chip, and its end."""
    zones = {HERE: {"free": 3}, THERE: {"free": 1}}
    controls.set(project, tpu_zones=zones, vm_trouble="image-missing")
    async with opened(plane, project, **MINE) as site:
        await filled(site)
        controls.set(project, tpu_clock=1200)
        before = seen(controls, project)
        wish = {"zones": (HERE, THERE), "control_plane": plane_kind, "zone_wait_minutes": 10}
        await deployment.apply(site, planned(site, **wish))
        kept = await followed(site)
        assert kept.placed == (THERE, plane_kind)
        assert (await deployment.delete(site, "gemma")).gone
    assert seen(controls, project) == before


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
        for work in (deployment.apply(site, planned(site)), deployment.delete(site, "gemma")):
            with pytest.raises(NotOurs):
                await work
    assert seen(controls, project) == before


async def test_a_rule_of_that_name_that_is_not_ours_stays_as_it_was(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Nothing is asked for then, and the key that was made goes again."""
    async with opened(plane, project, **MINE) as site:
        await rule(site, vm_id("gemma"))
        before = seen(controls, project)
        with pytest.raises(NotOurs):
            await deployment.apply(site, planned(site))
        assert (await deployment.delete(site, "gemma")).gone
    assert seen(controls, project) == before
