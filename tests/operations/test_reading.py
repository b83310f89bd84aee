"""Logs, configuration, details, help: what is read and how much of it."""

import json
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from core import VERSION
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.simulators.models import write_tiny_model
from tests.tools.world import plant
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio


async def test_logs_are_the_newest_last(agent: Agent, state_dir: Path) -> None:
    plant(state_dir).log.write_text("".join(f"line {n}\n" for n in range(80)), encoding="utf-8")
    reply = await agent.call("get_logs", lines=3)
    assert reply.data["lines"] == ["line 77", "line 78", "line 79"]
    assert (reply.data["total"], reply.data["truncated"]) == (80, True)
    assert "newest 3 of at least 80 lines" in reply.structured["summary"]
    none = await agent.call("get_logs", contains="no-such-word", minutes=5)
    said = none.structured["summary"]
    assert said.startswith("No line with 'no-such-word' of the last 5 minutes is in the log of ")
    assert len((await agent.call("get_logs")).data["lines"]) == 50
    whole = await agent.call("get_logs", lines=80)
    assert "newest 80 of 80 lines" in whole.structured["summary"]


async def test_logs_can_be_searched(agent: Agent, state_dir: Path) -> None:
    """Whatever the case; the whole log is looked through, and the matches are counted."""
    plant(state_dir).log.write_text("An ERROR\nfine\nan error\n" * 40, encoding="utf-8")
    reply = await agent.call("get_logs", contains="Error", lines=2)
    assert reply.data["lines"] == ["An ERROR", "an error"]
    assert (reply.data["total"], reply.data["truncated"]) == (80, True)
    nothing = await agent.call("get_logs", contains="nowhere")
    assert (nothing.data["lines"], nothing.data["total"]) == ([], 0)


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
    assert data["takes"] == ["text", "images", "video", "audio"]


