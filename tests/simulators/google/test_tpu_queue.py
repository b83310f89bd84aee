"""The simulated queue for TPUs: what a request goes through, and what it holds meanwhile."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.simulators.google.tpus import FAST, ZONE, Tpus, tpus_of, wanted_node

pytestmark = pytest.mark.anyio

_WAY = ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


@pytest.fixture
async def tpus(plane: GooglePlane, bare_project: str) -> AsyncIterator[Tpus]:
    async with tpus_of(plane, bare_project) as tpus:
        yield tpus


def _zone(**changes: Any) -> dict[str, Any]:
    return {"tpu_zones": {ZONE: changes}}


async def test_a_request_goes_through_the_queue(tpus: Tpus) -> None:
    """Each state in its order; the operation of the call ends long before the last."""
    tpus.set(tpu_provision_seconds=300)
    begun = await tpus.create()
    seen = await tpus.reaches("ACTIVE")
    assert seen == [one for one in _WAY if one in seen]
    assert {"PROVISIONING", "ACTIVE"} <= set(seen)
    kept = await tpus.ended(begun)
    assert not kept.HasField("error")
    assert kept.name.startswith(f"{tpus.parent}/operations/operation-")


async def test_an_active_one_has_a_node_with_addresses(tpus: Tpus) -> None:
    """The node carries what was asked for, and knows who asked."""
    labels, metadata = {"managed-by": "a-test"}, {"one": "two"}
    node = wanted_node("v6e-4", labels=labels, metadata=metadata, tags=["door"])
    await tpus.active(node=node, node_id="other")
    node = await tpus.node("other")
    assert (node.state.name, node.health.name) == ("READY", "HEALTHY")
    assert node.queued_resource == tpus.name()
    assert (dict(node.labels), dict(node.metadata)) == (labels, metadata)
    [endpoint] = node.network_endpoints
    assert endpoint.access_config.external_ip.startswith("127.77.")
    assert tpus.seen("nodes") == {f"{ZONE}/other": "READY"}


async def test_a_node_has_no_address_of_its_own_unless_asked(tpus: Tpus) -> None:
    """The default of the API, opposite to gcloud's."""
    await tpus.active(node=wanted_node(network_config={}))
    [endpoint] = (await tpus.node()).network_endpoints
    assert endpoint.ip_address
    assert not endpoint.access_config.external_ip


async def test_a_stock_out_waits(tpus: Tpus) -> None:
    """Until chips are free: a queued resource does not fail of it."""
    tpus.set(**_zone(free=0))
    await tpus.create(node=wanted_node("v6e-4"))
    await tpus.reaches("WAITING_FOR_RESOURCES")
    assert tpus.seen("nodes") == {}
    tpus.set(**_zone(free=4))
    await tpus.reaches("ACTIVE")


async def test_it_waits_for_simulated_hours(tpus: Tpus) -> None:
    """As long as the zone says, however many chips are free."""
    tpus.set(**_zone(wait_seconds=7200))
    await tpus.create()
    await tpus.reaches("WAITING_FOR_RESOURCES")
    tpus.set(tpu_clock=FAST * 1000)
    await tpus.reaches("ACTIVE")


async def test_without_any_quota_of_accelerators_it_waits_for_ever(tpus: Tpus) -> None:
    """The quota of all regions together stops TPUs as well, without a word."""
    tpus.set(tpu_quotas={"gpus-all-regions": 0})
    await tpus.create(queueing_policy={"valid_until_duration": {"seconds": 600}})
    assert (await tpus.reaches("FAILED"))[-2:] == ["WAITING_FOR_RESOURCES", "FAILED"]


