"""The whole life of a deployment on a real vLLM, over stdio.

One boot is shared: the tests stand in the order of that life and take seconds, its boots 13 each.
"""

import asyncio  # noqa: TID251  it alone lists every task
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from backends.local.process import claim
from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.real.conftest import BOOT_SECONDS, MODEL, VLLM, Served, stdio
from tests.soon import soon
from tests.survival.world import assert_nothing_left, facts, folder_of, journal

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]
CAPACITY = {
    "kv_cache_tokens": 63_550,
    "full_length_requests": 31.03,
    "blocks": 1024,
    "block_tokens": 128,
}
"""Of the tiny model with 64 MiB of KV cache and 2,048 tokens. measured on vLLM 0.32 for CPUs."""


@pytest.fixture(scope="module")
async def phases(shared: Served) -> list[str]:
    """Deployed and seen to boot."""
    deployed = await shared.deploy("life")
    ready, through = await shared.until("life")
    assert ready.state == "ready", ready
    first = str(deployed.data["phase"]["name"])
    return through if through[0] == first else [first, *through]


@pytest.fixture
async def life(shared: Served, phases: list[str]) -> Served:
    """The agent of the shared server, whose model answers."""
    return shared


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
    assert health.data["simulated"] is False


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


async def test_stopped_started_by_hand_started_again_and_destroyed_nothing_is_left(
    life: Served,
) -> None:
    """The printed shell command starts the very same engine; then comes the end of this life."""
    config = (await life.call("get_vllm_deployment_config")).data["config"]
    assert (await life.call("stop_vllm")).state == "stopped"
    made = facts(life.state_dir, "life", "deployment.json")
    claim(made["port"])
    key = (folder_of(life.state_dir, "life") / "api-key").read_text()
    await same_engine(config["command"], f"http://127.0.0.1:{made['port']}", key)
    started = await life.call("start_vllm", target="local", name="life")
    assert started.state == "loading"
    ready, _ = await life.until("life")
    assert ready.state == "ready"
    assert ready.data["url"] == f"http://127.0.0.1:{facts_port(life)}"
    gone = await life.call("destroy_vllm", target="local", name="life")
    assert gone.data["gone"] is True
    assert_nothing_left(life.state_dir, made["port"])
    assert {result for _, result in journal(life.state_dir)} == {"ok"}
    assert life.server.children() == []


def facts_port(life: Served) -> int:
    return int(facts(life.state_dir, "life", "deployment.json")["port"])


async def same_engine(command: str, url: str, key: str) -> None:
    """Run a command as a person would, until it answers as the deployment did; then end it."""
    assert str(VLLM) in command
    assert key not in command
    async with (
        await anyio.open_process(["sh", "-c", f"exec env {command}"], stdout=-3, stderr=-3) as hand,
        httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        try:
            with anyio.fail_after(BOOT_SECONDS):
                while not await answers(client):
                    assert hand.returncode is None
                    await anyio.sleep(0.2)
            (row,) = (await client.get("/v1/models")).json()["data"]
            assert (row["id"], row["max_model_len"]) == (MODEL.name, 2048)
            assert 'kv_cache_size_tokens="63550"' in (await client.get("/metrics")).text
        finally:
            hand.terminate()
            await hand.wait()


async def answers(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).is_success
    except httpx2.ConnectError:
        return False
