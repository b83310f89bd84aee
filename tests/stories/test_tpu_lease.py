"""A chip ends when its time or its money is over: Google ends it, by itself or by a job."""

import operator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient

from tests.conversation import Reply, agent_of
from tests.soon import soon
from tests.stories.chips import HERE, left
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = [pytest.mark.anyio, pytest.mark.life]

WISH: Final[dict[str, Any]] = {"model": MODEL, "max_model_len": 4096, "zones": [HERE]}
GOOGLE: Final = (
    ("tpu-v6e-1", "compute"),
    ("tpu-v6e-1-spot", "compute"),
    ("tpu-v6e-1-flex", "compute"),
    ("tpu-v6e-1-flex", "queued"),
)
BY_JOB: Final = (
    ("tpu-v6e-1", {"ttl_minutes": 60}),
    ("tpu-v6e-1-spot", {"max_usd": 1.5}),
)
LACKING: Final = ("cloudscheduler.googleapis.com", "cloudscheduler.jobs.create")
JOB: Final = "vllm-tpu-lease-one"
HOUR: Final = 3600
QUEUED: Final[dict[str, Any]] = {**WISH, "control_plane": "queued"}


def elsewhere(cloud: Cloud, folder: Path) -> Any:
    """A fresh machine: nothing is known there but what the cloud says."""
    return agent_of(cloud.settings.model_copy(update={"vllm_devops_state_dir": folder}))


def jobs(cloud: Cloud) -> dict[str, Any]:
    found: dict[str, Any] = cloud.controls.get(cloud.project)["jobs"]
    return found


def hours_left(reply: Reply) -> float:
    return (datetime.fromisoformat(reply.data["expires_at"]) - datetime.now(UTC)) / timedelta(
        hours=1
    )


@pytest.mark.parametrize(("target", "control_plane"), GOOGLE)
async def test_google_ends_a_chip_when_its_money_is_used_up(
    cloud: Cloud, target: str, control_plane: str
) -> None:
    """No server is there then."""
    wish = {**WISH, "control_plane": control_plane, "lease": "cloud", "max_usd": 1.5}
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, target, at="https://127.77.")
        await life.call("deploy_vllm", **wish)
        ready = await life.becomes("ready")
        assert ready.data["lease"] == "cloud", ready
        left_over = datetime.fromisoformat(ready.data["expires_at"]) - datetime.now(UTC)
        paid = 1.5 / ready.data["usd_per_hour"]
        assert paid - 0.1 < left_over / timedelta(hours=1) <= paid
    cloud.set(tpu_run_clock=30000)

    async def bills() -> list[str]:
        return [one for one in left(cloud) if one.startswith(("nodes", "vms"))]

    await soon(bills, operator.not_, waiting_for="its end")


@pytest.mark.parametrize(("target", "limit"), BY_JOB)
async def test_a_job_ends_what_the_queue_gave_though_no_server_is_there(
    cloud: Cloud, tmp_path: Path, target: str, limit: dict[str, float]
) -> None:
    """A fresh machine sees the end; the bill has ended, and the rest goes with one call."""
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, target, at="https://127.77.")
        made = await life.call("deploy_vllm", **QUEUED, **limit)
        assert "$0.10 a month" in made.text
        ready = await life.becomes("ready")
        assert ready.data["lease"] == "cloud", ready
        hours = limit.get("ttl_minutes", 0) / 60 or 1.5 / ready.data["usd_per_hour"]
        assert hours - 0.1 < hours_left(ready) <= hours
    assert jobs(cloud)[JOB]["tried"] is None
    turned = cloud.controls.clock(cloud.project, 2 * HOUR)["jobs"]
    assert turned[JOB]["status"] == "OK", turned

    async def bills() -> list[str]:
        return [one for one in left(cloud) if one.startswith(("nodes", "tpus", "queued"))]

    await soon(bills, operator.not_, waiting_for="its end")
    cloud.controls.clock(cloud.project, 0)
    async with elsewhere(cloud, tmp_path) as agent:
        one = {"target": target, "name": "one"}
        gone = await agent.call("status_vllm", **one)
        assert gone.code == "DEPLOYMENT_NOT_FOUND"
        assert f"The job {JOB} in" in gone.text
        assert "is left: destroy_vllm removes it." in gone.text
        rest = await agent.call("get_system_status", leftovers=True)
        assert JOB in rest.text
        assert (await agent.call("destroy_vllm", **one)).data["gone"]
    assert (left(cloud), jobs(cloud)) == ([], {})


async def test_more_time_moves_its_job_and_no_more_than_its_money(
    cloud: Cloud, tmp_path: Path
) -> None:
    """From any machine; what Compute Engine gave keeps the end it was made with."""
    cloud.set(tpu_clock=600)
    one = {"target": "tpu-v6e-1", "name": "one"}
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, one["target"], at="https://127.77.")
        await life.call("deploy_vllm", **QUEUED, ttl_minutes=60, max_usd=10)
        ready = await life.becomes("ready")
        assert 0.9 < hours_left(ready) <= 1
    async with elsewhere(cloud, tmp_path) as agent:
        longer = await agent.call("update_vllm_scaling", **one, ttl_minutes=150)
        assert 2.4 < hours_left(longer) <= 2.5
        assert longer.data["lease"] == "cloud", longer
        paid = await agent.call("update_vllm_scaling", **one, ttl_minutes=6000)
        assert hours_left(paid) <= 10 / paid.data["usd_per_hour"]
        assert "max_usd" in paid.text
    assert cloud.controls.clock(cloud.project, 2 * HOUR)["jobs"][JOB]["tried"] is None
    assert any(one.startswith("nodes") for one in left(cloud))


