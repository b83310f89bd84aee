"""Which tools a server shows, and what it says of those it does not."""

import json
from pathlib import Path

import pytest

from core.settings import Settings, Toolset
from tests.conversation import agent_of
from tests.golden import file_of
from tests.tools.calls import CHANGING, CLOUD_LOOKING, LOOKING
from tests.tools.world import plant, snapshot, still_engine
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

DEFAULT = {row["name"] for row in json.loads(file_of("default").read_text("utf-8"))}


def of(state_dir: Path, *toolsets: Toolset, read_only: bool = False) -> Settings:
    return Settings(
        vllm_devops_state_dir=state_dir,
        engine="simulated",
        confirm="never",
        toolsets=toolsets,
        read_only=read_only,
    )


async def test_the_default_profile_is_the_designs(state_dir: Path) -> None:
    """People find the names they already use, and no more than an agent can choose from."""
    async with agent_of(of(state_dir)) as agent:
        assert await agent.names() == DEFAULT


async def test_a_toolset_adds_its_group(state_dir: Path) -> None:
    """`TOOLSETS=diagnose,ask` adds those two groups to the default ones."""
    async with agent_of(of(state_dir, "diagnose", "ask")) as agent:
        added = {name for name, one in TOOLS.items() if one.group == "diagnose"}
        assert await agent.names() == DEFAULT | added | {"query_vllm"}


async def test_all_is_everything_but_the_old_names(state_dir: Path) -> None:
    """Names kept for compatibility are listed only where they are asked for."""
    async with agent_of(of(state_dir, "all")) as agent:
        assert await agent.names() == {name for name, one in TOOLS.items() if one.group != "compat"}


async def test_a_tool_that_is_not_listed_can_be_called(state_dir: Path) -> None:
    """What help, a skill or a person names works in every profile that may do it."""
    async with agent_of(of(state_dir)) as agent:
        assert not await agent.names() & {"list_models"}
        assert not (await agent.call("list_models")).failed


async def test_advice_says_how_a_tool_is_listed(state_dir: Path) -> None:
    """An agent that can only call what is listed learns what its owner has to set."""
    async with agent_of(of(state_dir)) as agent:
        reply = await agent.call("get_help", topic="list_benchmarks")
    assert f"TOOLSETS={TOOLS['list_benchmarks'].group}" in reply.structured["summary"]


async def test_read_only_lists_no_tool_that_writes(state_dir: Path) -> None:
    """What cannot be called is not offered, whatever TOOLSETS says."""
    async with agent_of(of(state_dir, "all", read_only=True)) as agent:
        assert await agent.names() == {*LOOKING, *CLOUD_LOOKING}


async def test_read_only_watches_a_boot_without_a_trace(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a phase usually takes is read from the journal without touching it."""
    still_engine(monkeypatch)
    async with agent_of(of(state_dir, "all")) as agent:
        await agent.call("deploy_vllm", **CHANGING["deploy_vllm"])
    before = snapshot(state_dir)
    async with agent_of(of(state_dir, "all", read_only=True)) as agent:
        reply = await agent.call("status_vllm", wait_s=0.1)
        assert reply.state == "loading"
        assert snapshot(state_dir) == before


@pytest.mark.parametrize("profile", ["default", "all", "read-only"])
@pytest.mark.parametrize("state", ["none", "stopped", "failed"])
async def test_next_names_only_listed_tools(profile: str, state: str, state_dir: Path) -> None:
    """No answer sends an agent to a tool that its client does not have."""
    if state != "none":
        plant(state_dir, wanted="stopped" if state == "stopped" else "running")
    toolsets: tuple[Toolset, ...] = ("all",) if profile == "all" else ()
    settings = of(state_dir, *toolsets, read_only=profile == "read-only")
    async with agent_of(settings) as agent:
        listed = await agent.names()
        for tool in listed & set(LOOKING):
            reply = await agent.call(tool, **LOOKING[tool])
            steps = {step["tool"] for step in reply.structured["next"]}
            assert steps <= listed, (tool, steps)
            rows = reply.structured["data"].get("deployments", ())
            named = {one for row in rows for one in row.get("tools", ())}
            assert named <= listed, (tool, named)
