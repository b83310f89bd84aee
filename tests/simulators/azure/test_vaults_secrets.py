"""The secrets of a simulated Key Vault: deletion, and how they are asked for."""

import ssl

import httpx2
import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from backends.aca.site import Clients
from core.settings import AzurePlane

pytestmark = pytest.mark.anyio


async def test_a_deleted_secret_keeps_its_name(clients: Clients) -> None:
    """Until it is recovered."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")

    deleted = await secrets.delete_secret("key")

    assert deleted.recovery_id
    assert deleted.properties.recovery_level == "CustomizedRecoverable+Purgeable"
    assert deleted.properties.recoverable_days == 7
    with pytest.raises(ResourceNotFoundError):
        await secrets.get_secret("key")
    with pytest.raises(ResourceExistsError, match="deleted but recoverable") as told:
        await secrets.set_secret("key", "other")
    assert told.value.error
    assert told.value.error.innererror == {"code": "ObjectIsDeletedButRecoverable"}
    await secrets.recover_deleted_secret("key")
    assert (await secrets.get_secret("key")).value == "value"


async def test_a_purged_secret_is_made_anew(clients: Clients) -> None:
    """Nothing is left of it."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")
    await secrets.delete_secret("key")
    await secrets.purge_deleted_secret("key")
    with pytest.raises(ResourceNotFoundError):
        await secrets.get_deleted_secret("key")
    await secrets.set_secret("key", "other")
    assert (await secrets.get_secret("key")).value == "other"


async def test_what_cannot_be_kept_is_refused(clients: Clients) -> None:
    """A name with other letters, a value without end, more than 15 tags."""
    secrets = await clients.secrets()

    for name, value, tags in (
        ("under_score", "value", {}),
        ("key", "x" * 25_601, {}),
        ("key", "value", {str(number): "" for number in range(16)}),
    ):
        with pytest.raises(HttpResponseError) as told:
            await secrets.set_secret(name, value, tags=tags)
        assert told.value.status_code == 400


async def test_a_secret_is_given_with_a_slash_at_its_end(
    clients: Clients, azure: AzurePlane
) -> None:
    """So Microsoft's client asks for the newest; nobody is sent elsewhere, or let in unknown."""
    await (await clients.secrets()).set_secret("key", "value")
    token = await (await clients.credential()).get_token("https://vault.azure.net/.default")
    url = f"{await clients.vault_url()}/secrets/key/?api-version=7.6"
    trusted = ssl.create_default_context(cafile=azure.ca)
    async with httpx2.AsyncClient(verify=trusted, trust_env=False) as client:
        reply = await client.get(url, headers={"Authorization": f"Bearer {token.token}"})
        unknown = await client.get(url)
    assert (reply.status_code, reply.json()["value"]) == (200, "value")
    assert unknown.status_code == 401
    assert 'resource="https://vault.azure.net"' in unknown.headers["www-authenticate"]
