"""The simulated Azure as a process: what it remembers, believes and takes with it."""

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from azure.core.exceptions import ServiceRequestError
from azure.core.polling import AsyncLROPoller
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it
from azure.mgmt.core.polling.async_arm_polling import AsyncARMPolling

from backends.aca.site import Clients
from core.settings import AzurePlane
from core.waiting import wait_until
from tests.azure_plane import Controls, azure_plane
from tests.backends.aca.sites import opened
from tests.simulators.azure.apps import Apps, scale, small

pytestmark = [pytest.mark.anyio, pytest.mark.life]


async def test_a_process_that_is_started_again_knows_everything_and_is_believed(
    tmp_path: Path,
) -> None:
    """Where it listens, its authority, its tokens' key and what there was are the same."""
    sub = str(uuid.uuid4())
    with azure_plane(tmp_path) as before:
        Controls(before).set(sub, prepared=True)
        async with opened(before, sub) as site:
            await Apps(site.clients, Controls(before)).put(small(site.clients))
    with azure_plane(tmp_path) as after:
        assert (after.arm, after.http, after.ca) == (before.arm, before.http, before.ca)
        assert after.pid != before.pid
        async with opened(before, sub) as site:
            apps = (await site.clients.apps()).container_apps
            found = await apps.get(site.clients.group, "one")
            assert found.provisioning_state == "Succeeded"


async def test_an_operation_goes_on_after_the_process_was_killed(tmp_path: Path) -> None:
    """Its continuation token holds: it names a URL, which the next process serves."""
    sub = str(uuid.uuid4())
    with azure_plane(tmp_path) as first:
        Controls(first).set(sub, prepared=True, operation_seconds=0.5)
        async with opened(first, sub) as site:
            apps = (await site.clients.apps()).container_apps
            poller = await apps.begin_create_or_update(
                site.clients.group, "one", small(site.clients)
            )
            token = poller.continuation_token()
            os.kill(first.pid, signal.SIGKILL)
            await _gone(first.pid)
            with pytest.raises(ServiceRequestError):
                await apps.get(site.clients.group, "one", retry_total=0)
    with azure_plane(tmp_path) as second:
        async with opened(second, sub) as site:
            with anyio.fail_after(30):
                app = await _followed(site.clients, token)
    assert (app.name, app.provisioning_state) == ("one", "Succeeded")


async def _followed(clients: Clients, token: str) -> M.ContainerApp:
    apps = (await clients.apps()).container_apps
    poller: Any = await apps.begin_create_or_update(
        clients.group, "one", M.ContainerApp(location=""), continuation_token=token
    )
    assert isinstance(poller, AsyncLROPoller)
    assert isinstance(poller.polling_method(), AsyncARMPolling)
    found: M.ContainerApp = await poller.result()
    return found


async def test_a_process_that_nobody_needs_ends(tmp_path: Path) -> None:
    """It listens no more, and left word of what it was."""
    with azure_plane(tmp_path, idle_exit_seconds=0.1) as plane:
        await _gone(plane.pid)
    assert (tmp_path / "plane.json").exists()


async def test_the_plain_side_says_that_it_is_there_and_where_the_caller_is(
    azure: AzurePlane,
) -> None:
    """Whoever asks from this machine is seen to be on it."""
    async with httpx2.AsyncClient(base_url=azure.http, trust_env=False) as client:
        assert (await client.get("/rehearsal/alive")).json() == {"alive": True}
        assert (await client.get("/rehearsal/address")).text == "127.0.0.1"


async def test_knobs_that_nobody_knows_are_refused(azure: AzurePlane) -> None:
    """A misspelt knob would prove nothing."""
    url = f"{azure.http}/rehearsal/subscriptions/{uuid.uuid4()}"
    async with httpx2.AsyncClient(trust_env=False) as client:
        reply = await client.put(url, json={"bot_seconds": 1})
    assert reply.status_code == 400


async def test_a_subscription_is_told_without_its_secrets(
    controls: Controls, clients: Clients
) -> None:
    """A secret's name is there, its value is nowhere."""
    configuration = M.Configuration(secrets=[M.Secret(name="s", value="very-secret")])
    app = small(clients)
    app.properties.configuration = configuration
    await Apps(clients, controls).put(app)
    vault = await clients.secrets()
    await vault.set_secret("hf-token", "more-secret")
    told = controls.get(clients.subscription)
    assert told["secrets"] == {clients.ground.vault: ["hf-token"]}
    assert "secret-" not in str(told)
    assert "very-secret" not in str(told)
    assert "more-secret" not in str(told)


async def test_a_subscription_that_is_dropped_is_bare_again(
    controls: Controls, clients: Clients
) -> None:
    """Also what ran for it has ended."""
    await Apps(clients, controls).put(small(clients, scale=scale(1)))
    controls.drop(clients.subscription)
    told = controls.get(clients.subscription)
    assert (told["resources"], told["replicas"], told["providers"]) == ([], [], [])


async def _gone(*pids: int) -> None:
    await wait_until(
        lambda: _left(pids),
        lambda left: not left,
        waiting_for="the end of the processes",
        every=0.02,
        timeout=20,
    )


async def _left(pids: tuple[int, ...]) -> list[int]:
    await anyio.lowlevel.checkpoint()
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]
