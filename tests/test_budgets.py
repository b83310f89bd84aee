"""What the server costs an agent before it has done anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.settings import Settings, Toolset
from operations.client_config import SERVER_KEY
from tests.conversation import agent_of

pytestmark = pytest.mark.anyio


async def listed(state_dir: Path, *toolsets: Toolset) -> list[Any]:
    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated", toolsets=toolsets)
    async with agent_of(settings) as agent:
        return list(await agent.client.list_tools())


def tokens(tools: list[Any]) -> float:
    """Of name, description and input schema, four characters each."""
    characters = sum(
        len(tool.name) + len(tool.description or "") + len(json.dumps(tool.input_schema))
        for tool in tools
    )
    return characters / 4


async def test_the_default_profile_costs_three_thousand_tokens(state_dir: Path) -> None:
    """Every session of every agent pays for it."""
    assert tokens(await listed(state_dir)) <= 3_000


async def test_everything_but_the_old_names_costs_seven_thousand(state_dir: Path) -> None:
    """So that all groups may be listed at once."""
    assert tokens(await listed(state_dir, "all")) <= 7_000


async def test_no_tool_costs_more_than_five_hundred(state_dir: Path) -> None:
    """One tool cannot eat the others' room."""
    for tool in await listed(state_dir, "all"):
        assert tokens([tool]) <= 560, tool.name


async def test_names_fit_behind_the_servers_key(state_dir: Path) -> None:
    """Some clients cut or drop what is longer than 60 characters together."""
    assert SERVER_KEY == "gpu-devops-agent"
    for tool in await listed(state_dir, "all", "compat"):
        assert len(SERVER_KEY + tool.name) <= 60


async def test_the_order_is_always_the_same(state_dir: Path) -> None:
    """A client may keep the list, and a prompt cache keeps its prefix."""
    first = [tool.model_dump() for tool in await listed(state_dir, "all")]
    again = [tool.model_dump() for tool in await listed(state_dir, "all")]
    assert json.dumps(first) == json.dumps(again)


async def test_instructions_fit_in_what_clients_keep(settings: Settings) -> None:
    """Claude Code cuts them at 2 KB; ours are whole at 1.5."""
    async with agent_of(settings, mode="legacy") as agent:
        result = agent.client.initialize_result
        assert result
        instructions = result.instructions
    assert instructions
    assert len(instructions.encode()) <= 1_500
    assert "status_vllm" in instructions
