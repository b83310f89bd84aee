"""Where nothing is served, the reason that is told is the one that the goal causes."""

from typing import Any

import pytest

from tests.conversation import Agent
from tests.tools.test_advice import L4, recommend

pytestmark = pytest.mark.anyio

V6E: tuple[str, ...] = ("tpu-v6e-1",)


async def why(agent: Agent, **goal: Any) -> str:
    """What the summary says before it turns to what else there is."""
    reply = await recommend(agent, **goal)
    assert not reply.data.get("offers")
    return str(reply.structured["summary"]).partition(" Instead: ")[0]


@pytest.mark.parametrize(
    "goal",
    [
        {"users": 100_000},
        {"targets": V6E, "users": 5000},
        {"quality": "large", "users": 5000},
        {"model": "31b", "users": 5000},
        {"targets": [L4], "users": 5000},
        {"model": "31b", "users": 64, "scale_to_zero": True},
        {"users": 5000, "scale_to_zero": True},
    ],
    ids=str,
)
async def test_too_many_users_are_the_reason(agent: Agent, goal: dict[str, Any]) -> None:
    """Not a precision that one engine lacks, nor a model that loads nowhere there."""
    said = await why(agent, **goal)
    assert "are held at once on the low estimate" in said
    assert f"{goal['users']} are wanted." in said


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"usd_per_month": 10}, "a month, $10.00 are allowed"),
        ({"max_model_len": 300_000}, "--max-model-len 300,000 is beyond the model's"),
        ({"tokens_per_second_per_user": 5000}, "5000 tokens/s for each of 1 is more than"),
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


async def test_a_row_that_is_quoted_names_its_model(agent: Agent) -> None:
    """Another model at the same target has another reason."""
    every = await why(agent, targets=["aca-t4"])
    assert "meets this. gemma-4-" in every
    assert " on aca-t4: " in every
    large = await why(agent, quality="large", targets=["aca-t4"])
    assert large.startswith("Nothing fits. gemma-4-")


@pytest.mark.parametrize("goal", [{}, {"model": "e4b"}], ids=["every model", "one"])
async def test_a_target_that_does_not_sleep_is_not_said_to_bill(
    agent: Agent, goal: dict[str, Any]
) -> None:
    """This machine bills nothing, and most TPUs cannot be stopped."""
    said = await why(agent, scale_to_zero=True, targets=["tpu-v6e-1", "local"], **goal)
    assert said.endswith("It does not scale to zero.")
    assert "gemma" not in said
