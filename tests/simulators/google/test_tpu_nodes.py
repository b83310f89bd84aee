"""The nodes of the simulated TPU API: stopped, started, deleted, taken away."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.simulators.google.tpus import ZONE, Tpus, tpus_of, wanted_node

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tpus(plane: GooglePlane, bare_project: str) -> AsyncIterator[Tpus]:
    async with tpus_of(plane, bare_project) as tpus:
        yield tpus


async def _leftover(tpus: Tpus, initiator: str) -> None:
    """Expect a leftover: suspended, without node and chips, yet counted."""
    state = (await tpus.get()).state
    assert (state.state.name, state.state_initiator.name) == ("SUSPENDED", initiator)
    assert tpus.seen("nodes") == {}
    [row] = tpus.seen("tpus").values()
    assert row["given"] is None


async def test_preemption_leaves_a_leftover(tpus: Tpus) -> None:
    """Suspended by the service; for a while its node says why."""
    await tpus.active(spot={})
    tpus.set(tpu_delete_seconds=600)
    tpus.preempt()
    state = (await tpus.get()).state
    assert (state.state.name, state.state_initiator.name) == ("SUSPENDING", "SERVICE")
    assert (await tpus.node()).state.name == "PREEMPTED"
    await tpus.reaches("SUSPENDED")
    await _leftover(tpus, "SERVICE")


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


async def test_deleting_its_node_suspends_a_queued_resource(tpus: Tpus) -> None:
    """By its user; then it is deleted without force."""
    await tpus.active()
    begun = await tpus.client.delete_node(name=tpus.node_name())
    assert (await tpus.node()).state.name == "DELETING"
    assert not (await tpus.ended(begun)).HasField("error")
    await _leftover(tpus, "USER")
    await tpus.delete(force=False)
    await tpus.gone()


async def test_a_node_is_stopped_and_started(tpus: Tpus) -> None:
    """On demand alone; stopped, it has no chips and no address."""
    await tpus.active()
    begun = await tpus.client.stop_node(request={"name": tpus.node_name()})
    assert not (await tpus.ended(begun)).HasField("error")
    node = await tpus.node()
    assert (node.state.name, list(node.network_endpoints)) == ("STOPPED", [])
    assert (await tpus.get()).state.state.name == "ACTIVE"
    [row] = tpus.seen("tpus").values()
    assert row["given"] is None
    begun = await tpus.client.start_node(request={"name": tpus.node_name()})
    assert not (await tpus.ended(begun)).HasField("error")
    node = await tpus.node()
    assert (node.state.name, len(node.network_endpoints)) == ("READY", 1)


async def test_a_stopped_node_needs_chips_again(tpus: Tpus) -> None:
    """That there are none is told in the operation; it stays stopped."""
    await tpus.active()
    await tpus.ended(await tpus.client.stop_node(request={"name": tpus.node_name()}))
    tpus.set(tpu_zones={ZONE: {"free": 0}})
    kept = await tpus.ended(await tpus.client.start_node(request={"name": tpus.node_name()}))
    assert kept.error.code == 8
    assert f'no more capacity in the zone "{ZONE}"' in kept.error.message
    assert (await tpus.node()).state.name == "STOPPED"


async def test_spot_is_not_stopped(tpus: Tpus) -> None:
    """It has to be deleted; nor is started what runs."""
    await tpus.active(spot={})
    with pytest.raises(exceptions.FailedPrecondition):
        await tpus.client.stop_node(request={"name": tpus.node_name()})
    with pytest.raises(exceptions.FailedPrecondition):
        await tpus.client.start_node(request={"name": tpus.node_name()})


async def test_a_reset_boots_the_vm_again(tpus: Tpus) -> None:
    """While it is active; what is suspended cannot be reset."""
    await tpus.active()
    request = {"name": tpus.name()}
    begun = await tpus.client.reset_queued_resource(request=request)
    assert (await tpus.node()).state.name == "RESTARTING"
    assert not (await tpus.ended(begun)).HasField("error")
    assert (await tpus.node()).state.name == "READY"
    await tpus.ended(await tpus.client.delete_node(name=tpus.node_name()))
    with pytest.raises(exceptions.FailedPrecondition, match="SUSPENDED"):
        await tpus.client.reset_queued_resource(request=request)


async def _create(tpus: Tpus, short: str = "mine", **changes: Any) -> Any:
    node = wanted_node("v6e-4", **changes)
    return await tpus.client.create_node(parent=tpus.parent, node=node, node_id=short)


async def test_a_node_of_its_own_is_created_and_deleted(tpus: Tpus) -> None:
    """Its operation lasts until it is ready; it counts as any."""
    tpus.set(tpu_quotas={"tpu": 4})
    kept = await tpus.ended(await _create(tpus))
    assert not kept.HasField("error")
    assert (await tpus.node("mine")).state.name == "READY"
    with pytest.raises(exceptions.AlreadyExists):
        await _create(tpus)
    with pytest.raises(exceptions.ResourceExhausted):
        await tpus.create()
    pager = await tpus.client.list_nodes(parent=tpus.parent.replace(ZONE, "-"))
    assert [one.name async for one in pager] == [tpus.node_name("mine")]
    await tpus.ended(await tpus.client.delete_node(name=tpus.node_name("mine")))
    assert tpus.seen("tpus") == {}
    with pytest.raises(exceptions.NotFound):
        await tpus.node("mine")


async def test_a_node_of_its_own_does_not_wait_for_chips(tpus: Tpus) -> None:
    """It is not made, which its operation says."""
    tpus.set(tpu_zones={ZONE: {"free": 0}})
    kept = await tpus.ended(await _create(tpus))
    assert (kept.error.code, tpus.seen("nodes"), tpus.seen("tpus")) == (8, {}, {})


async def test_a_preempted_node_of_its_own_stays(tpus: Tpus) -> None:
    """Until somebody deletes it."""
    await tpus.ended(await _create(tpus, scheduling_config={"spot": True}))
    tpus.preempt("mine")
    assert (await tpus.node("mine")).state.name == "PREEMPTED"
    with pytest.raises(exceptions.FailedPrecondition):
        await tpus.client.stop_node(request={"name": tpus.node_name("mine")})
    await tpus.ended(await tpus.client.delete_node(name=tpus.node_name("mine")))
    assert tpus.seen("nodes") == {}
