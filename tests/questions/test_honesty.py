"""What an answer must not say: cheap where nothing is rented, possible where it is not."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.conversation import Agent, Reply
from tests.questions.test_operations import run
from tests.stories.conftest import Azure

pytestmark = pytest.mark.anyio

L4: Final = "cloud-run-l4"
QAT_26B: Final = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
MOST_TOKENS: Final = 2600
"""Of an answer, as characters divided by four."""


def warned(reply: Reply, words: str) -> bool:
    return any(words in one for one in reply.structured["warnings"])


async def test_hardware_of_ones_own_is_never_the_cheapest(agent: Agent) -> None:
    """Nobody rents it out at $0: it is no price, and no next step either."""
    reply = await agent.call("compare_targets", models=["26b qat"])
    assert reply.data["cheapest"] == f"{QAT_26B} on gke-l4"
    assert "rtx" not in reply.data["best_value"]
    (step,) = reply.structured["next"]
    assert step["arguments"]["target"] == "cloud-run-l4"  # of an RTX PRO no speed was measured
    alone = await agent.call("compare_targets", models=["12b qat"], targets=["rtx-3090"])
    assert "cheapest" not in alone.structured["summary"]
    assert "fastest for one user" in alone.structured["summary"]


async def test_what_cannot_be_deployed_to_is_told_from_what_can(agent: Agent) -> None:
    """The best of all places is of no use where this server deploys to none of them."""
    compared = await agent.call("compare_targets", models=["26b qat"])
    own = compared.structured["summary"].partition("that this server deploys to: ")[2]
    assert own.startswith(f"26B-A4B QAT on {L4} is cheapest by the hour")
    advised = await agent.call("recommend_deployment", model="26b qat")
    assert f"on {L4}, $1.42 an hour" in advised.structured["summary"]
    assert all(offer["deployable"] for offer in advised.data["offers"])


async def test_a_price_that_nobody_checked_is_told_as_such(agent: Agent) -> None:
    """Money is spent on it: an article alone, and sources that disagree, are said."""
    reply = await agent.call("compare_targets", models=["31b qat"])
    assert warned(reply, "cloud-run-rtx-pro-6000 is in doubt: from an article alone, not verified")
    assert warned(reply, "aca-a100 is in doubt: sources disagree")
    chosen = await agent.call("recommend_deployment")
    assert warned(chosen, "from an article alone, not verified")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("recommend_deployment", {}),
        ("recommend_deployment", {"quality": "large"}),
        ("compare_targets", {"models": ["e4b"], "targets": ["AWS", "GCP", "Azure"]}),
        ("compare_targets", {"models": ["e2b", "e4b", "12b", "26b", "31b", "12b qat"]}),
    ],
)
async def test_no_answer_is_longer_than_is_read(
    agent: Agent, tool: str, arguments: dict[str, Any]
) -> None:
    """What is alike is said once; what is left out is counted."""
    reply = await agent.call(tool, **arguments)
    assert not reply.failed, reply
    assert len(reply.text) / 4 < MOST_TOKENS


async def test_an_offload_that_no_host_can_hold_is_no_way_out(agent: Agent) -> None:
    """31 GiB and 48 GiB of files are not to be had in the 32 GiB beside an L4."""
    reply = await agent.call("plan_deployment", model="26b", target=L4)
    assert "no host there can spare that" in reply.data["offload"]
    assert "It would fit" not in reply.data["offload"]


async def test_a_plan_boots_from_where_its_deployment_would(agent: Agent) -> None:
    """Without a bucket from the Hub, with one streamed from it: never as nobody deploys."""
    hub = await agent.call("plan_deployment", model="12b qat", target=L4, max_model_len=8192)
    wish = {"model": "12b qat", "target": L4, "max_model_len": 8192}
    bucket = await agent.call("plan_deployment", weights="gs://weights/gemma/12b", **wish)
    assert hub.data["foreseen"]["weights_from"] == "hub"
    assert bucket.data["foreseen"]["weights_from"] == "gcs-streamed"


@pytest.mark.parametrize(
    "flag", ["--kv-cache-dtype=int4", "--tensor-parallel-size=3", "--quantization=awq"]
)
async def test_a_change_with_which_nothing_starts_is_no_next_step(
    changing: Callable[..., Any], flag: str
) -> None:
    """Explaining refuses what planning refuses, in the same words."""
    async with changing() as change:
        reply = await change(flag)
    assert reply.code == "INVALID_ARGUMENT"


async def test_a_change_says_what_moves_and_nothing_of_what_does_not(
    changing: Callable[..., Any],
) -> None:
    """No `347 s -> 347 s`; more replicas cost more; a smaller host has its own price."""
    async with changing() as change:
        access = await change("access=public")
        replicas = await change("max_replicas=3")
        bucket = await change("weights=gs://bucket/folder/x")
        offload = await change("--cpu-offload-gb=12")
        beyond = await change("--cpu-offload-gb=30")
    assert access.data["comparison"]["together"] == []
    assert "with all replicas: $1.42/h" in replicas.structured["summary"]
    (step,) = replicas.structured["next"]
    assert (step["tool"], step["arguments"]["max_replicas"]) == ("update_vllm_scaling", 3)
    assert "cold start: 347" in bucket.structured["summary"]
    smaller = "host: 8 vCPU and 32 GiB for $1.42/h -> 4 vCPU and 16 GiB for $1.05/h"
    assert smaller in bucket.structured["summary"]
    assert "requests of full length at once: " in offload.structured["summary"]
    assert "host:" not in offload.structured["summary"]
    assert beyond.code == "INVALID_ARGUMENT"
    assert "of an instance's memory" in beyond.text


async def test_more_at_once_is_counted_in_what_runs_at_once(ready_azure: Azure, asked: Any) -> None:
    """A cache for 31 requests of which 16 are let in is no gain over 29 that run."""
    async with asked(ready_azure.settings) as ask:
        question = ask("what are the trade-offs on the deployment?")
        await run(question.agent, "aca-a100", min_replicas=0)
        reply = await question.call("explain_deployment")
    many = next(one for one in reply.data["practices"] if "for many requests" in one["rule"])
    assert many["followed"] is True
    assert "--max-num-seqs 16" not in many["rule"]
