"""Fewer processors and less memory than a node with a GPU has."""

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import becomes, deploys, destroyed, refused, trouble

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

_HALF = {"model": "e2b", "cpu": 12, "memory_gib": 110}


async def test_part_of_a_node_is_used_where_azure_takes_it(trouble: Azure) -> None:
    trouble.set(whole_nodes=False)
    async with agent_of(trouble.settings) as agent:
        made = await deploys(agent, **_HALF)
        assert "leave cpu and memory_gib out" in made.text
        ready = await becomes(agent, "ready")
        assert ready.data["usd_per_hour"] < 6
        await destroyed(agent, trouble)


async def test_where_azure_refuses_it_the_way_out_is_told(trouble: Azure) -> None:
    async with agent_of(trouble.settings) as agent:
        no = await refused(agent, "deploy_vllm", "CLOUD_REFUSED", **_HALF)
        assert "Leave cpu and memory_gib out" in no.structured["fix"]
        more = await refused(agent, "deploy_vllm", "INVALID_ARGUMENT", model="e2b", cpu=32)
        assert "at most 24 and 220" in more.text
