"""A share that cannot be read: what is missing is named, and what to do about it."""

import anyio
import pytest

from backends.aca import storage
from core.errors import (
    CloudError,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    NotAuthenticated,
    PermissionDenied,
)
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.shelf import store
from tests.backends.aca.sites import fault, opened
from tests.backends.shelf import below, model

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, NotAuthenticated),
        (403, PermissionDenied),
        (400, CloudRefused),
        (429, CloudUnavailable),
        (503, CloudUnavailable),
    ],
)
async def test_what_storage_refuses_is_a_coded_error(
    azure: AzurePlane,
    subscription: str,
    controls: Controls,
    status: int,
    error: type[CloudError],
) -> None:
    """With Azure's own words as the cause."""
    controls.set(subscription, faults=[fault("*", status, times=9)])
    async with opened(azure, subscription) as site:
        with pytest.raises(error) as refused:
            await storage.list_models(site, None)
    assert refused.value.fix
    assert refused.value.cause


@pytest.mark.parametrize("status", [500, 503])
async def test_a_hiccup_is_asked_again(
    azure: AzurePlane, subscription: str, controls: Controls, status: int
) -> None:
    """Twice, at once: looking changes nothing."""
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", model()))
        controls.set(subscription, faults=[fault("*", status, times=2)])
        assert len(await storage.list_models(site, None)) == 1


async def test_whoever_may_not_read_learns_which_role_to_ask_for(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """By name, with the account as its scope."""
    controls.set(subscription, faults=[fault("*", 403, times=9)])
    async with opened(azure, subscription) as site:
        with pytest.raises(PermissionDenied) as refused:
            await storage.list_models(site, None)
        assert f"--role '{storage.READS_SHARES.title}'" in refused.value.fix
        assert site.ground.storage_id in refused.value.fix


async def test_a_share_that_takes_too_long_is_given_up(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends before a client cuts it."""

    async def slow(*_arguments: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(storage, "_DEADLINE", 0.05)
    monkeypatch.setattr(storage, "list_files", slow)
    async with opened(azure, subscription) as site:
        with pytest.raises(CloudTimeout, match="read the share weights"):
            await storage.list_models(site, None)


async def test_a_file_that_goes_away_while_it_is_read_is_told(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be copying: that is no bug of ours."""
    listing = storage.list_files

    async def then_gone(*arguments: object) -> object:
        found = await listing(*arguments)  # type: ignore[arg-type]  # what it was called with
        gone = fault("*", 404, code="ResourceNotFound", times=9)
        controls.set(subscription, faults=[gone])
        return found

    monkeypatch.setattr(storage, "list_files", then_gone)
    async with opened(azure, subscription) as site:
        await store(site, below("gemma", model()))
        with pytest.raises(CloudRefused, match="The file gemma/"):
            await storage.list_models(site, None)
