"""Where to run, what it costs, how options compare, which models there are: as people ask."""

from typing import Any, Final

import pytest

from tests.conversation import Agent, Reply
from tests.tools.test_planning import floats
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

L4: Final = "cloud-run-l4"
QAT_12B: Final = "google/gemma-4-12B-it-qat-w4a16-ct"
QAT_26B: Final = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
QAT_31B: Final = "google/gemma-4-31B-it-qat-w4a16-ct"


async def ask(agent: Agent, tool: str, **arguments: Any) -> Reply:
    """One answer, of which both halves agree and no number is longer than a person reads."""
    reply = await agent.call(tool, **arguments)
    assert_envelope(reply)
    assert_same_facts(reply)
    assert "truncated" not in reply.structured
    assert all(round(number, 4) == number for number in floats(reply.structured)), reply
    return reply


async def recommend(agent: Agent, **goal: Any) -> Reply:
    return await ask(agent, "recommend_deployment", **goal)


async def cost(agent: Agent, **load: Any) -> Reply:
    return await ask(agent, "estimate_cost", **{"target": L4, **load})


def middle(band: str) -> float:
    """The geometric middle of `a-b`, or the figure before `(a-b)`."""
    head, _, _ = band.replace(",", "").partition(" ")
    ends = [float(end) for end in head.split("-")]
    return float((ends[0] * ends[-1]) ** 0.5)


async def test_summary_qat_31b_model_deployment_options_on_nvidia_l4_cloud_run(
    agent: Agent,
) -> None:
    """None there: the loading peak, with numbers; elsewhere it goes, and others go there."""
    reply = await recommend(agent, model="QAT 31B", targets=[L4])
    (refused,) = reply.data["refused"]
    assert (reply.data["offers"], refused["why"]) == ([], "memory")
    assert "22.10 GiB to load" in refused["reason"]
    assert "21.96 GiB is visible" in refused["reason"]
    assert "PCIe" in refused["offload"]
    instead = [(each["target"], each["model"]) for each in reply.data["instead"]]
    assert instead[0] == (L4, QAT_31B)
    assert "no images and no sound" in reply.structured["summary"]
    assert ("aca-a100", QAT_31B) in instead
    assert all(each["deployable"] for each in reply.data["instead"])
    for each in reply.data["instead"]:
        assert each["engine_line"].startswith("vllm serve ")
        assert {"weights_from", "boot_seconds", "tokens_per_second", "load"} <= each.keys()


async def test_summary_qat_26ab_model_deployment_options(agent: Agent) -> None:
    """Ranked offers with flags, host, source of the weights, requests, speed and boot."""
    reply = await recommend(agent, model="QAT 26AB", max_model_len=16_384, targets=[L4, "v6e-1"])
    first = reply.data["offers"][0]
    assert (first["target"], first["host"]) == (L4, "8 vCPU, 32 GiB")
    assert first["boot_within_probe"].startswith("yes")
    assert first["usd_per_hour"] == 1.4209
    assert any("nobody has measured" in warning for warning in reply.structured["warnings"])


async def test_the_largest_comparison_keeps_every_model_and_says_what_it_leaves_out(
    agent: Agent,
) -> None:
    """Eight models at every target are more than an answer holds."""
    typed = ["2B", "4B", "12B", "26B", "31B", "12B QAT", "26B QAT", "31B QAT"]
    reply = await ask(agent, "compare_targets", models=typed)
    assert len({row["model"] for row in reply.data["rows"]}) == 8
    assert f"{reply.data['left_out']} rows are left out" in reply.structured["warnings"][0]


async def test_cost_per_token_per_1000_requests_per_active_user_and_hour_per_month(
    agent: Agent,
) -> None:
    """All of one load that is said, and the month at a duty cycle."""
    reply = await cost(agent, model="12B QAT", users=4, hours_per_month=73)
    bill = reply.data["bill"]
    assert reply.data["load"] == "4 at once, 1,024 tokens in, 256 out"
    assert bill["usd_per_active_user_hour"] == pytest.approx(1.4209 / 4, abs=0.0001)
    assert bill["usd_per_month"] == pytest.approx(1.4209 * 73, rel=0.001)
    per_token, per_request = (
        middle(bill[name]) for name in ("usd_per_million_tokens", "usd_per_1000_requests")
    )
    assert per_request == pytest.approx(per_token * 1.28, rel=0.02)


