"""The simulated Google Cloud as a process: what it refuses, remembers and takes with it."""

import os
import signal
from pathlib import Path

import anyio
import psutil
import pytest

from tests.google_plane import google_plane
from tests.simulators.google.run_services import services_of

pytestmark = [pytest.mark.anyio, pytest.mark.life]

_CREATE = "google.cloud.run.v2.Services/CreateService"


async def test_a_process_that_is_started_again_knows_its_services(tmp_path: Path) -> None:
    """Services and their URLs are the same; instances come up when they are asked for."""
    with google_plane(tmp_path) as plane:
        async with services_of(plane, "p") as services:
            before = await services.created()
        os.kill(plane.pid, signal.SIGKILL)
    with google_plane(tmp_path) as plane:
        async with services_of(plane, "p") as services:
            after = await services.get()
            assert services.controls.get("p")["instances"] == []
    assert after.uri == before.uri
    assert after.latest_ready_revision == before.latest_ready_revision


async def test_a_rollout_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """Its operation is still there, and ends."""
    with google_plane(tmp_path) as plane:
        async with services_of(plane, "p") as services:
            services.controls.set("p", boot_seconds=60)
            name = (await services.create()).operation.name
            services.controls.set("p", boot_seconds=0.05)
    with google_plane(tmp_path) as plane:
        async with services_of(plane, "p") as services:
            with anyio.fail_after(30):
                while True:
                    if (await services.client.get_operation({"name": name})).done:
                        break
                    await anyio.sleep(0.05)
            assert (await services.get()).latest_ready_revision


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_instance_outlives_the_process(tmp_path: Path, number: signal.Signals) -> None:
    """However it ends."""
    with google_plane(tmp_path) as plane:
        async with services_of(plane, "p") as services:
            await services.created()
        engines = psutil.Process(plane.pid).children(recursive=True)
        os.kill(plane.pid, number)
        _, alive = psutil.wait_procs(engines, timeout=20)
    assert len(engines) == 2
    assert alive == []


async def test_a_process_that_nobody_calls_ends(tmp_path: Path) -> None:
    """Its time counts from the last call."""
    with google_plane(tmp_path, idle_exit_seconds=0.5) as plane:
        _, alive = psutil.wait_procs([psutil.Process(plane.pid)], timeout=20)
    assert alive == []
