"""Models in blobs: found and judged, and said to be where no app can read them."""

import pytest

from backends.aca import storage
from core.errors import CloudRefused, PermissionDenied
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.shelf import store_blobs, with_blobs
from tests.backends.aca.sites import fault, opened
from tests.backends.shelf import below, model

pytestmark = pytest.mark.anyio


async def test_a_whole_model_in_blobs_is_found_and_is_not_to_be_served(
    azure: AzurePlane, subscription: str
) -> None:
    """Container Apps mount none: the detail says how it gets to a share."""
    files = model("google/gemma-3-4b-it")
    async with with_blobs(azure, subscription) as site:
        await store_blobs(site, {**below("a/gemma", files), "a/gemma/notes.md": b"x"}, "models")
        (found,) = await storage.list_models(site, "blob://models")
    assert found.location == "blob://models/a/gemma"
    assert found.model == "google/gemma-3-4b-it"
    assert found.size_bytes == sum(map(len, files.values()))
    assert (found.complete, found.servable) == (True, False)
    assert "get_huggingface_model_copy_instructions" in found.detail


async def test_a_container_that_is_missing_is_named(azure: AzurePlane, subscription: str) -> None:
    async with with_blobs(azure, subscription) as site:
        with pytest.raises(CloudRefused, match="The container nothing is not there"):
            await storage.list_models(site, "blob://nothing")


async def test_an_account_for_shares_on_ssd_holds_no_blobs(
    azure: AzurePlane, subscription: str
) -> None:
    """It has no address for them: to ask again would not help."""
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudRefused, match="Nothing of the kind 'blob'"):
            await storage.list_models(site, "blob://models")


async def test_whoever_may_not_read_blobs_learns_which_role_to_ask_for(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """By name, with the account as its scope."""
    async with with_blobs(azure, subscription) as site:
        controls.set(subscription, faults=[fault("GET *", 403, times=9)])
        with pytest.raises(PermissionDenied) as refused:
            await storage.list_models(site, "blob://models")
        assert "--role 'Storage Blob Data Reader'" in refused.value.fix
        assert site.ground.storage_id in refused.value.fix
