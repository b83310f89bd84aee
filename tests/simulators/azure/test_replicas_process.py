"""Replicas and the process of the simulated Azure: what comes back, and what never outlives it."""

import os
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import psutil
import pytest

from core.settings import AzurePlane
from tests.azure_plane import Controls, azure_plane
from tests.backends.aca.sites import opened
from tests.simulators.azure.apps import Apps, caller, scale, url_of, wanted

pytestmark = [pytest.mark.anyio, pytest.mark.life]


@asynccontextmanager
async def _apps_of(plane: AzurePlane, subscription: str) -> AsyncIterator[Apps]:
    Controls(plane).set(subscription, prepared=True)
    async with opened(plane, subscription) as site:
        yield Apps(site.clients, Controls(plane))


async def test_what_must_be_there_is_there_again_when_the_process_is(tmp_path: Path) -> None:
    """At the same address and with other replicas; those before it have an end."""
    named = str(uuid.uuid4())
    with azure_plane(tmp_path) as plane:
        async with _apps_of(plane, named) as apps:
            before = await apps.ready(wanted(apps.clients, scale=scale(1)))
            first = (await apps.replicas())[0].name
        os.kill(plane.pid, signal.SIGKILL)
    with azure_plane(tmp_path) as plane:
        async with _apps_of(plane, named) as apps:
            assert url_of(await apps.get()) == url_of(before)
            async with caller() as http:
                assert (await http.get(f"{url_of(before)}/v1/models")).status_code == 200
            second = [one.name for one in await apps.replicas()]
    assert len(second) == 1
    assert second != [first]


async def test_a_boot_goes_on_and_a_stopped_app_stays_so(tmp_path: Path) -> None:
    """A revision that was never ready boots again; of what was stopped nothing does."""
    named = str(uuid.uuid4())
    with azure_plane(tmp_path) as plane:
        async with _apps_of(plane, named) as apps:
            await apps.ready(wanted(apps.clients, scale=scale(1)), "stopped")
            await apps.act("stop", "stopped")
            apps.set(boot_seconds=60)
            await apps.put()
            apps.set(boot_seconds=0.02)
    with azure_plane(tmp_path) as plane:
        async with _apps_of(plane, named) as apps:
            await apps.until(lambda one: bool(one.latest_ready_revision_name))
            rows = await apps.until_replicas(1)
            assert rows[0]["revision"].startswith("one--")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_engine_outlives_the_process(tmp_path: Path, number: signal.Signals) -> None:
    """However it ends."""
    with azure_plane(tmp_path) as plane:
        async with _apps_of(plane, str(uuid.uuid4())) as apps:
            await apps.ready()
        engines = psutil.Process(plane.pid).children(recursive=True)
        os.kill(plane.pid, number)
        _, alive = psutil.wait_procs(engines, timeout=20)
    assert engines
    assert alive == []


async def test_a_subscription_that_is_forgotten_ends_its_engines(tmp_path: Path) -> None:
    """At once, and no other's."""
    with azure_plane(tmp_path) as plane:
        async with (
            _apps_of(plane, str(uuid.uuid4())) as one,
            _apps_of(plane, str(uuid.uuid4())) as other,
        ):
            gone, stays = url_of(await one.ready()), url_of(await other.ready())
            one.controls.drop(one.subscription)
            async with caller() as http:
                assert (await http.get(f"{stays}/v1/models")).status_code == 200
                with pytest.raises(httpx2.ConnectError):
                    await _until_closed(gone)


async def _until_closed(url: str) -> None:
    with anyio.fail_after(10):
        while True:
            async with caller() as http:
                assert (await http.get(f"{url}/v1/models")).status_code == 404
