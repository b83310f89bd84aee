"""Cloud Run is warm at the times of a schedule, which jobs of Cloud Scheduler keep."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient

from core.schedule import parse
from tests.conversation import Agent, Reply, agent_of
from tests.soon import soon, until
from tests.stories.conftest import Cloud
from tests.stories.test_lease import (
    NO_JOBS,
    ONE,
    TARGET,
    WISH,
    agent_elsewhere,
    agent_here,
    deployed,
    seen,
    status,
)

pytestmark = [pytest.mark.anyio, pytest.mark.life]


def _office() -> str:
    """Return hours of an office that neither begin nor end while tests run."""
    for zone in ("Europe/Berlin", "Asia/Kolkata"):
        said = f"Mon-Fri 08:55-18:00 {zone}"
        if parse(said).changes(now := datetime.now(UTC)) - now > timedelta(hours=2):
            break
    return said


OFFICE: Final = _office()
JOBS: Final = {"vllm-rest-one-1", "vllm-wake-one-1"}
MINUTE: Final = timedelta(minutes=1)


def turned(cloud: Cloud, at: datetime) -> dict[str, Any]:
    """Set the simulated clock to half a minute after a moment."""
    ahead = (at - datetime.now(UTC)).total_seconds() + 30
    return cloud.controls.clock(cloud.project, ahead)


def begin_after(at: datetime, said: str = OFFICE) -> datetime:
    """Return when it begins next."""
    times = parse(said)
    at = times.changes(at)
    return at if times.is_on(at) else times.changes(at)


def warm(cloud: Cloud) -> int:
    return int(seen(cloud)["least_instances"]["one"])


async def test_it_is_warm_in_the_morning_and_asleep_at_night(cloud: Cloud, tmp_path: Path) -> None:
    """No server has to run for it, and any machine is told of it."""
    async with agent_here(cloud) as agent:
        made = await deployed(agent, schedule=OFFICE)
        now = datetime.now(UTC)
        assert warm(cloud) == parse(OFFICE).is_on(now), made
    assert set(seen(cloud)["jobs"]) == JOBS
    begin = begin_after(now)
    turned(cloud, begin)
    assert seen(cloud)["jobs"]["vllm-wake-one-1"]["status"] == "OK", seen(cloud)["jobs"]
    await until(lambda: bool(seen(cloud)["instances"]))
    async with agent_elsewhere(cloud, tmp_path / "other") as agent:
        await until_ready(agent)
        found = await status(agent)
        assert found.data["schedule"] == OFFICE
        assert f"its schedule ({OFFICE})" in found.text
    end = parse(OFFICE).changes(begin)
    turned(cloud, end)
    assert warm(cloud) == 0
    assert seen(cloud)["instances"]
    turned(cloud, end + 16 * MINUTE)
    await until(lambda: not seen(cloud)["instances"])


async def until_ready(agent: Agent) -> None:
    await soon(lambda: status(agent), lambda reply: reply.state == "ready", every=0.1)


async def test_a_week_costs_what_the_plan_says(cloud: Cloud) -> None:
    """Followed from change to change, over midnight and the week's end, to a minute of each."""
    said = "Fri-Sun 22:30-02:00,06:00-07:15 America/Bogota"  # which has no summer time
    times = parse(said)
    async with agent_here(cloud) as agent:
        wish = {"target": TARGET, "model": WISH["model"], "schedule": said}
        plan = await agent.call("plan_deployment", **wish)
        hourly = (await deployed(agent, schedule=said)).data["usd_per_hour"]
    found = re.search(r"([\d.]+) h a week, \$([\d.]+) a week", plan.text)
    assert found, plan
    assert float(found[1]) == times.hours_a_week == 3 * (3.5 + 1.25)
    at = start = begin_after(datetime.now(UTC), said)
    hours = 0.0
    while at < start + timedelta(days=7):
        turned(cloud, at)
        after = times.changes(at)
        hours += warm(cloud) * (after - at) / timedelta(hours=1)
        assert warm(cloud) == times.is_on(at + MINUTE), at
        at = after
    assert hours * hourly == pytest.approx(float(found[2]), abs=0.01)


