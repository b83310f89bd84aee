"""Logs, configuration, details, help: what is read and how much of it."""

import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from core import VERSION
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.tools.world import plant
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio


async def test_logs_are_the_newest_last(agent: Agent, state_dir: Path) -> None:
    """As many as asked for, with how many there are."""
    plant(state_dir).log.write_text("".join(f"line {n}\n" for n in range(80)), encoding="utf-8")
    reply = await agent.call("get_logs", lines=3)
    assert reply.data["lines"] == ["line 77", "line 78", "line 79"]
    assert (reply.data["total"], reply.data["truncated"]) == (80, True)
    assert len((await agent.call("get_logs")).data["lines"]) == 50


async def test_logs_can_be_searched(agent: Agent, state_dir: Path) -> None:
    """Whatever the case; the whole log is looked through, and the matches are counted."""
    plant(state_dir).log.write_text("An ERROR\nfine\nan error\n" * 40, encoding="utf-8")
    reply = await agent.call("get_logs", contains="Error", lines=2)
    assert reply.data["lines"] == ["An ERROR", "an error"]
    assert (reply.data["total"], reply.data["truncated"]) == (80, True)
    nothing = await agent.call("get_logs", contains="nowhere")
    assert (nothing.data["lines"], nothing.data["total"]) == ([], 0)


async def test_a_log_that_is_not_there_is_empty(agent: Agent, state_dir: Path) -> None:
    """A deployment that never wrote a line is no error."""
    plant(state_dir)
    assert (await agent.call("get_logs")).data["lines"] == []


async def test_a_log_of_bytes_is_read_all_the_same(agent: Agent, state_dir: Path) -> None:
    """Colours, progress bars and broken characters do not stop the reading."""
    plant(state_dir).log.write_bytes(b"\x1b[31mred\x1b[0m\n\xff\xfe\n10%\r20%\r30%\n")
    assert (await agent.call("get_logs", lines=1)).data["lines"] == ["30%"]


async def test_the_configuration_is_what_runs(served: Agent) -> None:
    """The same flags as a command, as docker run and as compose, each with the key by reference."""
    config = (await served.call("get_vllm_deployment_config")).data["config"]
    for text in config["command"], config["docker_run"]:
        assert "--reasoning-parser gemma4" in text
        assert "VLLM_API_KEY" in text
    assert '- "--reasoning-parser"' in config["yaml"]
    assert "127.0.0.1:" in config["docker_run"]


async def test_details_say_what_an_operator_asks_for(served: Agent) -> None:
    """Context, precision, capacity and memory by component, of the engine that runs."""
    data = (await served.call("get_model_details")).data
    assert data["max_model_len"] == 131072
    assert data["precision"]["weights"] == "bfloat16"
    assert data["capacity"]["kv_cache_tokens"] == data["memory"]["kv_cache_tokens"]
    assert data["memory"]["weights_gib"] > 0
    assert data["hardware"]["vcpu"] >= 1


async def test_metrics_can_be_asked_for_by_name(served: Agent) -> None:
    """A pattern picks the samples; one that fits nothing is an empty list."""
    reply = await served.call("get_metrics", raw="vllm:num_requests_r*")
    names = {sample["name"] for sample in reply.data["samples"]}
    assert names == {"vllm:num_requests_running"}
    assert (await served.call("get_metrics", raw="nothing*")).data["samples"] == []


async def test_metrics_count_what_was_asked(served: Agent) -> None:
    """A question more is a request more."""

    async def finished() -> int:
        seen = (await served.call("get_metrics")).data["metrics"]["requests_finished"]
        return int(sum(seen.values()))

    before = await finished()
    await served.call("query_gemma4", prompt="Hello", max_tokens=2)
    assert await finished() == before + 1


async def test_the_dashboard_has_load_and_host(served: Agent) -> None:
    """One call for «how is it»: state, load, memory, what to do, and that it is simulated."""
    reply = await served.call("get_system_status")
    (row,) = reply.data["deployments"]
    assert (row["state"], row["requests_running"]) == ("ready", 0)
    assert row["usage"]["resident_memory_bytes"] > 0
    assert (row["health"], row["do_next"]) == ("ready", "Ask it with query_gemma4.")
    assert reply.data["hosts"]["local"]["memory_total_gib"] > 0
    assert any("simulated" in warning for warning in reply.structured["warnings"])


async def test_every_answer_about_a_simulation_says_so(served: Agent) -> None:
    """Nobody takes made-up words or figures for real ones."""
    for tool, arguments in {
        "status_vllm": {},
        "list_deployments": {},
        "list_targets": {},
        "get_endpoint": {},
        "get_model_details": {},
        "verify_model_health": {},
        "get_metrics": {},
        "get_logs": {},
        "get_vllm_deployment_config": {},
        "query_gemma4": {"prompt": "Hello", "max_tokens": 2},
    }.items():
        reply = await served.call(tool, **arguments)
        assert any("simulated" in said for said in reply.structured["warnings"]), tool


async def test_help_lists_exactly_the_tools_that_are_listed(settings: Settings) -> None:
    """It is made of what is registered: it cannot promise what is not there."""
    for changed in ({}, {"toolsets": ()}, {"read_only": True}):
        async with agent_of(settings.model_copy(update=changed)) as agent:
            listed = {tool.name for tool in await agent.client.list_tools()}
            told = {row["name"] for row in (await agent.call("get_help")).data["tools"]}
            assert told == listed
            words = set(re.findall(r"\b[a-z]+_[a-z0-9_]+\b", str(told)))
            assert words <= set(TOOLS)


async def test_help_explains_every_tool_with_every_parameter(agent: Agent) -> None:
    """What the list leaves out to save tokens stands here."""
    for tool in await agent.client.list_tools():
        (row,) = (await agent.call("get_help", topic=tool.name)).data["tools"]
        assert set(row["parameters"]) == set(TOOLS[tool.name].parameters)


async def test_help_explains_every_setting(agent: Agent) -> None:
    """Each variable of the environment has a sentence, whether it is set or not."""
    for name in Settings.model_fields:
        (row,) = (await agent.call("get_help", topic=name)).data["settings"]
        assert row["name"] == name.upper()
        assert row["means"].endswith((".", "asked."))


async def test_help_never_shows_a_secret(settings: Settings) -> None:
    """That a key is set is all there is to know."""
    update = {"hf_token": SecretStr("sentinel"), "vllm_api_key": SecretStr("sentinel")}
    async with agent_of(settings.model_copy(update=update)) as agent:
        (row,) = (await agent.call("get_help", topic="HF_TOKEN")).data["settings"]
        assert row["value"] == "set"
        assert (await agent.call("get_help")).data["version"] == VERSION


async def test_help_on_nothing_known_names_what_is(agent: Agent) -> None:
    """A wrong topic is answered with the right ones."""
    reply = await agent.call("get_help", topic="deploy")
    assert reply.code == "NOT_FOUND"
    assert "deploy_vllm" in reply.structured["fix"]
