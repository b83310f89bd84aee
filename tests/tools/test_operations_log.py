"""Who deleted it, and what happened last night: the journal of changes, read."""

import getpass
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from fastmcp import Client
from mcp.types import Implementation

from core.errors import DiskFull
from core.journal import Expiry, Journal, utc_now
from core.records import State
from core.settings import Settings
from operations import inventory
from operations.runtime import Stage
from server import build
from tests.conversation import agent_of
from tests.tools.asked import token_of
from tests.tools.recorded import recorded
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

ONE = {"target": "run", "name": "one"}


@pytest.fixture
def asking(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A world with one deployment, whose owner is never asked."""
    kept = recorded(monkeypatch, tmp_path / "targets.toml")
    kept.put("run", State.READY)
    return Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="never")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_it_says_who_deleted_it(asking: Settings, mode: str) -> None:
    """By client and user, in either protocol; and what it meant that named nothing."""
    async with agent_of(asking) as agent:
        await agent.call("stop_vllm", **ONE)
    human = Implementation(name="some-client", version="2.1\u202e")
    async with Client(build(asking), mode=mode, client_info=human) as client:
        await client.call_tool("destroy_vllm", {})
    async with agent_of(asking) as agent:
        reply = await agent.call("list_operations", name="one", tool_name="destroy_vllm")
        gone = await agent.call("status_vllm", name="one")
    assert gone.code == "DEPLOYMENT_NOT_FOUND"
    assert "some-client 2.1" in gone.structured["summary"]
    assert_envelope(reply)
    assert_same_facts(reply)
    (row,) = reply.data["changes"]
    assert (row["about"], row["result"], row["arguments"]) == ("run/one", "ok", "")
    assert row["client"] == f"some-client 2.1 ({getpass.getuser()})"
    assert "one on run is gone" in row["said"]
    assert row["seconds"] >= 0
    assert "destroy_vllm of run/one by some-client 2.1" in reply.structured["summary"]


async def test_it_is_read_newest_last_and_counts_what_it_leaves_out(asking: Settings) -> None:
    """Filtered by place, time and outcome; what only looks is not in it."""
    async with agent_of(asking) as agent:
        await agent.call("start_vllm", target="run", name="nobody")
        for _ in range(3):
            await agent.call("stop_vllm", **ONE)
        await agent.call("list_deployments")
        newest = await agent.call("list_operations", limit=2)
        assert [row["tool"] for row in newest.data["changes"]] == ["stop_vllm"] * 2
        assert newest.data["left_out"] == 2
        failed = await agent.call("list_operations", failures=True)
        assert [row["result"] for row in failed.data["changes"]] == ["DEPLOYMENT_NOT_FOUND"]
        assert (await agent.call("list_operations", target="chip")).data["changes"] == []
        assert len((await agent.call("list_operations", minutes=5)).data["changes"]) == 4


async def test_as_many_are_shown_as_were_asked_for(asking: Settings) -> None:
    """Ten where nobody says how many."""
    async with agent_of(asking) as agent:
        for _ in range(14):
            await agent.call("stop_vllm", **ONE)
        for asked, shown in (({}, 10), ({"limit": 12}, 12), ({"limit": 30}, 14)):
            reply = await agent.call("list_operations", **asked)
            assert len(reply.data["changes"]) == shown
            assert reply.data.get("left_out", 0) == 14 - shown


async def test_what_has_not_ended_is_told_as_such(asking: Settings, state_dir: Path) -> None:
    """A server that died in the middle cannot say how it went."""
    Journal(state_dir / "real" / "journal.db").begin("cline 1.0", "deploy_vllm", ONE)
    async with agent_of(asking) as agent:
        reply = await agent.call("list_operations", failures=True)
    (row,) = reply.data["changes"]
    assert row["result"].startswith("not ended")
    assert "seconds" not in row
    assert any("some or nothing" in warning for warning in reply.structured["warnings"])


async def test_a_token_is_not_told(asking: Settings) -> None:
    """Neither one that was good nor one that was not; a preview is neither change nor failure."""
    said = asking.model_copy(update={"confirm": "token"})
    async with agent_of(said) as agent:
        shown = await agent.call("destroy_vllm", **ONE)
        token = shown.data["confirm"]
        await agent.call("destroy_vllm", **ONE, confirm=token)
        reply = await agent.call("list_operations")
        failed = await agent.call("list_operations", failures=True)
    assert failed.data["changes"] == []
    assert token not in f"{reply.text}{reply.structured}"
    assert [row["result"] for row in reply.data["changes"]] == ["ok"]
    assert "It is the last of" not in reply.structured["summary"]


async def test_it_is_read_by_a_server_that_only_looks(asking: Settings) -> None:
    looking = asking.model_copy(update={"read_only": True})
    async with agent_of(looking) as agent:
        empty = await agent.call("list_operations")
        assert empty.structured["summary"] == "Nothing of the kind is in the journal."
        refused = await agent.call("query_gemma4", prompt="Hello", wake=True)
        assert refused.code == "READ_ONLY"


async def test_a_waking_is_written_down(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tool only asks, but from then on somebody pays."""
    kept = recorded(monkeypatch, tmp_path / "targets.toml")
    kept.put("run", State.ASLEEP)
    settings = Settings(vllm_devops_state_dir=state_dir, toolsets=("all",), confirm="never")
    async with agent_of(settings) as agent:
        await agent.call("verify_model_health", **ONE)
        await agent.call("verify_model_health", **ONE, wake=True)
        reply = await agent.call("list_operations")
    (row,) = reply.data["changes"]
    assert (row["tool"], row["about"]) == ("verify_model_health", "run/one")


async def test_what_the_server_ends_by_itself_is_written_down(asking: Settings) -> None:
    stage = Stage(asking)
    over = Expiry(**ONE, at=utc_now() - timedelta(minutes=1))
    inventory._write_down(stage, over, "it was told to stop and is stopped now.")
    async with agent_of(asking) as agent:
        reply = await agent.call("list_operations", name="one")
    (row,) = reply.data["changes"]
    assert row["client"] == "this server, when its time was over"
    assert (row["tool"], row["said"]) == ("stop_vllm", "it was told to stop and is stopped now.")


async def test_a_full_disk_keeps_nobody_from_ending_a_cost(
    asking: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token is held in memory; what begins one is refused, with what to do."""

    def full(*_arguments: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    async with agent_of(asking.model_copy(update={"confirm": "token"})) as agent:
        monkeypatch.setattr(Journal, "_connect", full)
        reply = await agent.call("start_vllm", **ONE)
        assert reply.code == DiskFull.code
        assert "confirm" not in reply.data
        assert "Make room" in reply.structured["fix"]
        assert not (await agent.call("stop_vllm", **ONE)).failed
        token = token_of(await agent.call("destroy_vllm", **ONE))
        assert (await agent.call("destroy_vllm", **ONE, confirm=token)).data["gone"] is True
