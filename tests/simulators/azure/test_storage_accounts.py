"""Storage accounts of the simulated Azure, and their shares as ARM sees them."""

import uuid
from pathlib import Path

import anyio
import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from core.settings import AzurePlane
from simulators.azure.state import World
from simulators.azure.storage import resume, share_folder
from tests.azure_plane import Controls
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


def body(kind: str = "FileStorage", sku: str = "PremiumV2_LRS") -> M.StorageAccountCreateParameters:
    return M.StorageAccountCreateParameters(
        sku=M.Sku(name=sku), kind=kind, location="swedencentral", tags={"a": "b"}
    )


def some_name() -> str:
    return f"s{uuid.uuid4().hex[:12]}"


async def made(clients: Clients, name: str, wanted: M.StorageAccountCreateParameters) -> None:
    accounts = (await clients.storage()).storage_accounts
    await (await accounts.begin_create(clients.group, name, wanted)).result()


async def refusal(
    clients: Clients, name: str, wanted: M.StorageAccountCreateParameters
) -> str | None:
    accounts = (await clients.storage()).storage_accounts
    with pytest.raises(HttpResponseError) as told:
        await accounts.begin_create(clients.group, name, wanted)
    return told.value.error.code if told.value.error else None


async def test_an_account_is_there_after_a_while(clients: Clients, controls: Controls) -> None:
    """Its keys open it; what is for files alone has no address for blobs."""
    controls.set(clients.subscription, operation_seconds=0.3)
    accounts, name = (await clients.storage()).storage_accounts, some_name()

    poller = await accounts.begin_create(clients.group, name, body())
    begun = await accounts.get_properties(clients.group, name)
    done = await poller.result()

    assert begun.properties
    assert begun.properties.provisioning_state == "Creating"
    assert done.properties
    assert done.properties.provisioning_state == "Succeeded"
    assert done.properties.primary_endpoints
    assert done.properties.primary_endpoints.blob is None
    keys = (await accounts.list_keys(clients.group, name)).keys_property or []
    assert [one.key_name for one in keys] == ["key1", "key2"]
    assert len({one.value for one in keys}) == 2
    assert name in {one.name async for one in accounts.list_by_resource_group(clients.group)}


async def test_a_deleted_account_is_gone(clients: Clients) -> None:
    """With its shares, and the roles in it; its name is free."""
    client, account = await clients.storage(), clients.ground.storage_account
    await client.storage_accounts.delete(clients.group, account)

    asked = M.StorageAccountCheckNameAvailabilityParameters(name=account)
    assert (await client.storage_accounts.check_name_availability(asked)).name_available
    await made(clients, account, body())
    with pytest.raises(ResourceNotFoundError):
        await client.file_shares.get(clients.group, account, "weights")


async def test_a_name_is_the_whole_worlds(azure: AzurePlane, clients: Clients) -> None:
    """Whoever else has it, it is taken."""
    other = str(uuid.uuid4())
    Controls(azure).set(other, prepared=True)
    async with opened(azure, other) as site:
        theirs = site.ground.storage_account

    assert await refusal(clients, theirs, body()) == "StorageAccountAlreadyTaken"
    Controls(azure).drop(other)


@pytest.mark.parametrize(
    ("name", "kind", "sku", "code"),
    [
        ("With-Hyphens", "StorageV2", "Standard_LRS", "AccountNameInvalid"),
        ("plain", "FileStorage", "Standard_LRS", "InvalidValuesForRequestParameters"),
        ("plain", "FileStore", "Premium_LRS", "InvalidRequestContent"),
    ],
)
async def test_what_cannot_be_is_refused(
    clients: Clients, name: str, kind: str, sku: str, code: str
) -> None:
    """Letters that may not be, and a kind that does not go with its sku or is none."""
    assert await refusal(clients, name, body(kind, sku)) == code


async def test_an_account_stays_what_it_is(clients: Clients) -> None:
    """Neither kind nor region can be changed."""
    account, elsewhere = clients.ground.storage_account, body()
    elsewhere.location = "westus3"

    other = await refusal(clients, account, body("StorageV2", "Standard_LRS"))

    assert other == "AccountPropertyCannotBeUpdated"
    assert await refusal(clients, account, elsewhere) == "InvalidResourceLocation"


async def test_data_of_a_forgotten_subscription_is_removed(tmp_path: Path) -> None:
    """When the plane is started the next time."""
    async with anyio.create_task_group() as tasks:
        world = World(folder=tmp_path, tasks=tasks, key=b"")
        known, gone = world.subscription("known"), world.subscription("gone")
        folders = [share_folder(world, sub, "account", "weights") for sub in (known, gone)]
        for folder in folders:
            folder.mkdir(parents=True)
        world.forget(gone)

        resume(world)

    assert [folder.exists() for folder in folders] == [True, False]


async def test_a_share_is_made_at_once(clients: Clients) -> None:
    """Its size is what it is paid for."""
    shares, account = (await clients.storage()).file_shares, clients.ground.storage_account
    wanted = M.FileShare(file_share_properties=M.FileShareProperties(share_quota=64))

    await shares.create(clients.group, account, "more", wanted)

    found = await shares.get(clients.group, account, "more")
    assert found.file_share_properties
    assert found.file_share_properties.share_quota == 64
    assert {one.name async for one in shares.list(clients.group, account)} == {"more", "weights"}
    await shares.delete(clients.group, account, "more")
    with pytest.raises(ResourceNotFoundError) as told:
        await shares.get(clients.group, account, "more")
    assert told.value.error
    assert told.value.error.code == "ShareNotFound"


async def test_not_every_account_has_files(clients: Clients) -> None:
    """Those that are premium for blobs have none; a first premium share has 100 GiB at least."""
    shares, blobs, first = (await clients.storage()).file_shares, some_name(), some_name()
    await made(clients, blobs, body("StorageV2", "Premium_LRS"))
    await made(clients, first, body("FileStorage", "Premium_LRS"))

    for account, size, code in (
        (blobs, 100, "FeatureNotSupportedForAccount"),
        (first, 99, "InvalidXmlNodeValue"),
        ("nobodys", 100, "ResourceNotFound"),
    ):
        wanted = M.FileShare(file_share_properties=M.FileShareProperties(share_quota=size))
        with pytest.raises(HttpResponseError) as told:
            await shares.create(clients.group, account, "weights", wanted)
        assert told.value.error
        assert told.value.error.code == code
