"""What is offered where nothing is deployed can be called, and a rehearsal stays one."""

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = pytest.mark.anyio


async def test_where_there_is_a_choice_of_targets_the_first_step_is_to_choose(cloud: Cloud) -> None:
    """deploy_vllm without a target would only ask which one."""
    cloud.set(prepared=True)
    async with agent_of(cloud.settings) as agent:
        for tool in ("list_deployments", "get_system_status", "query_gemma4"):
            prompt = {"prompt": "Hi"} if tool == "query_gemma4" else {}
            step = (await agent.call(tool, **prompt)).structured["next"][0]
            assert step["tool"] == "recommend_deployment"
        chosen = await agent.call(step["tool"], **step["arguments"])
        assert chosen.structured["next"][0]["arguments"]["target"]


async def test_a_rehearsal_deploys_a_simulated_engine_on_this_machine_too(cloud: Cloud) -> None:
    """Nobody who rehearses wants gigabytes of weights, unless they say ENGINE=real."""
    settings = cloud.settings.model_copy(update={"engine": "auto"})
    async with agent_of(settings) as agent:
        plan = await agent.call("plan_deployment", target="local", model=MODEL)
        assert "This is a simulated engine" in plan.text
