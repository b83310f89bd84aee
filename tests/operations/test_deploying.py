"""The life of a deployment, through the front door."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from fastmcp import Client

from core.settings import Settings
from server import build
from tests.conftest import processes_of
from tests.conversation import Agent, agent_of
from tests.soon import HANGS
from tests.tools.calls import MODEL
from tests.tools.world import plant, still_engine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def still(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """A server whose engine is a process that does nothing, and costs nothing."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        yield agent


async def deploy(agent: Agent, **flags: Any) -> Any:
    return await agent.call("deploy_vllm", **{"model": MODEL, "name": "one", **flags})


async def test_a_model_is_named_somewhere(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the call, by MODEL_NAME, by the tiny one of `make vllm`; else a real engine needs one."""
    still_engine(monkeypatch)
    monkeypatch.setattr("operations.deployments._TINY", tmp_path / "nothing")
    real = {"engine": "real", "vllm_executable": "/bin/false"}
    async with agent_of(settings.model_copy(update=real)) as agent:
        assert (await agent.call("deploy_vllm", target="local")).code == "INVALID_ARGUMENT"
    async with agent_of(settings.model_copy(update={"model_name": "a/Big_Model.v2"})) as agent:
        reply = await agent.call("deploy_vllm")
    assert (reply.data["model"], reply.data["name"]) == ("a/Big_Model.v2", "big-model-v2")


async def test_a_boot_is_told_phase_by_phase(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress names the phases; a second boot knows how long each takes.

    Four seconds: two boots, long enough to be seen where a machine has much to do.
    """
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "1.5")
    told: list[str] = []

    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with Client(build(settings), progress_handler=progress) as client:
        agent = Agent(client, [])
        await agent.serve("one")
        assert any("loading weights" in line for line in told), told
        await agent.call("stop_vllm")
        began = await agent.call("start_vllm")
        assert began.state == "loading"
        seen = []
        while (now := await agent.call("status_vllm", wait_s=5)).state == "loading":
            seen.append(now.data["phase"].get("usual_seconds"))
    assert any(seconds is not None for seconds in seen), seen


async def test_two_calls_at_once_make_one_deployment(still: Agent, state_dir: Path) -> None:
    """The second finds what the first has made, or is told that it is busy."""
    replies = []

    async def one() -> None:
        replies.append(await deploy(still))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one)
    assert {reply.code for reply in replies} <= {"", "BUSY"}
    assert sum(reply.structured["ok"] for reply in replies) >= 1
    assert len(processes_of(state_dir)) == 2


async def test_stopped_keeps_everything_but_the_process(still: Agent, state_dir: Path) -> None:
    """Start brings the same deployment back; each of them twice is harmless."""
    first = await deploy(still, max_model_len=512)
    for _ in range(2):
        assert (await still.call("stop_vllm")).state == "stopped"
        assert processes_of(state_dir) == []
    for _ in range(2):
        again = await still.call("start_vllm")
        assert again.state == "loading"
        assert again.data["revision"] == first.data["revision"]
        assert len(processes_of(state_dir)) == 2


async def test_scaling_is_starting_and_stopping_here(still: Agent, state_dir: Path) -> None:
    """None, one, and no more than one on a machine; the refusal changes nothing."""
    await deploy(still)
    none = await still.call("update_vllm_scaling", min_replicas=0, max_replicas=0)
    assert (none.state, none.data["replicas"]) == ("stopped", 0)
    one = await still.call("update_vllm_scaling", min_replicas=1, max_replicas=1)
    assert (one.state, one.data["replicas"]) == ("loading", 1)
    for low, high in ((1, 2), (2, 2), (1, 0), (-1, 1)):
        reply = await still.call("update_vllm_scaling", min_replicas=low, max_replicas=high)
        assert reply.code == "INVALID_ARGUMENT"
    assert len(processes_of(state_dir)) == 2


async def test_a_time_to_live_is_told_and_starts_anew(still: Agent) -> None:
    first = await deploy(still, ttl_minutes=5)
    assert first.data["expires_at"] > first.data["created_at"]
    stopped = await still.call("stop_vllm")
    assert "expires_at" not in stopped.data
    again = await still.call("start_vllm")
    assert again.data["expires_at"] > first.data["expires_at"]


async def test_destroying_leaves_nothing(still: Agent, state_dir: Path) -> None:
    """No process, no folder, no key; and once more is no error."""
    await deploy(still)
    gone = await still.call("destroy_vllm", target="local", name="one")
    assert gone.data["gone"] is True
    assert processes_of(state_dir) == []
    assert [path.name for path in (state_dir / "real" / "local").iterdir()] == []
    again = await still.call("destroy_vllm", target="local", name="one")
    assert (again.data["gone"], again.data["removed"]) == (True, [])
    assert (await still.call("list_deployments")).data["deployments"] == []


async def test_the_engine_outlives_the_server(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    """A server that ends takes no deployment with it; the next one finds it."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        first = await deploy(agent)
    async with agent_of(settings) as agent:
        found = await agent.call("status_vllm")
    assert found.data["instance"] == first.data["instance"]


async def test_a_killed_engine_is_seen_at_once(still: Agent) -> None:
    """The next look says failed, why, and what to do; deploying again goes on from there."""
    first = await deploy(still)
    engine = psutil.Process(int(first.data["instance"].removeprefix("pid ")))
    engine.kill()
    async with _watched(still) as failed:
        assert failed.data["failure"]["code"] == "KILLED"
        tools = [step["tool"] for step in failed.structured["next"]]
        assert tools == ["diagnose", "get_logs", "destroy_vllm"]
    again = await deploy(still)
    assert again.state == "loading"
    assert again.data["instance"] != first.data["instance"]


@asynccontextmanager
async def _watched(agent: Agent) -> AsyncIterator[Any]:
    with anyio.fail_after(HANGS):
        while (reply := await agent.call("status_vllm", wait_s=1)).state != "failed":
            continue
    yield reply


async def test_a_ready_engine_that_dies_is_told_with_its_last_words(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status after the crash names the cause. A second: an engine is started."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", "crash-after:2")  # one is our own first look
    async with agent_of(settings) as agent:
        await agent.serve("one")
        await agent.call("query_gemma4", prompt="Hello", max_tokens=2)
        async with _watched(agent) as failed:
            assert failed.data["failure"]["code"] == "ENGINE_CORE_DIED"
            assert failed.data["failure"]["evidence"]
        health = await agent.call("verify_model_health")
        assert (health.data["healthy"], health.data["layer"]) == (False, "process")
        asked = await agent.call("query_gemma4", prompt="Hello")
        assert (asked.code, asked.structured["retryable"]) == ("FAILED", False)
        assert [step["tool"] for step in asked.structured["next"]] == ["diagnose"]


async def test_what_was_interrupted_can_be_cleared_away(agent: Agent, state_dir: Path) -> None:
    """A folder without a process, from a server that was killed, is told as what it is."""
    folder = plant(state_dir, wanted="running")
    status = await agent.call("status_vllm")
    assert (status.state, status.data["failure"]["code"]) == ("failed", "INTERRUPTED")
    assert (await agent.call("destroy_vllm")).data["gone"] is True
    assert not folder.path.exists()
