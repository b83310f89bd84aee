"""Blobs of the simulated Azure."""

import uuid
from typing import Final

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from tests.simulators.azure.blob_story import story
from tests.simulators.azure.storage_roles import BLOBS_READER, BLOBS_WRITER, give

pytestmark = pytest.mark.anyio
_WEIGHTS: Final = bytes(range(256)) * 16
_ANSWERS: Final = [
    (404, "ContainerNotFound"),
    "well",
    (409, "ContainerAlreadyExists"),
    (400, "InvalidResourceName"),
    *["well"] * 4,
    (409, "BlobAlreadyExists"),
    "well",
    ["models"],
    [
        ("large/part 1 & 2.bin", 10, "BlockBlob"),
        ("readme", 5, "BlockBlob"),
        ("small/config.json", 2, "BlockBlob"),
        ("small/model.safetensors", 4096, "BlockBlob"),
    ],
    ["small/config.json", "small/model.safetensors"],
    [],
    ["large/", "readme", "small/"],
    ["small/config.json", "small/model.safetensors"],
    (404, "ContainerNotFound"),
    ("small/model.safetensors", 4096, "BlockBlob"),
    _WEIGHTS,
    _WEIGHTS[250:270],
    _WEIGHTS[4090:],
    (416, "InvalidRange"),
    b"again",
    (404, "BlobNotFound"),
    False,
    "well",
    (404, "BlobNotFound"),
    "well",
]
"""As Azure's documents say, for each step of the story."""


async def general_account(clients: Clients) -> None:
    """Make an account that has blobs, in place of the one for files alone."""
    accounts, name = (await clients.storage()).storage_accounts, clients.ground.storage_account
    await accounts.delete(clients.group, name)
    wanted = M.StorageAccountCreateParameters(
        sku=M.Sku(name="Standard_LRS"), kind="StorageV2", location="swedencentral"
    )
    await (await accounts.begin_create(clients.group, name, wanted)).result()


async def test_blobs_are_written_listed_read_and_deleted(clients: Clients) -> None:
    """Each step answers as Azure's documents say."""
    await general_account(clients)
    await give(clients, BLOBS_WRITER)

    told = await story(await clients.blobs())

    assert told == _ANSWERS


async def test_a_reader_writes_nothing(clients: Clients) -> None:
    """And an owner reads nothing."""
    await general_account(clients)
    service = await clients.blobs()
    with pytest.raises(HttpResponseError) as told:
        _ = [one async for one in service.list_containers()]
    assert told.value.status_code == 403
    await give(clients, BLOBS_READER)

    assert not [one async for one in service.list_containers()]

    with pytest.raises(HttpResponseError) as told:
        await service.create_container("models")
    assert told.value.status_code == 403


async def test_an_account_for_files_has_no_blobs(clients: Clients) -> None:
    """The real one would not be found by its name."""
    service = await clients.blobs()

    with pytest.raises(HttpResponseError) as told:
        await service.get_container_client(f"c{uuid.uuid4().hex}").exists(retry_total=0)

    assert told.value.status_code == 503
