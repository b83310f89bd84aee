"""The states of real rollouts on the simulated Azure, as an operator sees them."""

from contextlib import suppress
from datetime import timedelta

import pytest

from backends.aca import logs, replicas, status
from backends.aca.site import Site
from core.errors import CloudRefused, NotAuthenticated
from core.records import Deployment, State
from core.reply import collecting_notes
from core.settings import AzurePlane
from core.waiting import wait_until
from tests.azure_plane import Controls
from tests.backends.aca.deployed import NAME, SERVED, deployed, impatient, make
from tests.backends.aca.sites import opened

pytestmark = [pytest.mark.anyio, pytest.mark.life]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(status, "_PAUSE_SECONDS", 0.05)


async def until(site: Site, *states: State) -> Deployment:
    """Look until it is in one of these states."""
    return await wait_until(
        lambda: status.describe(site, NAME),
        lambda seen: seen.state in states,
        waiting_for=" or ".join(states),
        every=0.05,
        timeout=20,
    )


def asked(controls: Controls, subscription: str) -> int:
    """Count the requests that came to the app's door."""
    calls: list[str] = controls.get(subscription)["calls"]
    return sum(" app/" in call for call in calls)


async def test_from_creation_to_sleep_and_awake_again(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """Created, loading, ready; then nobody asks, it sleeps, and looking does not wake it."""
    controls.set(subscription, boot_seconds=0.5, gateway_seconds=0.5)
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        seen = [await status.describe(site, NAME)]
        while not seen[-1].state.settled:
            seen.append(await status.describe(site, NAME))
        known = await status.engine_facts(site, NAME)
        controls.set(subscription, cooldown_scale=0.0005)
        asleep = await until(site, State.ASLEEP)
        before = asked(controls, subscription)
        again = [(await status.describe(site, NAME)).state for _ in range(3)]
        with collecting_notes() as notes:
            log = await logs.read_logs(site, NAME, lines=500)
        assert asked(controls, subscription) == before
        controls.set(subscription, cooldown_scale=1)
        await status.wake(site, NAME)
        awake = await status.describe(site, NAME)
    states = list(dict.fromkeys(each.state for each in seen))
    assert states[-2:] == [State.LOADING, State.READY]
    assert (asleep.replicas, again) == (0, [State.ASLEEP] * 3)
    assert any("Application startup complete" in line for line in log.lines)
    assert any("minutes late" in note for note in notes)
    assert known.memory["weights_gib"]
    assert (awake.state, awake.replicas) == (State.READY, 1)


async def test_a_partial_answer_and_a_missing_table_are_told(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """What the streams still have is given all the same."""
    controls.set(subscription, boot_seconds=0.2)
    async with opened(azure, subscription) as site:
        await deployed(site)
        controls.set(subscription, cooldown_scale=0.0005)
        await until(site, State.ASLEEP)
        controls.set(subscription, partial_queries=True)
        with collecting_notes() as partial:
            some = await logs.read_logs(site, NAME, lines=500)
        controls.set(subscription, partial_queries=False, log_tables=False)
        with collecting_notes() as missing:
            events = await logs.read_logs(site, NAME, lines=500)
        controls.set(subscription, login="expired", token_seconds=1)
    assert some.total
    assert any("only a part" in note for note in partial)
    assert all("[Container Apps]" in line for line in events.lines)
    assert any("not received a line yet" in note for note in missing)
    async with opened(azure, subscription) as later:
        with pytest.raises(NotAuthenticated):
            await status.describe(later, NAME)


async def test_a_gpu_host_that_never_comes_is_recognized(
    azure: AzurePlane, subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a phase, then a failure with its age."""
    controls.set(subscription, rollout="no-host")
    async with opened(azure, subscription) as site:
        await make(site, **SERVED)
        waiting = await until(site, State.CREATING)
        monkeypatch.setattr(status, "PATIENCE", timedelta(0))
        now = await until(site, State.FAILED)
    assert waiting.phase
    assert waiting.phase.name == status.ASSIGNING
    assert now.failure
    assert now.failure.code == "GPU_HOST_NOT_ASSIGNED"
    assert now.replicas == 1


async def test_a_former_revision_that_was_activated_again_is_counted(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """It bills beside the newest, which alone a careless look would count."""
    controls.set(subscription, boot_seconds=0.2)
    async with opened(azure, subscription) as site:
        await deployed(site)
        (former,) = [one.name for one in await replicas.read_revisions(site, NAME)]
        await deployed(site, max_model_len=4096)
        apps = await site.clients.apps()
        group = site.clients.group
        await apps.container_apps_revisions.activate_revision(group, NAME, former)
        now = await wait_until(
            lambda: status.describe(site, NAME),
            lambda seen: seen.state is State.READY and seen.replicas == 2,
            waiting_for="one replica of either revision",
            every=0.05,
            timeout=20,
        )
        with collecting_notes() as notes:
            await status.describe(site, NAME)
    assert now.replicas == 2
    assert any(f"{former} holds 1 replica(s), at $" in note for note in notes)


async def test_another_address_is_refused_by_name(
    azure: AzurePlane, subscription: str, controls: Controls
) -> None:
    """The model is up; whoever looks has moved."""
    controls.set(subscription, boot_seconds=0.2)
    async with opened(azure, subscription, azure_allowed_addresses=("203.0.113.9",)) as site:
        await deployed(site)
        now = await until(site, State.LOADING)
    assert now.failure
    assert now.failure.code == "ADDRESS_NOT_ALLOWED"
    assert "203.0.113.9/32" in now.failure.cause


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
