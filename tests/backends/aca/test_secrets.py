"""Secrets in the vault: one key per deployment, the Hub's token, and no value anywhere else."""

import pytest
import stamina
from azure.core.exceptions import ResourceNotFoundError
from pydantic import SecretStr

from backends.aca import secrets
from backends.aca.site import HF_SECRET, Site, key_secret
from core.errors import (
    CloudError,
    CloudRefused,
    ConcurrentChange,
    InvalidArgument,
    NotFound,
    NotOurs,
)
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import put_key
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio
TOKEN = SecretStr("hf_abcdefgh")


async def test_a_kept_token_is_readable_by_the_identity_of_apps(
    azure: AzurePlane, subscription: str
) -> None:
    """Line ends go, the value comes back, and who may read it is as it was seen."""
    async with opened(azure, subscription) as site:
        kept = await secrets.keep(site, HF_SECRET, SecretStr(" hf_abcdefgh\n"))
        assert await secrets.read(site, HF_SECRET) == TOKEN
        assert kept.readable_by == (site.ground.identity,)


async def test_the_same_token_again_makes_no_version(azure: AzurePlane, subscription: str) -> None:
    """Twice is harmless; another value is a new version."""
    async with opened(azure, subscription) as site:
        first, same, other, again = [
            (await secrets.keep(site, HF_SECRET, SecretStr(text))).version
            for text in ("hf_abcdefgh", "hf_abcdefgh\n", "hf_another", "hf_another")
        ]
    assert (first, other) == (same, again)
    assert first != other


async def test_an_empty_token_is_refused_before_anything_is_made(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Nothing is asked of Azure."""
    async with opened(azure, subscription) as site:
        with pytest.raises(InvalidArgument):
            await secrets.keep(site, HF_SECRET, SecretStr(" \n"))
    assert not controls.get(subscription)["calls"]


async def test_a_key_is_made_once_and_kept(azure: AzurePlane, subscription: str) -> None:
    """A later deployment under the same name has the key of the first, long and random."""
    async with opened(azure, subscription) as site:
        await put_key(site, "gemma")
        first = await secrets.read(site, key_secret("gemma"))
        await put_key(site, "gemma")
        assert await secrets.read(site, key_secret("gemma")) == first
        await put_key(site, "qwen")
        assert await secrets.read(site, key_secret("qwen")) != first
    assert len(first.get_secret_value()) == 43


async def test_a_secret_of_somebody_else_is_left_alone(
    azure: AzurePlane, subscription: str
) -> None:
    """One without our tag is neither given a version nor deleted."""
    async with opened(azure, subscription) as site:
        await _foreign(site, HF_SECRET)
        with pytest.raises(NotOurs):
            await secrets.keep(site, HF_SECRET, TOKEN)
        assert not await secrets.remove(site, HF_SECRET)
        assert await secrets.read(site, HF_SECRET) == SecretStr("theirs")


async def test_a_key_of_the_same_name_in_another_group_is_left_alone(
    azure: AzurePlane, subscription: str
) -> None:
    """A vault may serve several groups: each group's deployment keeps its own key."""
    async with opened(azure, subscription) as site:
        vault = site.ground.vault
        await put_key(site, "gemma")
        async with opened(
            azure, subscription, azure_resource_group="other", azure_keyvault_name=vault
        ) as elsewhere:
            with pytest.raises(NotOurs):
                await put_key(elsewhere, "gemma")
            assert not await secrets.remove(elsewhere, key_secret("gemma"))
        assert await secrets.exists(site, key_secret("gemma"))


async def test_a_secret_that_is_missing_says_what_to_do(
    azure: AzurePlane, subscription: str
) -> None:
    """Reading it is an error of ours; removing it is none."""
    async with opened(azure, subscription) as site:
        with pytest.raises(NotFound) as caught:
            await secrets.read(site, HF_SECRET)
        assert "save_hf_token" in caught.value.fix
        assert not await secrets.remove(site, HF_SECRET)


async def test_a_removed_key_is_gone_for_good(azure: AzurePlane, subscription: str) -> None:
    """The vault does not keep it on as a deleted one either."""
    async with opened(azure, subscription) as site:
        await put_key(site, "gemma")
        with collecting_notes() as notes:
            assert await secrets.remove(site, key_secret("gemma"))
        client = await site.clients.secrets()
        with pytest.raises(ResourceNotFoundError):
            await client.get_deleted_secret(key_secret("gemma"))
        assert not await secrets.exists(site, key_secret("gemma"))
    assert not notes


async def test_a_deleted_secret_that_nobody_may_purge_is_told_and_its_name_taken_again(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The name is recovered first, and then the key is another one, at once."""
    async with opened(azure, subscription) as site:
        await put_key(site, "gemma")
        first = await secrets.read(site, key_secret("gemma"))
        controls.set(subscription, faults=[fault("DELETE deletedsecrets", 403, code="Forbidden")])
        with collecting_notes() as notes:
            assert await secrets.remove(site, key_secret("gemma"))
        assert site.ground.vault in notes[0]
        assert not await secrets.exists(site, key_secret("gemma"))
        with stamina.set_testing(True, attempts=1):
            await put_key(site, "gemma")
        assert await secrets.read(site, key_secret("gemma")) != first


async def test_a_name_that_stays_taken_is_told(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still being deleted is waited for, but not for ever."""
    monkeypatch.setattr(secrets, "_SETTLES_SECONDS", 0.1)
    monkeypatch.setattr(secrets, "_LOOK_SECONDS", 0.02)
    controls.set(subscription, faults=[fault("PUT secrets", 409, times=-1)])
    async with opened(azure, subscription) as site:
        with pytest.raises(ConcurrentChange):
            await put_key(site, "gemma")


async def test_without_a_vault_it_is_said_how_to_have_one(
    azure: AzurePlane, bare_subscription: str
) -> None:
    """A vault that is not there has no address either."""
    async with opened(azure, bare_subscription) as site:
        with pytest.raises(CloudError) as caught:
            await secrets.keep(site, HF_SECRET, TOKEN)
    assert isinstance(caught.value, CloudRefused)
    assert "setup_target" in caught.value.fix


async def test_no_error_holds_a_value(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Neither ours nor what it came from."""
    controls.set(subscription, faults=[fault("PUT secrets", 503, times=-1)])
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudError) as caught:
            await secrets.keep(site, HF_SECRET, TOKEN)
    error: BaseException | None = caught.value
    while error is not None:
        assert TOKEN.get_secret_value() not in f"{error!r} {vars(error)}"
        error = error.__cause__


async def _foreign(site: Site, name: str) -> None:
    client = await site.clients.secrets()
    await client.set_secret(name, "theirs")
