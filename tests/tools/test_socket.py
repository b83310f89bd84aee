"""A deployment of this machine that listens on a unix socket: only its owner reaches it."""

import stat
from pathlib import Path
from typing import Final

import psutil
import pytest

from core.processes import run
from core.settings import Settings
from tests.conftest import processes_of
from tests.conversation import Agent, agent_of
from tests.tools.calls import LOOKING

pytestmark = pytest.mark.anyio

MODEL: Final = "google/gemma-4-E2B-it"
HERE: Final = {"target": "local", "name": "one"}
ASKING: Final = (
    *("status_vllm", "get_endpoint", "get_model_details", "get_metrics", "get_system_status"),
    *("diagnose", "query_gemma4", "query_gemma4_with_stats", "query_vllm", "explain_deployment"),
)
DEEP: Final = "a-state-folder-far-down-the-tree" * 4
"""No unix socket's path may be so long: Linux takes 107 bytes."""


def listeners(folder: Path) -> list[object]:
    """Return what the engine's processes listen on that others could reach."""
    running = processes_of(folder)
    assert len(running) >= 2
    inet = [found for process in running for found in process.net_connections(kind="inet")]
    return [found for found in inet if found.status == psutil.CONN_LISTEN]


def mode_of(path: Path) -> int | None:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


@pytest.mark.parametrize("folder", ["s", DEEP])
async def test_it_is_asked_through_its_socket_alone(
    settings: Settings, state_dir: Path, folder: str
) -> None:
    """No port is open, its folder is its owner's, and everything that asks it finds it."""
    settings = settings.model_copy(update={"vllm_devops_state_dir": state_dir / folder})
    async with agent_of(settings) as agent:
        ready = await agent.serve(access="internal")
        path = Path(ready.data["url"].removeprefix("unix:"))
        assert mode_of(path.parent) == 0o700
        assert listeners(state_dir) == []
        for tool in ASKING:
            reply = await agent.call(tool, **LOOKING[tool], **HERE)
            assert not reply.failed, (tool, reply)
        health = await agent.call("verify_model_health", deep=True, **HERE)
        assert health.data["healthy"] is True
        diagnosis = await agent.call("diagnose", **HERE)
        assert diagnosis.data["healthy"] is True, diagnosis
        again = await agent.call("start_vllm", **HERE)
        assert again.state == "ready"
        await agent.call("stop_vllm", **HERE)
        await agent.call("start_vllm", **HERE)
        assert (await agent.settled("one")).state == "ready"
        gone = await agent.call("destroy_vllm", **HERE)
        assert gone.data["gone"] is True
    assert mode_of(path.parent) is None


async def test_its_curl_line_asks_it(agent: Agent) -> None:
    ready = await agent.serve(access="internal")
    found = (await agent.call("get_endpoint", **HERE)).data
    listed = await run(("sh", "-c", found["curl"]))
    assert MODEL in listed.stdout, listed
    assert found["openai_base_url"] == "http://localhost/v1"
    path = ready.data["url"].removeprefix("unix:")
    assert "/invocations" not in found["protection"]
    shell = await agent.call("get_vllm_deployment_config", **HERE)
    assert f"--uds {path}" in shell.text
    await agent.call("destroy_vllm", **HERE)


async def test_it_is_measured_through_its_socket(agent: Agent) -> None:
    await agent.serve(access="internal")
    small = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "wait_s": 40}
    done = await agent.call("run_benchmark", **small, **HERE)
    assert done.data["state"] == "done", done
    await agent.call("destroy_vllm", **HERE)


async def test_prometheus_cannot_scrape_it_and_is_told_so(agent: Agent) -> None:
    """A target of its configuration is a host and a port."""
    await agent.serve(access="internal")
    rules = await agent.call("get_alert_rules", **HERE)
    assert "HOST:PORT" in rules.data["scrape_config"]
    assert any("unix socket" in said for said in rules.structured["warnings"])
    await agent.call("destroy_vllm", **HERE)


async def test_another_access_moves_it(agent: Agent) -> None:
    """From the socket to a port and back; nothing of the socket stays behind."""
    ready = await agent.serve(access="internal")
    path = Path(ready.data["url"].removeprefix("unix:"))
    assert mode_of(path)
    moved = await agent.serve(access="private")
    assert moved.data["url"].startswith("http://127.0.0.1:")
    assert mode_of(path) is None
    back = await agent.serve(access="internal")
    assert back.data["url"].startswith("unix:")
    await agent.call("destroy_vllm", **HERE)


async def test_it_has_no_port(agent: Agent) -> None:
    reply = await agent.call(
        "deploy_vllm", target="local", model=MODEL, access="internal", port=8123
    )
    assert reply.code == "INVALID_ARGUMENT"
    assert reply.structured["fix"] == "Leave port or access out."


async def test_its_flag_is_given_as_access(agent: Agent) -> None:
    """vLLM would listen there, and every look would go to a port that nobody listens on."""
    reply = await agent.call(
        "plan_deployment", target="local", model=MODEL, engine_args=["--uds=/tmp/mine.sock"]
    )
    assert reply.code == "INVALID_ARGUMENT"
    assert "access=internal" in reply.text
