"""What deployments stand on: made once, in order, and gone on with by whoever comes next."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from azure.mgmt.keyvault import models
from azure.mgmt.keyvault.aio import KeyVaultManagementClient
from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
from azure.mgmt.resource.resources.aio import ResourceManagementClient
from azure.mgmt.resource.resources.models import ResourceGroup
from azure.mgmt.storage.aio import StorageManagementClient
from azure.mgmt.storage.models import FileShare

from backends.aca import ground as aca_environment
from backends.aca import secrets, storage
from backends.aca import site as phases
from backends.aca.ground import find_assignment, find_identity
from backends.aca.plan import base as ground
from backends.aca.site import EFFECT, OURS, Site
from backends.lifecycle import Status, advance
from core.errors import CloudRefused, NotOurs, PermissionDenied, QuotaExceeded
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca import planned as offline
from tests.backends.aca.deployed import AT_ONCE, MADE, changes, go, patient, resources, stands
from tests.backends.aca.planted import Answer, Arm
from tests.backends.aca.preflights import environment, planted_apps
from tests.backends.aca.sites import backend_of, fault, opened

pytestmark = pytest.mark.anyio
ENVIRONMENT = "PUT Microsoft.App/managedEnvironments"


async def test_a_bare_subscription_gets_everything_and_nothing_twice(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription) as site:
        await stands(site)
        assert changes(controls, bare_subscription) == MADE
        assert await go(site) is None
    assert changes(controls, bare_subscription) == MADE


async def test_nothing_is_made_before_its_provider_is_registered(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 0)
    controls.set(bare_subscription, registration_seconds=600)
    async with opened(azure, bare_subscription) as site:
        assert await go(site) == phases.REGISTERING
        assert await go(site) == phases.REGISTERING
    assert resources(controls, bare_subscription) == []
    (registered,) = changes(controls, bare_subscription).values()
    assert registered == 5


async def test_a_group_of_somebody_else_keeps_its_tags_and_its_place(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, azure_resource_group="theirs") as site:
        client = await site.clients.arm(ResourceManagementClient)
        theirs = ResourceGroup(location="westus3", tags={"owner": "them"})
        await client.resource_groups.create_or_update("theirs", theirs)
        await stands(site, share=None)
        found = await client.resource_groups.get("theirs")
    assert (found.location, found.tags) == ("westus3", {"owner": "them"})


async def test_logs_go_to_the_workspace_that_is_set(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, azure_resource_group="one") as site:
        await stands(site, share=None)
        workspaces = (await site.clients.arm(LogAnalyticsManagementClient)).workspaces
        theirs: Any = await workspaces.get("one", site.ground.workspace)
    guid = theirs.properties.customer_id
    said: Any = {"azure_resource_group": "two", "azure_log_analytics_workspace_id": guid}
    async with opened(azure, bare_subscription, **said) as site:
        await stands(site, share=None)
        apps = await site.clients.apps()
        found: Any = await apps.managed_environments.get("two", site.ground.environment)
    logs = found.properties.app_logs_configuration.log_analytics_configuration
    assert logs.customer_id == guid
    kept = [one for one in resources(controls, bare_subscription) if "/workspaces/" in one]
    assert len(kept) == 1


async def test_a_workspace_that_is_not_there_is_said_before_an_environment_is_made(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    said: Any = {"azure_log_analytics_workspace_id": "00000000-0000-4000-8000-00000000000f"}
    async with opened(azure, bare_subscription, **said) as site:
        with pytest.raises(CloudRefused) as caught:
            await stands(site, share=None)
    assert "AZURE_LOG_ANALYTICS_WORKSPACE_ID" in caught.value.fix
    assert ENVIRONMENT not in changes(controls, bare_subscription)


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
        before: Any = await aca_environment.find_environment(site)
    async with opened(azure, bare_subscription, "aca-a100") as site:
        await stands(site, share=None)
        after: Any = await aca_environment.find_environment(site)
    names = [one.name for one in after.properties.workload_profiles or ()]
    assert names == ["Consumption", "gpu-t4", "gpu-a100"]
    old, new = before.as_dict(), after.as_dict()
    for one in (old, new):
        del one["properties"]["workloadProfiles"]
        one.pop("systemData", None)
    assert old == new
    made = changes(controls, bare_subscription)
    assert (made[PUT], made[PATCH]) == (1, 1)


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
        assert await go(site, share=None) == phases.ENVIRONMENT
        planted(arm, environment("Failed", deploymentErrors="No room."))
        with pytest.raises(CloudRefused) as caught:
            await advance(ground(site, None), seconds=0, anew=False)
        assert caught.value.cause == "No room."
        leading_to(arm, "DELETE", None)
        leading_to(arm, "PUT", environment("Failed", deploymentErrors="Still no room."))
        assert await go(site, share=None) == phases.ENVIRONMENT
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


LINK = "PUT Microsoft.App/managedEnvironments/storages"


async def links_of(site: Site) -> dict[str, tuple[str | None, str | None, str | None]]:
    """Give where each of the environment's links leads, and how."""
    storages = (await site.clients.apps()).managed_environments_storages
    found: Any = await storages.list("vllm-devops", site.ground.environment)
    given = {}
    for one in found.value:
        files = one.properties.azure_file
        given[str(one.name)] = (files.account_name, files.share_name, files.access_mode)
    return given


