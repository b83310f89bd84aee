"""What can be done comes first, what nearly can is the answer, and every next step works."""

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from core.settings import Settings
from planner.places import place
from tests.conversation import Agent, Reply, agent_of
from tests.tools.test_advice import L4, QAT_12B
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

MOST_TOKENS: Final = 900
"""Of the text half, where nothing more was asked for."""
CALLS: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    ("list_targets", {}),
    ("recommend_deployment", {}),
    ("recommend_deployment", {"usd_per_hour": 1}),
    ("recommend_deployment", {"model": "31b qat", "targets": [L4]}),
    ("recommend_deployment", {"model": "26b", "targets": ["aws"]}),
    ("recommend_deployment", {"model": "12b qat", "region": "europe"}),
    ("plan_deployment", {"model": "12b qat", "target": L4}),
    ("plan_deployment", {"model": "12b", "target": L4}),
    ("plan_deployment", {"model": "e2b", "target": "tpu-v6e-1", "region": "eu"}),
    ("plan_deployment", {"model": "12b qat", "target": L4, "region": "eu"}),
    ("plan_deployment", {"model": "12b qat", "target": "aca-a100", "check": True}),
    ("estimate_cost", {"target": L4, "model": "12b qat", "requests_per_day": 20_000}),
    ("compare_targets", {"models": ["12b qat"]}),
    ("compare_targets", {"models": ["12b qat", "26b qat"], "targets": [L4, "aca-a100"]}),
    ("list_models", {}),
)


async def brief(agent: Agent, tool: str, **arguments: Any) -> Reply:
    """One answer as users get it, of which both halves agree."""
    reply = await agent.brief(tool, **arguments)
    assert_envelope(reply)
    assert_same_facts(reply)
    assert len(reply.text) / 4 <= MOST_TOKENS, reply
    return reply


async def test_every_next_step_of_advice_works(settings: Settings) -> None:
    """Each can be called as it stands, and a plan that is offered fits."""
    async with agent_of(settings.model_copy(update={"rehearsal": True})) as agent:
        followed: list[Mapping[str, Any]] = []
        for tool, arguments in CALLS:
            reply = await brief(agent, tool, **arguments)
            assert not reply.failed, reply
            new = [step for step in reply.structured["next"] if step not in followed]
            followed += new
            for step in new:
                if step["tool"] in {"deploy_vllm", "setup_target"}:
                    continue  # What begins a life is called by the stories.
                then = await agent.brief(step["tool"], **step["arguments"])
                assert not then.failed, then
                if step["tool"] == "plan_deployment":
                    assert then.structured["summary"].startswith("Fits"), then
    assert {step["tool"] for step in followed} >= {"deploy_vllm", "setup_target"}


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (
            {"model": "e2b qat", "usd_per_hour": 1},
            "E2B QAT on cloud-run-l4, $1.05 an hour: 5 cents",
        ),
        ({"model": "12b qat", "usd_per_hour": 1}, "$1.42 an hour: 42 cents over $1 an hour"),
        ({"model": "12b", "usd_per_hour": 1}, "12B on tpu-v6e-1-flex, $1.37 an hour: 37 cents"),
        ({"usd_per_hour": 1}, "small: E2B QAT on cloud-run-l4 ($1.05 an hour), 5 cents over $1"),
        ({"model": "12b qat", "usd_per_month": 500}, "$537 over $500 a month"),
        (
            {"model": "12b qat", "targets": [L4], "tokens_per_second_per_user": 90},
            "of the 90 asked",
        ),
        (
            {"model": "12b qat", "targets": [L4], "tokens_per_second_per_user": 25},
            "14 to 32 tokens/s of the 25 asked for",
        ),
        ({"model": "e2b", "targets": ["tpu"], "scale_to_zero": True}, "it does not sleep"),
        ({"model": "31b qat", "targets": [L4]}, "only with no images and no sound"),
        ({"model": "12b qat", "targets": ["aca-t4"]}, "12B QAT on cloud-run-l4, $1.42 an hour"),
        ({"model": "12b"}, "With int4 weights (QAT): 12B QAT on cloud-run-l4 ($1.42 an hour)"),
    ],
    ids=str,
)
async def test_what_comes_nearest_is_the_answer(
    agent: Agent, goal: dict[str, Any], said: str
) -> None:
    """By how much it misses; and the next call does not ask for that limit again."""
    reply = await brief(agent, "recommend_deployment", **goal)
    assert said in reply.structured["summary"]
    (step,) = reply.structured["next"]
    assert step["tool"] == "plan_deployment"
    assert not {"usd_per_hour", "usd_per_month", "scale_to_zero"} & {*step["arguments"]}


