"""A subscription that is prepared is as the set-up leaves it."""

import pytest

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


async def test_everything_is_there_by_the_names_that_are_looked_for(
    clients: Clients, controls: Controls
) -> None:
    """Both sides work the names out by themselves."""
    ground = clients.ground

    there = set(controls.get(clients.subscription)["resources"])

    share = f"{ground.storage_id}/fileServices/default/shares/weights"
    links = [f"{ground.environment_id}/storages/{name}" for name in ("weights", "weights-ro")]
    wanted = (
        ground.group_id, ground.environment_id, ground.identity_id, ground.vault_id,
        ground.storage_id, ground.workspace_id, share, *links,
    )  # fmt: skip
    assert {one.lower() for one in wanted} <= there


async def test_the_environment_has_both_gpus_and_the_workspace(clients: Clients) -> None:
    """Its logs go to the workspace by that one's GUID."""
    apps, ground = await clients.apps(), clients.ground

    found = await apps.managed_environments.get(ground.resource_group, ground.environment)
    workspaces = (await clients.workspaces()).workspaces
    workspace = await workspaces.get(ground.resource_group, ground.workspace)

    assert found.properties
    assert found.properties.provisioning_state == "Succeeded"
    assert {one.name for one in found.properties.workload_profiles or ()} == {
        "Consumption",
        "gpu-a100",
        "gpu-t4",
    }
    logs = found.properties.app_logs_configuration
    assert logs
    assert logs.log_analytics_configuration
    assert workspace.properties
    assert logs.log_analytics_configuration.customer_id == workspace.properties.customer_id


async def test_whoever_calls_may_keep_secrets(clients: Clients) -> None:
    """Its roles are in effect."""
    secrets = await clients.secrets()

    await secrets.set_secret("key", "value")

    assert (await secrets.get_secret("key")).value == "value"


async def test_it_is_prepared_once(azure: AzurePlane, clients: Clients, controls: Controls) -> None:
    """What is set again leaves everything as it is."""
    await (await clients.secrets()).set_secret("key", "value")
    before = controls.get(clients.subscription)["resources"]

    controls.set(clients.subscription, prepared=True)

    assert controls.get(clients.subscription)["resources"] == before
    async with opened(azure, clients.subscription, "aca-t4") as site:
        assert (await (await site.clients.secrets()).get_secret("key")).value == "value"
