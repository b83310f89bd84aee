"""The simulated Azure as a process: what it remembers, believes and takes with it."""

import operator
import os
import signal
import ssl
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from azure.core.exceptions import ResourceExistsError, ServiceRequestError
from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls, azure_plane
from tests.backends.aca.sites import opened
from tests.processes import lives
from tests.soon import HANGS, soon

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
            with anyio.fail_after(HANGS):
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


async def test_a_secret_is_read_and_deleted_as_azure_does_it(
    clients: Clients, azure: AzurePlane
) -> None:
    """Asked for with a slash at its end, nobody is sent elsewhere; its name stays taken."""
    secrets = await clients.secrets()
    await secrets.set_secret("key", "value")
    token = await (await clients.credential()).get_token("https://vault.azure.net/.default")
    url = f"{await clients.secrets_url()}/secrets/key/?api-version=7.6"
    trusted = ssl.create_default_context(cafile=azure.ca)
    async with httpx2.AsyncClient(verify=trusted, trust_env=False) as client:
        reply = await client.get(url, headers={"Authorization": f"Bearer {token.token}"})
        unknown = await client.get(url)
    assert (reply.status_code, reply.json()["value"]) == (200, "value")
    assert unknown.status_code == 401
    assert 'resource="https://vault.azure.net"' in unknown.headers["www-authenticate"]
    deleted = (await secrets.delete_secret("key")).properties
    assert deleted.recovery_level == "CustomizedRecoverable+Purgeable"
    assert deleted.recoverable_days == 7
    with pytest.raises(ResourceExistsError, match="deleted but recoverable"):
        await secrets.set_secret("key", "other")


async def test_replicas_are_counted_in_each_minute(clients: Clients) -> None:
    """Whole ones, in every minute in which there was one; before it, there is nothing."""
    apps, now = (await clients.apps()).container_apps, datetime.now(UTC)
    await (
        await apps.begin_create_or_update(clients.ground.resource_group, "one", small(clients))
    ).result()
    (found,) = await (await clients.metrics()).query_resources(
        resource_ids=[clients.ground.app_id("one")],
        metric_namespace="Microsoft.App/containerApps",
        metric_names=["Replicas"],
        timespan=(now - timedelta(minutes=30), now + timedelta(minutes=1)),
        granularity=timedelta(minutes=1),
        aggregations=["average", "maximum"],
        filter="revisionName eq '*'",
    )
    (series,) = found.metrics[0].timeseries
    assert {point.average for point in series.data} == {None, 1.0}
    assert series.data[0].average is None


async def _gone(*pids: int) -> None:
    async def left() -> list[int]:
        return [one for one in pids if lives(one)]

    await soon(left, operator.not_, waiting_for="the end of the processes")
