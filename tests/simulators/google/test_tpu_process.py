"""The simulated TPU API over the ends of its process and of a project."""

from pathlib import Path

import anyio
import pytest

from core.settings import GooglePlane
from tests.google_plane import google_plane
from tests.simulators.google.tpus import ZONE, tpus_of, wanted_node

pytestmark = pytest.mark.anyio

_PROJECT = "p-goes-on"
_STOCK_OUT = {"tpu_zones": {ZONE: {"free": 1}}}


@pytest.mark.life
async def test_what_was_under_way_goes_on(tmp_path: Path) -> None:
    """Whoever waits waits on, what was to be deleted is, and a VM that was up boots again."""
    with google_plane(tmp_path) as plane:
        async with tpus_of(plane, _PROJECT, **_STOCK_OUT) as tpus:
            await tpus.active("up")
            begun = await tpus.create("late")
            await tpus.create("old", queueing_policy={"valid_until_duration": {"seconds": 7200}})
            for one in ("late", "old"):
                await tpus.reaches("WAITING_FOR_RESOURCES", one)
            tpus.set(tpu_delete_seconds=10**9)
            await tpus.delete("late")
    with google_plane(tmp_path) as plane:
        async with tpus_of(plane, _PROJECT, tpu_delete_seconds=1) as tpus:
            await tpus.gone("late")
            assert (await tpus.ended(begun)).done
            await tpus.reaches("FAILED", "old")
            node = await tpus.node("up")
            assert node.state.name == "READY"
            assert node.network_endpoints[0].access_config.external_ip


async def test_a_project_that_is_dropped_keeps_no_vm(plane: GooglePlane) -> None:
    """It is as if nothing had ever been asked for; the plane goes on."""
    async with tpus_of(plane, _PROJECT) as tpus:
        await tpus.active(node=wanted_node("v6e-4"))
        [endpoint] = (await tpus.node()).network_endpoints
        address = endpoint.access_config.external_ip
        await (await anyio.connect_tcp(address, 8000)).aclose()
        await tpus.create("two", spot={})
        tpus.controls.drop(_PROJECT)
        with pytest.raises(OSError, match="connect"):
            await anyio.connect_tcp(address, 8000)
        assert [tpus.seen(one) for one in ("tpus", "nodes")] == [{}, {}]
    async with tpus_of(plane, _PROJECT) as tpus:
        await tpus.active()
        tpus.controls.drop(_PROJECT)
