"""Models on shares and in containers of the simulated storage account."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from uuid import NAMESPACE_URL, uuid4, uuid5

from azure.core.exceptions import ResourceExistsError
from azure.mgmt.authorization.v2022_04_01.models import RoleAssignmentCreateParameters
from azure.mgmt.storage.models import Sku, StorageAccountCreateParameters
from azure.storage.fileshare.aio import ShareClient

from backends.aca.site import Site
from core.settings import AzurePlane
from tests.backends.aca.sites import opened

FILES_WRITER = "69566ab7-960f-475b-8e7c-b3118f30c6bd"
"""Storage File Data Privileged Contributor."""
BLOBS_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
"""Storage Blob Data Reader."""
BLOBS_WRITER = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
"""Storage Blob Data Contributor."""


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
    assignments = (await site.clients.roles()).role_assignments
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
        accounts = (await site.clients.storage()).storage_accounts
        poller = await accounts.begin_create(site.ground.resource_group, name, wanted)
        await poller.result()
        async with allowed(site, BLOBS_READER):
            yield site


async def store(site: Site, files: Mapping[str, bytes], share: str = "weights") -> None:
    """Put files on a share, by their paths."""
    async with allowed(site, FILES_WRITER):
        client = (await site.clients.files()).get_share_client(share)
        for folder in sorted({str(each) for path in files for each in PurePosixPath(path).parents}):
            if folder != ".":
                await _folder(client, folder)
        for path, content in files.items():
            await client.get_file_client(path).upload_file(content)


async def store_blobs(site: Site, files: Mapping[str, bytes], container: str) -> None:
    """Put blobs into a container that is made for them."""
    async with allowed(site, BLOBS_WRITER):
        client = (await site.clients.blobs()).get_container_client(container)
        await client.create_container()
        for path, content in files.items():
            await client.upload_blob(path, content)


async def _folder(client: ShareClient, folder: str) -> None:
    try:
        await client.create_directory(folder)
    except ResourceExistsError:
        return
