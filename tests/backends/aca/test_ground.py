"""What deployments stand on is made once, in order, and gone on with by whoever comes next."""

from typing import Any

import pytest
from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
from azure.mgmt.resource.resources.aio import ResourceManagementClient
from azure.mgmt.resource.resources.models import ResourceGroup
from azure.mgmt.storage.aio import StorageManagementClient

from backends.aca import site as phases
from backends.aca.plan import base as ground
from backends.aca.site import SHARE
from core.errors import CloudRefused
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import patient
from tests.backends.aca.grounds import AT_ONCE, MADE, changes, go, resources, stands
from tests.backends.aca.sites import opened

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


async def test_weights_without_a_share_make_no_storage(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription) as site:
        await stands(site, share=None)
    assert not [one for one in resources(controls, bare_subscription) if "storage" in one]
    assert "microsoft.storage" not in controls.get(bare_subscription)["providers"]


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


async def test_identity_vault_and_storage_do_not_wait_for_the_environment(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls.set(bare_subscription, **{**AT_ONCE, "environment_seconds": 600})
    patient(monkeypatch, 1.0)
    async with opened(azure, bare_subscription) as site:
        assert await go(site) == phases.ENVIRONMENT
    made = changes(controls, bare_subscription)
    assert set(MADE) - set(made) == {"PUT Microsoft.App/managedEnvironments/storages"}


async def test_a_role_that_does_not_count_yet_is_waited_for_and_not_given_again(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch, 0.3)
    controls.set(bare_subscription, **AT_ONCE, role_seconds=2)
    async with opened(azure, bare_subscription) as site:
        phase = await go(site, share=None)
        while phase != phases.EFFECT:
            phase = await go(site, share=None)
        await stands(site, share=None)
    assert changes(controls, bare_subscription)["PUT Microsoft.Authorization/roleAssignments"] == 2


async def test_every_phase_is_one_that_a_deployment_may_wait_in(
    azure: AzurePlane, bare_subscription: str
) -> None:
    async with opened(azure, bare_subscription) as site:
        used = {step.phase for step in ground(site, SHARE)}
    assert used == phases.PHASES


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
        theirs = await workspaces.get("one", site.ground.workspace)
    assert theirs.properties
    guid = theirs.properties.customer_id
    said: Any = {"azure_resource_group": "two", "azure_log_analytics_workspace_id": guid}
    async with opened(azure, bare_subscription, **said) as site:
        await stands(site, share=None)
        apps = await site.clients.apps()
        found = await apps.managed_environments.get("two", site.ground.environment)
    assert found.properties
    assert found.properties.app_logs_configuration
    logs = found.properties.app_logs_configuration.log_analytics_configuration
    assert logs
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


async def test_no_key_is_in_any_log(
    azure: AzurePlane, bare_subscription: str, controls: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription) as site:
        await stands(site)
        names = site.ground
        keys = await (await site.clients.arm(StorageManagementClient)).storage_accounts.list_keys(
            names.resource_group, names.storage_account
        )
        shared = await (
            await site.clients.arm(LogAnalyticsManagementClient)
        ).shared_keys.get_shared_keys(names.resource_group, names.workspace)
    secret = [shared.primary_shared_key, *(one.value for one in keys.keys_property or ())]
    assert all(secret)
    assert not [one for one in secret if str(one) in caplog.text]
    assert caplog.text
