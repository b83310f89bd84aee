"""How many GPUs may be used at once, where the least room is, and what is not known."""

from typing import Any

import pytest

from backends.aca import replicas
from core.errors import NotConfigured
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.planned import site as offline
from tests.backends.aca.preflights import planted_apps
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

REGION = "GET Microsoft.App/locations/usages"
ENVIRONMENT = "GET Microsoft.App/managedEnvironments/usages"


def usage(name: str) -> dict[str, Any]:
    return {"name": {"value": name}, "unit": "Count", "currentValue": 0, "limit": 8}


@pytest.mark.parametrize(("target", "word"), [("aca-a100", "NCA100Gpus"), ("aca-t4", "T4Gpus")])
async def test_both_quotas_are_told_of_the_targets_own_gpu(
    azure: AzurePlane, subscription: str, target: str, word: str
) -> None:
    async with opened(azure, subscription, target) as site:
        region, environment = await replicas.read_quotas(site)
    assert region.quota == f"SubscriptionConsumption{word}"
    assert environment.quota == f"ManagedEnvironmentConsumption{word}"
    assert {one.limit for one in (region, environment)} == {2}
    assert {one.in_use for one in (region, environment)} == {0}


async def test_the_quota_with_the_least_room_comes_first(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, quotas={"a100": 4}, environment_quotas={"a100": 1})
    async with opened(azure, subscription) as site:
        limits = [one.limit for one in await replicas.read_quotas(site)]
    assert limits == [1, 4]


async def test_a_quota_of_0_is_0_and_not_unknown(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, quotas={"a100": 0})
    async with opened(azure, subscription) as site:
        first = (await replicas.read_quotas(site))[0]
    assert (first.limit, first.detail) == (0, "")


async def test_without_an_environment_its_own_limit_is_not_known(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription, azure_containerapps_environment="another") as site:
        known, unknown = await replicas.read_quotas(site)
    assert known.limit == 2
    assert unknown.limit is None
    assert "no environment yet" in unknown.detail


async def test_before_the_provider_is_registered_nothing_is_known_and_nobody_registers_it(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription) as site:
        found = await replicas.read_quotas(site)
    assert controls.get(bare_subscription)["providers"] == []
    assert [one.limit for one in found] == [None, None]
    assert all(one.detail for one in found)


@pytest.mark.parametrize("failing", [REGION, ENVIRONMENT])
@pytest.mark.parametrize("status", [403, 429, 503])
async def test_what_azure_does_not_tell_is_not_known_and_the_other_is(
    azure: AzurePlane, subscription: str, controls: Controls, failing: str, status: int
) -> None:
    controls.set(subscription, faults=[fault(failing, status, times=-1)])
    async with opened(azure, subscription) as site:
        known, unknown = await replicas.read_quotas(site)
    assert (known.limit, unknown.limit) == (2, None)
    assert "Azure" in unknown.detail


async def test_a_region_that_names_no_such_quota_leaves_it_unknown(
    azure: AzurePlane, subscription: str
) -> None:
    rows = [usage("SubscriptionNCA100Gpus"), usage("SubscriptionConsumptionT4Gpus")]
    async with opened(azure, subscription) as site:
        planted_apps(site).on("GET .*/usages", lambda _: (200, {"value": rows}))
        found = await replicas.read_quotas(site)
    assert all(one.limit is None and "no quota of these GPUs" in one.detail for one in found)


async def test_without_a_subscription_it_says_which_setting_is_missing() -> None:
    with pytest.raises(NotConfigured):
        await replicas.read_quotas(offline())
