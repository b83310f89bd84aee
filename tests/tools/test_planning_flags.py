"""Flags said in several ways at once: the plan is of what would be started."""

import shlex
from typing import Any

import pytest

from tests.conversation import Agent, Reply
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio


async def plan(agent: Agent, **said: Any) -> Reply:
    wanted = {"model": "e4b", "target": "cloud-run-l4", **said}
    reply = await agent.call("plan_deployment", **wanted)
    assert_envelope(reply)
    assert_same_facts(reply)
    return reply


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--gpu-memory-utilization=0.4"], {"gpu_memory_utilization": 0.4}),
        (["--gpu_memory_utilization", "0.4"], {"gpu_memory_utilization": 0.4}),
        (["--max-num-seqs", "1024"], {"max_num_seqs": 1024}),
        (["--max-model-len", "16k"], {"max_model_len": 16_000}),
        (["--quantization=fp8"], {"quantization": "fp8"}),
        (["-q", "fp8"], {"quantization": "fp8"}),
    ],
)
async def test_engine_args_count_as_the_flags_that_they_are(
    agent: Agent, words: list[str], same: dict[str, Any]
) -> None:
    """They win, as the engine reads them last: what cannot boot with them does not fit."""
    wish = {"max_model_len": 8192, **same}
    by_name = (await plan(agent, **wish)).data
    by_word = (await plan(agent, max_model_len=8192, engine_args=words)).data
    for what in ("fits", "engine_line", "memory", "reasons"):
        assert by_word[what] == by_name[what], what


@pytest.mark.parametrize(
    "words", [["--block-size", "abc"], ["--max-num-seqs"], ["--cpu-offload-gb=much"]]
)
async def test_a_value_that_is_none_is_named(agent: Agent, words: list[str]) -> None:
    reply = await plan(agent, engine_args=words)
    assert reply.code == "INVALID_ARGUMENT"
    assert words[0].partition("=")[0] in reply.structured["summary"]


async def test_a_layout_keeps_what_it_does_not_set(agent: Agent) -> None:
    """The plan says so, and the call that it offers makes the same deployment."""
    plain = await plan(agent, layout="speed")
    eight = await plan(agent, layout="speed", quantization="fp8")
    assert "--quantization fp8" in eight.data["engine_line"]
    assert eight.data["memory"] != plain.data["memory"]
    (deploy,) = [step for step in eight.structured["next"] if step["tool"] == "deploy_vllm"]
    assert deploy["arguments"]["quantization"] == "fp8"
    assert deploy["arguments"]["max_num_seqs"] == 1
    words = await plan(agent, layout="speed", engine_args=["--language-model-only"])
    assert "--language-model-only" in words.data["engine_line"]
    assert words.data["memory"] != plain.data["memory"]


@pytest.mark.parametrize("said", [{"quantization": "fp8"}, {"engine_args": ["-q", "fp8"]}])
@pytest.mark.parametrize(
    ("layout", "holds"),
    [("concurrency", "--max-num-seqs 32"), ("context", "--max-model-len 262144")],
)
async def test_a_layout_is_computed_for_the_weights_that_are_started(
    agent: Agent, said: dict[str, Any], layout: str, holds: str
) -> None:
    """Not for those in bf16, which do not load there; and it knows itself again."""
    reply = await plan(agent, model="12b", layout=layout, **said)
    assert holds in reply.data["engine_line"]
    head, _, _ = reply.data["standing"].partition(".")
    assert head.startswith("These flags are the layout for ")
    assert layout in head
    assert reply.data["layouts"]["this"] == reply.data["layouts"][layout]


async def test_flags_are_held_against_the_layouts_of_their_own_weights(agent: Agent) -> None:
    """Each row says what it gives; these flags are none of them."""
    few = {"quantization": "fp8", "kv_cache_dtype": "fp8", "max_num_seqs": 1}
    reply = await plan(agent, model="12b", max_model_len=8192, **few)
    assert "none of the layouts" in reply.data["standing"]
    assert "requests of 262,144 tokens" in reply.data["layouts"]["context"]
    assert reply.data["layouts"]["this"] not in reply.data["layouts"]["concurrency"]


async def test_what_fits_instead_is_of_the_weights_that_were_said(agent: Agent) -> None:
    """The same length with fewer sequences, not a short one that needs no eight bits."""
    many = {"max_model_len": 262_144, "max_num_seqs": 512, "quantization": "fp8"}
    reply = await plan(agent, model="12b", **many)
    assert reply.data["fits"] is False
    (step, *_) = reply.structured["next"]
    assert step["arguments"]["quantization"] == "fp8"
    assert step["arguments"]["max_model_len"] == 262_144
    assert (await agent.call(step["tool"], **step["arguments"])).data["fits"] is True


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--speculative-config", '{"model": "google/gemma-4-E2B-it"}'], "draft model"),
        (["--speculative-config.model=google/gemma-4-E2B-it"], "draft model"),
        (["--enable-lora", "--max-loras", "8"], "adapters"),
        (["--speculative-config", '{"method": "ngram"}'], ""),
        (["--generation-config=vllm"], ""),
    ],
)
@pytest.mark.parametrize("target", ["cloud-run-l4", "h100"])
async def test_what_is_loaded_beside_the_model_is_said_not_to_be_counted(
    agent: Agent, target: str, words: list[str], what: str
) -> None:
    """In the first line already; and the command is the one that was asked for."""
    reply = await plan(agent, target=target, max_model_len=8192, engine_args=words)
    head = f"Fits without its {what}: " if what else "Fits: "
    assert reply.structured["summary"].startswith(head)
    said = [warning for warning in reply.structured["warnings"] if "does not count" in warning]
    assert [words[0].partition(".")[0] in warning for warning in said] == [True] * bool(what)
    if target == "cloud-run-l4":
        assert shlex.join(words) in reply.data["engine_line"]


async def test_a_warning_is_given_once(agent: Agent) -> None:
    """Though the planner and the target both know of it."""
    reply = await plan(agent, target="aca-t4")
    warnings = reply.structured["warnings"]
    assert any("64 KiB" in warning for warning in warnings)
    assert len(set(warnings)) == len(warnings)


async def test_a_plan_of_another_version_says_what_the_target_starts(agent: Agent) -> None:
    """The call that it offers cannot choose the version."""
    for version, said in (("0.20.0", True), (None, False)):
        reply = await plan(agent, vllm_version=version)
        words = [one for one in reply.structured["warnings"] if "Planned with vLLM 0.20.0" in one]
        assert bool(words) is said
