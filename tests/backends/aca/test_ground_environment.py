"""An environment that is there gets the profile and loses nothing; one that failed is told of."""

from typing import Any

import pytest

from backends.aca import ground as aca_environment
from backends.aca.plan import base as ground
from backends.aca.site import ENVIRONMENT
from backends.lifecycle import Status, advance
from core.errors import CloudRefused, NotOurs, QuotaExceeded
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.arm import Answer, Arm
from tests.backends.aca.deployed import patient
from tests.backends.aca.grounds import AT_ONCE, changes, go, stands
from tests.backends.aca.preflights import environment, planted_apps
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

PUT = "PUT Microsoft.App/managedEnvironments"
PATCH = "PATCH Microsoft.App/managedEnvironments"
HERE = ".*/managedEnvironments/vllm-devops-swedencentral"


def planted(arm: Arm, found: dict[str, Any] | None, *apps: dict[str, Any]) -> None:
    """Let there be this environment with these apps, or none."""
    if found is None:
        arm.refuse(f"GET {HERE}", 404, "ResourceNotFound")
    else:
        arm.on(f"GET {HERE}", lambda _: (200, found))
    arm.on("GET .*/containerApps", lambda _: (200, {"value": list(apps)}))


def leading_to(arm: Arm, call: str, found: dict[str, Any] | None) -> None:
    """Let a call be taken, after which there is this environment."""

    def answer(_body: str) -> Answer:
        planted(arm, found)
        return (200, found) if found else (204, {})

    arm.on(f"{call} {HERE}", answer)


async def test_a_second_target_adds_its_profile_and_nothing_is_lost(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, "aca-t4") as site:
        await stands(site, share=None)
        before = await aca_environment.find_environment(site)
    async with opened(azure, bare_subscription, "aca-a100") as site:
        await stands(site, share=None)
        after = await aca_environment.find_environment(site)
    assert before
    assert after
    assert after.properties
    names = [one.name for one in after.properties.workload_profiles or ()]
    assert names == ["Consumption", "gpu-t4", "gpu-a100"]
    old, new = before.as_dict(), after.as_dict()
    for one in (old, new):
        del one["properties"]["workloadProfiles"]
        one.pop("systemData", None)
    assert old == new
    made = changes(controls, bare_subscription)
    assert (made[PUT], made[PATCH]) == (1, 1)


async def test_an_old_environment_that_takes_no_gpu_says_how_to_name_a_new_one(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE, old_environment=True)
    async with opened(azure, bare_subscription, "aca-t4") as site:
        await stands(site, share=None)
    async with opened(azure, bare_subscription, "aca-a100") as site:
        for _ in range(2):
            with pytest.raises(CloudRefused) as caught:
                await stands(site, share=None)
            assert "AZURE_CONTAINERAPPS_ENVIRONMENT" in caught.value.fix
            assert "created before" in caught.value.cause
    async with opened(azure, bare_subscription, azure_containerapps_environment="newer") as site:
        await stands(site, share=None)


async def test_a_profile_that_is_refused_for_its_quota_is_told_as_quota(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, "aca-t4") as site:
        await stands(site, share=None)
    refused = fault(PATCH, 400, code="MaxNumberOfProfilesExceeded", message="Too many.")
    controls.set(bare_subscription, faults=[refused])
    async with opened(azure, bare_subscription, "aca-a100") as site:
        with pytest.raises(QuotaExceeded) as caught:
            await stands(site, share=None)
    assert "Too many." in caught.value.cause
    assert "AZURE_CONTAINERAPPS_ENVIRONMENT" in caught.value.fix


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"location": "West US 3"}, "is in westus3"),
        ({"workloadProfiles": []}, "has no workload profiles"),
        (
            {"workloadProfiles": [{"name": "gpu-a100", "workloadProfileType": "D4"}]},
            "gpu-a100 of the environment vllm-devops-swedencentral is D4",
        ),
    ],
)
async def test_an_environment_that_can_never_do_is_left_alone(
    azure: AzurePlane, subscription: str, said: dict[str, Any], words: str
) -> None:
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        planted(arm, environment(**said))
        with pytest.raises(CloudRefused) as caught:
            await go(site, share=None)
    assert words in caught.value.summary
    assert "AZURE_CONTAINERAPPS_ENVIRONMENT" in caught.value.fix
    assert all(one.startswith("GET") for one in arm.calls)


