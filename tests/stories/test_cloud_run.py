"""A deployment's whole life on Cloud Run, from an empty project to an empty project."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from core.journal import utc_now
from core.settings import GooglePlane, Settings
from operations import inventory
from planner.flags import Flags
from planner.model import read_model
from planner.places import accelerator
from planner.speed import decode
from tests.conversation import Agent, agent_of
from tests.google_plane import Controls
from tests.soon import HANGS, soon
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

TARGETS = ("cloud-run-l4", "cloud-run-rtx-pro-6000")


@pytest.fixture
async def agent(bare_cloud: Cloud) -> AsyncIterator[Agent]:
    """An agent before an empty project; a human agrees to everything."""
    settings = bare_cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        yield agent


@pytest.fixture
async def alone(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """An agent whose server starts its simulated cloud itself, and looks what is overdue often."""
    settings = Settings(
        vllm_devops_state_dir=state_dir, rehearsal=True, toolsets=("all",), pause_scale=0.006
    )
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        file = state_dir / "rehearsal" / "google" / "plane.json"

        async def look() -> bool:
            await agent.call("list_deployments")  # starts the cloud, and waits for it not for long
            return file.exists()

        await soon(look, waiting_for="the simulated cloud")
        plane = GooglePlane.model_validate_json(file.read_bytes())
        Controls(plane).set("rehearsal", boot_seconds=0.1)
        yield agent


@pytest.mark.parametrize("target", TARGETS)
async def test_a_life_with_vllm(agent: Agent, target: str) -> None:
    """Plan, check, deploy, look, ask, measure, scale, stop, start, destroy."""
    life = Life(agent, target)
    prepared = await agent.call("setup_target", target=target)
    assert not prepared.failed, prepared
    plan = await agent.call("plan_deployment", model=MODEL, target=target, check=True)
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    await life.begins(max_model_len=4096, ttl_minutes=30)
    assert (await life.call("verify_model_health")).data["healthy"]
    details = await life.call("get_model_details")
    assert details.data["max_model_len"] == 4096
    metrics = await life.call("get_metrics")
    assert metrics.data["metrics"]["requests_running"] == 0
    answer = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=8)
    assert answer.data["completion_tokens"] == 8
    assert answer.data["timing"]["ttft_seconds"] > 0
    small = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "output_tokens": 4}
    run = await life.call("run_benchmark", wait_s=40, **small)
    assert run.data["state"] == "done", run
    logs = await life.call("get_logs", lines=50)
    assert logs.data["lines"]
    scaled = await life.call("update_vllm_scaling", min_replicas=0, max_replicas=2)
    assert scaled.data["revision"]
    await life.sleeps_and_wakes()
    await life.ends()


@pytest.mark.parametrize("target", TARGETS)
async def test_a_life_with_ollama(agent: Agent, bare_cloud: Cloud, target: str) -> None:
    """Build the image, deploy it, ask it, and take it away with its image."""
    bare_cloud.set(boot_seconds=1.0)  # so that the build is watched to its end
    life = Life(agent, target)
    await life.begins("gemma3:4b", engine="ollama")
    assert (await life.call("verify_model_health")).data["healthy"]
    answer = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=8)
    assert answer.data["completion_tokens"] == 8
    await life.sleeps_and_wakes()
    gone = await life.call("destroy_vllm", purge=True)
    assert any("image" in what for what in gone.data["removed"]), gone


async def test_a_rehearsed_answer_is_no_faster_than_the_plan(
    agent: Agent, bare_cloud: Cloud
) -> None:
    """A busy machine may make it slower; nothing makes it faster than the plan's best."""
    bare_cloud.set(engine_environment={})
    life = Life(agent, TARGETS[0])
    await life.begins(max_model_len=4096)
    answer = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=24)
    best = decode(read_model(MODEL), accelerator("l4"), Flags()).tokens_per_second_per_user.high
    assert answer.data["completion_tokens"] > 4
    assert answer.data["timing"]["output_tokens_per_second"] <= best, answer
    await life.ends()


async def test_what_outlives_its_time_is_stopped_and_told_once(
    alone: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looked; the server did, and its next answer says so."""
    life = Life(alone, TARGETS[0])
    await life.begins(max_model_len=4096, ttl_minutes=1)
    monkeypatch.setattr(inventory, "utc_now", lambda: utc_now() + timedelta(minutes=2))
    told, state = list[str](), ""
    with anyio.fail_after(HANGS):
        while not told or state != "stopped":  # the cloud may say so before the server does
            seen = await life.call("status_vllm", wait_s=1)
            state = seen.state
            told += [said for said in seen.structured["warnings"] if " expired at " in said]
    assert len(told) == 1, told
    await life.ends()
