"""How it is and what there is, asked as people ask it, and by the names that they know."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from core.settings import Settings
from tests.conversation import Reply
from tests.questions.typed import typed
from tests.stories.conftest import Azure, Cloud
from tests.tools.shared import served_dir, served_settings
from tests.tools.world import hurry

pytestmark = pytest.mark.anyio

__all__ = ["served_dir", "served_settings"]

MODEL: Final = "google/gemma-4-E2B-it"
Asked = Callable[..., Any]


def said(reply: Reply, words: str) -> list[str]:
    """Give the warnings that hold some words."""
    return [one for one in reply.structured["warnings"] if words in one]


@typed("status", "get_status", "did that work?")
async def test_the_status_is_that_of_everything(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """One word, no argument: what runs, whether it is well, what it costs, what to do next."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call("get_system_status")
    (row,) = reply.data["deployments"]
    assert (row["name"], row["state"], row["health"]) == ("one", "ready", "ready")
    assert row["model"] == MODEL
    assert "ready" in reply.structured["summary"]
    assert row["tools"] == ["query_gemma4"]


@typed("get_help")
async def test_help_lists_what_can_be_called(asked: Asked, words: str, settings: Settings) -> None:
    """Every listed tool, and how to learn more of one."""
    async with asked(settings) as ask:
        asking = ask(words)
        reply = await asking.call("get_help")
        one = await asking.call("get_help", topic="explain_deployment")
        listed = {tool.name for tool in await asking.agent.client.list_tools()}
    told = {row["name"] for row in reply.data["entries"] if row["kind"] == "tool"}
    assert told == listed
    assert {"target", "name", "other", "flags"} <= set(one.data["entries"][0]["parameters"])


@typed("check_vllm", "verify_model_health")
async def test_a_check_lets_the_model_answer(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """By either name, not a port but the model says that it is well."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call(words)
    assert reply.data["healthy"]
    assert len(said(reply, "verify_model_health")) == (words == "check_vllm")


@typed("status_azure_vm")
async def test_a_virtual_machine_is_a_deployment_today(
    asked: Asked, words: str, ready_azure: Azure
) -> None:
    """It is understood, and what it means is told."""
    async with asked(ready_azure.settings) as ask:
        asking = ask(words)
        wish = {"target": "aca-a100", "name": "one", "model": MODEL}
        deployed = await asking.agent.call("deploy_vllm", **wish)
        assert not deployed.failed, deployed
        reply = await asking.call("status_azure_vm")
    assert (reply.data["name"], reply.data["target"]) == ("one", "aca-a100")
    assert said(reply, "no virtual machine")


@typed("get_system_details")
async def test_system_details_are_the_systems_status(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """The old name gives deployments and host, and says the new one."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call("get_system_details")
    assert [row["name"] for row in reply.data["deployments"]] == ["one"]
    assert said(reply, "get_system_status")


@typed("get_active_models")
async def test_active_models_are_those_that_are_served(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """Each deployment with its model and whether it answers."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call("get_active_models")
    (one,) = reply.data["deployments"]
    assert (one["model"], one["state"]) == (MODEL, "ready")
    assert said(reply, "list_deployments")


@typed("check model details", "get_model_details", "what are the model details")
async def test_the_model_is_told_in_full(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """What is served, how long a prompt may be, in which precision, on which engine."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call("get_model_details")
    assert reply.data["model"] == MODEL
    assert reply.data["max_model_len"] in {2**power for power in range(13, 18)}, "as is free here"
    assert reply.data["precision"]["weights"] == "bfloat16"
    assert reply.data["capacity"]["kv_cache_tokens"] > reply.data["max_model_len"]


@typed("get_metrics")
async def test_metrics_are_figures_of_now(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """Nobody asks it, so nothing runs and nothing waits."""
    async with asked(served_settings) as ask:
        reply = await ask(words).call("get_metrics")
    figures = reply.data["metrics"]
    assert (figures["requests_running"], figures["requests_waiting"]) == (0, 0)
    assert figures["kv_cache_usage"] == 0


@typed("query_gemma4_with_stats what is Gemma?")
async def test_an_answer_comes_with_its_times(
    asked: Asked, words: str, served_settings: Settings
) -> None:
    """The words behind the tool's name are the prompt; the first token comes before the last."""
    tool, _, prompt = words.partition(" ")
    async with asked(served_settings) as ask:
        reply = await ask(words).call(tool, prompt=prompt, max_tokens=16)
    assert 0 < reply.data["completion_tokens"] <= 16
    timing = reply.data["timing"]
    assert 0 < timing["ttft_seconds"] <= timing["e2el_seconds"]


@typed("is the deployment progressing? how far are the shards?")
async def test_a_boot_tells_how_far_its_weights_are(
    asked: Asked, words: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase, the shards that are read of those that there are, and what it waits for."""
    hurry(monkeypatch)
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_PHASES", '{"loading": 600}')
    async with asked(settings) as ask:
        asking = ask(words)
        wish = {"target": "local", "name": "one", "model": MODEL}
        deployed = await asking.agent.call("deploy_vllm", **wish)
        assert not deployed.failed, deployed
        reply = await asking.call("status_vllm", wait_s=30)
    phase = reply.data["phase"]
    assert phase["name"] == "loading weights"
    assert "shards" in phase["detail"]
    assert (
        f"loading weights {phase['percent']} % ({phase['detail']})" in reply.structured["summary"]
    )
    (step,) = reply.structured["next"]
    assert step["tool"] == "status_vllm"


@typed("get_zones_with_available_quota")
async def test_zones_are_told_with_what_is_left_there(
    asked: Asked, words: str, cloud: Cloud
) -> None:
    """Each zone with its quota, whether a chip can be had, and the next step."""
    async with asked(cloud.settings) as ask:
        reply = await ask(words).call("get_zones_with_available_quota")
    assert reply.data["zones"]
    assert any(zone["usable"] for zone in reply.data["zones"])
    assert "us-east5-b" in reply.structured["summary"]
    assert "known only by asking" in reply.structured["summary"]


@typed("deploy_vllm with low latency")
async def test_low_latency_is_the_layout_for_speed(asked: Asked, words: str, cloud: Cloud) -> None:
    """The old argument is taken, said to be old, and gives the same flags as the new one."""
    wish = {"target": "cloud-run-l4", "model": "12b qat", "max_model_len": 8192}
    async with asked(cloud.settings) as ask:
        asking = ask(words)
        old = await asking.call("deploy_vllm", name="one", low_latency=True, **wish)
        await asking.agent.settled("one", target="cloud-run-l4")
        now = await asking.agent.call("deploy_vllm", name="one", layout="speed", **wish)
        flags = await asking.call("explain_deployment", name="one", target="cloud-run-l4")
    assert said(old, "layout='speed'")
    assert not said(now, "layout='speed'")
    assert old.data["revision"] == now.data["revision"]
    told = {row["flag"]: row["value"] for row in flags.data["flags"] if row["differs"]}
    assert told["--max-num-seqs"] == "1"
