"""What the simulated TPU API refuses of a request, and in which words."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.simulators.google.tpus import ZONE, Tpus, tpus_of, wanted_node

pytestmark = pytest.mark.anyio

_ELSEWHERE = "projects/x/locations/us-east5-b"


@pytest.fixture
async def tpus(plane: GooglePlane, bare_project: str) -> AsyncIterator[Tpus]:
    async with tpus_of(plane, bare_project) as tpus:
        yield tpus


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zone": "asia-northeast1-a"}, 'zone "asia-northeast1-a" is not supported'),
        ({"zone": "us-south1-a"}, "accelerator v6e-1 was not found in zone us-south1-a"),
        ({"node": wanted_node("v5litepod-4")}, "v5litepod-4 was not found"),
        ({"node": wanted_node(runtime_version="v3")}, "runtime version"),
        ({"node": wanted_node(labels={"A": "b"})}, "label"),
        ({"node": wanted_node(tags=["A door"])}, "tag"),
        ({"node": wanted_node(metadata={"startup-script": "x" * 262_145})}, "262144"),
        ({"node": wanted_node(network_config={"network": "mine"})}, "global/networks/mine"),
        ({"node": wanted_node(network_configs=[{}])}, "mutually exclusive"),
        ({"node": wanted_node(accelerator_config={"topology": "1x1"})}, "Only one of"),
        ({"short": "One"}, "resource id"),
        ({"node_id": "one_two"}, "node id"),
        ({"spec": {"parent": _ELSEWHERE}}, "parent"),
        ({"spec": {"multislice_params": {"node_count": 2}}}, "Multislice"),
        ({"tpu": {}}, "node_spec"),
        ({"queueing_policy": {"valid_until_time": {"seconds": 1}}}, "valid_until"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(
    tpus: Tpus, changes: dict[str, Any], words: str
) -> None:
    """Nothing is queued."""
    with pytest.raises(exceptions.InvalidArgument, match=words):
        await tpus.create(**changes)
    assert (tpus.seen("queued_resources"), tpus.seen("tpus")) == ({}, {})


async def test_an_accelerator_may_be_said_as_a_topology(tpus: Tpus) -> None:
    """Generation and shape, in place of a name."""
    config = {"type_": "V6E", "topology": "2x4"}
    await tpus.active(node=wanted_node("", accelerator_config=config))
    assert (await tpus.node()).accelerator_type == "v6e-8"


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        (
            {"tpu-preemptible": 0},
            "PreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone",
        ),
        (
            {"tpu-preemptible@us-east5": 0},
            "PreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region",
        ),
    ],
)
async def test_beyond_its_pool_nothing_is_queued(
    tpus: Tpus, quotas: dict[str, int], words: str
) -> None:
    """The message names the quota; the pool of others has room."""
    tpus.set(tpu_quotas=quotas)
    with pytest.raises(exceptions.ResourceExhausted, match=words):
        await tpus.create(spot={})
    scheduled = wanted_node(scheduling_config={"spot": True})
    with pytest.raises(exceptions.ResourceExhausted):
        await tpus.create(node=scheduled)
    await tpus.create()


async def test_reserved_chips_there_are_none(tpus: Tpus) -> None:
    """However they are asked for."""
    for changes in (
        {"node": wanted_node(scheduling_config={"reserved": True})},
        {"reservation_name": f"{tpus.parent}/reservations/mine"},
    ):
        with pytest.raises(exceptions.FailedPrecondition, match="reserved capacity"):
            await tpus.create(**changes)


async def test_a_zone_that_does_not_give_spot_lets_it_wait(tpus: Tpus) -> None:
    """Only flex-start is refused with words."""
    tpus.set(tpu_zones={ZONE: {"accepts": ["on-demand"]}})
    await tpus.create(spot={})
    await tpus.reaches("WAITING_FOR_RESOURCES")


async def test_the_account_must_be_there_and_usable(tpus: Tpus) -> None:
    """Whoever creates a VM has to act as its account."""
    emails = [
        f"{one}@{tpus.project}.iam.gserviceaccount.com" for one in ("no", "vllm-devops-runtime")
    ]
    nobody, ours = [wanted_node(service_account={"email": one}) for one in emails]
    with pytest.raises(exceptions.PermissionDenied, match="actAs"):
        await tpus.create(node=nobody)
    await tpus.create(node=ours)
    tpus.set(denied_permissions=["iam.serviceAccounts.actAs"])
    with pytest.raises(exceptions.PermissionDenied, match="actAs"):
        await tpus.create("two", node=ours)


async def test_queued_resources_go_by_the_permissions_of_nodes(tpus: Tpus) -> None:
    """There are none of their own."""
    tpus.set(denied_permissions=["tpu.nodes.create"])
    with pytest.raises(exceptions.PermissionDenied, match=r"tpu\.nodes\.create"):
        await tpus.create()


async def test_without_the_api_nothing_is_answered(plane: GooglePlane, bare_project: str) -> None:
    """It has to be enabled first."""
    async with tpus_of(plane, bare_project, prepared=False) as tpus:
        with pytest.raises(exceptions.PermissionDenied, match="has not been used"):
            await tpus.get()


async def test_a_missing_one_is_not_found(tpus: Tpus) -> None:
    """Nor is its deletion; a zone that there is not may not be asked."""
    with pytest.raises(exceptions.NotFound):
        await tpus.get()
    with pytest.raises(exceptions.NotFound):
        await tpus.delete()
    with pytest.raises(exceptions.PermissionDenied, match="not found or access is unauthorized"):
        await tpus.get(zone="asia-northeast1-a")