@pytest.mark.parametrize(
    "goal", [{"model": "31b"}, {"model": "12b qat"}, {"quality": "small"}, {"users": 4}], ids=str
)
async def test_only_what_this_server_deploys_to_is_recommended(
    agent: Agent, goal: dict[str, Any]
) -> None:
    """Neither somebody else's hardware nor clouds without a backend, unless they are named."""
    reply = await agent.call("recommend_deployment", **goal)
    found = [*reply.data["offers"], *reply.data["instead"]]
    assert all(each["deployable"] for each in found)
    assert all(place(each["target"]).provider != "own" for each in found)
    named = await brief(agent, "recommend_deployment", model="e4b", targets=["h100"])
    assert "This server does not deploy there." in named.structured["summary"]
    assert named.structured["next"][0]["arguments"]["target"] != "h100"


async def test_a_gpu_of_this_machine_is_recommended(settings: Settings) -> None:
    """It costs nothing by the hour and comes after what is rented, as before."""
    own = settings.model_copy(update={"accelerator_type": "rtx-4090"})
    async with agent_of(own) as agent:
        reply = await agent.call("recommend_deployment", model="12b qat", targets=["local"])
        both = {"model": "12b qat", "targets": ["local", L4]}
        beside = await agent.call("recommend_deployment", **both)
    (offer,) = reply.data["offers"]
    assert (offer["target"], offer["deployable"]) == ("local", True)
    assert "your own machine, no bill" in reply.structured["summary"]
    assert [each["target"] for each in beside.data["offers"]] == [L4, "local"]


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (
            {"model": "12b qat", "users": 20, "tokens_per_second_per_user": 15},
            "20 users at 15 tokens/s each: 2 replicas, up to 12 users each: 12B QAT on 2 x",
        ),
        (
            {"model": "12b qat", "users": 4, "targets": [L4]},
            "4 users: one replica: 12B QAT on cloud-run-l4, $1.42 an hour",
        ),
        (
            {"model": "12b qat", "tokens_per_second_per_user": 15, "targets": [L4]},
            "Up to 12 users at 15 tokens/s each on one replica: 12B QAT on cloud-run-l4",
        ),
        (
            {"users": 20, "tokens_per_second_per_user": 15},
            "20 users at 15 tokens/s each: small: E2B QAT on cloud-run-l4 ($1.05 an hour); medium:",
        ),
        (
            {"tokens_per_second_per_user": 15, "targets": [L4]},
            "medium: 12B QAT on cloud-run-l4 ($1.42 an hour), up to 12 users",
        ),
    ],
    ids=str,
)
async def test_users_at_a_speed_and_the_replicas_for_them(
    agent: Agent, goal: dict[str, Any], said: str
) -> None:
    """As many as are needed, with what all of them cost; or as many users as one replica has."""
    reply = await brief(agent, "recommend_deployment", **goal)
    assert said in reply.structured["summary"]


async def test_several_targets_that_are_named_are_told_with_their_prices(agent: Agent) -> None:
    """Somebody asks how much more the other costs; nobody asks of what was not named."""
    both = {"model": "26b qat", "targets": [L4, "aca-a100"]}
    said = (await brief(agent, "recommend_deployment", **both)).structured["summary"]
    assert said.startswith("26B-A4B QAT on cloud-run-l4, $1.42 an hour")
    assert said.endswith("Elsewhere: 26B-A4B QAT on aca-a100 ($6.35 an hour).")
    for targets in ([L4], None):
        reply = await brief(agent, "recommend_deployment", model="26b qat", targets=targets)
        assert "Elsewhere" not in reply.structured["summary"]


