"""Managed identities of the simulated Azure."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.mgmt.msi.v2024_11_30 import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients

pytestmark = pytest.mark.anyio


async def test_an_identity_is_somebody(clients: Clients) -> None:
    """It stays who it is when it is made again, and is another after it was deleted."""
    client, body = (
        (await clients.identities()).user_assigned_identities,
        M.Identity(location="swedencentral"),
    )
    made = await client.create_or_update(clients.group, "someone", body)
    again = await client.create_or_update(clients.group, "someone", body)
    assert made.principal_id
    assert made.principal_id != made.client_id
    assert again.principal_id == made.principal_id

    await client.delete(clients.group, "someone")

    with pytest.raises(ResourceNotFoundError):
        await client.get(clients.group, "someone")
    other = await client.create_or_update(clients.group, "someone", body)
    assert other.principal_id != made.principal_id


async def test_identities_are_listed(clients: Clients) -> None:
    """Those of the group, those of the subscription."""
    client = (await clients.identities()).user_assigned_identities

    here = [one.name async for one in client.list_by_resource_group(clients.group)]
    everywhere = [one.name async for one in client.list_by_subscription()]

    assert here == everywhere == [clients.ground.identity]


@pytest.mark.parametrize(
    ("name", "group", "location", "code"),
    [
        ("x", "", "swedencentral", "InvalidResourceName"),
        ("someone", "none", "swedencentral", "ResourceGroupNotFound"),
        ("vllm-devops", "", "westus3", "InvalidResourceLocation"),
    ],
)
async def test_what_cannot_be_is_refused(
    clients: Clients, name: str, group: str, location: str, code: str
) -> None:
    """A name that is too short, a group that is missing, another region than before."""
    client = (await clients.identities()).user_assigned_identities

    with pytest.raises(HttpResponseError) as told:
        await client.create_or_update(group or clients.group, name, M.Identity(location=location))

    assert told.value.error
    assert told.value.error.code == code
