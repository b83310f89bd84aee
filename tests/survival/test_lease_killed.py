"""kill -9 on the way to a lease of Google's: another machine says what is there, and it ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.settings import GooglePlane
from operations.runtime import Stage
from tests.conversation import agent_of
from tests.google_plane import Controls, google_plane
from tests.soon import until
from tests.survival import leasing
from tests.survival.leasing import deploy_if_alive, sees
from tests.survival.servers import server

pytestmark = pytest.mark.anyio

PROJECT: Final = "leasing"
ONE: Final = {"target": "cloud-run-l4", "name": "one"}
WISH: Final = {**leasing.WISH, **ONE, "ttl_minutes": 60}
CLOUDS: Final = {"REHEARSAL": "1", "GOOGLE_CLOUD_PROJECT": PROJECT}
GRANTING: Final = "google.cloud.run.v2.Services/SetIamPolicy"
NOTHING_ENDS: Final = "Nothing in the cloud ends one"
STEPS: Final[dict[str, tuple[str, str, str]]] = {
    "before its job": (
        "google.cloud.scheduler.v1.CloudScheduler/CreateJob",
        "hang",
        "No deployment named 'one'",
    ),
    "after its job": (
        "google.cloud.run.v2.Services/CreateService",
        "hang",
        "The job vllm-lease-one in us-east4 is left",
    ),
    "after its service": (GRANTING, "hang", NOTHING_ENDS),
    "after its grant": (GRANTING, "hang-after", ""),
}
"""Where the server is killed: in which call, and what another machine is answered then."""


@pytest.fixture
def clouds(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controls]:
    """A simulated Google Cloud, which a server that has this folder and every agent finds."""
    folder = state_dir / "rehearsal" / "google"
    folder.mkdir(parents=True)
    with google_plane(folder) as plane:

        async def google(_self: Stage) -> GooglePlane:
            return plane

        monkeypatch.setattr(Stage, "google", google)
        yield Controls(plane)


@pytest.mark.parametrize("step", STEPS)
async def test_whoever_is_killed_leaves_nothing_that_bills_unsaid(
    state_dir: Path, tmp_path: Path, clouds: Controls, step: str
) -> None:
    """What a fresh machine makes whole, or finds whole, Google ends in time."""
    method, when, says = STEPS[step]
    fault = {"method": method, "when": when}
    clouds.set(PROJECT, prepared=True, boot_seconds=0.1, quotas={"l4": 3}, faults=[fault])
    async with (
        server(state_dir, **CLOUDS) as first,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(deploy_if_alive, first, WISH)
        await until(lambda: method in clouds.get(PROJECT)["calls"])
        await first.kill()
    clouds.set(PROJECT, faults=[])
    elsewhere = leasing.elsewhere(tmp_path, google_cloud_project=PROJECT)
    async with agent_of(elsewhere) as agent:
        found = await agent.call("status_vllm", **ONE)
        assert says in found.text, found
        assert (NOTHING_ENDS in found.text) == (says == NOTHING_ENDS)
        if says:
            assert not (await agent.call("deploy_vllm", **WISH)).failed
        await until(lambda: bool(clouds.get(PROJECT)["instances"]))
        assert (await agent.call("status_vllm", **ONE)).data["lease"] == "cloud"
    clouds.clock(PROJECT, 62 * 60)
    await until(lambda: not clouds.get(PROJECT)["instances"])
    async with agent_of(elsewhere) as agent:
        await sees(agent, "cloud-run-l4", "stopped")
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"]
    assert clouds.get(PROJECT)["jobs"] == {}


MAKING: Final = "google.cloud.scheduler.v1.CloudScheduler/CreateJob"
RENEWING: Final = "google.cloud.scheduler.v1.CloudScheduler/UpdateJob"
ASKING: Final = "google.cloud.tpu.v2.Tpu/CreateQueuedResource"
CHIP: Final[dict[str, Any]] = {
    **leasing.WISH,
    "target": "tpu-v6e-1",
    "zones": ["us-east5-b"],
    "control_plane": "queued",
    "ttl_minutes": 60,
}
CHIP_STEPS: Final[dict[str, tuple[str, str, bool]]] = {
    "before its job": (MAKING, "hang", False),
    "after its job": (ASKING, "hang", False),
    "after its request": (ASKING, "hang-after", True),
    "before its time begins with its chip": (RENEWING, "hang", True),
    "after its time has begun with its chip": (RENEWING, "hang-after", True),
}
"""Where the server is killed: in which call, and whether there is a chip, or may be one."""


@pytest.mark.parametrize("step", CHIP_STEPS)
async def test_whoever_is_killed_leaves_no_chip_of_the_queue_without_its_end(
    state_dir: Path, tmp_path: Path, clouds: Controls, step: str
) -> None:
    """No machine has to look: what was asked for goes by its job."""
    method, when, asked = CHIP_STEPS[step]
    fault = {"method": method, "when": when}
    waits = {"tpu_zones": {"us-east5-b": {"wait_seconds": 1200}}}  # two seconds of a real clock
    quick = {"boot_seconds": 0.1, "tpu_clock": 600, **waits}
    clouds.set(PROJECT, prepared=True, faults=[fault], **quick)
    wish = {key: value for key, value in CHIP.items() if key != "min_replicas"}
    async with server(state_dir, **CLOUDS) as first, anyio.create_task_group() as tasks:
        tasks.start_soon(deploy_if_alive, first, wish)
        await until(lambda: method in clouds.get(PROJECT)["calls"])
        await first.kill()
    clouds.set(PROJECT, faults=[])
    seen = clouds.get(PROJECT)
    assert bool(seen["queued_resources"]) == asked
    assert bool(seen["jobs"]) == (method != MAKING)
    turned = clouds.clock(PROJECT, 62 * 60)["jobs"]
    if asked:
        assert turned[JOB]["status"] == "OK", turned
    await until(lambda: not clouds.get(PROJECT)["tpus"])
    async with agent_of(leasing.elsewhere(tmp_path, google_cloud_project=PROJECT)) as agent:
        one = {"target": CHIP["target"], "name": "one"}
        found = await agent.call("status_vllm", **one)
        assert found.code == "DEPLOYMENT_NOT_FOUND"
        assert (f"The job {JOB} in" in found.text) == bool(seen["jobs"])
        assert (await agent.call("destroy_vllm", **one)).data["gone"]
    assert clouds.get(PROJECT)["jobs"] == {}


JOB: Final = "vllm-tpu-lease-one"
HALFWAY: Final[dict[str, tuple[str, str]]] = {
    "between its jobs": (MAKING, "hang-after"),
    "before its service": ("google.cloud.run.v2.Services/CreateService", "hang"),
    "before its grant": (GRANTING, "hang"),
}
ALL_DAY: Final = "Mon-Sat 00:00-24:00"


@pytest.mark.parametrize("step", HALFWAY)
@pytest.mark.parametrize("schedule", [ALL_DAY, None])
async def test_whoever_is_killed_while_a_schedule_is_made_leaves_no_orphan(
    state_dir: Path, tmp_path: Path, clouds: Controls, step: str, schedule: str | None
) -> None:
    """The next deployment makes it whole, or, without a schedule, leaves no job that wakes it."""
    method, when = HALFWAY[step]
    fault = {"method": method, "when": when}
    clouds.set(PROJECT, prepared=True, boot_seconds=0.1, quotas={"l4": 3}, faults=[fault])
    wish = {**leasing.WISH, **ONE, "min_replicas": 0}
    async with server(state_dir, **CLOUDS) as first, anyio.create_task_group() as tasks:
        tasks.start_soon(deploy_if_alive, first, {**wish, "schedule": ALL_DAY})
        await until(lambda: method in clouds.get(PROJECT)["calls"])
        await first.kill()
    clouds.set(PROJECT, faults=[])
    async with agent_of(leasing.elsewhere(tmp_path, google_cloud_project=PROJECT)) as agent:
        found = await agent.call("status_vllm", **ONE)
        is_there = step == "before its grant"
        says = "Its schedule is not kept" if is_there else "Its schedule (the jobs"
        assert says in found.text, found
        how = {"schedule": schedule} if schedule or not is_there else {"reset": ["schedule"]}
        made = await agent.call("deploy_vllm", **{**wish, **how})
        assert not made.failed, made
        assert len(clouds.get(PROJECT)["jobs"]) == (2 if schedule else 0)
        assert "not kept" not in (await agent.call("status_vllm", **ONE)).text
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"]
    assert clouds.get(PROJECT)["jobs"] == {}