async def test_a_failed_environment_of_ours_that_is_empty_is_made_anew(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        planted(arm, environment("Failed", deploymentErrors="No room."))
        leading_to(arm, "DELETE", None)
        leading_to(arm, "PUT", environment())
        await stands(site, share=None)
    changed = [one.split()[0] for one in arm.calls if not one.startswith("GET")]
    assert changed == ["DELETE", "PUT"]


@pytest.mark.parametrize("whose", ["theirs", "ours with an app"])
async def test_a_failed_environment_that_is_not_ours_or_not_empty_is_left_alone(
    azure: AzurePlane, subscription: str, whose: str
) -> None:
    tags = {"owner": "them"} if whose == "theirs" else {"managed-by": "vllm-devops-agent"}
    async with opened(azure, subscription) as site:
        arm, here = planted_apps(site), site.ground.environment_id.upper()
        app = {"name": "one", "location": "x", "properties": {"environmentId": here}}
        apps = () if whose == "theirs" else (app,)
        planted(arm, environment("Failed", deploymentErrors="No room.", tags=tags), *apps)
        with pytest.raises(NotOurs) as caught:
            await go(site, share=None)
    assert caught.value.cause == "No room."
    assert all(one.startswith("GET") for one in arm.calls)


async def test_an_environment_that_fails_is_told_and_made_anew_by_the_next_deployment(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 0.3)
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        planted(arm, None)
        leading_to(arm, "PUT", environment("Waiting"))
        assert await go(site, share=None) == ENVIRONMENT
        planted(arm, environment("Failed", deploymentErrors="No room."))
        with pytest.raises(CloudRefused) as caught:
            await advance(ground(site, None), seconds=0, anew=False)
        assert caught.value.cause == "No room."
        leading_to(arm, "DELETE", None)
        leading_to(arm, "PUT", environment("Failed", deploymentErrors="Still no room."))
        assert await go(site, share=None) == ENVIRONMENT
        with pytest.raises(CloudRefused) as caught:
            await advance(ground(site, None), seconds=20)
        assert caught.value.cause == "Still no room."
        leading_to(arm, "PUT", environment())
        await stands(site, share=None)
    changed = [one.split()[0] for one in arm.calls if one[:3] != "GET"]
    assert changed == ["PUT", "DELETE", "PUT", "DELETE", "PUT"]


@pytest.mark.parametrize(
    ("state", "stand"),
    [
        ("Succeeded", Status.READY),
        ("UpgradeRequested", Status.READY),
        ("UpgradeFailed", Status.READY),
        ("Waiting", Status.PENDING),
        ("InitializationInProgress", Status.PENDING),
        ("InfrastructureSetupInProgress", Status.PENDING),
        ("InfrastructureSetupComplete", Status.PENDING),
        ("ScheduledForDelete", Status.DELETING),
        ("SomethingNew", Status.PENDING),
        ("Failed", Status.FAILED),
        ("Canceled", Status.FAILED),
    ],
)
async def test_every_state_of_an_environment_is_read(
    azure: AzurePlane, subscription: str, state: str, stand: Status
) -> None:
    async with opened(azure, subscription) as site:
        planted(planted_apps(site), environment(state))
        found = await aca_environment.find_environment(site)
        assert found
        assert aca_environment.condition(site, found).status is stand


async def test_a_region_that_is_full_of_environments_is_told_as_quota(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    code = "MaxNumberOfRegionalEnvironmentsInSubExceeded"
    controls.set(bare_subscription, **AT_ONCE, faults=[fault(PUT, 400, code=code)])
    async with opened(azure, bare_subscription) as site:
        with pytest.raises(QuotaExceeded):
            await stands(site, share=None)
        await stands(site, share=None)
    assert changes(controls, bare_subscription)[PUT] == 2
