"""The states of a real rollout on the simulated cloud, as an operator sees them."""

from collections.abc import Awaitable, Callable

import pytest

from backends.cloud_run import deployment, instances, logs, status
from backends.cloud_run.site import Site
from core.records import Deployment, State
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.cloud_run.sites import opened, planned
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.life]


async def until(site: Site, *states: State) -> Deployment:
    """Look until it is in one of these states."""
    look: Callable[[], Awaitable[Deployment]] = lambda: status.describe(site, "gemma")  # noqa: E731
    return await wait_until(
        look,
        lambda seen: seen.state in states,
        waiting_for=" or ".join(states),
        every=0.1,
        timeout=30,
    )


async def test_from_creation_to_sleep(plane: GooglePlane, project: str, controls: Controls) -> None:
    """Created, loading, ready; then nobody asks, and it sleeps."""
    controls.set(project, boot_seconds=1.5, idle_seconds=2)
    async with opened(plane, project) as site:
        await deployment.apply(site, planned(site))
        seen = [await status.describe(site, "gemma")]
        while not seen[-1].state.settled:
            seen.append(await status.describe(site, "gemma"))
        asleep = await until(site, State.ASLEEP)
        again = [(await status.describe(site, "gemma")).state for _ in range(3)]
        log = await logs.read_logs(site, "gemma", lines=500)
        known = await instances.engine_facts(site, "gemma")
    states = list(dict.fromkeys(each.state for each in seen))
    assert states == [State.CREATING, State.LOADING, State.READY]
    assert any(each.phase and each.phase.name == "loading weights" for each in seen)
    assert asleep.replicas == 0
    assert any("[Cloud Run]" in line for line in log.lines)
    assert known.version
    assert again == [State.ASLEEP] * 3
    assert controls.get(project)["instances"] == []


async def test_stopped_and_started_again(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Stopping is read back; a started one sleeps until it is asked."""
    async with opened(plane, project) as site:
        await deployment.apply(site, planned(site))
        await until(site, State.READY)
        await deployment.stop(site, "gemma")
        stopped = await until(site, State.STOPPED)
        await deployment.start(site, "gemma")
        after = await until(site, State.ASLEEP)
    assert (stopped.replicas, after.replicas) == (0, 0)


@pytest.mark.parametrize(
    ("rollout", "code"),
    [
        ("probe-fails", "STARTUP_PROBE_FAILED"),
        ("image-missing", "IMAGE_NOT_FOUND"),
        ("no-capacity", "NO_CAPACITY"),
    ],
)
async def test_a_rollout_that_fails_says_why(
    plane: GooglePlane, project: str, controls: Controls, rollout: str, code: str
) -> None:
    """In our words, with Google's as the cause."""
    controls.set(project, rollout=rollout, boot_seconds=0.2, probe_scale=0.001)
    async with opened(plane, project) as site:
        await deployment.apply(site, planned(site))
        failed = await until(site, State.FAILED)
    assert failed.failure
    assert failed.failure.code == code
