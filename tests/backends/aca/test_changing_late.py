"""While a creation goes on as long as its boot: stopped, started, deployed again."""

from contextlib import suppress

import pytest

from backends.aca import app, deployment, replicas, status
from backends.aca.site import Site
from core.errors import CloudRefused, ConcurrentChange
from core.records import Deployment, State
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import NAME, SERVED, impatient, make, ready, revisions
from tests.backends.aca.sites import opened
from tests.soon import soon

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(deployment, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(replicas, "REFUSAL_SECONDS", 0.1)


async def test_what_was_stopped_as_it_was_created_can_be_started(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Its revision was deactivated so that it bills no more, and is activated by the start."""
    controls.set(subscription, boot_seconds=30, patience_seconds=3)
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        with pytest.raises(ConcurrentChange):
            await deployment.stop(site, NAME)
        assert not [one for one in await revisions(site) if one.active or one.number]
        await soon(
            lambda: status.describe(site, NAME),
            lambda seen: seen.state is State.FAILED,
            waiting_for="the creation to be given up",
        )
        await deployment.stop(site, NAME)
        assert (await status.describe(site, NAME)).state is State.STOPPED
        controls.set(subscription, boot_seconds=0.5)
        await deployment.start(site, NAME)
        await ready(site)


async def test_a_boot_that_goes_on_is_not_replaced_by_deploying_again(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Azure calls its app failed; made anew, it would take as long once more, and never end."""
    controls.set(subscription, boot_seconds=30, patience_seconds=0.2)
    async with opened(azure, subscription) as site:
        with suppress(CloudRefused):
            await make(site, **SERVED)
        await soon(
            lambda: app.get_app(site, NAME),
            lambda app: app.provisioning_state == "Failed",
            waiting_for="Azure's patience to end",
        )
        before = [one.newest for one in await revisions(site)]
        await make(site, **SERVED)
        after = [one.newest for one in await revisions(site)]
        assert [one.name for one in before if one] == [one.name for one in after if one]
        assert len(after) == 1


async def until(site: Site, *states: State) -> Deployment:
    """Look until it is in one of these states."""
    return await soon(
        lambda: status.describe(site, NAME),
        lambda seen: seen.state in states,
        waiting_for=" or ".join(states),
    )


async def test_a_boot_beyond_azures_patience_is_no_failure(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Azure calls the app failed from then on; it loads, answers, and sleeps all the same."""
    controls.set(subscription, boot_seconds=1.5, patience_seconds=0.3, gateway_seconds=0.5)
    async with opened(azure, subscription) as site:
        with suppress(CloudRefused):
            await make(site, **SERVED)
        with collecting_notes() as notes:
            seen = await until(site, State.FAILED, State.LOADING, State.READY)
            assert seen.state is State.LOADING
            assert (await until(site, State.FAILED, State.READY)).state is State.READY
        assert any("Azure calls the last change of gemma Failed" in note for note in notes)
        controls.set(subscription, cooldown_scale=0.0005)
        assert (await until(site, State.FAILED, State.ASLEEP)).state is State.ASLEEP
