"""What could not be looked at is never told as nothing that runs, and is stopped with the rest."""

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Azure, Cloud
from tests.stories.troubles import (
    APP,
    ONE,
    asked,
    bare_trouble,
    becomes,
    deploys,
    destroyed,
    trouble,
)

__all__ = ["bare_trouble", "trouble"]

pytestmark = pytest.mark.anyio


async def test_an_app_whose_replicas_cannot_be_listed_is_not_told_as_free(trouble: Azure) -> None:
    """Its A100 bills: neither a list nor a dashboard says $0, and to stop all means it too."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
        refusal = {"method": f"GET {APP}/revisions*", "status": 403, "code": "AuthorizationFailed"}
        trouble.set(faults=[{**refusal, "times": -1}])
        for tool in ("list_deployments", "get_system_status"):
            told = await agent.call(tool, target="aca-a100")
            said = told.structured["summary"]
            assert said.startswith("Whether one on aca-a100 runs and bills is not known."), said
            assert "$0" not in said
            assert told.data["deployments"][0].get("usd_per_hour_now") is None, told
        stopping = await agent.call("stop_vllm", target="aca-a100", all=True)
        assert stopping.structured["summary"].startswith("Stopped 0 of 1. one on aca-a100 runs on")
        trouble.set(faults=[])
        await asked(agent, "stop_vllm", name=None, all=True)
        await becomes(agent, "stopped")
        await destroyed(agent, trouble)


async def test_an_app_whose_replicas_nobody_may_list_can_be_removed(trouble: Azure) -> None:
    """What may bill goes; before that the question says what was not seen."""
    settings = trouble.settings.model_copy(update={"confirm": "token"})
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        await becomes(agent, "ready")
    denied = {"method": f"GET {APP}/revisions*", "status": 403, "code": "AuthorizationFailed"}
    trouble.set(faults=[{**denied, "times": -1}])
    async with agent_of(settings) as agent:
        told = await asked(agent, "status_vllm")
        assert told.state == "unknown"
        assert told.data["failure"]["code"] == "PERMISSION_DENIED"
        assert [step["tool"] for step in told.structured["next"]] == ["diagnose"]
        question = await agent.call("destroy_vllm", **ONE)
        assert question.code == "CONFIRMATION_REQUIRED"
        (doubt,) = question.data["doubts"]
        assert "list the revisions of one" in doubt
        (again,) = question.structured["next"]
        gone = await agent.call(again["tool"], **again["arguments"])
        assert gone.data["gone"] is True, gone


@pytest.mark.parametrize("target", ["cloud-run-l4", "tpu-v6e-1"])
@pytest.mark.parametrize("tool", ["stop_vllm", "destroy_vllm"])
async def test_to_stop_or_remove_where_an_api_is_off_leads_to_no_set_up(
    bare_cloud: Cloud, target: str, tool: str
) -> None:
    """Nothing is there: an agent that follows what is offered makes nothing in the project."""
    async with agent_of(bare_cloud.settings) as agent:
        reply = await agent.call(tool, target=target, name="one")
        assert reply.code == "API_DISABLED"
        assert reply.structured["next"] == [{"tool": "list_deployments", "arguments": {}}]
        assert not (await agent.call("list_deployments")).failed
