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


def told_of(reply: Reply, name: str) -> list[str]:
    return [rule for rule in reply.data["rules"] if rule.startswith(f"{name} costs")]


async def test_a_budget_that_no_target_here_meets_is_told_with_the_reason(agent: Agent) -> None:
    """Others may: it is said which were looked at, and what one of them costs."""
    reply = await choose(agent, usd_per_hour=1.0)
    said = reply.structured["summary"]
    assert said.startswith("None of the targets that this server deploys to meets this. ")
    assert " a hour, $1.00 are allowed" in said
    assert "aca-t4" not in said  # For more money it would not serve either.


async def test_the_reason_is_that_of_most_not_that_of_the_first(agent: Agent) -> None:
    """At $1.70 a T4 is no more too dear, only not served; all others still are too dear."""
    goal = {"usd_per_hour": 1.7, "targets": ["aca-t4", "aca-a100", "tpu-v6e-4", "tpu-v6e-8"]}
    said = (await choose(agent, **goal)).structured["summary"]
    assert said.startswith("None of the targets named meets this. ")
    assert "$1.70 are allowed" in said


async def test_no_rule_is_told_of_capacity_that_serves_nothing(agent: Agent) -> None:
    """Spot bills until it is deleted: who wants to pay nothing while idle is not sent there."""
    reply = await choose(agent, scale_to_zero=True)
    assert not told_of(reply, "tpu-v6e-1-spot")
    assert not told_of(reply, "tpu-v6e-1-flex")


async def test_spot_that_a_budget_allows_is_held_against_the_price_it_forbids(agent: Agent) -> None:
    """What on-demand costs is known also where it is too dear."""
    reply = await choose(agent, usd_per_hour=2.0)
    (rule,) = told_of(reply, "tpu-v6e-1-spot")
    assert "times its on-demand price" in rule
    options = reply.data["options"]
    assert all("tpu-v6e-1" in each["not_on"] for each in options)
