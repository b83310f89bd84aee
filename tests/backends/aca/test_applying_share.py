"""Weights on a share of somebody's own: linked when they are first asked for."""

import pytest
from azure.mgmt.storage.models import FileShare

from core.settings import AzurePlane
from tests.backends.aca.deployed import NAME, app_of_name, impatient, make
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


async def test_a_share_that_is_not_ours_is_linked_for_its_deployment(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app mounts that link, which the set-up does not make."""
    impatient(monkeypatch)
    async with opened(azure, subscription) as site:
        shares = (await site.clients.storage()).file_shares
        await shares.create("vllm-devops", site.ground.storage_account, "models", FileShare())
        await make(site, weights="files://models/gemma")
        app = await app_of_name(site, NAME)
        assert app.properties
        assert app.properties.template
        volumes = app.properties.template.volumes or []
        assert [one.storage_name for one in volumes] == ["models-ro"]
