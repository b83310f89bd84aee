"""What the simulated TPU API says of its zones."""

from collections.abc import AsyncIterator

import pytest
from google.api_core import exceptions
from google.cloud.location import locations_pb2

from core.settings import GooglePlane
from tests.simulators.google.tpus import ZONE, Tpus, parent_of, tpus_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tpus(plane: GooglePlane, bare_project: str) -> AsyncIterator[Tpus]:
    async with tpus_of(plane, bare_project) as tpus:
        yield tpus


async def _accelerators(tpus: Tpus, zone: str, asked: str = "") -> list[str]:
    request = {"parent": parent_of(tpus.project, zone), "filter": asked}
    pager = await tpus.client.list_accelerator_types(request=request)
    return [one.type_ async for one in pager]


async def test_a_zone_names_its_accelerators(tpus: Tpus) -> None:
    """All, or those that a filter means; some zones have none."""
    assert await _accelerators(tpus, ZONE) == ["v6e-1", "v6e-4", "v6e-8"]
    assert await _accelerators(tpus, ZONE, 'type="v6e-4"') == ["v6e-4"]
    assert await _accelerators(tpus, "us-south1-a") == []
    with pytest.raises(exceptions.InvalidArgument, match="filter"):
        await _accelerators(tpus, ZONE, 'kind="v6e-4"')
    with pytest.raises(exceptions.PermissionDenied, match="access is unauthorized"):
        await _accelerators(tpus, "nowhere1-a")


async def test_one_accelerator_is_looked_at(tpus: Tpus) -> None:
    """With its shape; what the zone has not is not found."""
    name = f"{tpus.parent}/acceleratorTypes/v6e-8"
    found = await tpus.client.get_accelerator_type(name=name)
    assert found.accelerator_configs[0].topology == "2x4"
    with pytest.raises(exceptions.NotFound):
        await tpus.client.get_accelerator_type(name=name.replace("v6e-8", "v6e-16"))


async def test_the_images_of_vms_are_named(tpus: Tpus) -> None:
    """That of v6e among them."""
    pager = await tpus.client.list_runtime_versions(parent=tpus.parent)
    assert "v2-alpha-tpuv6e" in [one.version async for one in pager]
    name = f"{tpus.parent}/runtimeVersions/v2-alpha-tpuv6e"
    assert (await tpus.client.get_runtime_version(name=name)).version == "v2-alpha-tpuv6e"
    with pytest.raises(exceptions.NotFound):
        await tpus.client.get_runtime_version(name=f"{name}x")


async def test_the_zones_are_listed(tpus: Tpus) -> None:
    """Those that the controls say, if they say any."""
    project = f"projects/{tpus.project}"
    told = await tpus.client.list_locations(locations_pb2.ListLocationsRequest(name=project))
    assert ZONE in [one.location_id for one in told.locations]
    tpus.set(tpu_zones={"mars1-a": {}})
    told = await tpus.client.list_locations(locations_pb2.ListLocationsRequest(name=project))
    assert [one.location_id for one in told.locations] == ["mars1-a"]
    name = f"{project}/locations/mars1-a"
    found = await tpus.client.get_location(locations_pb2.GetLocationRequest(name=name))
    assert found.location_id == "mars1-a"
    request = locations_pb2.GetLocationRequest(name=tpus.parent)
    with pytest.raises(exceptions.PermissionDenied):
        await tpus.client.get_location(request)
