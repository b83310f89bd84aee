"""The simulated Azure as a process: what it remembers, believes and takes with it."""

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from azure.core.exceptions import ServiceRequestError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from core.waiting import wait_until
from tests.azure_plane import Controls, azure_plane
from tests.backends.aca.sites import opened

pytestmark = [pytest.mark.anyio, pytest.mark.life]


def small(clients: Clients) -> Any:
    """An app that Azure takes, on processors alone, which nobody asks."""
    container = M.Container(
        name="one", image="me/one:1", resources=M.ContainerResources(cpu=0.5, memory="1Gi")
    )
    return M.ContainerApp(
        location=clients.ground.region,
        properties=M.ContainerAppProperties(
            environment_id=clients.ground.environment_id,
            configuration=M.Configuration(secrets=[M.Secret(name="s", value="very-secret")]),
            template=M.Template(containers=[container], scale=M.Scale(min_replicas=0)),
        ),
    )


async def _create(clients: Clients) -> None:
    apps, group = (await clients.apps()).container_apps, clients.ground.resource_group
    await (await apps.begin_create_or_update(group, "one", small(clients))).result()


async def test_a_process_that_was_killed_is_followed_by_one_that_knows_everything(
    tmp_path: Path,
) -> None:
    """Where it listens, its authority and its tokens' key are the same; what it did goes on."""
    sub = str(uuid.uuid4())
    with azure_plane(tmp_path) as first:
        Controls(first).set(sub, prepared=True, operation_seconds=0.5)
        async with opened(first, sub) as site:
            apps, named = (
                (await site.clients.apps()).container_apps,
                (site.ground.resource_group, "one"),
            )
            poller = await apps.begin_create_or_update(*named, small(site.clients))
            token = poller.continuation_token()
            os.kill(first.pid, signal.SIGKILL)
            await _gone(first.pid)
            with pytest.raises(ServiceRequestError):
                await apps.get(*named, retry_total=0)
    with azure_plane(tmp_path) as second:
        assert (second.arm, second.http, second.ca) == (first.arm, first.http, first.ca)
        assert second.pid != first.pid
        async with opened(first, sub) as site:
            apps = (await site.clients.apps()).container_apps
            nothing: Any = M.ContainerApp(location="")
            again = await apps.begin_create_or_update(*named, nothing, continuation_token=token)
            with anyio.fail_after(30):
                app = await again.result()
    assert (app.name, app.provisioning_state) == ("one", "Succeeded")


async def test_a_process_that_nobody_needs_ends(tmp_path: Path) -> None:
    """It listens no more, and left word of what it was."""
    with azure_plane(tmp_path, idle_exit_seconds=0.1) as plane:
        await _gone(plane.pid)
    assert (tmp_path / "plane.json").exists()


async def test_a_subscription_is_told_without_its_secrets_and_dropped_whole(
    controls: Controls, clients: Clients
) -> None:
    """A secret's name is there, its value is nowhere; nothing runs of it afterwards."""
    apps = (await clients.apps()).container_apps
    await (
        await apps.begin_create_or_update(clients.ground.resource_group, "one", small(clients))
    ).result()
    await (await clients.secrets()).set_secret("hf-token", "more-secret")
    told = controls.get(clients.subscription)
    assert told["secrets"] == {clients.ground.vault: ["hf-token"]}
    assert told["replicas"]
    assert "very-secret" not in str(told)
    assert "more-secret" not in str(told)
    controls.drop(clients.subscription)
    told = controls.get(clients.subscription)
    assert (told["resources"], told["replicas"], told["providers"]) == ([], [], [])


async def _gone(*pids: int) -> None:
    async def left() -> list[int]:
        return [one for one in pids if psutil.pid_exists(one) and _lives(one)]

    await wait_until(
        left, lambda some: not some, waiting_for="the end of the processes", every=0.02, timeout=20
    )


def _lives(pid: int) -> bool:
    return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
