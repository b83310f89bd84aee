"""What outlives its time on Container Apps, and what a removal leaves, as an agent hears of it."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from operations import inventory
from tests.conversation import Reply, agent_of
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    APP,
    ONE,
    bare_trouble,
    becomes,
    deploys,
    destroyed,
    seen,
    slow_environment,
    trouble,
)

__all__ = ["bare_trouble", "slow_environment", "trouble"]

pytestmark = pytest.mark.anyio

OVERDUE: Final = "one on aca-a100 expired at"


async def test_a_deployment_whose_time_is_over_is_stopped_and_that_is_told_once(
    trouble: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next server, if none lived then."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=1, min_replicas=1)
        ready = await becomes(agent, "ready")
        assert ready.data["expires_at"]
    _later(monkeypatch)
    async with agent_of(trouble.settings) as agent:
        said: list[str] = []

        def over(reply: Reply) -> bool:
            said.append(reply.text)
            return reply.state == "stopped" and OVERDUE in "".join(said)

        await seen(agent, over)
        assert trouble.get()["replicas"] == []
        assert trouble.get()["calls"].count(f"POST {APP}/stop") == 1
        said.append((await agent.call("list_targets")).text)
        assert "".join(said).count(OVERDUE) == 1
        await destroyed(agent, trouble)


async def test_the_time_of_one_that_had_to_wait_for_its_environment_is_kept(
    slow_environment: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when there is something that bills, which no call of deploy_vllm has seen."""
    async with agent_of(slow_environment.settings) as agent:
        first = await deploys(agent, ttl_minutes=1, min_replicas=1)
        assert first.data["phase"]["name"] == "creating the environment"
        slow_environment.set(environment_seconds=0)
        ready = await becomes(agent, "ready")
        assert ready.data["expires_at"]
    _later(monkeypatch)
    async with agent_of(slow_environment.settings) as agent:
        await seen(agent, lambda reply: reply.state == "stopped")
        await destroyed(agent, slow_environment)


async def test_what_a_plain_destroy_left_can_still_be_purged_if_that_is_agreed_to(
    trouble: Azure,
) -> None:
    """It bills always; each remainder says that this is how it is removed."""
    settings = trouble.settings.model_copy(update={"confirm": "token"})
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        gone = await agent.call("destroy_vllm", **ONE)
        assert {one["how_to_remove"] for one in gone.data["stays"]} >= {
            "Call destroy_vllm with purge=true."
        }
    async with agent_of(settings) as agent:
        asked = await agent.call("destroy_vllm", **ONE, purge=True)
        assert asked.code == "CONFIRMATION_REQUIRED"
        assert "the share weights" in asked.text
    async with agent_of(trouble.settings) as agent:
        purged = await agent.call("destroy_vllm", **ONE, purge=True)
        assert len(purged.data["removed"]) >= 3
        assert purged.data["stays"] == []
    left = trouble.get()["resources"]
    assert not [one for one in left if "/providers/microsoft." in one.lower()], left


def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two minutes have gone by."""
    monkeypatch.setattr(inventory, "utc_now", lambda: datetime.now(UTC) + timedelta(minutes=2))
