"""What a deployment on a real vLLM says and answers, over stdio; each test takes seconds."""

import asyncio  # noqa: TID251  it alone lists every task
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.real.conftest import Served, stdio
from tests.soon import soon
from tests.survival.world import facts, folder_of

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("life")]
CAPACITY = {
    "kv_cache_tokens": 63_550,
    "full_length_requests": 31.03,
    "blocks": 1024,
    "block_tokens": 128,
}
"""Of the tiny model with 64 MiB of KV cache and 2,048 tokens. measured on vLLM 0.32 for CPUs."""


async def test_a_boot_is_told_phase_by_phase_until_the_model_answers(
    life: Served, phases: list[str]
) -> None:
    """starting comes first, ready last, and no phase comes twice."""
    assert phases[0] == "starting"
    assert phases[-1] == "ready"
    assert "loading weights" in phases or "warming" in phases
    assert len(phases) == len(set(phases))


async def test_the_model_says_something_and_says_it_warm(life: Served) -> None:
    """Health is an answer, not an open port."""
    health = await life.call("verify_model_health")
    assert health.data["healthy"] is True
    assert health.data["layer"] == "none"
    assert health.data["answer"]
    assert not [one for one in health.structured["warnings"] if "simulated" in one], health


async def test_what_clients_rely_on_is_probed_on_a_real_engine(life: Served) -> None:
    """Its parsers are there by default and leave a JSON schema enforced; random weights call no
    tool and think nothing, which is no fault.
    """
    reply = await life.call("verify_model_health", deep=True)
    found = {one["what"]: (one["outcome"], one["detail"]) for one in reply.data["probes"]}
    late = ("not tested", "No answer within")  # on a busy machine
    held, why = found.pop("structured output")
    assert held == "pass" or (held, why[: len(late[1])]) == late
    assert {outcome for outcome, _ in found.values()} == {"not tested"}
    reasons = ("its weights are random", "takes no images", late[1])
    assert all(any(one in why for one in reasons) for _, why in found.values()), found


async def test_the_details_are_exactly_what_the_engine_says(life: Served) -> None:
    """Context, precision and the capacity of the KV cache, to the token."""
    details = (await life.call("get_model_details")).data
    assert details["max_model_len"] == 2048
    assert details["engine"].startswith("vLLM 0.")
    capacity = details["capacity"]
    assert capacity.pop("used_percent") >= 0
    assert {**capacity, "full_length_requests": round(capacity["full_length_requests"], 2)} == (
        CAPACITY
    )
    assert details["memory"]["kv_cache_tokens"] == CAPACITY["kv_cache_tokens"]
    assert details["memory"]["max_concurrency"] == CAPACITY["full_length_requests"]


async def test_an_answer_is_counted_and_timed(life: Served) -> None:
    """Usage is the engine's own; first token, every token and the end come in that order."""
    reply = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=24)
    assert not reply.failed, reply
    said = reply.data
    assert said["answer"]
    assert said["prompt_tokens"] > 3
    assert said["completion_tokens"] == 24
    assert said["finish_reason"] == "length"
    timing = said["timing"]
    assert 0 < timing["ttft_seconds"] <= timing["e2el_seconds"]
    assert 0 < timing["tpot_seconds"] < timing["e2el_seconds"]
    assert timing["itl_p50_seconds"] <= timing["itl_p99_seconds"]
    assert timing["output_tokens_per_second"] > 0


async def test_the_metrics_count_what_was_asked(life: Served) -> None:
    """One more question of eight tokens is eight more tokens."""

    async def generated() -> int:
        reply = await life.call("get_metrics", raw="vllm:generation_tokens_total")
        return int(sum(sample["value"] for sample in reply.data["samples"]))

    before = await generated()
    asked = await life.call("query_gemma4", prompt="Again.", max_tokens=8)
    assert asked.data["completion_tokens"] == 8
    await soon(generated, (before + 8).__eq__)
    report = (await life.call("get_metrics")).data
    assert report["metrics"]["requests_running"] == 0
    assert report["metrics"]["cache"]["kv_cache_size_tokens"] == CAPACITY["kv_cache_tokens"]


async def test_the_log_is_the_engines_own(life: Served) -> None:
    """And holds no key."""
    logs = (await life.call("get_logs", contains="KV cache size", lines=5)).data["lines"]
    assert any("63,550 tokens" in line for line in logs)
    key = (folder_of(life.state_dir, "life") / "api-key").read_text()
    everything = await life.call("get_logs", lines=500)
    assert key not in everything.text


async def test_two_hundred_looks_and_fifty_questions_at_once_all_succeed_and_leak_nothing(
    life: Served,
) -> None:
    """No error, no process, and the server's open files return to what they were."""
    await storm(life, looks=20, questions=10)
    before = life.server.num_fds()
    replies = await storm(life, looks=200, questions=50)
    assert [reply.text for reply in replies if reply.failed] == []
    assert {reply.state for reply in replies if "state" in reply.data} == {"ready"}

    async def more_files() -> int:
        return life.server.num_fds() - before

    await soon(more_files, lambda more: more <= 2)
    assert [child.pid for child in life.server.children()] == [
        facts(life.state_dir, "life")["session"]
    ]


async def test_the_same_storm_in_process_leaves_no_task_behind(life: Served) -> None:
    """A second server on the same folder, whose tasks can be counted."""
    settings = Settings(vllm_devops_state_dir=life.state_dir, toolsets=("all",), confirm="never")
    async with agent_of(settings) as agent:
        await agent.call("status_vllm")
        before = len(asyncio.all_tasks())
        replies = await storm(agent, looks=200, questions=50)
        assert [reply.text for reply in replies if reply.failed] == []

        async def tasks() -> int:
            return len(asyncio.all_tasks())

        await soon(tasks, lambda now: now <= before)


async def storm(agent: Agent, *, looks: int, questions: int) -> list[Reply]:
    """Send everything at once."""
    replies: list[Reply] = []

    async def one(tool: str, **arguments: Any) -> None:
        replies.append(await agent.call(tool, target="local", name="life", **arguments))

    async with anyio.create_task_group() as tasks:
        for _ in range(looks):
            tasks.start_soon(one, "status_vllm")
        for number in range(questions):
            ask = partial(one, "query_gemma4", prompt=f"Question {number}?", max_tokens=16)
            tasks.start_soon(ask)
    assert len(replies) == looks + questions
    return replies


async def test_a_second_server_with_its_address_and_key_looks_and_asks(
    life: Served, tmp_path: Path
) -> None:
    """VLLM_BASE_URL makes it a target of its own, which can not be destroyed from there."""
    port = facts(life.state_dir, "life", "deployment.json")["port"]
    key = (folder_of(life.state_dir, "life") / "api-key").read_text()
    url = f"http://127.0.0.1:{port}"
    async with stdio(tmp_path / "other", VLLM_BASE_URL=url, VLLM_API_KEY=key) as other:
        assert (await other.call("status_vllm")).state == "ready"
        answer = await other.call("query_gemma4", prompt="Hello", max_tokens=4)
        assert answer.data["completion_tokens"] == 4
        refused = await other.call("destroy_vllm", target="endpoint", name="endpoint")
        assert refused.code == "UNSUPPORTED"
    wrong = "not-the-key-at-all"
    async with stdio(tmp_path / "wrong", VLLM_BASE_URL=url, VLLM_API_KEY=wrong) as other:
        status = await other.call("status_vllm")
        assert status.data["failure"]["code"] == "UNAUTHORIZED"
        assert status.data["failure"]["fix"]
        assert wrong not in status.text
    assert (await life.status("life")).state == "ready"
