"""The secrets of a simulated Key Vault: versions, deletion, names."""

import pytest
from azure.core.exceptions import (
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.simulators.azure.asking import asked, token_of

pytestmark = pytest.mark.anyio


async def test_a_secret_has_versions(clients: Clients) -> None:
    """The newest is given, the older ones by their names."""
    secrets = await clients.secrets()
    first = await secrets.set_secret("key", "one", tags={"managed-by": "us"})
    second = await secrets.set_secret("key", "two")

    newest = await secrets.get_secret("key")
    older = await secrets.get_secret("key", first.properties.version)

    assert (newest.value, newest.properties.version) == ("two", second.properties.version)
    assert (older.value, older.properties.tags) == ("one", {"managed-by": "us"})
    pages = secrets.list_properties_of_secret_versions("key")
    assert len([one async for one in pages]) == 2
    assert newest.properties.vault_url == f"https://{clients.ground.vault}.vault.azure.net"


async def test_all_secrets_are_listed_page_by_page(clients: Clients) -> None:
    """With their tags, without their values."""
    secrets = await clients.secrets()
    for number in range(5):
        await secrets.set_secret(f"key-{number}", "value", tags={"number": str(number)})

    found = {
        one.name: one.tags async for one in secrets.list_properties_of_secrets(max_page_size=2)
    }

    assert found == {f"key-{number}": {"number": str(number)} for number in range(5)}


async def test_what_is_told_about_a_secret_can_be_changed(clients: Clients) -> None:
    """A disabled one gives no value."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")

    await secrets.update_secret_properties("key", enabled=False, tags={"a": "b"})

    with pytest.raises(HttpResponseError, match="disabled secret"):
        await secrets.get_secret("key")
    listed = [one async for one in secrets.list_properties_of_secrets()]
    assert [(one.enabled, one.tags) for one in listed] == [(False, {"a": "b"})]


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
    assert [one.name async for one in secrets.list_deleted_secrets()] == ["key"]
    await secrets.recover_deleted_secret("key")
    assert (await secrets.get_secret("key")).value == "value"


async def test_a_purged_secret_is_made_anew(clients: Clients) -> None:
    """Its versions are gone."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")
    await secrets.delete_secret("key")

    await secrets.purge_deleted_secret("key")

    await secrets.set_secret("key", "other")
    pages = secrets.list_properties_of_secret_versions("key")
    assert len([one async for one in pages]) == 1
    with pytest.raises(ResourceNotFoundError):
        await secrets.get_deleted_secret("key")


async def test_a_secret_that_is_not_there_is_named(clients: Clients) -> None:
    """So it is by those who delete it."""
    secrets = await clients.secrets()

    with pytest.raises(ResourceNotFoundError) as told:
        await secrets.get_secret("nothing")

    assert told.value.error
    assert told.value.error.code == "SecretNotFound"
    with pytest.raises(ResourceNotFoundError):
        await secrets.delete_secret("nothing")


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


async def test_a_login_that_is_not_for_vaults_is_challenged(
    azure: AzurePlane, clients: Clients
) -> None:
    """The answer says where to log in, and for what."""
    url = f"{await clients.vault_url()}/secrets/key?api-version=7.6"

    for token in ("", await token_of(clients)):
        reply = await asked(azure, "GET", url, token)
        assert reply.status_code == 401
        assert 'resource="https://vault.azure.net"' in reply.headers["www-authenticate"]

    reply = await asked(azure, "GET", url, await token_of(clients, "https://vault.azure.net"))
    assert reply.status_code == 404


async def test_a_secret_is_given_with_a_slash_at_its_end(
    clients: Clients, azure: AzurePlane
) -> None:
    """So Microsoft's client asks for the newest; nobody is sent elsewhere."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")
    token = await token_of(clients, "https://vault.azure.net/.default")
    url = f"{await clients.vault_url()}/secrets/key/"
    reply = await asked(azure, "GET", url, token, params={"api-version": "7.6"})
    assert (reply.status_code, reply.json()["value"]) == (200, "value")
