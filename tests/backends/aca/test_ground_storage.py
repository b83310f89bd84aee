"""The share is made and linked once, and a link that leads elsewhere is left alone."""

import uuid

import pytest
from azure.mgmt.storage.aio import StorageManagementClient
from azure.mgmt.storage.models import FileShare

from backends.aca import storage
from backends.aca.site import Site
from core.errors import CloudRefused
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.grounds import AT_ONCE, changes, go, stands
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio

LINK = "PUT Microsoft.App/managedEnvironments/storages"


async def links_of(site: Site) -> dict[str, tuple[str | None, str | None, str | None]]:
    """Give where each of the environment's links leads, and how."""
    storages = (await site.clients.apps()).managed_environments_storages
    found = await storages.list("vllm-devops", site.ground.environment)
    given = {}
    for one in found.value:
        assert one.properties
        files = one.properties.azure_file
        assert files
        given[str(one.name)] = (files.account_name, files.share_name, files.access_mode)
    return given


async def test_the_share_is_linked_for_writing_and_for_reading(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    controls.set(bare_subscription, **AT_ONCE)
    async with opened(azure, bare_subscription) as site:
        await stands(site)
        account = site.ground.storage_account
        assert await links_of(site) == {
            "weights": (account, "weights", "ReadWrite"),
            "weights-ro": (account, "weights", "ReadOnly"),
        }


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
        assert await storage.link_elsewhere(site, storage.Link("weights", read_only=False))
    assert "az containerapp env storage remove" in caught.value.fix
    assert changes(controls, bare_subscription)[LINK] == before
