"""What no story of a user shows of the simulated TPU API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.backends.discovery import faults
from tests.google_plane import google_plane
from tests.simulators.google.tpus import ZONE, Tpus, parent_of, tpus_of, wanted_body, wanted_node

pytestmark = pytest.mark.anyio

_PROJECT = "p-goes-on"
_STOCK_OUT = {"tpu_zones": {ZONE: {"free": 1}}}


@pytest.fixture
async def tpus(plane: GooglePlane, bare_project: str) -> AsyncIterator[Tpus]:
    async with tpus_of(plane, bare_project) as tpus:
        yield tpus


async def _alpha(tpus: Tpus, body: dict[str, Any]) -> httpx2.Response:
    url = f"{tpus.controls.plane.http}/v2alpha1/{parent_of(tpus.project)}/queuedResources"
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.post(url, json=body, params={"queuedResourceId": "one"})


async def test_answers_of_v2alpha1_are_of_its_discovery_document(tpus: Tpus) -> None:
    """But for what only Google sets."""
    begun = (await _alpha(tpus, wanted_body(tpus.project))).json()
    assert faults("tpu.v2alpha1", "Operation", begun) == []
    async with httpx2.AsyncClient(trust_env=False) as http:
        url = f"{tpus.controls.plane.http}/v2alpha1/{tpus.name()}"
        told = (await http.get(url)).json()
    sent = {name: told[name] for name in told if name not in {"name", "createTime", "state"}}
    assert faults("tpu.v2alpha1", "QueuedResource", sent) == []
    assert faults("tpu.v2alpha1", "QueuedResourceState", told["state"]) == []


async def test_a_leftover_has_no_chips_but_counts(tpus: Tpus) -> None:
    """Somebody else may have them; whoever asks for more in this project is refused."""
    tpus.set(tpu_quotas={"tpu-preemptible": 1}, tpu_zones={ZONE: {"free": 1}})
    await tpus.active(spot={})
    tpus.preempt()
    await tpus.reaches("SUSPENDED")
    with pytest.raises(exceptions.ResourceExhausted):
        await tpus.create("two", spot={})
    await tpus.active("three")
    await tpus.delete(force=False)
    await tpus.gone()
    await tpus.create("two", spot={})


async def test_a_stopped_node_needs_chips_again(tpus: Tpus) -> None:
    """That there are none is told in the operation; it stays stopped. Spot is never stopped."""
    await tpus.active()
    await tpus.ended(await tpus.client.stop_node(request={"name": tpus.node_name()}))
    assert list((await tpus.node()).network_endpoints) == []
    tpus.set(tpu_zones={ZONE: {"free": 0}})
    kept = await tpus.ended(await tpus.client.start_node(request={"name": tpus.node_name()}))
    assert kept.error.code == 8
    assert (await tpus.node()).state.name == "STOPPED"
    tpus.set(tpu_zones={ZONE: {"free": 9}})
    await tpus.active("two", spot={})
    with pytest.raises(exceptions.FailedPrecondition):
        await tpus.client.stop_node(request={"name": tpus.node_name("two")})


async def test_a_node_id_that_is_taken_fails_later(tpus: Tpus) -> None:
    """The call succeeds; what has a node is deleted by force alone."""
    await tpus.active()
    await tpus.create("two", node_id="one")
    await tpus.reaches("FAILED", "two")
    assert "'one' already exists" in (await tpus.get("two")).state.failed_data.error.message
    await tpus.delete("two", force=False)
    with pytest.raises(exceptions.FailedPrecondition, match="force"):
        await tpus.delete(force=False)


async def test_a_node_id_that_is_taken_while_it_waits_fails_as_well(tpus: Tpus) -> None:
    """When there are chips again, which it does not keep."""
    tpus.set(tpu_zones={ZONE: {"free": 1, "wait_seconds": 36_000}})
    await tpus.create()
    await tpus.reaches("WAITING_FOR_RESOURCES")
    node = wanted_node()
    await tpus.client.create_node(parent=tpus.parent, node=node, node_id="one")
    tpus.set(tpu_zones={ZONE: {"free": 2}})
    await tpus.reaches("FAILED")
    assert tpus.seen("tpus")[f"queued/{ZONE}/one"]["given"] is None
    await tpus.node_reaches("READY")


async def test_the_same_call_again_finds_the_first(tpus: Tpus) -> None:
    """By its request id; with another the id is taken."""
    begun = await tpus.create(request_id="a")
    again = await tpus.create(request_id="a")
    assert again.operation.name == begun.operation.name
    with pytest.raises(exceptions.AlreadyExists):
        await tpus.create(request_id="b")


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
