"""A deployment scaled, stopped, started and removed, with all that it stood on."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.mgmt.appcontainers import models

from backends.aca import app, deployment, lease, replicas, secrets, status
from backends.aca.app import spec_in
from backends.aca.backend import AcaBackend
from backends.aca.site import SPEC_TAG, key_secret
from backends.lifecycle import remove
from core.errors import (
    CloudUnavailable,
    ConcurrentChange,
    DeploymentNotFound,
    NotOurs,
    QuotaExceeded,
)
from core.records import State
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import (
    PATCH,
    app_of_name,
    apply,
    delete,
    deployed,
    foreign_app,
    go_on,
    impatient,
    make,
    purge,
    revisions,
    stopped,
    wanted,
)
from tests.backends.aca.planned import E2B, planned
from tests.backends.aca.sites import fault, opened
from tests.soon import soon

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, bare_subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(bare_subscription, rollout="never", boot_seconds=0.05)
    impatient(monkeypatch)


async def test_scaling_changes_the_app_and_what_it_says_of_itself(
    azure: AzurePlane, subscription: str
) -> None:
    """Nothing else of the template is lost, and that a revision boots is said."""
    async with opened(azure, subscription) as site:
        await make(site, max_model_len=2048)
        before = await app_of_name(site)
        with collecting_notes() as notes:
            await deployment.scale(site, "gemma", 1, 2)
        after = await app_of_name(site)
        spec = wanted(site, max_model_len=2048, min_replicas=1, max_replicas=2).spec
    assert any("boots once" in note for note in notes)
    assert _scale(after) == (1, 2)
    assert spec_in(after.tags) == spec
    assert (after.tags or {})[SPEC_TAG] == spec.fingerprint
    assert _but_scale(after) == _but_scale(before)


async def test_the_same_number_again_makes_no_revision(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """A boot costs minutes of a GPU."""
    async with opened(azure, subscription) as site:
        await make(site)
        await deployment.scale(site, "gemma", 0, 1)
        assert len(await revisions(site)) == 1
    assert PATCH not in controls.get(subscription)["calls"]


async def test_more_than_the_quota_is_refused_and_nothing_is_changed(
    azure: AzurePlane, subscription: str
) -> None:
    """Azure would take it, and never run it."""
    async with opened(azure, subscription) as site:
        await make(site)
        with pytest.raises(QuotaExceeded):
            await deployment.scale(site, "gemma", 0, 3)
        assert _scale(await app_of_name(site)) == (0, 1)


async def test_a_stop_ends_every_replica_and_a_start_is_what_was_asked_for(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """At least and at most are as before; each twice is harmless."""
    controls.set(subscription, rollout="ok")
    async with opened(azure, subscription) as site:
        await deployed(site, min_replicas=1)
        for _ in range(2):
            await deployment.stop(site, "gemma")
            assert await stopped(site)
        await soon(
            lambda: status.describe(site, "gemma"),
            lambda seen: seen.state is State.STOPPED,
            waiting_for="the stop",
        )
        assert not replicas.count_replicas(await revisions(site))
        for _ in range(2):
            await deployment.start(site, "gemma")
            assert not await stopped(site)
        assert _scale(await app_of_name(site)) == (1, 1)


async def test_what_is_started_again_has_its_time_anew(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was stopped for its age would be stopped at once; no revision is made for it."""
    async with opened(azure, subscription) as site:
        await make(site, ttl_minutes=5)
        await deployment.stop(site, "gemma")
        later = time.time() + 7200
        monkeypatch.setattr("backends.lease.time.time", lambda: later)
        await deployment.start(site, "gemma")
        told = await status.describe(site, "gemma")
        assert len(await revisions(site)) == 1
    assert told.expires_at == datetime.fromtimestamp(int(later) + 300, UTC)