async def test_details_say_how_a_model_samples_and_what_it_cannot_take(
    agent: Agent, tmp_path: Path
) -> None:
    """Defaults of its generation_config.json, as the engine's own log tells them."""
    folder = write_tiny_model(tmp_path / "text-only")
    sampling = {"top_k": 64, "top_p": 0.95, "bos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(sampling), encoding="utf-8")
    await agent.serve(model=str(folder), max_model_len=512)
    reply = await agent.call("get_model_details")
    assert reply.data["takes"] == ["text"]
    assert reply.data["sampling"] == {"top_k": 64, "top_p": 0.95}
    assert "takes text; context 512" in reply.structured["summary"]


async def test_metrics_can_be_asked_for_by_name(served: Agent) -> None:
    """A pattern picks the samples; one that fits nothing is an empty list."""
    reply = await served.call("get_metrics", raw="vllm:num_requests_r*")
    names = {sample["name"] for sample in reply.data["samples"]}
    assert names == {"vllm:num_requests_running"}
    assert (await served.call("get_metrics", raw="nothing*")).data["samples"] == []


async def test_the_last_use_is_what_was_asked_here(agent: Agent) -> None:
    await agent.serve()
    await agent.call("verify_model_health")
    quiet = await agent.call("get_metrics")
    assert quiet.data["last_used"] == "no question from here is known"
    await agent.call("query_gemma4", prompt="Hello", max_tokens=2)
    status = await agent.brief("status_vllm")
    assert re.search(r"; last asked from here \d\d:\d\d UTC", status.structured["summary"])
    assert status.data["last_used"] == (await agent.call("get_metrics")).data["last_used"]


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
            rows = (await agent.call("get_help")).data["entries"]
            told = {row["name"]: row["says"] for row in rows if row["kind"] == "tool"}
            assert set(told) == listed
            assert set(re.findall(r"\b[a-z]+_[a-z0-9_]+\b", str(told))) <= set(TOOLS)


async def test_help_explains_every_tool_with_every_parameter(settings: Settings) -> None:
    """Listed or not, each parameter has a type and words; who is not listed says with what."""
    async with agent_of(settings.model_copy(update={"toolsets": ()})) as agent:
        listed = {tool.name for tool in await agent.client.list_tools()}
        for name, one in TOOLS.items():
            row = (await agent.call("get_help", topic=name)).data["entries"][0]
            assert (row["name"], row["kind"]) == (name, "tool")
            assert set(row["parameters"]) == set(one.parameters)
            assert bool(row["listed"]) == (name not in listed), row
            words = row["parameters"].items()
            silent = [k for k, says in words if not re.search(r"\. \w", says)]
            assert (name, silent) == (name, [])


@pytest.mark.parametrize("asked", ["paste a log", "log file", "log of another vLLM"])
async def test_help_names_what_judges_a_log_of_no_deployment(agent: Agent, asked: str) -> None:
    """Whoever has only a log is led to the command that reads it."""
    row = (await agent.call("get_help", topic=asked)).data["entries"][0]
    assert "make find LOG=FILE" in row["says"]
    assert "python -m logs find FILE" in row["says"]


async def test_help_explains_every_setting(agent: Agent) -> None:
    """Each variable of the environment has a sentence, whether it is set or not."""
    for name in Settings.model_fields:
        rows = (await agent.call("get_help", topic=name)).data["entries"]
        (row,) = (row for row in rows if row["kind"] == "setting")
        assert row["name"] == name.upper()
        assert row["says"].endswith((".", "asked."))


@pytest.mark.parametrize(
    ("topic", "kind", "says"),
    [
        ("ttl_minutes", "argument", "Stop after so long"),
        ("What does KV-cache mean?", "concept", "keys and values"),
        ("TTFT", "concept", "first"),
        ("time per output token", "concept", "TPOT|average"),
        ("itl", "concept", "gap"),
        ("e2el", "concept", "End-to-end"),
        ("goodput", "concept", "limit"),
        ("temperature", "concept", "top_p 0.95"),
        ("google roles", "how-to", "roles/run.admin"),
        ("azure roles", "how-to", "Contributor"),
        ("model sizes", "how-to", "E2B.*E4B.*12B.*26B-A4B.*31B"),
        ("rotate the API key", "how-to", "deploy_vllm"),
        ("hidden tools", "how-to", "TOOLSETS"),
        ("READ_ONLY", "setting", "READ_ONLY is False"),
        ("prefix caching", "concept", "system prompt"),
        ("scale to zero", "concept", "cold start"),
        ("qat", "concept", "trained"),
        ("models", "how-to", "list_models"),
        ("upgrade", "how-to", "image="),
        ("roll back", "how-to", "list_operations"),
        ("how do I rotate the key", "how-to", "destroy_vllm"),
        ("YAML", "how-to", "get_endpoint"),
        ("NO_CAPACITY", "error", "none free"),
        ("KV_CACHE_TOO_SMALL", "failure", "max_model_len"),
        ("PREFIX_CACHED", "benchmark verdict", "cache"),
    ],
)
async def test_help_finds_what_people_type(
    settings: Settings, topic: str, kind: str, says: str
) -> None:
    """Arguments, concepts, codes and how-tos, in the default profile, however they are written."""
    async with agent_of(settings.model_copy(update={"toolsets": ()})) as agent:
        reply = await agent.call("get_help", topic=topic)
    assert (reply.data["exact"], reply.data["entries"][0]["kind"]) == (True, kind)
    assert re.search(says, reply.structured["summary"])


async def test_help_says_which_rights_an_identity_needs(agent: Agent) -> None:
    """Per cloud the roles and what each is for, with the permissions that a preflight asks for."""
    rows = (await agent.call("get_help", topic="permissions")).data["roles"]
    assert len({row["cloud"] for row in rows}) == 3
    assert {"roles/run.admin", "roles/tpu.admin", "Contributor"} <= {row["role"] for row in rows}
    assert all(row["why"] and row["permissions"] for row in rows)


async def test_help_never_shows_a_secret(settings: Settings) -> None:
    update = {"hf_token": SecretStr("sentinel"), "vllm_api_key": SecretStr("sentinel")}
    async with agent_of(settings.model_copy(update=update)) as agent:
        (row,) = (await agent.call("get_help", topic="HF_TOKEN")).data["entries"]
        assert row["value"] == "set"
        assert (await agent.call("get_help")).data["version"] == VERSION


async def test_help_on_something_unknown_names_the_nearest(agent: Agent) -> None:
    """Words that occur find what has them; others get three that are spelled alike."""
    reply = await agent.call("get_help", topic="deploy")
    assert not reply.data["exact"]
    assert "deploy_vllm" in reply.structured["summary"]
    wrong = await agent.call("get_help", topic="detroy_vlm")
    assert wrong.code == "NOT_FOUND"
    assert "destroy_vllm" in wrong.structured["fix"]
    assert len(wrong.structured["next"]) == 3
    for step in wrong.structured["next"]:
        assert not (await agent.call(step["tool"], **step["arguments"])).failed