@pytest.mark.parametrize(
    ("load", "why"),
    [
        ({"model": "31B QAT"}, "while loading"),
        ({"model": "12B QAT", "prompt_tokens": 1_000_000}, "beyond the model's 262,144"),
    ],
    ids=["a model", "a prompt"],
)
async def test_what_cannot_be_served_has_no_price(
    agent: Agent, load: dict[str, Any], why: str
) -> None:
    """A cost of something that would never run would be untrue."""
    reply = await cost(agent, **load)
    assert reply.code == "DOES_NOT_FIT"
    assert why in reply.structured["summary"]
    assert [step["tool"] for step in reply.structured["next"]] == ["recommend_deployment"]


@pytest.mark.parametrize(
    ("tool", "arguments", "word"),
    [
        ("recommend_deployment", {"quality": "huge"}, "quality"),
        ("recommend_deployment", {"model": "nonsense"}, "catalog"),
        ("recommend_deployment", {"model": "e2b", "max_model_len": 10}, "Correct"),
        ("recommend_deployment", {"model": "e2b", "hours_per_month": 5000}, "Correct"),
        ("estimate_cost", {"target": L4, "model": "nonsense"}, "catalog"),
        ("compare_targets", {"models": []}, "models"),
        ("compare_targets", {"models": ["nonsense"]}, "catalog"),
    ],
    ids=str,
)
async def test_what_nobody_knows_is_refused_with_a_fix(
    agent: Agent, tool: str, arguments: dict[str, Any], word: str
) -> None:
    """Unknown models, targets, qualities and impossible goals are errors with a code."""
    reply = await ask(agent, tool, **arguments)
    assert reply.code == "INVALID_ARGUMENT"
    assert word in reply.structured["summary"] + reply.structured["fix"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("recommend_deployment", {"model": "e2b", "targets": ["nowhere"]}),
        ("estimate_cost", {"target": "nowhere"}),
        ("compare_targets", {"models": ["e2b"], "targets": ["nowhere"]}),
    ],
)
async def test_an_unknown_target_is_told_with_the_known_ones(
    agent: Agent, tool: str, arguments: dict[str, Any]
) -> None:
    reply = await ask(agent, tool, **arguments)
    assert reply.code == "TARGET_NOT_FOUND"
    assert L4 in reply.structured["fix"]


async def test_list_models_names_sizes_precisions_and_formats(agent: Agent) -> None:
    """Five sizes twice, and what each format is for: also those that vLLM does not serve."""
    reply = await ask(agent, "list_models")
    assert len(reply.data["models"]) == 10
    formats = reply.data["formats"]
    assert "llama.cpp and Ollama" in formats["qat-q4_0-gguf"]
    assert "drafter of speculative decoding" in formats["qat-q4_0-unquantized"]


async def test_list_models_and_plans_say_the_same_of_weights(agent: Agent) -> None:
    """What a model takes is one number, wherever it is read."""
    listed = {row["model"]: row for row in (await ask(agent, "list_models")).data["models"]}
    for model in (QAT_12B, QAT_26B, QAT_31B):
        planned = await agent.call("plan_deployment", model=model, target=L4)
        assert listed[model]["weights_gib"] == planned.data["memory"]["weights_gib"]


async def test_what_published_vllm_cannot_serve_is_told_in_a_right_order(agent: Agent) -> None:
    """A refusal has no figures and speaks of none; where there are some, it is said whose."""
    whose = "smaller tiles may serve it there. The figures are what such an image would come to."
    reply = await recommend(agent, model="e2b", targets=["aca-t4"])
    assert "figures" not in reply.structured["summary"]
    assert "aca-t4: Published vLLM cannot serve it there" in reply.structured["summary"]
    assert "figures" not in reply.data["refused"][0]["reason"]
    for tool, said in (
        ("compare_targets", {"models": ["e2b"], "targets": ["aca-t4"]}),
        ("estimate_cost", {"target": "aca-t4", "model": "e2b"}),
    ):
        warned = (await ask(agent, tool, **said)).structured["warnings"]
        assert [one for one in warned if one.endswith(whose)], tool