async def test_what_waited_too_long_fails(tpus: Tpus) -> None:
    """It stays in the queue as a leftover that says why, and holds its quota."""
    tpus.set(**_zone(free=0), tpu_quotas={"tpu": 1})
    await tpus.create(queueing_policy={"valid_until_duration": {"seconds": 600}})
    await tpus.reaches("FAILED")
    assert (await tpus.get()).state.failed_data.error.code == 4
    with pytest.raises(exceptions.ResourceExhausted):
        await tpus.create("two")
    await tpus.delete(force=False)
    await tpus.gone()
    await tpus.create("two")


async def test_a_request_may_begin_later(tpus: Tpus) -> None:
    """Accepted, but not yet waiting."""
    await tpus.create(queueing_policy={"valid_after_duration": {"seconds": 36_000}})
    await tpus.reaches("ACCEPTED")
    tpus.set(tpu_clock=FAST * 1000)
    await tpus.reaches("ACTIVE")


async def test_one_pool_of_chips_serves_all(tpus: Tpus) -> None:
    """The second gets what the first gives back."""
    tpus.set(**_zone(free=8))
    await tpus.active(node=wanted_node("v6e-8"))
    await tpus.create("two", spot={})
    await tpus.reaches("WAITING_FOR_RESOURCES", "two")
    await tpus.delete()
    await tpus.reaches("ACTIVE", "two")


async def test_deletion_takes_its_time(tpus: Tpus) -> None:
    """Deleting, then not found; the operation ends with it, and nothing is left."""
    await tpus.active()
    tpus.set(tpu_delete_seconds=600)
    begun = await tpus.delete()
    assert (await tpus.get()).state.state.name == "DELETING"
    assert (await tpus.node()).state.name == "DELETING"
    with pytest.raises(exceptions.FailedPrecondition):
        await tpus.delete()
    await tpus.gone()
    assert not (await tpus.ended(begun)).HasField("error")
    assert [tpus.seen(one) for one in ("tpus", "nodes", "queued_resources")] == [{}, {}, {}]


async def test_what_has_a_node_is_deleted_by_force_alone(tpus: Tpus) -> None:
    """What waits is deleted without."""
    await tpus.active()
    with pytest.raises(exceptions.FailedPrecondition, match="force"):
        await tpus.delete(force=False)
    tpus.set(**_zone(free=0))
    await tpus.create("two")
    await tpus.reaches("WAITING_FOR_RESOURCES", "two")
    await tpus.delete("two", force=False)
    await tpus.gone("two")


async def test_what_is_deleted_at_once_was_created_nevertheless(tpus: Tpus) -> None:
    """Its operation says so."""
    begun = await tpus.create()
    await tpus.delete()
    assert not (await tpus.ended(begun)).HasField("error")
    await tpus.gone()


async def test_a_node_id_that_is_taken_fails_later(tpus: Tpus) -> None:
    """The call succeeds."""
    await tpus.active()
    await tpus.create("two", node_id="one")
    await tpus.reaches("FAILED", "two")
    assert "'one' already exists" in (await tpus.get("two")).state.failed_data.error.message
    await tpus.delete("two")
    await tpus.gone("two")
    assert (await tpus.node()).state.name == "READY"


async def test_the_same_call_again_finds_the_first(tpus: Tpus) -> None:
    """By its request id; with another the id is taken."""
    begun = await tpus.create(request_id="a")
    again = await tpus.create(request_id="a")
    assert again.operation.name == begun.operation.name
    with pytest.raises(exceptions.AlreadyExists):
        await tpus.create(request_id="b")


async def test_those_of_every_zone_are_listed_together(tpus: Tpus) -> None:
    """Over pages; of one zone alone as well."""
    await tpus.create()
    await tpus.create("two", zone="europe-west4-a")
    everywhere = tpus.parent.replace(ZONE, "-")
    request = {"parent": everywhere, "page_size": 1}
    pager = await tpus.client.list_queued_resources(request=request)
    assert [one.name.split("/")[3] async for one in pager] == ["europe-west4-a", ZONE]
    pager = await tpus.client.list_queued_resources(parent=tpus.parent)
    assert [one.name async for one in pager] == [tpus.name()]
