"""A region whose Container Apps take fewer failures of a startup probe."""

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import asked, becomes, deploys, destroyed, trouble

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio


async def test_an_older_limit_of_probes_costs_a_second_try_and_no_deployment(
    trouble: Azure,
) -> None:
    """Ten failures, further apart, cover the same boot; the answer says so."""
    trouble.set(startup_failures=10)
    async with agent_of(trouble.settings) as agent:
        made = await deploys(agent)
        assert "10 failures" in " ".join(made.structured["warnings"]), made
        await becomes(agent, "ready")
        explained = await asked(agent, "explain_deployment")
        assert "10 failures of /health" in explained.text
        await destroyed(agent, trouble)


async def test_a_boot_of_more_than_40_minutes_is_warned_of_there(trouble: Azure) -> None:
    trouble.set(startup_failures=10)
    async with agent_of(trouble.settings) as agent:
        made = await deploys(agent, model="31b")
        told = " ".join(made.structured["warnings"])
        assert "40 min" in told, made
        assert "may take" in told
        await destroyed(agent, trouble)