async def test_an_hour_of_all_replicas_is_what_a_row_says(agent: Agent) -> None:
    goal = {"model": "12b qat", "users": 20, "tokens_per_second_per_user": 15, "targets": [L4]}
    (row,) = (await brief(agent, "recommend_deployment", **goal)).data["options"]
    assert (row["replicas"], row["$/h"]) == (2, 2.84)


async def test_replicas_are_counted_against_the_budget(agent: Agent) -> None:
    """Two for $2.84 an hour are over two dollars and a half, and it is said by how much."""
    goal = {"model": "12b qat", "users": 20, "targets": [L4], "usd_per_hour": 2.5}
    reply = await brief(agent, "recommend_deployment", **goal)
    assert "2 x cloud-run-l4, $2.84 an hour: 34 cents over $2.50" in reply.structured["summary"]


async def test_a_length_that_nobody_asked_for_leaves_room_for_several_users(
    settings: Settings,
) -> None:
    """The plan says so in its context, and a deployment has the same length."""
    async with agent_of(settings.model_copy(update={"accelerator_type": "l4"})) as agent:
        planned = await brief(agent, "plan_deployment", model="12b qat", target=L4)
        assert planned.data["context"].startswith("32,768 tokens, chosen so that several users")
        said = planned.structured["summary"].partition("4 users at once with 32,768 tokens each: ")
        each, together = re.findall(r"(\d+)[^\d,]* (?:tokens/s each|together)", said[2])
        assert int(together) == pytest.approx(4 * int(each), rel=0.1)
        (step,) = planned.structured["next"]
        assert step["arguments"]["max_model_len"] == 32_768
        own = await brief(agent, "plan_deployment", model="12b qat", target=L4, max_model_len=512)
        assert own.data["context"].startswith("512 tokens; ")
        named = {"target": "local", "name": "one"}
        deployed = await agent.call("deploy_vllm", model="12b qat", **named)
        assert any("32,768 tokens" in each for each in deployed.structured["warnings"]), deployed
        config = await agent.call("get_vllm_deployment_config", **named)
        assert "--max-model-len 32768" in config.text
        again = await agent.call("deploy_vllm", model="12b qat", **named)
        assert again.data["revision"] == deployed.data["revision"]
        assert (await agent.call("destroy_vllm", **named)).data["gone"]


@pytest.mark.parametrize("target", [L4, "tpu-v6e-1"])
async def test_a_fresh_project_is_told_once_what_it_lacks(settings: Settings, target: str) -> None:
    """It fits and cannot be deployed yet: that is the first line, and the next call cures it."""
    async with agent_of(settings.model_copy(update={"rehearsal": True})) as agent:
        asked = {"model": "e2b", "target": target, "check": True}
        reply = await brief(agent, "plan_deployment", **asked)
        whole = await agent.call("plan_deployment", **asked)
    assert reply.structured["summary"].startswith("Fits, but cannot be deployed yet: Not enabled")
    assert "call setup_target" in reply.structured["summary"]
    assert [step["tool"] for step in reply.structured["next"]] == ["setup_target"]
    assert len(re.findall("googleapis.com has not been used", reply.text)) == 0
    *causes, passed = reply.data["checks"]
    assert len([line for line in causes if "Not enabled" in line]) == 1
    outcomes = [one["outcome"] for one in whole.data["checks"]]
    assert passed == f"{outcomes.count('pass')} of {len(outcomes)} passed"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"hours_per_day": 8, "days_per_week": 5}, "$247 a month at 174 hours"),
        (
            {"requests_per_day": 20_000},
            "20,000 requests a day on cloud-run-l4: $1,037 a month with 1",
        ),
        ({"tokens_per_day": 5_000_000}, "5,000,000 tokens a day on cloud-run-l4: $1,037 a month"),
        (
            {"requests_per_day": 20_000, "hours_per_day": 8, "days_per_week": 5},
            "$494 a month with 2 replicas at 174",
        ),
    ],
    ids=str,
)
async def test_a_bill_follows_from_what_is_used(
    agent: Agent, asked: dict[str, Any], said: str
) -> None:
    reply = await brief(agent, "estimate_cost", target=L4, model="12b qat", **asked)
    assert said in reply.structured["summary"]


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ({"requests_per_day": 10}, "Give `model`"),
        ({"hours_per_day": 25}, "Correct the value"),
        ({"region": "mars"}, "europe-west1"),
    ],
    ids=str,
)
async def test_a_bill_that_cannot_be_made_says_what_is_missing(
    agent: Agent, asked: dict[str, Any], fix: str
) -> None:
    reply = await brief(agent, "estimate_cost", target=L4, **asked)
    assert reply.code == "INVALID_ARGUMENT"
    assert fix in reply.structured["fix"]