async def test_another_share_is_only_read_and_never_made(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudRefused) as caught:
            await go(site, share="models")
        assert "files://SHARE/FOLDER" in caught.value.fix
        shares = (await site.clients.arm(StorageManagementClient)).file_shares
        await shares.create("vllm-devops", site.ground.storage_account, "models", FileShare())
        assert await go(site, share="models") is None
        found = await links_of(site)
    assert found["models-ro"][1:] == ("models", "ReadOnly")
    assert "models" not in found


async def test_a_link_that_leads_elsewhere_is_left_alone(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription) as site:
        await stands(site)
        before = changes(controls, bare_subscription)[LINK]
    other = f"other{uuid.uuid4().hex[:10]}"
    async with opened(azure, bare_subscription, azure_storage_account=other) as site:
        with pytest.raises(CloudRefused) as caught:
            await stands(site)
    assert "az containerapp env storage remove" in caught.value.fix
    assert changes(controls, bare_subscription)[LINK] == before


VAULT = "PUT Microsoft.KeyVault/vaults"
ROLES = "PUT Microsoft.Authorization/roleAssignments"


async def delete_vault(site: Site) -> None:
    vaults = (await site.clients.arm(KeyVaultManagementClient)).vaults
    await vaults.delete("vllm-devops", site.ground.vault)


async def by_policies(site: Site) -> None:
    """Let there be a vault of that name which does not go by roles."""
    vaults, whose = (
        (await site.clients.arm(KeyVaultManagementClient)).vaults,
        await find_identity(site),
    )
    wanted = models.VaultCreateOrUpdateParameters(
        location="swedencentral",
        properties=models.VaultProperties(
            tenant_id=whose.tenant_id or "",
            sku=models.Sku(family="A", name="standard"),
            access_policies=[],
            enable_rbac_authorization=False,
        ),
    )
    poller = await vaults.begin_create_or_update("vllm-devops", site.ground.vault, wanted)
    await poller.result()


async def _apps_may_read(site: Site) -> bool:
    apps = await find_identity(site)
    found = await find_assignment(
        site, site.ground.vault_id, secrets.READS_SECRETS, apps.principal_id
    )
    return found is not None