async def test_an_end_that_summer_time_skips_comes_an_hour_later(cloud: Cloud) -> None:
    """Cloud Scheduler has no 02:30 that night: its instances would be paid for until the next."""
    said = "Sat 22:00-02:30 Europe/Berlin"
    at = datetime(datetime.now(UTC).year + 1, 3, 31, 1, 30, tzinfo=UTC)
    end = at - timedelta(days=(at.weekday() + 1) % 7)  # the last Sunday of March
    async with agent_here(cloud) as agent:
        await deployed(agent, schedule=said)
    turned(cloud, end - timedelta(hours=12))
    turned(cloud, end - timedelta(hours=4, minutes=30))
    assert warm(cloud) == 1
    assert parse(said).changes(end - timedelta(hours=4)) == end
    turned(cloud, end)
    assert warm(cloud) == 0


@pytest.mark.parametrize("ended_by", ["its lease", "stop_vllm"])
async def test_what_was_ended_is_not_woken_by_a_later_morning(
    cloud: Cloud, tmp_path: Path, ended_by: str
) -> None:
    """Nothing runs and nothing is billed until somebody starts it."""
    async with agent_here(cloud) as agent:
        await deployed(agent, schedule=OFFICE, ttl_minutes=60, min_replicas=1)
        if ended_by == "stop_vllm":
            await agent.call("stop_vllm", **ONE)
    turned(cloud, datetime.now(UTC) + timedelta(hours=2))
    morning = begin_after(datetime.now(UTC) + timedelta(hours=2))
    assert turned(cloud, morning)["jobs"]["vllm-wake-one-1"]["tried"]
    assert warm(cloud) == 0
    await until(lambda: not seen(cloud)["instances"])
    async with agent_elsewhere(cloud, tmp_path / "other") as agent:
        found = await status(agent)
        assert found.state in {"stopping", "stopped"}
        await agent.call("start_vllm", **ONE)
    assert warm(cloud) == parse(OFFICE).is_on(datetime.now(UTC))
    turned(cloud, begin_after(morning))
    assert warm(cloud) == 1


async def test_another_schedule_starts_no_engine_anew(cloud: Cloud) -> None:
    """Jobs come, change and go with it, and so does the number that never sleeps."""
    async with agent_here(cloud) as agent:
        await deployed(agent, max_replicas=2)
        revisions = seen(cloud)["revisions"]
        await deployed(agent, schedule="daily 06:00-07:00,20:00-24:00", min_replicas=1)
        assert len(seen(cloud)["jobs"]) == 4
        always = f"{datetime.now(UTC):%a} 00:00-24:00,23:00-03:00"
        await deployed(agent, schedule=always)
        assert set(seen(cloud)["jobs"]) == JOBS
        assert warm(cloud) == 1
        await agent.call("update_vllm_scaling", **ONE, min_replicas=2, max_replicas=2)
        assert warm(cloud) == 2
        assert (await status(agent)).data["schedule"] == always
        assert "not kept" not in (await status(agent)).text
        await deployed(agent, reset=["schedule"], min_replicas=0)
        assert "schedule" not in (await status(agent)).data
        assert (warm(cloud), seen(cloud)["jobs"]) == (0, {})
        assert seen(cloud)["revisions"] == revisions


async def test_a_destroyed_one_leaves_no_job(cloud: Cloud) -> None:
    async with agent_here(cloud) as agent:
        await deployed(agent, schedule="daily 06:00-07:00,20:00-22:00", ttl_minutes=600)
        assert len(seen(cloud)["jobs"]) == 5
        gone = await agent.call("destroy_vllm", **ONE)
        assert gone.data["gone"]
        assert any("vllm-wake-one" in what for what in gone.data["removed"])
    assert seen(cloud)["jobs"] == {}


