"""Real processes of the simulated engine, each ill in its own way, diagnosed as an agent does."""

import json
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.settings import Settings
from operations import diagnose
from tests.conversation import Agent, Reply, agent_of
from tests.simulators.conftest import Simulate
from tests.soon import HANGS
from tests.tools.world import agent_at, assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

UNPLANNED: Final = "acme/a-model"
_SILENT: Final = "ENDPOINT_UNREACHABLE"
MODES: Final = {
    "oom": ("engine boot", "DOES_NOT_FIT"),
    "kv-cache-too-small": ("engine boot", "KV_CACHE_TOO_SMALL"),
    "exit-in:compiling": ("engine boot", "ENGINE_EXITED"),
    "kill-in:loading": ("container", "KILLED"),
}


def said(reply: Reply) -> tuple[Any, ...]:
    """Which layer is at fault, by which code."""
    assert_envelope(reply)
    assert_same_facts(reply)
    return reply.data.get("layer"), reply.data.get("code")


async def test_a_ready_one_has_nothing_wrong(served: Agent) -> None:
    """Every layer is healthy, and the answer says which were looked at."""
    reply = await served.call("diagnose")
    assert said(reply) == (None, None)
    assert reply.data["healthy"] is True
    assert {row["verdict"] for row in reply.data["looked_at"]} == {"healthy"}
    assert "Nothing wrong" in reply.structured["summary"]


async def test_every_way_to_fail_at_boot_is_told_with_its_layer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code, line and next call with its arguments; what nobody knows is said to be so."""
    async with agent_of(settings) as agent:
        for mode in MODES:
            monkeypatch.setenv("SIMULATED_ENGINE_FAIL", mode)
            await agent.call("deploy_vllm", model=UNPLANNED, name=_name(mode))
        for mode in MODES:
            await agent.settled(_name(mode))
        replies = {mode: await agent.call("diagnose", name=_name(mode)) for mode in MODES}
    assert {mode: said(reply) for mode, reply in replies.items()} == MODES
    for mode, reply in replies.items():
        assert all(
            step["arguments"].get("name", _name(mode)) == _name(mode)
            for step in reply.structured["next"]
        )
    small = replies["kv-cache-too-small"]
    again = next(one for one in small.structured["next"] if one["tool"] == "deploy_vllm")
    assert again["arguments"]["max_model_len"] == 33312
    assert again["arguments"]["model"] == UNPLANNED
    assert any(row["kind"] == "line" for row in small.data["evidence"])


async def test_a_boot_without_end_is_wait_first_and_ill_later(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it takes longer than it should, nothing is wrong."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", "never-ready")
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", model=UNPLANNED, name="one")
        fresh = await agent.call("diagnose")
        assert said(fresh) == (None, None)
        assert "Wait" in fresh.data["cause"]
        monkeypatch.setattr(diagnose, "longest_seconds", lambda _now: 0.0)
        assert said(await agent.call("diagnose")) == ("engine boot", "BOOT_TAKES_TOO_LONG")


async def test_an_engine_whose_server_says_no_is_told_as_such(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process lives, /health says no; one that fails every request, or breaks each answer off,
    has another layer."""
    async with agent_of(settings) as agent:
        for mode in ("unhealthy", "http-500", "broken-stream"):
            monkeypatch.setenv("SIMULATED_ENGINE_FAIL", mode)
            await agent.call("deploy_vllm", model=UNPLANNED, name=mode)
            with_server = await _up(agent, mode)
            assert with_server.data["instance"]
        assert said(await agent.call("diagnose", name="unhealthy")) == ("health", "UNHEALTHY")
        for mode in ("http-500", "broken-stream"):
            assert said(await agent.call("diagnose", name=mode))[0] == "model answers"


async def test_a_cloud_without_its_settings_is_told_as_such(agent: Agent) -> None:
    reply = await agent.call("diagnose", target="aca-a100", name="one")
    assert said(reply) == ("settings and login", "NOT_CONFIGURED")
    assert "AZURE_SUBSCRIPTION_ID" in reply.data["fix"]


@pytest.mark.parametrize(
    ("key", "layer", "code"),
    [("right", None, None), ("wrong", "settings and login", "UNAUTHORIZED")],
)
async def test_an_endpoint_of_ones_own_is_walked_as_well(
    key: str, layer: str | None, code: str | None, simulate: Simulate, state_dir: Path
) -> None:
    """A wrong key is a matter of settings; no tool that changes is named."""
    async with (
        simulate("--api-key", "right") as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, key) as agent,
    ):
        reply = await agent.call("diagnose")
    assert said(reply) == (layer, code)
    assert "vllm(" not in json.dumps(reply.structured["next"])


async def _up(agent: Agent, name: str) -> Reply:
    """Watch it until its server answers, and not well: it says that it is up before it listens."""
    with anyio.fail_after(HANGS):
        while True:
            reply = await agent.call("status_vllm", name=name)
            if reply.data.get("failure", {}).get("code", _SILENT) != _SILENT:
                return reply


def _name(mode: str) -> str:
    return mode.replace(":", "-")
