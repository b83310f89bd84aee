"""Container Apps are warm at the times of a schedule, which scale rules of KEDA keep."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from core.schedule import parse
from planner.places import place
from planner.price import price
from tests.conversation import agent_of
from tests.soon import soon
from tests.stories.conftest import Azure
from tests.stories.test_lease_aca import elsewhere
from tests.stories.test_schedule import OFFICE, begin_after
from tests.stories.troubles import ONE, WISH, asked, becomes, deploys, destroyed, seen, trouble

__all__ = ["trouble"]

pytestmark = [pytest.mark.anyio, pytest.mark.life]

COOLDOWN_SCALE: Final = 0.0005
"""Of simulated time: an app that nobody asks sleeps within seconds."""


def turned(azure: Azure, at: datetime) -> None:
    """Set the simulated clock to half a minute after a moment."""
    ahead = (at - datetime.now(UTC)).total_seconds() + 30
    azure.set(clock_ahead_seconds=ahead, cooldown_scale=COOLDOWN_SCALE)


async def runs(azure: Azure, count: int) -> None:
    """Wait until so many replicas run."""

    async def look() -> int:
        return len(azure.get()["replicas"])

    await soon(look, count.__eq__, waiting_for=f"{count} replicas")


async def test_it_is_warm_in_the_morning_and_asleep_at_night(
    trouble: Azure, tmp_path: Path
) -> None:
    """No server has to run for it; a call at night wakes it all the same."""
    night = parse(OFFICE).changes(begin_after(datetime.now(UTC)))
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, schedule=OFFICE)
        await becomes(agent, "ready")
        turned(trouble, night)
        found = await seen(agent, lambda reply: reply.state == "asleep")
        assert found.data["schedule"] == OFFICE
        assert f"its schedule ({OFFICE})" in found.text
    turned(trouble, begin_after(night))
    await runs(trouble, 1)
    async with agent_of(elsewhere(trouble, tmp_path)) as agent:
        ready = await becomes(agent, "ready")
        assert "not kept" not in ready.text
        turned(trouble, parse(OFFICE).changes(begin_after(night)))
        await seen(agent, lambda reply: reply.state == "asleep")
        await agent.call("query_gemma4", **ONE, prompt="Hello", max_tokens=4, wake=True)
        await destroyed(agent, trouble)


async def test_a_week_costs_what_the_plan_says(trouble: Azure) -> None:
    """Followed from change to change, over midnight and the week's end."""
    said = "Fri,Sun 22:30-02:00 America/Bogota"  # which has no summer time
    times = parse(said)
    async with agent_of(trouble.settings) as agent:
        wish = {"target": ONE["target"], "model": WISH["model"], "schedule": said}
        plan = await agent.call("plan_deployment", **wish)
        hourly = (await deploys(agent, schedule=said)).data["usd_per_hour"]
        await becomes(agent, "ready")
    highest = price(place(ONE["target"])).usd_per_hour_highest
    assert highest
    found = re.search(r"([\d.]+) h a week, \$([\d.]+) to \$([\d.]+) a week", plan.text)
    assert found, plan
    at = start = begin_after(datetime.now(UTC), said)
    hours = 0.0
    while at < start + timedelta(days=7):
        turned(trouble, at)
        on = times.is_on(at)
        await runs(trouble, int(on))
        after = times.changes(at)
        hours += on * (after - at) / timedelta(hours=1)
        at = after
    assert hours == float(found[1])
    assert hours * hourly == pytest.approx(float(found[2]), abs=0.01)
    assert hours * highest == pytest.approx(float(found[3]), abs=0.01)


@pytest.mark.parametrize("ended_by", ["its lease", "stop_vllm"])
async def test_what_was_ended_is_not_woken_by_a_later_morning(
    trouble: Azure, ended_by: str
) -> None:
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, schedule=OFFICE, ttl_minutes=60)
        await becomes(agent, "ready")
        if ended_by == "stop_vllm":
            await asked(agent, "stop_vllm")
        turned(trouble, datetime.now(UTC) + timedelta(hours=2))
        await seen(agent, lambda reply: reply.state == "stopped")
        turned(trouble, begin_after(datetime.now(UTC) + timedelta(hours=2)))
        for _ in range(3):
            assert (await becomes(agent, "stopped")).data["replicas"] == 0
        assert trouble.get()["replicas"] == []
        await asked(agent, "start_vllm")
        await runs(trouble, 1)
        await destroyed(agent, trouble)


async def test_another_schedule_or_number_is_a_new_revision_and_that_is_said(
    trouble: Azure,
) -> None:
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, max_replicas=2)
        await becomes(agent, "ready")
        timed = await deploys(agent, schedule="daily 06:00-07:00,20:00-24:00")
        assert "new revision" in timed.text
        assert "not kept" not in (await becomes(agent, "ready")).text
        more = await asked(agent, "update_vllm_scaling", min_replicas=2, max_replicas=2)
        assert "new revision" in more.text
        assert "not kept" not in (await asked(agent, "status_vllm")).text
        await deploys(agent, reset=["schedule"], min_replicas=0)
        assert "schedule" not in (await asked(agent, "status_vllm")).data
        await destroyed(agent, trouble)
    careful = trouble.settings.model_copy(update={"confirm": "always"})
    async with agent_of(careful) as agent:
        question = await agent.call("deploy_vllm", **WISH, schedule=OFFICE)
        assert re.search(rf"warm {OFFICE}: 45.42 h a week, .* a month", question.text)
