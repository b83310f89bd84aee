"""A deployment that sleeps is woken by nobody who does not say so."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from core.settings import GooglePlane, Settings
from operations import resolve
from tests.conversation import Agent, agent_of
from tests.google_plane import Controls
from tests.soon import HANGS

pytestmark = [pytest.mark.anyio, pytest.mark.life]

ASKING: dict[str, dict[str, Any]] = {
    "query_gemma4": {"prompt": "Hello", "max_tokens": 2},
    "query_gemma4_with_stats": {"prompt": "Hello", "max_tokens": 2},
    "query_vllm": {"prompt": "Hello", "max_tokens": 2},
    "verify_model_health": {},
}
NEEDING: dict[str, dict[str, Any]] = {
    "get_metrics": {},
    "get_model_details": {},
    "run_benchmark": {"contexts": [16], "concurrencies": [1], "wait_s": 0},
}
WHERE = {"target": "cloud-run-l4", "name": "one"}


@pytest.fixture
async def sleeper(state_dir: Path) -> AsyncIterator[Agent]:
    """An agent whose only deployment sleeps."""
    settings = Settings(
        vllm_devops_state_dir=state_dir, rehearsal=True, toolsets=("all",), confirm="never"
    )
    async with agent_of(settings) as agent:
        await agent.call("setup_target", target="cloud-run-l4")
        deployed = await agent.call(
            "deploy_vllm", model="google/gemma-4-E2B-it", max_model_len=4096, **WHERE
        )
        assert not deployed.failed, deployed
        await agent.settled("one", target="cloud-run-l4")
        await agent.call("stop_vllm", **WHERE)
        await agent.settled("one", target="cloud-run-l4")
        assert (await agent.call("start_vllm", **WHERE)).state == "asleep"
        yield agent


def controls(state_dir: Path) -> Controls:
    """Return the handle of the rehearsal's Google Cloud."""
    file = state_dir / "rehearsal" / "google" / "plane.json"
    return Controls(GooglePlane.model_validate_json(file.read_bytes()))


async def test_nothing_that_looks_or_asks_wakes_it(sleeper: Agent) -> None:
    """Each says what waking would cost; the list and the dashboard do not even ask."""
    for tool, arguments in {**ASKING, **NEEDING}.items():
        reply = await sleeper.call(tool, **WHERE, **arguments)
        assert reply.code == "ASLEEP", (tool, reply)
        assert "wake=true" in reply.structured["fix"]
    for tool in ("get_endpoint", "get_logs", "status_vllm", "get_system_status"):
        told = await sleeper.call(tool, **WHERE)
        assert not told.failed, tool
        if tool == "get_endpoint":
            says = f"does not answer: {WHERE['name']} is asleep."
            assert told.structured["summary"].endswith(says)
    assert (await sleeper.call("status_vllm", **WHERE)).state == "asleep"


async def test_a_question_that_says_so_wakes_it(sleeper: Agent) -> None:
    woken = await sleeper.call("query_gemma4", wake=True, **WHERE, **ASKING["query_gemma4"])
    assert not woken.failed, woken
    assert (await sleeper.call("status_vllm", **WHERE)).state == "ready"
    assert not (await sleeper.call("get_metrics", **WHERE)).failed


async def test_a_waking_that_is_refused_says_why(sleeper: Agent, state_dir: Path) -> None:
    """Told as one that goes on, it would be asked for again and again."""
    unread = {"method": "*AccessSecretVersion", "status": "PERMISSION_DENIED", "times": -1}
    controls(state_dir).set("rehearsal", faults=[unread])
    asked = await sleeper.call("query_gemma4", wake=True, **WHERE, **ASKING["query_gemma4"])
    assert asked.code == "PERMISSION_DENIED", asked


async def test_a_waking_that_takes_long_is_told_and_goes_on(
    sleeper: Agent, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call never outlasts a client's patience; the next one finds the model awake."""
    controls(state_dir).set("rehearsal", boot_seconds=5.0)  # longer than the first answer takes
    monkeypatch.setattr(resolve, "_WAIT_SECONDS", 0.0)
    asked = {**WHERE, **ASKING["query_gemma4"], "wake": True}
    assert (await sleeper.call("query_gemma4", **asked)).code == "NOT_READY"
    with anyio.fail_after(HANGS):
        while (reply := await sleeper.call("query_gemma4", **asked)).failed:
            assert reply.code == "NOT_READY", reply
