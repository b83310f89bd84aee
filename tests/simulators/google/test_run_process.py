"""The simulated Google Cloud as a process: what it refuses, remembers and takes with it."""

import os
import signal
from pathlib import Path

import anyio
import psutil
import pytest
from google.api_core import exceptions

from tests.google_plane import google_plane
from tests.simulators.google.run_services import Services, parent_of, services_of, wanted

pytestmark = [pytest.mark.anyio, pytest.mark.life]

_CREATE = "google.cloud.run.v2.Services/CreateService"


async def test_an_api_that_is_off_says_so(services: Services, bare_project: str) -> None:
    """Google says it as a permission that is denied, with its own reason."""
    name = f"{parent_of(f'{bare_project}-bare')}/services/one"
    with pytest.raises(exceptions.PermissionDenied, match="has not been used in") as caught:
        await services.client.get_service(name=name)
    assert caught.value.reason == "SERVICE_DISABLED"
    assert caught.value.metadata["service"] == "run.googleapis.com"


async def test_a_permission_that_is_denied_is_named(services: Services) -> None:
    """What a test denies, the caller may not do."""
    services.controls.set(services.project, denied_permissions=["run.services.create"])
    with pytest.raises(exceptions.PermissionDenied, match=r"run\.services\.create") as caught:
        await services.create()
    assert caught.value.reason == "IAM_PERMISSION_DENIED"


@pytest.mark.parametrize(("when", "made"), [("before", []), ("after", ["one"])])
async def test_a_fault_comes_before_or_after_the_effect(
    services: Services, when: str, made: list[str]
) -> None:
    """As often as it was set to, then never again."""
    fault = {"method": _CREATE, "status": "UNAVAILABLE", "when": when, "times": 2}
    services.controls.set(services.project, rollout="never", faults=[fault])
    with pytest.raises(exceptions.ServiceUnavailable):
        await services.create()
    with pytest.raises(exceptions.GoogleAPICallError):
        await services.create()
    assert services.controls.get(services.project)["services"] == made
    await services.create(service_id="two")


@pytest.mark.parametrize(("when", "made"), [("hang", []), ("hang-after", ["one"])])
async def test_a_call_that_hangs_ends_by_its_own_deadline(
    services: Services, when: str, made: list[str]
) -> None:
    """Whether it took effect is not told."""
    fault = {"method": "google.cloud.run.v2.Services/*", "when": when}
    services.controls.set(services.project, rollout="never", faults=[fault])
    with pytest.raises(exceptions.DeadlineExceeded):
        await services.client.create_service(
            parent=parent_of(services.project),
            service=wanted(services.project),
            service_id="one",
            timeout=0.5,
        )
    assert services.controls.get(services.project)["services"] == made


async def test_calls_are_counted_by_project(services: Services) -> None:
    """Other projects' calls are not among them."""
    with pytest.raises(exceptions.NotFound):
        await services.get()
    calls = services.controls.get(services.project)["calls"]
    assert calls == ["google.cloud.run.v2.Services/GetService"]


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
