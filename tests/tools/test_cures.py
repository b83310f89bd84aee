"""Where nothing fits: what would, as a call that can be made."""

from typing import Final

import pytest

from tests.conversation import Agent
from tests.tools.test_advice import L4, QAT_31B, ask, recommend

pytestmark = pytest.mark.anyio

A100: Final = "aca-a100"


async def test_where_nothing_fits_the_next_step_is_what_does(agent: Agent) -> None:
    """A refusal is no dead end: what is said to fit there is planned, with every flag."""
    reply = await recommend(agent, model="QAT 31B", targets=[L4])
    (step,) = reply.structured["next"]
    (refused,) = reply.data["refused"]
    assert refused["would_fit"] == ["input: no images and no sound (--language-model-only)"]
    assert (step["arguments"]["target"], step["arguments"]["model"]) == (L4, QAT_31B)
    assert step["arguments"]["engine_args"] == ["--language-model-only"]
    assert (await ask(agent, step["tool"], **step["arguments"])).data["fits"] is True


@pytest.mark.parametrize(
    ("budget", "misses"),
    [
        ({}, "only with 131,072 tokens. "),
        ({"usd_per_hour": 0.5}, "only with 131,072 tokens; $5.85 over $0.50 an hour. "),
    ],
    ids=["length", "length and price"],
)
async def test_a_length_that_fits_is_the_next_call(
    agent: Agent, budget: dict[str, float], misses: str
) -> None:
    """It is of the place that the summary names, which says all that is not met."""
    goal = {"model": "e4b", "max_model_len": 500_000, "targets": [A100]}
    reply = await recommend(agent, **goal, **budget)
    assert reply.data["offers"] == []
    assert f"E4B on {A100}, $6.35 an hour: {misses}" in reply.structured["summary"]
    (step,) = reply.structured["next"]
    assert step["arguments"] | {"target": A100, "max_model_len": 131_072} == step["arguments"]
    assert (await ask(agent, step["tool"], **step["arguments"])).data["fits"] is True
