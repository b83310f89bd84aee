"""A whole life as it is told, on both control planes of the simulated cloud."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.common.engine import ask_models
from backends.tpu import access, deployment, logs, status
from backends.tpu.site import Site
from core.records import Deployment, State
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.planned import planned
from tests.backends.tpu.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

ORDER = [
    "waiting for a chip",
    "making the VM",
    "booting",
    "installing docker",
    "pulling image",
    "reading secrets",
    "starting",
    "loading weights",
    "compiling",
    "warming",
]


@pytest.fixture
async def site(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> AsyncIterator[Site]:
    controls.set(project, tpu_clock=300, boot_seconds=1)
    async with opened(plane, project, folder=tmp_path) as site:
        yield site


@pytest.fixture
async def spot(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> AsyncIterator[Site]:
    controls.set(project, tpu_clock=300, boot_seconds=1)
    async with opened(plane, project, "tpu-v6e-1-spot", folder=tmp_path) as site:
        yield site


@pytest.mark.parametrize("plane_kind", ["queued", "compute"])
async def test_a_life_is_told_from_the_request_to_the_answer(site: Site, plane_kind: str) -> None:
    """Phases only go forward; ready is what has answered, by TLS, and its log tells of it."""
    seen = await settled(site, plane_kind)
    phases = list(dict.fromkeys(one.phase.name for one in seen if one.phase))
    assert phases == sorted(phases, key=ORDER.index)
    last = seen[-1]
    assert last.state is State.READY, last.failure
    assert last.resources["zone"] == "us-east5-b"
    assert last.url == f"https://{last.resources['external ip']}:8000"
    assert last.expires_at
    found = await access.access(site, "gemma")
    await ask_models(found)
    assert "127.0.0.1/32" in found.protection
    lines = (await logs.read_logs(site, "gemma", lines=500)).lines
    assert any("starting engine" in line for line in lines)
    assert any("Application startup complete" in line for line in lines)
    assert not any("CERTIFICATE" in line for line in lines)


@pytest.mark.parametrize(
    ("plane_kind", "left"),
    [("queued", "vllm-devops-gemma SUSPENDED"), ("compute", None)],
)
async def test_a_chip_that_is_taken_is_told(
    spot: Site, controls: Controls, project: str, plane_kind: str, left: str | None
) -> None:
    """By the leftover that it leaves in the queue; by Compute Engine's operations, which is all."""
    await settled(spot, plane_kind)
    controls.preempt(project, plane_kind, "us-east5-b", "vllm-devops-gemma")
    seen = await failed(spot)
    assert seen.failure
    assert (seen.failure.code, seen.replicas) == ("PREEMPTED", 0)
    assert seen.resources.get("queued resource") == left
    assert ("destroy_vllm" in seen.failure.fix) == (left is not None)


async def test_an_engine_that_ends_once_it_served_is_told_to_boot_again(
    site: Site, controls: Controls, project: str
) -> None:
    """Docker starts it again; its former answer does not make it ready."""
    await settled(site, "compute")
    (former,) = site.answered
    await script_saw_it_ready(site)
    controls.stop_engine(project, "compute", "us-east5-b", "vllm-devops-gemma")
    await wait_until(
        lambda: status.describe(site, "gemma"),
        lambda one: one.state is State.READY and site.answered != {former},
        waiting_for="another answer",
        every=0.05,
        timeout=30,
    )
    lines = (await logs.read_logs(site, "gemma", lines=500, contains="started again")).lines
    assert len(lines) == 1


async def script_saw_it_ready(site: Site) -> None:
    """Wait for the VM's script, which asks on its own: docker starts again only after that."""
    await wait_until(
        lambda: logs.read_logs(site, "gemma", lines=500),
        lambda read: any("ready: vllm serve" in line for line in read.lines),
        waiting_for="the startup script to tell that the engine is ready",
        every=0.05,
        timeout=30,
    )


async def failed(site: Site) -> Deployment:
    """Give the look at which it has failed."""
    return await wait_until(
        lambda: status.describe(site, "gemma"),
        lambda one: one.state is State.FAILED,
        waiting_for="the failure",
        every=0.05,
        timeout=30,
    )


async def settled(site: Site, plane_kind: str) -> list[Deployment]:
    """Deploy, and give each look at it until it is settled."""
    await deployment.apply(site, planned(site, zones=("us-east5-b",), control_plane=plane_kind))
    seen: list[Deployment] = []

    async def look() -> Deployment:
        await deployment.go_on(site, "gemma")
        seen.append(await status.describe(site, "gemma"))
        return seen[-1]

    await wait_until(
        look, lambda one: one.state.settled, waiting_for="the model", every=0.05, timeout=60
    )
    return seen
