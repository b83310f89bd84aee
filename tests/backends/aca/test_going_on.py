"""A deployment that had to wait goes on: once, by whichever server looks, and to an end."""

from datetime import timedelta

import pytest

from backends.aca import app, secrets, status
from backends.aca.site import EFFECT, Site, key_secret
from core.records import State
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.deployed import PUT, go_on, impatient, make, patient
from tests.backends.aca.sites import fault, opened
from tests.soon import soon

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quick(controls: Controls, bare_subscription: str, monkeypatch: pytest.MonkeyPatch) -> None:
    controls.set(bare_subscription, rollout="never", environment_seconds=0.3)
    impatient(monkeypatch)
    patient(monkeypatch, 0.0)


async def test_a_refusal_on_the_way_is_told_and_a_new_deployment_tries_anew(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    """It is failed, with Azure's words, and nothing more is tried until somebody asks."""
    async with opened(azure, bare_subscription) as site:
        await make(site)
        controls.set(bare_subscription, denied_actions=["Microsoft.App/containerApps/write"])
        await _to_the_end(site)
        told = await status.describe(site, "gemma")
        assert told.state is State.FAILED
        assert told.failure
        assert told.failure.code == "PERMISSION_DENIED"
        assert not await secrets.exists(site, key_secret("gemma"))
        before = len(controls.get(bare_subscription)["calls"])
        await go_on(site, "gemma")
        assert len(controls.get(bare_subscription)["calls"]) == before
        controls.set(bare_subscription, denied_actions=[])
        await make(site)
        assert await app.find_app(site, "gemma")
        assert site.pending.get("gemma") is None


async def test_a_role_that_never_counts_is_told_in_the_end(
    azure: AzurePlane, bare_subscription: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure says ten minutes; whoever may not write secrets later than that never may."""
    controls.set(bare_subscription, prepared=True)
    controls.set(bare_subscription, faults=[fault("PUT secrets", 403, code="Forbidden", times=-1)])
    async with opened(azure, bare_subscription) as site:
        await make(site)
        told = await status.describe(site, "gemma")
        assert told.phase
        assert told.phase.name == EFFECT
        monkeypatch.setattr(secrets, "EFFECT_TIME", timedelta(0))
        await go_on(site, "gemma")
        told = await status.describe(site, "gemma")
    assert told.failure
    assert told.failure.code == "PERMISSION_DENIED"


async def test_an_identity_that_may_not_read_the_vault_yet_is_waited_for(
    azure: AzurePlane, bare_subscription: str, controls: Controls
) -> None:
    """The app that could not be created is made anew once it may."""
    controls.set(bare_subscription, prepared=True)
    words = "Unable to get value using Managed identity vllm-devops for secret api-key"
    controls.set(
        bare_subscription,
        faults=[fault(PUT, 400, code="InvalidParameterValueInContainerTemplate", message=words)],
    )
    async with opened(azure, bare_subscription) as site:
        await make(site)
        told = await status.describe(site, "gemma")
        assert told.phase
        assert told.phase.name == EFFECT
        assert await secrets.exists(site, key_secret("gemma"))
        await go_on(site, "gemma")
        assert await app.find_app(site, "gemma")


async def _to_the_end(site: Site) -> set[str]:
    """Go on until nothing is left to be done; give what was waited for."""
    phases = set[str]()

    async def step() -> bool:
        kept = site.pending.get("gemma")
        if kept is None or kept.failure:
            return True
        phases.add(kept.phase)
        await go_on(site, "gemma")
        return False

    await soon(step, waiting_for="the app")
    return phases