async def test_what_another_machine_has_deployed_anew_is_told_by_both(
    cloud: Cloud, tmp_path: Path
) -> None:
    """Its model, its end and its bill; the former one is no failure, and hides nothing."""
    one = {"target": "tpu-v6e-1-spot", "name": "one"}
    async with agent_of(cloud.settings) as agent, elsewhere(cloud, tmp_path) as other:
        life = Life(agent, one["target"], at="https://127.77.")
        await life.call("deploy_vllm", **WISH, control_plane="compute", ttl_minutes=60)
        await life.becomes("ready")
        new = {**QUEUED, "max_model_len": 8192, "ttl_minutes": 180}
        theirs = Life(other, one["target"], at="https://127.77.")
        await theirs.call("deploy_vllm", **new)
        there = await theirs.becomes("ready")
        here = await agent.call("status_vllm", **one)
        assert here.data["state"] == "ready", here
        assert here.data["expires_at"] == there.data["expires_at"]
        listed = await agent.call("list_deployments")
        assert "1 deployment runs: one" in listed.text
        told = await agent.call("explain_deployment", **one)
        assert "8,192" in told.text
        assert (await agent.call("destroy_vllm", **one)).data["gone"]
    assert left(cloud) == []


async def test_any_machine_tells_the_same_end_of_what_a_server_ends(
    cloud: Cloud, tmp_path: Path
) -> None:
    """From the chip on: how long it may have waited for that is no time to run."""
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent, elsewhere(cloud, tmp_path) as other:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        wait = {"lease": "server", "ttl_minutes": 60, "zone_wait_minutes": 600}
        await life.call("deploy_vllm", **QUEUED, **wait)
        ready = await life.becomes("ready")
        there = await other.call("status_vllm", target="tpu-v6e-1", name="one")
        assert there.data["expires_at"] == ready.data["expires_at"]
        assert hours_left(there) <= 1


@pytest.mark.parametrize("lacking", LACKING)
async def test_where_the_login_may_not_a_server_ends_it_and_that_is_said(
    bare_cloud: Cloud, lacking: str
) -> None:
    """With lease=cloud nothing is made; without it, the answer names what is missing."""
    denied = [lacking] if lacking.startswith("cloudscheduler.jobs") else []
    ready = bool(denied)
    bare_cloud.set(prepared=True, lease_prepared=ready, denied_permissions=denied, tpu_clock=600)
    one = {"target": "tpu-v6e-1", "name": "one"}
    async with agent_of(bare_cloud.settings) as agent:
        life = Life(agent, one["target"], at="https://127.77.")
        refused = await agent.call("deploy_vllm", **one, **QUEUED, ttl_minutes=60, lease="cloud")
        assert refused.failed
        assert lacking in refused.text
        assert left(bare_cloud) == []
        made = await life.call("deploy_vllm", **QUEUED, ttl_minutes=60)
        assert lacking in made.text
        assert "setup_target" in made.text
        assert (await life.becomes("ready")).data["lease"] == "server"
        assert jobs(bare_cloud) == {}
        bare_cloud.set(denied_permissions=[])
        await agent.call("setup_target", target=one["target"])
        await life.call("deploy_vllm", **QUEUED, ttl_minutes=60)
        assert (await life.becomes("ready")).data["lease"] == "cloud"
        assert JOB in jobs(bare_cloud)
        await life.ends()
    assert jobs(bare_cloud) == {}


async def test_a_job_that_is_gone_is_warned_of_and_made_anew(cloud: Cloud, tmp_path: Path) -> None:
    """By the next deploy_vllm, from any machine."""
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        await life.call("deploy_vllm", **QUEUED, ttl_minutes=60)
        await life.becomes("ready")
    kind: Any = CloudSchedulerAsyncClient
    async with grpc.aio.insecure_channel(cloud.controls.plane.grpc) as channel:
        client = kind(transport=kind.get_transport_class("grpc_asyncio")(channel=channel))
        path = f"projects/{cloud.project}/locations/us-central1/jobs/{JOB}"
        await client.delete_job(name=path)
    async with elsewhere(cloud, tmp_path) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        found = await life.becomes("ready")
        assert "Nothing in the cloud ends one" in found.text
        assert found.data["lease"] == "server"
        [step] = [each for each in found.structured["next"] if each["tool"] == "deploy_vllm"]
        assert not (await agent.call(step["tool"], **step["arguments"])).failed
        assert (await life.becomes("ready")).data["lease"] == "cloud"


async def test_what_is_to_be_ended_by_nobody_loses_the_job_of_an_earlier_one(
    cloud: Cloud,
) -> None:
    """It would be deleted by that."""
    cloud.set(tpu_clock=600)
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        await life.call("deploy_vllm", **QUEUED, ttl_minutes=60)
        await life.becomes("ready")
        never = await life.call("deploy_vllm", **QUEUED, ttl_minutes=0)
        assert "Nothing ends it" in never.text
        assert "expires_at" not in (await life.becomes("ready")).data
        assert jobs(cloud) == {}


async def test_what_never_ends_has_no_lease_of_the_cloud(cloud: Cloud) -> None:
    """ttl_minutes=0 is for ever: nobody would end it, whatever is asked for."""
    wish = {**WISH, "control_plane": "compute", "lease": "cloud", "ttl_minutes": 0}
    async with agent_of(cloud.settings) as agent:
        refused = await agent.call("deploy_vllm", target="tpu-v6e-1", name="one", **wish)
        assert refused.code == "INVALID_ARGUMENT", refused
        assert left(cloud) == []
