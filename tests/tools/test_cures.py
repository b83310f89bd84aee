"""Where nothing fits: what would, as calls that can be made."""

from typing import Final

import pytest

from tests.conversation import Agent
from tests.tools.test_advice import L4, QAT_31B, ask, recommend

pytestmark = pytest.mark.anyio

A100: Final = "aca-a100"


async def test_where_nothing_fits_each_next_step_is_what_does(agent: Agent) -> None:
    """A refusal is no dead end: what is said to fit there, then the same model elsewhere."""
    reply = await recommend(agent, model="QAT 31B", targets=[L4])
    there, elsewhere = reply.structured["next"]
    (refused,) = reply.data["refused"]
    assert refused["would_fit"] == ["input: no images and no sound (--language-model-only)"]
    assert (there["arguments"]["target"], there["arguments"]["model"]) == (L4, QAT_31B)
    assert there["arguments"]["engine_args"] == ["--language-model-only"]
    assert elsewhere["arguments"]["target"] != L4
    for step in (there, elsewhere):
        assert (await ask(agent, step["tool"], **step["arguments"])).data["fits"] is True


async def test_the_length_and_the_users_that_would_fit_are_next_calls(agent: Agent) -> None:
    """With every flag, so that the plan holds what the words say."""
    wanted = {"model": "26B QAT", "users": 64, "max_model_len": 32_768, "targets": [L4]}
    reply = await recommend(agent, **wanted)
    (refused,) = reply.data["refused"]
    assert refused["would_fit"] == ["length: 256 tokens", "users: 3 at full length at once"]
    shorter, fewer, _ = reply.structured["next"]
    assert "It fits cloud-run-l4 with max_model_len=256." in reply.structured["summary"]
    assert shorter["arguments"]["max_model_len"] == 256
    assert fewer["arguments"]["max_model_len"] == 32_768
    for step in (shorter, fewer):
        assert (step["tool"], step["arguments"]["target"]) == ("plan_deployment", L4)
        planned = await ask(agent, step["tool"], **step["arguments"])
        assert planned.data["fits"] is True
        assert planned.data["memory"]["max_model_len"] == step["arguments"]["max_model_len"]


async def test_the_length_that_fits_one_of_many_places_is_the_next_call(agent: Agent) -> None:
    """It is of the place that the summary names."""
    reply = await recommend(agent, model="e4b", max_model_len=500_000)
    assert "It fits aca-a100 with max_model_len=131072." in reply.structured["summary"]
    step = reply.structured["next"][0]
    assert step["arguments"] | {"target": A100, "max_model_len": 131_072} == step["arguments"]
    assert (await ask(agent, step["tool"], **step["arguments"])).data["fits"] is True


async def test_what_would_fit_but_costs_more_than_allowed_is_no_next_call(agent: Agent) -> None:
    """Nor is anything else that the goal forbids."""
    reply = await recommend(
        agent, model="e4b", max_model_len=500_000, targets=[A100], usd_per_hour=0.5
    )
    assert reply.data["offers"] == []
    assert "next" not in reply.structured or all(
        step["arguments"].get("target") != A100 for step in reply.structured["next"]
    )
