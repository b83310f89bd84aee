"""Where nothing is served, the reason that is told is the one that the goal causes."""

import re
from typing import Any

import pytest

from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.test_advice import recommend

pytestmark = pytest.mark.anyio


async def why(agent: Agent, **goal: Any) -> str:
    """What the summary says before it turns to what else there is."""
    reply = await recommend(agent, **goal)
    assert not reply.data.get("offers")
    return str(reply.structured["summary"]).partition(" Instead: ")[0]


@pytest.mark.parametrize(
    ("goal", "said", "needs"),
    [
        (
            {"model": "31b", "users": 5000},
            r"^5000 users: (\d+) replicas, up to \d+ users each",
            r"^{0} replicas on \S+ need a quota of {0} accelerators; new projects",
        ),
        (
            {"model": "12b", "targets": ["tpu-v6e-4"], "users": 5000},
            r"^5000 users: (\d+) replicas, up to \d+ users each",
            r"^{0} replicas on tpu-v6e-4, each a deployment of its own, need a quota of \d+ accel",
        ),
        (
            {"users": 100_000},
            r"^100000 users: small: E2B QAT on (\d+) x ",
            r"^{0} replicas on \S+ need a quota of {0} accelerators; new projects",
        ),
    ],
    ids=["gpu", "tpu", "every model"],
)
async def test_what_many_replicas_need_is_said_first(
    agent: Agent, goal: dict[str, Any], said: str, needs: str
) -> None:
    """A quota that few have, and on a TPU, of which a deployment has one, as many deployments."""
    reply = await recommend(agent, **goal)
    found = re.search(said, reply.structured["summary"])
    assert found, reply
    assert re.search(needs.format(found[1]), reply.structured["warnings"][0]), reply


async def test_this_machine_is_there_once(settings: Settings) -> None:
    """Users beyond what it holds are refused, not given to a second one."""
    own = settings.model_copy(update={"accelerator_type": "l4"})
    async with agent_of(own) as agent:
        said = await why(agent, model="12b qat", users=5000, targets=["local"])
    assert "are held at once on the low estimate" in said
    assert "5000 are wanted" in said


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"usd_per_month": 10}, "over $10 a month"),
        ({"max_model_len": 300_000}, "only with 131,072 tokens"),
        ({"tokens_per_second_per_user": 5000}, "tokens/s of the 5000 asked for, up to 1 user;"),
    ],
    ids=["budget", "length", "speed"],
)
async def test_what_no_goal_would_cure_is_left_out(
    agent: Agent, goal: dict[str, Any], reason: str
) -> None:
    """Published vLLM serves most models on a T4 for no money and at no length."""
    said = await why(agent, **goal)
    assert reason in said
    assert "aca-t4" not in said
