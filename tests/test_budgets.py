"""What the server costs an agent before it has done anything."""

import json

import pytest

from core.settings import Settings, Toolset
from operations.clients import SERVER_KEY
from tests.conversation import agent_of
from tests.listing import (
    MAX_DESCRIPTION,
    MAX_INSTRUCTIONS,
    MAX_NAME,
    MAX_TOKENS,
    MAX_TOOL_TOKENS,
    listing,
    tokens,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("toolsets", MAX_TOKENS)
async def test_the_listing_keeps_its_budget(toolsets: tuple[Toolset, ...]) -> None:
    """Every session of every agent pays for it."""
    assert tokens(await listing(*toolsets)) <= MAX_TOKENS[toolsets]


async def test_no_tool_costs_more_than_its_share() -> None:
    """Nor says more than a client shows."""
    for tool in await listing("all", "compat"):
        assert tokens([tool]) <= MAX_TOOL_TOKENS, tool.name
        assert len(tool.description or "") <= MAX_DESCRIPTION, tool.name


async def test_names_fit_behind_the_servers_key() -> None:
    """Clients put the two together."""
    assert SERVER_KEY == "gpu-devops-agent"
    for tool in await listing("all", "compat"):
        assert len(SERVER_KEY + tool.name) <= MAX_NAME


async def test_the_order_is_always_the_same() -> None:
    """A client may keep the list, and a prompt cache keeps its prefix."""
    first = [tool.model_dump() for tool in await listing("all")]
    again = [tool.model_dump() for tool in await listing("all")]
    assert json.dumps(first) == json.dumps(again)


async def test_instructions_fit_in_what_clients_keep(settings: Settings) -> None:
    """They are whole in every client, and name the call to begin with."""
    async with agent_of(settings, mode="legacy") as agent:
        result = agent.client.initialize_result
        assert result
        instructions = result.instructions
    assert instructions
    assert len(instructions.encode()) <= MAX_INSTRUCTIONS
    assert "status_vllm" in instructions


async def test_a_toolset_costs_what_it_adds() -> None:
    """A group is listed beside the default tools, and what it costs comes on top."""
    default = await listing()
    tpu = await listing("tpu")
    both = await listing("tpu", "quota")
    everything = await listing("all")
    assert tokens(default) < tokens(tpu) < tokens(both) < tokens(everything)
