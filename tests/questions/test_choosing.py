"""Choosing with a budget, for somebody who names no model: what is told where nothing serves."""

from typing import Any

import pytest

from tests.conversation import Agent, Reply
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio


async def choose(agent: Agent, **goal: Any) -> Reply:
    reply = await agent.call("recommend_deployment", **goal)
    assert_envelope(reply)
    assert_same_facts(reply)
    return reply


async def test_a_budget_that_nothing_here_meets_is_answered_with_what_comes_nearest(
    agent: Agent,
) -> None:
    """By how much it misses, of each quality."""
    said = (await choose(agent, usd_per_hour=1.0)).structured["summary"]
    assert "small: E2B QAT on cloud-run-l4 ($1.05 an hour), 5 cents over $1 an hour" in said
    assert "medium: 12B on tpu-v6e-1-flex ($1.37 an hour), 37 cents over $1 an hour" in said


async def test_of_targets_that_are_named_the_nearest_is_one_of_them(agent: Agent) -> None:
    """At $1.70 a T4 is not too dear, only not served; the nearest is what serves."""
    goal = {"usd_per_hour": 1.7, "targets": ["aca-t4", "aca-a100", "tpu-v6e-4", "tpu-v6e-8"]}
    said = (await choose(agent, **goal)).structured["summary"]
    assert "small: E2B QAT on aca-a100 ($6.35 an hour), $4.65 over $1.70 an hour" in said
