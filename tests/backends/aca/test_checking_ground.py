"""Whether environment, vault and storage can be used or made, and who would be let in."""

import uuid
from typing import Any

import pytest

from backends.common import preflight
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.grounds import AT_ONCE, stands
from tests.backends.aca.preflights import (
    PROFILES,
    checked,
    environment,
    planted_apps,
    row,
    the_only_failure,
)
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio

ENVIRONMENT = "The environment vllm-devops-swedencentral"
THEIRS = {"owner": "them"}


@pytest.mark.parametrize(
    ("state", "said", "outcome", "words"),
    [
        ("Succeeded", {}, "pass", "has it"),
        ("Waiting", {}, "pass", "waiting"),
        ("Succeeded", {"workloadProfiles": PROFILES[:1]}, "unknown", "will be added"),
        ("Succeeded", {"workloadProfiles": []}, "fail", "no workload profiles"),
        ("Succeeded", {"location": "West US 3"}, "fail", "westus3"),
        ("Failed", {"deploymentErrors": "No room."}, "pass", "made anew. No room."),
        ("Failed", {"deploymentErrors": "No room.", "tags": THEIRS}, "fail", "No room."),
    ],
)
async def test_an_environment_is_judged_by_what_it_is(
    azure: AzurePlane, subscription: str, state: str, said: dict[str, Any], outcome: str, words: str
) -> None:
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        arm.on("GET .*/managedEnvironments/[^/]*", lambda _: (200, environment(state, **said)))
        arm.on("GET .*/containerApps", lambda _: (200, {"value": []}))
        found = row(await checked(site), ENVIRONMENT)
    assert found.outcome == outcome
    assert words in found.detail
    assert ("AZURE_CONTAINERAPPS_ENVIRONMENT" in found.fix) == (outcome != "pass")


async def test_a_vault_that_can_be_made_recovered_or_used_passes(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        assert row(await checked(site), "The Key Vault").detail == "It does."
        await (await site.clients.vaults()).vaults.delete("vllm-devops", site.ground.vault)
        gone = row(await checked(site), "The Key Vault")
    assert gone.outcome == "pass"
    assert "brought back" in gone.detail


async def test_a_vaults_name_that_is_taken_in_the_world_fails(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    other = str(uuid.uuid4())
    controls.set(other, **AT_ONCE)
    async with opened(azure, subscription) as site:
        taken = site.ground.vault
    async with opened(azure, other) as site:
        await stands(site, share=None)
    async with opened(azure, other, azure_keyvault_name=taken) as site:
        failed = the_only_failure(await checked(site))
    controls.drop(other)
    assert "AZURE_KEYVAULT_NAME" in failed.fix


async def test_a_role_that_is_missing_will_be_given_and_one_that_is_new_is_not_known_to_count(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, faults=[fault("GET secrets", 403, code="Forbidden", times=-1)])
    async with opened(azure, subscription) as site:
        new = row(await checked(site), "The Key Vault")
    controls.set(subscription, identity="somebody else", faults=[])
    async with opened(azure, subscription) as site:
        missing = row(await checked(site), "The Key Vault")
    assert new.outcome == "unknown"
    assert "minutes to count" in new.detail
    assert missing.outcome == "pass"
    assert "will be given" in missing.detail


async def test_the_share_is_looked_at_where_weights_come_from_it(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        assert not [one for one in (await checked(site)).checks if "The share" in one.what]
        found = await checked(site, weights="files://weights/models/qwen")
    assert row(found, "The share weights").outcome == "pass"
    assert row(found, "holds a whole model").outcome == "fail"


async def test_a_link_of_the_share_that_leads_elsewhere_fails(
    azure: AzurePlane, subscription: str
) -> None:
    other = {"accountName": "elsewhere", "shareName": "weights", "accessMode": "ReadOnly"}
    async with opened(azure, subscription) as site:
        arm = planted_apps(site)
        link = {"name": "weights-ro", "properties": {"azureFile": other}}
        arm.on("GET .*/storages/weights-ro", lambda _: (200, link))
        found = row(await checked(site, weights="files://weights/models/qwen"), "The share weights")
    assert found.outcome == "fail"
    assert "elsewhere" in found.detail


async def test_an_accounts_name_that_is_taken_in_the_world_fails(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    other = str(uuid.uuid4())
    async with opened(azure, subscription) as site:
        taken = site.ground.storage_account
    weights = "files://weights/models/qwen"
    async with opened(azure, other, azure_storage_account=taken) as site:
        controls.set(other, prepared=True)
        failed = row(await checked(site, weights=weights), "The share weights")
    fresh = f"fresh{uuid.uuid4().hex[:10]}"
    async with opened(azure, other, azure_storage_account=fresh) as site:
        free = row(await checked(site, weights=weights), "The share weights")
    controls.drop(other)
    assert "AZURE_STORAGE_ACCOUNT" in failed.fix
    assert free.outcome == "pass"


@pytest.mark.parametrize("access", ["private", "public", "internal"])
async def test_who_may_call_is_told_for_a_private_deployment_alone(
    azure: AzurePlane, subscription: str, access: str
) -> None:
    async with opened(azure, subscription) as site:
        found = [
            one for one in (await checked(site, access=access)).checks if "who may call" in one.what
        ]
    assert [one.detail for one in found] == (
        ["127.0.0.1/32; nobody else is let in."] if access == "private" else []
    )


async def test_an_address_that_nobody_tells_fails_with_its_setting(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_SECONDS", 0.0001)
    async with opened(azure, subscription) as site:
        failed = the_only_failure(await checked(site))
    assert "AZURE_ALLOWED_ADDRESSES" in failed.fix
    async with opened(azure, subscription, azure_allowed_addresses="home") as site:
        assert "home" in the_only_failure(await checked(site)).detail