LACKING: Final = {
    **NO_JOBS,
    "jobs may not be listed": (
        {"denied_permissions": ["cloudscheduler.jobs.list"]},
        "cloudscheduler.jobs.list",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
async def test_where_no_job_may_be_made_nothing_is_deployed(
    bare_cloud: Cloud, lacking: str
) -> None:
    """The answer says what is missing: nothing else would keep the schedule."""
    knobs, names = LACKING[lacking]
    bare_cloud.set(prepared=True, lease_prepared=bool(knobs), **knobs)
    async with agent_here(bare_cloud) as agent:
        refused = await agent.call("deploy_vllm", **WISH, schedule=OFFICE)
        assert refused.code == "NOT_CONFIGURED", refused
        assert names in refused.text
        assert bare_cloud.is_empty()
        assert seen(bare_cloud)["jobs"] == {}


@pytest.mark.parametrize("broken", ["deleted", "paused", "moved", "one more"])
async def test_a_schedule_that_is_not_whole_is_warned_of_and_made_anew(
    cloud: Cloud, tmp_path: Path, broken: str
) -> None:
    async with agent_here(cloud) as agent:
        await deployed(agent, schedule=OFFICE)
        assert "not kept" not in (await status(agent)).text
    await _break(cloud, broken)
    async with agent_elsewhere(cloud, tmp_path / "other") as agent:
        found = await status(agent)
        assert "Its schedule is not kept" in found.text, found
        await deployed(agent, schedule=OFFICE)
        assert "not kept" not in (await status(agent)).text
    assert set(seen(cloud)["jobs"]) == JOBS


async def test_a_job_of_somebody_else_is_left_alone(cloud: Cloud) -> None:
    """Its name is ours, its description is not: nothing is made, nothing deleted."""
    await _break(cloud, "foreign")
    before = seen(cloud)["jobs"]
    async with agent_here(cloud) as agent:
        refused = await agent.call("deploy_vllm", **WISH, schedule=OFFICE)
        assert refused.code == "NOT_OURS", refused
        await agent.call("destroy_vllm", **ONE)
    assert seen(cloud)["jobs"] == before
    assert cloud.is_empty()


async def test_the_question_names_the_dollars_of_a_month(cloud: Cloud) -> None:
    """Before a deployment, and before its schedule alone changes."""
    careful = cloud.settings.model_copy(update={"confirm": "always"})
    async with agent_of(careful) as agent:
        asked = await agent.call("deploy_vllm", **WISH, schedule=OFFICE)
        assert re.search(
            rf"warm {OFFICE}: 45.42 h a week, \$[\d.]+ a week, \$[\d.]+ a mo", asked.text
        )
    async with agent_here(cloud) as agent:
        await deployed(agent)
    async with agent_of(careful) as agent:
        asked = await agent.call("deploy_vllm", **ONE, schedule=OFFICE)
        assert "a month" in asked.text
        assert "starts anew" not in asked.text


@pytest.mark.parametrize("wrong", ["Mon-Fry 08:00-09:00", "08:00-09:00", "daily 09:00-25:00"])
async def test_what_is_not_understood_is_said_with_an_example(cloud: Cloud, wrong: str) -> None:
    async with agent_here(cloud) as agent:
        for tool in ("deploy_vllm", "plan_deployment"):
            said = await agent.call(tool, target=TARGET, model=WISH["model"], schedule=wrong)
            assert "Mon-Fri 08:55-18:00 Europe/Berlin" in said.text, said
    assert cloud.is_empty()


@pytest.mark.parametrize("target", ["tpu-v6e-1-spot", "local"])
async def test_what_cannot_sleep_says_what_to_do_instead(cloud: Cloud, target: str) -> None:
    async with agent_here(cloud) as agent:
        refused: Reply = await agent.call(
            "deploy_vllm", target=target, model=WISH["model"], schedule=OFFICE
        )
        assert refused.code == "INVALID_ARGUMENT", refused
        assert "start_vllm" in refused.text


async def _break(cloud: Cloud, broken: str) -> None:
    kind: Any = CloudSchedulerAsyncClient
    async with grpc.aio.insecure_channel(cloud.controls.plane.grpc) as channel:
        client = kind(transport=kind.get_transport_class("grpc_asyncio")(channel=channel))
        parent = f"projects/{cloud.project}/locations/us-east4"
        name = f"{parent}/jobs/vllm-wake-one-1"
        if broken == "deleted":
            await client.delete_job(name=name)
        elif broken == "paused":
            await client.pause_job(name=name)
        elif broken == "moved":
            changed = {"job": {"name": name, "schedule": "0 0 29 2 *"}}
            await client.update_job(request={**changed, "update_mask": {"paths": ["schedule"]}})
        elif broken == "one more":
            found = await client.get_job(name=name)
            found.name = f"{parent}/jobs/vllm-wake-one-2"
            await client.create_job(parent=parent, job=found)
        else:
            target = {"uri": "https://run.googleapis.com/v2/x", "http_method": "GET"}
            job = {"name": name, "schedule": "0 9 * * *", "http_target": target}
            await client.create_job(request={"parent": parent, "job": job})