async def test_a_region_that_is_asked_for_is_kept_or_refused(settings: Settings) -> None:
    """By a continent or a name; what a server is set to decides, and nothing goes elsewhere."""
    async with agent_of(settings.model_copy(update={"rehearsal": True})) as agent:
        found = await brief(agent, "recommend_deployment", model="12b qat", region="EU")
        assert "In europe-west1: set GOOGLE_CLOUD_LOCATION" in found.structured["summary"]
        planned = await brief(agent, "plan_deployment", model="e2b", target=L4, region="eu")
        assert "Fits; first set GOOGLE_CLOUD_LOCATION" in planned.structured["summary"]
        assert planned.structured["next"] == []
        elsewhere = await brief(agent, "deploy_vllm", model="e2b", target=L4, region="eu")
        assert elsewhere.code == "INVALID_ARGUMENT"
        there = await brief(agent, "plan_deployment", model="e2b", target="aca-a100", region="eu")
        assert [step["tool"] for step in there.structured["next"]] == ["deploy_vllm"]
        tpu = {"model": "e2b", "target": "tpu-v6e-1", "region": "europe-west4"}
        zoned = await brief(agent, "plan_deployment", **tpu)
        assert zoned.structured["next"][0]["arguments"]["zones"] == ["europe-west4-a"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "e2b qat", "target": L4}, "$1.05 to $1.37 an hour"),
        ({"model": "12b qat", "target": L4}, "$1.42 an hour"),
        ({"model": "12b qat", "target": "aca-a100"}, "$6.35 to $8.86 an hour"),
    ],
    ids=str,
)
async def test_every_answer_has_the_same_price(
    agent: Agent, asked: dict[str, Any], said: str
) -> None:
    """Of the same host: of a range where sources disagree."""
    goal = {"model": asked["model"], "targets": [asked["target"]]}
    answers = [
        await brief(agent, "estimate_cost", **asked),
        await brief(agent, "plan_deployment", **asked),
        await brief(agent, "recommend_deployment", **goal),
    ]
    summaries = [each.structured["summary"] for each in answers]
    assert [each for each in summaries if said not in each] == []


async def test_a_price_says_which_host_it_is_of(agent: Agent) -> None:
    """Where no model chooses one, that of the larger is said as well."""
    bare = await brief(agent, "estimate_cost", target=L4)
    assert "$1.05 to $1.37 an hour" in bare.structured["summary"]
    assert "with 4 vCPU and 16 GiB; $1.42 an hour with 8 vCPU" in bare.structured["summary"]
    chosen = await brief(agent, "estimate_cost", target=L4, model=QAT_12B)
    assert "(730 hours) with 8 vCPU and 32 GiB;" in chosen.structured["summary"]
    listed = await brief(agent, "list_targets")
    assert ", from $1.05/h, " in listed.data[L4]
    assert ", from $6.35/h, " in listed.data["aca-a100"]
    assert ", from $2.72/h, " in listed.data["tpu-v6e-1"]
