"""What a benchmark on a cloud is asked about, costs and goes on with."""

from typing import Any, Final

import pytest

from tests.conversation import agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.life]

ONE: Final = {"target": "cloud-run-l4", "name": "one"}
SMALL: Final[dict[str, Any]] = {"contexts": [8], "concurrencies": [1], "cell_seconds": 0.1}


async def test_a_load_that_may_start_more_replicas_is_asked_about_at_the_price_of_all(
    cloud: Cloud,
) -> None:
    """Of three, the price of the one that ran was named, and a budget was three times overrun."""
    asking = cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(asking, human=lambda _question: "accept") as agent:
        await agent.call(
            "deploy_vllm", **ONE, model=MODEL, max_model_len=4096, max_replicas=3, ttl_minutes=7
        )
        ready = await agent.settled("one", target="cloud-run-l4")
        assert (ready.state, ready.data["replicas"]) == ("ready", 1)
        run = await agent.call("run_benchmark", **ONE, **SMALL, wait_s=40)
        assert run.state == "done", run
        assert run.data["usd_per_hour"] == pytest.approx(3 * ready.data["usd_per_hour"])
        assert "at most, of all 3 replicas that there may be)" in agent.asked[-1]
        long = {**SMALL, "contexts": [8, 16], "concurrencies": [1, 2], "cell_seconds": 60}
        begun = await agent.call("run_benchmark", **ONE, **long, wait_s=0)
        assert "; its own time is over before, at " in agent.asked[-1]
        stopped = await agent.call("stop_benchmark", run=begun.data["run"])
        assert stopped.state == "stopped", stopped
        (step,) = stopped.structured["next"]
        await agent.call("update_vllm_scaling", **ONE, min_replicas=0, max_replicas=1)
        await agent.settled("one", target="cloud-run-l4")
        agent.asked.clear()
        changed = await agent.call(step["tool"], **step["arguments"])
        assert changed.code == "INVALID_ARGUMENT", changed
        assert "max_replicas changed" in changed.structured["summary"]
        over = await agent.call("run_benchmark", resume=run.data["run"])
        assert (over.code, agent.asked) == ("INVALID_ARGUMENT", []), over
        assert "is done" in over.structured["summary"]
