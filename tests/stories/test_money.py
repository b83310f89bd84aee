"""What is asked of a person about money is so, and is asked of nothing that would be refused."""

import pytest

from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

ONE = {"target": "cloud-run-l4", "name": "one"}


async def ready(agent: Agent) -> Reply:
    """Watch it until it serves."""
    found = await agent.settled("one", target="cloud-run-l4")
    assert found.state == "ready", found
    return found


async def test_a_question_about_one_that_runs_names_its_own_end_and_comes_after_every_refusal(
    cloud: Cloud,
) -> None:
    """What has ended its money is refused before; so is a name whose key is of another region."""
    asking = cloud.settings.model_copy(update={"confirm": "ask"})
    limits = {"model": MODEL, "max_model_len": 4096, "max_usd": 5, "max_replicas": 2}
    async with agent_of(asking, human=lambda _question: "accept") as agent:
        await agent.call("deploy_vllm", **ONE, **limits)
        await ready(agent)
        agent.asked.clear()
        refused = await agent.call("update_vllm_scaling", **ONE, max_replicas=9999)
        assert refused.code == "INVALID_ARGUMENT", refused
        assert "max_usd is used up" in refused.text
        elsewhere = {"target": "cloud-run-rtx-pro-6000", "name": "one", "model": MODEL}
        taken = await agent.call("deploy_vllm", **elsewhere)
        assert taken.code == "NOT_OURS", taken
        assert "one is or was deployed in us-east4" in taken.text
        assert agent.asked == []
        scaled = await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=1)
        end = scaled.data["expires_at"]
        changed = await agent.call("deploy_vllm", **ONE, min_replicas=1)
        assert changed.data["expires_at"] == end
        assert f"stopped at {end[11:16]} UTC as before" in agent.asked[-1].replace(
            end[:10] + " ", ""
        )
        # Two spend the rest of the money sooner.
        await agent.call("deploy_vllm", **ONE, max_replicas=2)
        assert "max_replicas: 1 -> 2" in agent.asked[-1]
        assert "as before" not in agent.asked[-1]


async def test_nothing_but_a_boot_moves_since_when_it_is_ready(cloud: Cloud) -> None:
    """Neither a look nor a reading of its instances does; asleep, the next step wakes it."""
    async with agent_of(cloud.settings) as agent:
        await agent.call("deploy_vllm", **ONE, model=MODEL, max_model_len=4096)
        first = await ready(agent)
        await agent.call("update_vllm_scaling", **ONE, min_replicas=1, max_replicas=1)
        looks = [await agent.call("status_vllm", **ONE) for _ in range(3)]
        assert {one.data["since"] for one in looks} == {first.data["since"]}
        await agent.call("stop_vllm", **ONE)
        await agent.settled("one", target="cloud-run-l4")
        await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=1)
        asleep = await agent.settled("one", target="cloud-run-l4")
        (step,) = asleep.structured["next"]
        woken = await agent.call(step["tool"], **step["arguments"])
        assert not woken.failed, woken
        await ready(agent)
