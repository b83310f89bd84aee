"""Whether the region has the GPU, and for how many replicas."""

import pytest

from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.preflights import checked, environment, planted_apps, row, the_only_failure
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


async def test_a_region_without_the_gpu_names_those_that_have_it(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription, azure_location="northeurope") as site:
        failed = row(await checked(site), "northeurope offers")
    assert failed.outcome == "fail"
    assert "NC24-A100" in failed.detail
    assert "swedencentral" in failed.fix


async def test_a_region_that_lost_the_gpu_is_asked_now_and_not_looked_up(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, profiles={"swedencentral": ["Consumption", "D4"]})
    async with opened(azure, subscription) as site:
        assert row(await checked(site), "offers").outcome == "fail"


async def test_a_region_without_container_apps_fails(azure: AzurePlane, subscription: str) -> None:
    async with opened(azure, subscription, azure_location="atlantis") as site:
        failed = row(await checked(site), "atlantis offers")
    assert failed.outcome == "fail"
    assert "no Container Apps" in failed.detail


@pytest.mark.parametrize(
    ("knobs", "smaller"),
    [
        ({"quotas": {"a100": 0}}, ""),
        ({"quotas": {"a100": 2}}, "Give max_replicas 2 or less."),
        ({"quotas": {"a100": 5}, "environment_quotas": {"a100": 1}}, "Give max_replicas 1 or less"),
    ],
)
async def test_a_quota_that_is_too_small_fails_in_either_scope(
    azure: AzurePlane, subscription: str, controls: Controls, knobs: dict[str, object], smaller: str
) -> None:
    controls.set(subscription, **knobs)
    async with opened(azure, subscription) as site:
        failed = the_only_failure(await checked(site, max_replicas=3))
    assert failed.what == "The quotas allow 3 at once"
    assert "Ask for more" in failed.fix
    assert smaller in failed.fix
    assert "max_replicas 0" not in failed.fix


async def test_a_quota_that_others_use_up_is_no_pass(azure: AzurePlane, subscription: str) -> None:
    used = {
        "name": {"value": "SubscriptionConsumptionNCA100Gpus"},
        "unit": "Count",
        "currentValue": 2,
        "limit": 2,
    }
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        arm.on("GET .*/usages", lambda _: (200, {"value": [used]}))
        found = row(await checked(site), "quotas allow")
    assert found.outcome == "unknown"
    assert "leave less" in found.detail
    assert found.fix


async def test_a_quota_that_nobody_tells_is_unknown_and_not_0(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        planted_apps(site).on("GET .*/usages", lambda _: (200, {"value": []}))
        assert row(await checked(site), "quotas allow").outcome == "unknown"


@pytest.mark.parametrize(("there", "outcome"), [(14, "pass"), (15, "fail")])
async def test_a_region_full_of_environments_names_the_setting(
    azure: AzurePlane, subscription: str, there: int, outcome: str
) -> None:
    count = {
        "name": {"value": "ManagedEnvironmentCount"},
        "unit": "Count",
        "currentValue": there,
        "limit": 15,
    }
    async with opened(azure, subscription) as site:
        planted_apps(site).on("GET .*/locations/.*/usages", lambda _: (200, {"value": [count]}))
        found = row(await checked(site), "The region takes the environment")
    assert found.outcome == outcome
    assert ("AZURE_CONTAINERAPPS_ENVIRONMENT" in found.fix) == (outcome == "fail")


async def test_an_environment_that_is_there_needs_no_room(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        planted_apps(site).on("GET .*/managedEnvironments/[^/]*", lambda _: (200, environment()))
        assert row(await checked(site), "The region takes the environment").outcome == "pass"
