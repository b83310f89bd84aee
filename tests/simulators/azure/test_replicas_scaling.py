"""How many replicas there are: KEDA's clock, requests at once, stop and start."""

from typing import Any, Final

import anyio
import httpx2
import pytest
from azure.core.exceptions import ResourceNotFoundError

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, caller, scale, url_of, wanted

pytestmark = pytest.mark.anyio

_ASKED: Final = {"model": "m", "prompt": "hi", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def test_a_cooldown_that_is_shorter_than_the_boot_kills_the_replica(apps: Apps) -> None:
    """The clock begins when the replica is scheduled: the revision never activates."""
    apps.set(boot_seconds=30, cooldown_scale=0.001)
    await apps.put(wanted(apps.clients, scale=scale(cooldown=300)))
    revision = await apps.revision_until(lambda one: one.running_state == "ActivationFailed")
    assert (revision.health_state, revision.replicas) == ("Unhealthy", 0)
    told = apps.controls.get(apps.subscription)
    assert "KEDAScaleTargetDeactivated" in told["events"]
    assert told["replicas"] == []


async def test_a_replica_that_must_always_be_there_outlives_its_cooldown(apps: Apps) -> None:
    """With one replica at least, nothing is scaled to none."""
    apps.set(cooldown_scale=0.001)
    await apps.ready(wanted(apps.clients, scale=scale(1, cooldown=1)))
    revision = await apps.revision_until(lambda one: one.running_state == "RunningAtMaxScale")
    assert revision.replicas == 1
    assert "KEDAScaleTargetDeactivated" not in apps.controls.get(apps.subscription)["events"]


async def test_an_idle_app_scales_to_none_and_a_request_wakes_it(apps: Apps) -> None:
    """After its cooldown it sleeps; a request is held while a replica boots."""
    apps.set(cooldown_scale=0.1)
    app = await apps.ready(wanted(apps.clients, scale=scale(cooldown=8)))
    await apps.until_replicas(0)
    asleep = await apps.revision_until(lambda one: one.running_state == "ScaledToZero")
    assert asleep.health_state == "Healthy"
    async with caller() as http:
        reply = await http.post(f"{url_of(app)}/v1/completions", json=_ASKED)
    assert reply.status_code == 200
    events = apps.controls.get(apps.subscription)["events"]
    assert events.count("ContainerStarted") == 2
    assert "KEDAScaleTargetActivated" in events


async def test_more_requests_at_once_have_more_replicas(apps: Apps) -> None:
    """As many as the rule says, and never more than are allowed."""
    apps.set(
        quotas={"a100": 4},
        environment_quotas={"a100": 4},
        engine_environment={"SIMULATED_ENGINE_STEP_MS": "20"},
    )
    app = await apps.ready(wanted(apps.clients, scale=scale(0, 2, at_once=1)))
    async with caller() as http, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(_ask, http, f"{url_of(app)}/v1/completions")
        rows = await apps.until_replicas(2)
        await apps.revision_until(lambda one: one.running_state == "RunningAtMaxScale")
    assert len(rows) == 2


async def _ask(http: Any, url: str) -> None:
    reply = await http.post(url, json={**_ASKED, "max_tokens": 30})
    assert reply.status_code == 200


async def test_a_stopped_app_has_no_replica_and_wakes_for_nobody(apps: Apps) -> None:
    """Its URL is the page of an app that is not there."""
    app = await apps.ready(wanted(apps.clients, scale=scale(1)))
    await apps.act("stop")
    assert (await apps.get()).running_status == "Stopped"
    assert apps.controls.get(apps.subscription)["replicas"] == []
    async with caller() as http:
        reply = await http.get(f"{url_of(app)}/v1/models")
    assert reply.status_code == 404
    assert "This Container App is stopped or does not exist" in reply.text
    revision = await apps.revision_until(lambda one: one.running_state == "Stopped")
    assert revision.replicas == 0


@pytest.mark.parametrize(("least", "replicas"), [(0, 0), (1, 1)])
async def test_a_started_app_boots_only_what_must_be_there(
    apps: Apps, least: int, replicas: int
) -> None:
    """No revision is made, so that none boots merely to be looked at."""
    before = await apps.ready(wanted(apps.clients, scale=scale(least)))
    await apps.act("stop")
    await apps.act("start")
    after = await apps.get()
    assert after.running_status == "Running"
    assert after.latest_revision_name == before.latest_revision_name
    await apps.until_replicas(replicas)
    state = "RunningAtMaxScale" if least else "ScaledToZero"
    await apps.revision_until(lambda one: one.running_state == state)


async def test_an_app_that_is_deleted_ends_its_engines(apps: Apps) -> None:
    """Nobody listens at its address any more."""
    app = await apps.ready()
    await apps.act("delete")
    told = apps.controls.get(apps.subscription)
    assert told["replicas"] == []
    with pytest.raises(httpx2.ConnectError):
        await _until_gone(url_of(app))


async def test_looking_at_an_app_that_is_being_deleted_begins_nothing(apps: Apps) -> None:
    """Also not what must always be there."""
    await apps.ready(wanted(apps.clients, scale=scale(1)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(apps.act, "delete")
        with pytest.raises(ResourceNotFoundError):
            await apps.until(lambda _app: False)
    told = apps.controls.get(apps.subscription)
    assert told["replicas"] == []
    assert told["events"].count("ContainerStarted") == 1


async def _until_gone(url: str) -> None:
    """Until then it is the page of an app that is not there."""
    with anyio.fail_after(10):
        while True:
            async with caller() as http:
                assert (await http.get(f"{url}/v1/models")).status_code == 404
