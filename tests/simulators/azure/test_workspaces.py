"""Log Analytics workspaces of the simulated Azure."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.loganalytics import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.azure_plane import Controls

pytestmark = pytest.mark.anyio


def body() -> M.Workspace:
    return M.Workspace(
        location="swedencentral",
        properties=M.WorkspaceProperties(sku=M.WorkspaceSku(name="PerGB2018")),
    )


async def test_a_workspace_is_there_after_a_while(clients: Clients, controls: Controls) -> None:
    """It has a GUID, by which it is asked, and keys, by which it is written to."""
    controls.set(clients.subscription, operation_seconds=0.3)
    client = await clients.workspaces()

    poller = await client.workspaces.begin_create_or_update(clients.group, "some-logs", body())
    begun = await client.workspaces.get(clients.group, "some-logs")
    made = await poller.result()

    assert begun.properties
    assert begun.properties.provisioning_state == "Creating"
    assert made.properties
    assert made.properties.provisioning_state == "Succeeded"
    assert made.properties.customer_id == begun.properties.customer_id
    keys = await client.shared_keys.get_shared_keys(clients.group, "some-logs")
    assert keys.primary_shared_key
    assert keys.primary_shared_key != keys.secondary_shared_key
    assert "some-logs" in {one.name async for one in client.workspaces.list()}


async def test_a_workspace_that_is_made_again_is_the_same(clients: Clients) -> None:
    """Unless it was deleted by force: it is kept for a while."""
    client, name = (await clients.workspaces()).workspaces, clients.ground.workspace

    async def remade(*, force: bool) -> str | None:
        await (await client.begin_delete(clients.group, name, force=force)).wait()
        with pytest.raises(ResourceNotFoundError):
            await client.get(clients.group, name)
        made = await (await client.begin_create_or_update(clients.group, name, body())).result()
        return made.properties.customer_id if made.properties else None

    before = await remade(force=False)
    assert await remade(force=False) == before
    assert await remade(force=True) != before


async def test_a_name_that_cannot_be_is_refused(clients: Clients) -> None:
    """It has four letters at least."""
    client = await clients.workspaces()

    with pytest.raises(HttpResponseError) as told:
        await client.workspaces.begin_create_or_update(clients.group, "abc", body())

    assert told.value.error
    assert told.value.error.code == "InvalidParameter"