async def test_a_vault_that_was_deleted_is_brought_back_with_what_is_in_it(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    async with opened(azure, subscription) as site:
        await (await site.clients.secrets()).set_secret("kept", "value")
        await delete_vault(site)
        assert await secrets.find_vault(site) is None
        await stands(site, share=None)
        found = await (await site.clients.secrets()).get_secret("kept")
    assert found.value == "value"


@pytest.mark.parametrize(
    ("setting", "named"),
    [("azure_keyvault_name", "vault"), ("azure_storage_account", "storage_account")],
)
async def test_a_name_that_somebody_in_the_world_has_is_said_with_its_setting(
    azure: AzurePlane, subscription: str, controls: Controls, setting: str, named: str
) -> None:
    other = str(uuid.uuid4())
    controls.set(other, **AT_ONCE)
    async with opened(azure, subscription) as site:
        taken = getattr(site.ground, named)
    async with opened(azure, other, **{setting: taken}) as site:
        with pytest.raises(CloudRefused) as caught:
            await stands(site)
    controls.drop(other)
    assert setting.upper() in caught.value.fix
    assert taken in caught.value.summary


async def test_a_vault_that_goes_by_policies_is_left_as_it_is(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    said: Any = {"azure_keyvault_name": f"p{bare_subscription[:8]}"}
    async with opened(azure, bare_subscription) as site:
        await stands(site, share=None)
    async with opened(azure, bare_subscription, **said) as site:
        await by_policies(site)
        before = changes(controls, bare_subscription)
        with pytest.raises(CloudRefused) as caught:
            await stands(site, share=None)
    assert "--enable-rbac-authorization true" in caught.value.fix
    assert changes(controls, bare_subscription) == before


async def test_whoever_may_not_give_roles_but_has_them_goes_on(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    controls.set(subscription, denied_actions=["Microsoft.Authorization/roleAssignments/write"])
    async with opened(azure, subscription) as site:
        assert await go(site) is None


async def test_a_role_that_is_old_and_does_not_count_is_no_longer_waited_for(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = fault("GET secrets", 403, code="Forbidden", message="Firewall.", times=-1)
    controls.set(subscription, faults=[refused])
    patient(monkeypatch, 0)
    async with opened(azure, subscription) as site:
        assert await go(site, share=None) == EFFECT
        monkeypatch.setattr(secrets, "EFFECT_TIME", timedelta(0))
        with pytest.raises(PermissionDenied) as caught:
            await go(site, share=None)
    assert caught.value.cause == "Firewall."


async def test_an_identity_that_the_directory_does_not_know_yet_gets_its_role_a_little_later(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    unknown = fault(ROLES, 400, code="PrincipalNotFound", times=2)
    controls.set(bare_subscription, **AT_ONCE, faults=[unknown])
    async with opened(azure, bare_subscription) as site:
        await stands(site, share=None)
        assert await _apps_may_read(site)
    assert changes(controls, bare_subscription)[ROLES] == 4


async def test_an_assignment_of_a_larger_role_is_enough(
    azure: AzurePlane, subscription: str
) -> None:
    async with opened(azure, subscription) as site:
        who, scope = await site.clients.caller(), site.ground.vault_id
        assert await find_assignment(site, scope, secrets.READS_SECRETS, who)
        assert await find_assignment(site, scope, storage.READS_SHARES, who) is None


TOKEN = "hf_secretword"


async def test_what_is_made_is_read_back_as_done(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        made = await backend_of(site).set_up()
        assert made.missing == ()
        assert await backend_of(site).setup() == made
        again = await backend_of(site).set_up()
        kept = await (await site.clients.secrets()).get_secret("hf-token")
    assert again == made
    assert kept.value == TOKEN
    right = {"PUT Microsoft.Authorization/roleDefinitions": 1}
    assert changes(controls, bare_subscription) == {**MADE, **right, "PUT secrets": 1}


async def test_a_token_that_is_another_is_kept_anew_and_never_told(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription, hf_token="hf_older") as site:
        await backend_of(site).set_up()
    async with opened(azure, bare_subscription, hf_token=TOKEN) as site:
        found = await backend_of(site).setup()
        assert [one.what.split(" with")[0] for one in found.missing] == ["The secret hf-token"]
        assert (await backend_of(site).set_up()).missing == ()
    assert TOKEN not in repr(found)


def test_everything_made_here_says_so_and_where_it_is() -> None:
    """So that purging takes nothing of anybody else's; without a location it is refused."""
    bodies = [one.body for one in offline.resources().values()]
    located = [body for body in bodies if "location" in body]
    assert [body["tags"]["managed-by"] for body in located] == [OURS["managed-by"]] * 7
    assert {body["location"] for body in located} == {"swedencentral"}
