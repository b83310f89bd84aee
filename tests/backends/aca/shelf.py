"""Models on shares and in containers of the simulated storage account."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import NAMESPACE_URL, uuid4, uuid5

from azure.mgmt.authorization.v2022_04_01.aio import AuthorizationManagementClient
from azure.mgmt.authorization.v2022_04_01.models import RoleAssignmentCreateParameters
from azure.mgmt.storage.aio import StorageManagementClient
from azure.mgmt.storage.models import Sku, StorageAccountCreateParameters

from backends.aca.site import Site
from core.settings import AzurePlane
from tests.backends.aca.sites import opened

BLOBS_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
"""Storage Blob Data Reader."""


@asynccontextmanager
async def allowed(site: Site, role: str) -> AsyncIterator[None]:
    """Give whoever asks a role on the account, and take it away again."""
    scope, who = site.ground.storage_id, await site.clients.caller()
    name = str(uuid5(NAMESPACE_URL, f"{scope} {role} test"))
    definition = (
        f"/subscriptions/{site.ground.subscription}/providers/Microsoft.Authorization"
        f"/roleDefinitions/{role}"
    )
    wanted = RoleAssignmentCreateParameters(role_definition_id=definition, principal_id=who)
    assignments = (await site.clients.arm(AuthorizationManagementClient)).role_assignments
    await assignments.create(scope, name, wanted)
    yield
    await assignments.delete(scope, name)


@asynccontextmanager
async def with_blobs(plane: AzurePlane, subscription: str) -> AsyncIterator[Site]:
    """Open a target whose account holds blobs as well: one for shares on SSD holds none."""
    name = f"t{uuid4().hex[:20]}"
    async with opened(plane, subscription, azure_storage_account=name) as site:
        wanted = StorageAccountCreateParameters(
            sku=Sku(name="Standard_LRS"), kind="StorageV2", location=site.ground.region
        )
        accounts = (await site.clients.arm(StorageManagementClient)).storage_accounts
        poller = await accounts.begin_create(site.ground.resource_group, name, wanted)
        await poller.result()
        async with allowed(site, BLOBS_READER):
            yield site


async def store(site: Site, files: Mapping[str, bytes], share: str = "weights") -> None:
    """Put files on a share, by their paths."""
    await _put(site, files, "file", share)


async def store_blobs(site: Site, files: Mapping[str, bytes], container: str) -> None:
    """Put blobs into a container."""
    await _put(site, files, "blob", container)


async def _put(site: Site, files: Mapping[str, bytes], kind: str, top: str) -> None:
    """Write into the folder of a share or container, as the simulated Azure keeps it."""
    plane, ground = await site.clients.plane(), site.ground
    assert plane
    account = Path(plane.ca).parent / "storage" / ground.subscription / ground.storage_account
    for path, content in files.items():
        file = account / kind / top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
