"""No call outlasts a client's patience, whatever never answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

from core.records import State
from core.settings import Settings
from server import build
from tests.conversation import Agent, agent_of
from tests.soon import HANGS
from tests.tools.asked import mode
from tests.tools.calls import CLOUD, EVERY, OLD
from tests.tools.recorded import every_cloud, recorded
from tests.tools.world import assert_envelope, assert_same_facts, operations_of
from tools.surface import TOOLS

__all__ = ["mode"]

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("hastened")]

NOBODY: Final = "http://127.0.0.1:9"
PLACES: Final = {"estimate_cost", "compare_targets", "recommend_deployment"}
"""They know by themselves what they are asked, and their target is a name of the planner's."""


@pytest.fixture
async def hung(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """A server whose clouds have stopped answering, and whose patience is short."""
    every_cloud(monkeypatch, NOBODY).hangs = True
    settings = Settings(
        vllm_devops_state_dir=state_dir,
        google_cloud_project="p",
        azure_subscription_id="s",
        rehearsal=True,
        toolsets=("all",),
        confirm="never",
    )
    async with agent_of(settings) as agent:
        yield agent


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_cloud_that_hangs_is_told_in_time(hung: Agent, tool: str) -> None:
    """Whatever is called: an answer in our words, and what was waited for where it is none."""
    takes = TOOLS[tool].tool.parameters["properties"]
    said = {**EVERY, **CLOUD, **OLD}[tool]
    if {"target", "name"} <= set(takes) and tool not in PLACES:
        said = {"target": _target(tool), "name": "one", **said}
    with anyio.fail_after(HANGS):
        reply = await hung.call(tool, **said)
    assert_envelope(reply)
    assert_same_facts(reply)
    assert reply.code != "INTERNAL_ERROR"
    if reply.code == "WAITED_TOO_LONG":
        assert reply.structured["retryable"] is True
        assert tool in reply.structured["summary"]


def _target(tool: str) -> str:
    if "azure" in tool:
        return "aca-a100"
    return "tpu-v6e-1" if "queue" in tool else "cloud-run-l4"


async def test_a_call_that_its_client_takes_back_is_in_the_journal(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As broken off: what it had done by then, nobody knows."""
    kept = recorded(monkeypatch, state_dir.parent / "targets.toml")
    kept.hangs = True
    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="never")
    async with agent_of(settings) as agent:
        with anyio.move_on_after(20):
            await agent.call("destroy_vllm", target="run", name="one")
    (last,) = operations_of(state_dir)
    assert (last.tool, last.result) == ("destroy_vllm", "broken off")


async def test_a_human_may_think_as_long_as_they_like(
    state_dir: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still while they are asked, and what they agreed to is done after it."""
    kept = recorded(monkeypatch, state_dir.parent / "targets.toml")
    kept.put("run", State.STOPPED)
    async with _slow_human(state_dir, mode, seconds=120) as client:
        reply = await client.call_tool(
            "destroy_vllm", {"target": "run", "name": "one"}, raise_on_error=False
        )
    assert not reply.is_error, reply
    assert kept.writes == ["delete run/one"]


async def test_what_a_human_agreed_to_ends_in_time_as_well(
    state_dir: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their answer on the limit counts anew; how it ended is in the journal."""
    kept = recorded(monkeypatch, state_dir.parent / "targets.toml")
    kept.put("run", State.STOPPED)
    kept.delete_seconds = 25
    asked = {"target": "run", "name": "one", "purge": True}
    async with _slow_human(state_dir, mode, seconds=120) as client:
        reply = await client.call_tool("destroy_vllm", asked, raise_on_error=False)
    told = reply.structured_content or {}
    assert told["code"] == "CLOUD_TIMEOUT"
    assert "did not answer within 40 s: delete one" in told["summary"]
    last = operations_of(state_dir)[-1]
    assert (last.tool, last.result) == ("destroy_vllm", "CLOUD_TIMEOUT")
    assert last.ended_at
    assert kept.writes == ["delete run/one"]


def _slow_human(state_dir: Path, mode: str, seconds: float) -> Client[Any]:
    async def handler(*_asked: Any) -> ElicitResult[dict[str, Any]]:
        with anyio.move_on_after(seconds):
            await anyio.sleep_forever()
        return ElicitResult(action="accept", content={"confirm": True, "value": True})

    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",))
    return Client(build(settings), mode=mode, elicitation_handler=handler)


async def test_a_wait_ends_before_the_call_does(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that it took to find what is waited for counts: it is a state, and no error."""
    kept = recorded(monkeypatch, state_dir.parent / "targets.toml")
    kept.put("run", State.LOADING)
    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), read_only=True)
    async with agent_of(settings) as agent:
        reply = await agent.call("status_vllm", target="run", name="one", wait_s=45)
    assert reply.state == "loading"
