"""Scaling, stopping and starting: what is not changed stays, and what was done is seen."""

import time
from datetime import UTC, datetime

import pytest
from azure.mgmt.appcontainers import models

from backends.aca import deployment, replicas, status
from backends.aca.app import spec_in
from backends.aca.site import SPEC_TAG
from core.errors import (
    CloudUnavailable,
    DeploymentNotFound,
    NotOurs,
    QuotaExceeded,
)
from core.records import State
from core.reply import collecting_notes
from core.settings import AzurePlane
from core.waiting import wait_until
from tests.azure_plane import Controls
from tests.backends.aca.deployed import (
    PATCH,
    app_of_name,
    deployed,
    foreign_app,
    impatient,
    make,
    revisions,
    stopped,
    wanted,
)
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(subscription, rollout="never", boot_seconds=0.05)
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


async def test_scaling_twice_makes_two_revisions_of_different_names(
    azure: AzurePlane, subscription: str
) -> None:
    """The name of a revision that was read is not sent again."""
    async with opened(azure, subscription) as site:
        await make(site)
        await deployment.scale(site, "gemma", 0, 2)
        await deployment.scale(site, "gemma", 0, 1)
        assert len({one.name for one in await revisions(site)}) == 3


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
        await wait_until(
            lambda: status.describe(site, "gemma"),
            lambda seen: seen.state is State.STOPPED,
            waiting_for="the stop",
            every=0.05,
            timeout=20,
        )
        assert not replicas.count_replicas(await revisions(site))
        for _ in range(2):
            await deployment.start(site, "gemma")
            assert not await stopped(site)
        assert _scale(await app_of_name(site)) == (1, 1)


async def test_at_most_none_is_a_stop(azure: AzurePlane, subscription: str) -> None:
    """A maximum of 0 is none to Azure."""
    async with opened(azure, subscription) as site:
        await make(site)
        await deployment.scale(site, "gemma", 0, 0)
        assert await stopped(site)
        await deployment.scale(site, "gemma", 0, 1)
        assert not await stopped(site)


async def test_what_is_started_again_has_its_time_anew(
    azure: AzurePlane, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was stopped for its age would be stopped at once; no revision is made for it."""
    async with opened(azure, subscription) as site:
        await make(site, ttl_minutes=5)
        await deployment.stop(site, "gemma")
        later = time.time() + 7200
        monkeypatch.setattr("backends.aca.deployment.time.time", lambda: later)
        await deployment.start(site, "gemma")
        told = await status.describe(site, "gemma")
        assert len(await revisions(site)) == 1
    assert told.expires_at == datetime.fromtimestamp(int(later) + 300, UTC)


async def test_what_is_not_there_or_not_ours_is_not_changed(
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
        assert _written(controls, subscription) == before


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


def _scale(app: models.ContainerApp) -> tuple[int, int]:
    assert app.properties
    assert app.properties.template
    assert app.properties.template.scale
    scale = app.properties.template.scale
    return scale.min_replicas or 0, scale.max_replicas or 0


def _but_scale(app: models.ContainerApp) -> tuple[object, ...]:
    assert app.properties
    assert app.properties.template
    assert app.properties.template.scale
    assert app.properties.configuration
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