async def test_what_is_not_there_or_not_ours_is_neither_changed_nor_replaced_nor_deleted(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Neither a name that there is not, nor a stranger, nor another target's."""
    async with (
        opened(azure, subscription) as site,
        opened(azure, subscription, target="aca-t4") as other,
    ):
        await foreign_app(site, "stranger")
        await make(other, "theirs")
        before = _written(controls, subscription)
        for name, kind in {
            "nobody": DeploymentNotFound,
            "stranger": NotOurs,
            "theirs": DeploymentNotFound,
        }.items():
            for work in (deployment.stop, deployment.start, deployment.settle_callers):
                with pytest.raises(kind):
                    await work(site, name)
            with pytest.raises(kind):
                await deployment.scale(site, name, 0, 2)
        for name in ("stranger", "theirs"):
            with pytest.raises(NotOurs):
                await make(site, name)
        with pytest.raises(NotOurs):
            await delete(site, "stranger")
        assert _written(controls, subscription) == before
        assert (await delete(site, "theirs")).gone  # which is no error: here there is none
        assert await app.find_app(site, "stranger")
        assert await app.find_app(site, "theirs")
        assert await secrets.exists(site, key_secret("theirs"))


async def test_a_stop_that_takes_long_is_no_error(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure is at it, which is said; nothing was undone by anybody."""
    monkeypatch.setattr("backends.aca.replicas.REFUSAL_SECONDS", 0.05)
    monkeypatch.setattr(deployment, "_HOLDS_SECONDS", 0.05)
    async with opened(azure, subscription) as site:
        await make(site)
        controls.set(subscription, operation_seconds=3600)
        with collecting_notes() as notes:
            await deployment.stop(site, "gemma")
    assert any("still at it" in note for note in notes)


async def test_nobody_who_says_the_address_leaves_it_as_it_was(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever could call it still can, and it is said."""
    async with opened(azure, subscription) as site:
        await make(site)
        monkeypatch.setattr("backends.aca.app.own_address", _unseen)
        with collecting_notes() as notes:
            await deployment.settle_callers(site, "gemma")
    assert any("as it was" in note for note in notes)
    assert PATCH not in controls.get(subscription)["calls"]


async def _unseen(url: str, setting: str, *, own: bool) -> str:
    raise CloudUnavailable(f"{url} does not say ({own}).", fix=f"Set {setting}.")


def _scale(app: Any) -> tuple[int, int]:
    scale = app.properties.template.scale
    return scale.min_replicas or 0, scale.max_replicas or 0


def _but_scale(app: Any) -> tuple[object, ...]:
    template, scale = app.properties.template, app.properties.template.scale
    return (
        template.as_dict()["containers"],
        template.as_dict().get("volumes"),
        scale.as_dict()["rules"],
        (scale.cooldown_period, scale.polling_interval),
        app.properties.configuration.as_dict(),
    )


def _written(controls: Controls, subscription: str) -> list[str]:
    calls = controls.get(subscription)["calls"]
    return [call for call in calls if not call.startswith("GET")]


DELETE = "DELETE Microsoft.App/containerApps"


async def test_what_stays_is_named_with_its_price_and_how_to_remove_it(
    azure: AzurePlane, subscription: str
) -> None:
    """The share is billed always."""
    async with opened(azure, subscription, hf_token="hf_abcdefgh") as site:
        await make(site)
        await make(site, "qwen")
        gone = await delete(site, "gemma")
        ground = site.ground
    (kept,) = [one for one in gone.stays if f"the environment {ground.environment}" in one.what]
    assert kept.usd_per_month == 0
    (share,) = [one for one in gone.stays if one.what.startswith("the share")]
    assert share.usd_per_month > 0
    assert any(ground.workspace in one.what for one in gone.stays)
    (token,) = [one.what for one in gone.stays if "hf-token" in one.what]
    assert "your" not in token  # it may be somebody else's
    assert all(one.how_to_remove for one in gone.stays)


async def test_in_a_bare_subscription_everything_is_gone(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    """Nothing is registered there, so nothing can be left; Azure may refuse to look, too."""
    unregistered = fault(
        "GET Microsoft.KeyVault/vaults", 409, code="MissingSubscriptionRegistration", times=-1
    )
    async with opened(azure, bare_subscription) as site:
        for faults in ((), (unregistered,)):
            controls.set(bare_subscription, faults=faults)
            gone = await delete(site, "gemma")
            assert (gone.gone, gone.removed, gone.stays) == (True, (), ())
        assert await purge(site, "gemma") == ()


async def test_a_deletion_that_takes_long_is_not_called_gone(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is kept until the app is seen to be gone; a second call is not refused."""
    monkeypatch.setattr(replicas, "REFUSAL_SECONDS", 0.05)
    monkeypatch.setattr(AcaBackend, "delete_seconds", 0.05)
    monkeypatch.setattr(deployment, "BUSY_SECONDS", 0.05)
    async with opened(azure, subscription) as site:
        await make(site)
        controls.set(subscription, operation_seconds=3600)
        for _ in range(2):
            assert not (await delete(site, "gemma")).gone
        assert await secrets.exists(site, key_secret("gemma"))
    assert controls.get(subscription)["calls"].count(DELETE) <= 2


async def test_a_job_that_is_being_deleted_is_not_asked_to_go_again(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Azure's library has a word of its own for the state."""
    async with opened(azure, subscription) as site:
        await make(site, ttl_minutes=5)
        controls.set(subscription, operation_seconds=3600)
        job, _grant = lease.owned(site, "gemma")
        for _ in range(2):
            assert not (await remove([job], seconds=0)).gone
    assert controls.get(subscription)["calls"].count("DELETE Microsoft.App/jobs") == 1


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
    monkeypatch.setattr(deployment, "BUSY_SECONDS", 0.1)
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

    await soon(look, lambda left: not left, waiting_for="no replica")
