"""Workload profiles and quotas of the simulated Azure."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

from backends.aca.site import Clients
from tests.azure_plane import Controls

pytestmark = pytest.mark.anyio
A100 = "Consumption-GPU-NC24-A100"
T4 = "Consumption-GPU-NC8as-T4"


async def offered(clients: Clients, region: str) -> dict[str, tuple[int | None, ...]]:
    found: dict[str, tuple[int | None, ...]] = {}
    async for one in (await clients.apps()).available_workload_profiles.get(region):
        told = one.properties
        assert told
        found[one.name or ""] = (told.cores, told.memory_gi_b, told.gpus)
    return found


async def used(clients: Clients, region: str) -> dict[str, tuple[float, float]]:
    pages = (await clients.apps()).usages.list(region)
    return {one.name.value or "": (one.current_value, one.limit) async for one in pages}


async def test_a_region_offers_what_it_has(clients: Clients) -> None:
    """Sweden has both GPUs, the Netherlands one, Ireland none of the serverless ones."""
    sweden = await offered(clients, "swedencentral")

    assert (sweden[A100], sweden[T4]) == ((24, 220, 1), (8, 56, 1))
    netherlands = await offered(clients, "West Europe")
    assert (A100 in netherlands, T4 in netherlands) == (False, True)
    ireland = await offered(clients, "northeurope")
    assert not {A100, T4} & ireland.keys()


async def test_a_test_says_what_regions_offer(clients: Clients, controls: Controls) -> None:
    """What it does not name offers nothing at all."""
    controls.set(clients.subscription, profiles={"westus3": ["Consumption", T4]})

    assert set(await offered(clients, "westus3")) == {"Consumption", T4}
    with pytest.raises(HttpResponseError):
        await offered(clients, "swedencentral")


async def test_quotas_are_those_of_the_knobs(clients: Clients, controls: Controls) -> None:
    """Both kinds, in the subscription and in the environment, by Azure's names."""
    controls.set(clients.subscription, quotas={"a100": 1}, environment_quotas={"a100": 4, "t4": 0})
    apps, ground = await clients.apps(), clients.ground

    regional = await used(clients, "swedencentral")
    pages = apps.managed_environment_usages.list(ground.resource_group, ground.environment)
    inside = {one.name.value: (one.current_value, one.limit) async for one in pages}

    assert regional["SubscriptionConsumptionNCA100Gpus"] == (0, 1)
    assert regional["SubscriptionConsumptionT4Gpus"] == (0, 2)
    assert regional["ManagedEnvironmentCount"] == (1, 15)
    assert (await used(clients, "westus3"))["ManagedEnvironmentCount"] == (0, 15)
    assert inside["ManagedEnvironmentConsumptionNCA100Gpus"] == (0, 4)
    assert inside["ManagedEnvironmentConsumptionT4Gpus"] == (0, 0)


async def test_usages_of_an_environment_that_is_not_there_are_missing(clients: Clients) -> None:
    """It is the environment that is not found."""
    apps, group = await clients.apps(), clients.group

    with pytest.raises(ResourceNotFoundError):
        _ = [one async for one in apps.managed_environment_usages.list(group, "another")]


async def test_an_environment_tells_the_state_of_its_profiles(clients: Clients) -> None:
    """By the names that it gave them."""
    apps, ground = await clients.apps(), clients.ground

    pages = apps.managed_environments.list_workload_profile_states(
        ground.resource_group, ground.environment
    )
    seen = {
        one.name: one.properties.current_count async for one in pages if one.properties is not None
    }

    assert seen == {"Consumption": 0, "gpu-a100": 0, "gpu-t4": 0}
