"""A deletion leaves nothing that it does not tell, and takes nothing that is not ours."""

from pathlib import Path
from typing import Any

import pytest
from azure.mgmt.appcontainers import models

from backends.aca import app, deployment, replicas, secrets, status
from backends.aca.backend import AcaBackend
from backends.aca.site import key_secret
from core.errors import ConcurrentChange, NotOurs
from core.reply import collecting_notes
from core.settings import AzurePlane
from core.waiting import wait_until
from tests.azure_plane import Controls
from tests.backends.aca.deployed import (
    apply,
    delete,
    deployed,
    foreign_app,
    go_on,
    impatient,
    make,
    purge,
)
from tests.backends.aca.planned import E2B, planned
from tests.backends.aca.sites import fault, opened

pytestmark = pytest.mark.anyio
DELETE = "DELETE Microsoft.App/containerApps"


@pytest.fixture(autouse=True)
def _quick(controls: Controls, bare_subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(bare_subscription, rollout="never", boot_seconds=0.05)
    impatient(monkeypatch)


async def test_a_deleted_deployment_is_gone_with_its_key_and_its_replicas(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Twice is harmless."""
    controls.set(subscription, rollout="ok")
    async with opened(azure, subscription) as site:
        await deployed(site, min_replicas=1)
        gone = await delete(site, "gemma")
        assert gone.gone
        assert len(gone.removed) == 2
        assert not await status.list_deployments(site)
        assert not await secrets.exists(site, key_secret("gemma"))
        again = await delete(site, "gemma")
    seen = controls.get(subscription)
    assert not seen["replicas"]
    assert not [one for vault in seen["secrets"].values() for one in vault]
    assert (again.gone, again.removed, again.stays) == (True, (), gone.stays)
    assert again.stays


async def test_what_stays_is_named_with_its_price_and_how_to_remove_it(
    azure: AzurePlane, subscription: str
) -> None:
    """The share is billed always."""
    async with opened(azure, subscription, hf_token="hf_abcdefgh") as site:
        await make(site)
        await make(site, "qwen")
        gone = await delete(site, "gemma")
        ground = site.ground
    stays = {one.what.split(",")[0]: one for one in gone.stays}
    assert stays[f"the environment {ground.environment}"].usd_per_month == 0
    (share,) = [one for one in gone.stays if one.what.startswith("the share")]
    assert share.usd_per_month > 0
    assert any(ground.workspace in one.what for one in gone.stays)
    assert any("hf-token" in one.what for one in gone.stays)
    assert all(one.how_to_remove for one in gone.stays)


async def test_an_app_of_somebody_else_is_not_deleted(azure: AzurePlane, subscription: str) -> None:
    """Nor is another target's, which is no error: here there is none."""
    async with (
        opened(azure, subscription) as site,
        opened(azure, subscription, target="aca-t4") as other,
    ):
        await foreign_app(site, "stranger")
        await make(other, "theirs")
        with pytest.raises(NotOurs):
            await delete(site, "stranger")
        assert (await delete(site, "theirs")).gone
        assert await app.find_app(site, "stranger")
        assert await app.find_app(site, "theirs")
        assert await secrets.exists(site, key_secret("theirs"))


async def test_in_a_bare_subscription_everything_is_gone(
    azure: AzurePlane, bare_subscription: str
) -> None:
    """Nothing is registered there, so nothing can be left."""
    async with opened(azure, bare_subscription) as site:
        gone = await delete(site, "gemma")
        assert (gone.gone, gone.removed, gone.stays) == (True, (), ())
        assert await purge(site, "gemma") == ()


async def test_a_deletion_that_takes_long_is_not_called_gone(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is kept until the app is seen to be gone; a second call is not refused."""
    monkeypatch.setattr(replicas, "REFUSAL_SECONDS", 0.05)
    monkeypatch.setattr(AcaBackend, "delete_seconds", 0.05)
    monkeypatch.setattr("backends.aca.replicas.BUSY_SECONDS", 0.05)
    async with opened(azure, subscription) as site:
        await make(site)
        controls.set(subscription, operation_seconds=3600)
        for _ in range(2):
            assert not (await delete(site, "gemma")).gone
        assert await secrets.exists(site, key_secret("gemma"))
    assert controls.get(subscription)["calls"].count(DELETE) <= 2


async def test_a_purge_takes_what_the_deployment_stood_on(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Environment, workspace, identity, storage with its size, vault: each seen to be gone."""
    async with opened(azure, subscription) as site:
        await apply(site, planned(site, model=E2B))
        await delete(site, "gemma")
        went = await purge(site, "gemma")
        ground = site.ground
        assert await purge(site, "gemma") == ()
    for name in (ground.environment, ground.workspace, ground.identity, ground.storage_account):
        assert any(name in one for one in went)
    assert any(ground.vault in one for one in went)
    assert controls.get(subscription)["resources"] == [ground.group_id.lower()]


async def test_what_another_app_stands_on_is_not_purged(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Neither while the deployment is there, nor while another one is; it is said whose."""
    async with (
        opened(azure, subscription) as site,
        opened(azure, subscription, target="aca-t4") as other,
    ):
        await make(site)
        await make(other, "theirs")
        before = _resources(controls, subscription)
        assert await purge(site, "gemma") == ()
        assert _resources(controls, subscription) == before
        await delete(site, "gemma")
        with collecting_notes() as notes:
            assert await purge(site, "gemma") == ()
    assert "theirs" in notes[0]


async def test_what_another_deployment_waits_to_stand_on_is_not_purged(
    azure: AzurePlane, subscription: str, controls: Controls, tmp_path: Path
) -> None:
    """It has no app yet by which it would be seen."""
    controls.set(subscription, faults=[fault("PUT secrets", 403, code="Forbidden")])
    async with (
        opened(azure, subscription, folder=tmp_path) as site,
        opened(azure, subscription, target="aca-t4", folder=tmp_path) as other,
    ):
        await make(other, "theirs")
        with collecting_notes() as notes:
            assert await purge(site, "gemma") == ()
    assert "theirs" in notes[0]


async def test_an_environment_elsewhere_keeps_the_vault_and_the_identity(
    azure: AzurePlane, subscription: str
) -> None:
    """Both are the group's: apps of another region run as the one and read the other."""
    async with (
        opened(azure, subscription) as site,
        opened(
            azure, subscription, azure_containerapps_environment="other", azure_location="westus3"
        ) as elsewhere,
    ):
        await _until_there(elsewhere)
        went = await purge(site, "gemma")
        assert len(went) == 2
        assert await secrets.exists(elsewhere, key_secret("far"))


async def test_what_was_not_made_here_is_not_purged(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """An environment without our tag stays, and is said to."""
    async with opened(azure, subscription) as site:
        environments = (await site.clients.apps()).managed_environments
        named = (site.ground.resource_group, site.ground.environment)
        found = await environments.get(*named)
        body = models.ManagedEnvironment(location=found.location, tags={"managed-by": "me"})
        await (await environments.begin_update(*named, body)).wait()
        with collecting_notes() as notes:
            went = await purge(site, "gemma")
        assert await environments.get(*named)
    assert any("not made here" in note for note in notes)
    assert not any(site.ground.environment in one for one in went if "environment" in one)


async def test_an_environment_that_goes_slowly_is_looked_for_by_the_next_call(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes; what is not seen to be gone is not called so."""
    monkeypatch.setattr("backends.aca.backend._PURGE_SECONDS", 0.05)
    controls.set(subscription, environment_seconds=3600, operation_seconds=3600)
    async with opened(azure, subscription) as site:
        with collecting_notes() as notes:
            went = await purge(site, "gemma")
    assert not any(one.startswith("the environment") for one in went)
    assert any("being deleted" in note for note in notes)


async def _until_there(site: Any) -> None:
    await make(site, "far")
    while site.pending.get("far"):
        await go_on(site, "far")


def _resources(controls: Controls, subscription: str) -> list[str]:
    found: list[str] = controls.get(subscription)["resources"]
    return found


@pytest.mark.parametrize("what", ["stop", "delete"])
async def test_what_may_not_be_ended_yet_is_deactivated_so_that_it_bills_no_more(
    azure: AzurePlane,
    subscription: str,
    controls: Controls,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Another operation holds the app for as long as its boot: its replicas end all the same."""
    monkeypatch.setattr(replicas, "BUSY_SECONDS", 0.1)
    held = "POST Microsoft.App/containerApps/stop" if what == "stop" else DELETE
    busy = fault(held, 409, code="ContainerAppOperationInProgress", times=-1)
    async with opened(azure, subscription) as site:
        await make(site, min_replicas=1)
        controls.set(subscription, faults=[busy])
        end = deployment.stop if what == "stop" else delete
        with pytest.raises(ConcurrentChange, match="refused") as refused:
            await end(site, "gemma")
        assert "was deactivated meanwhile" in refused.value.fix
        await _no_replica(controls, subscription)
        controls.set(subscription, faults=[])
        assert (await delete(site, "gemma")).gone


async def _no_replica(controls: Controls, subscription: str) -> None:
    async def look() -> list[str]:
        found: list[str] = controls.get(subscription)["replicas"]
        return found

    await wait_until(look, lambda left: not left, waiting_for="no replica", every=0.02, timeout=10)
