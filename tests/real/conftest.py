"""A real vLLM behind a real `python server.py`, spoken to over stdio."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import psutil
import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from core.environment import ROOT, inherited_environment
from tests.conftest import processes_of
from tests.conversation import Agent, Reply
from tests.survival.world import folder_of

MODEL: Final = ROOT / ".vllm" / "tiny-gemma-4"
VLLM: Final = ROOT / ".vllm" / "bin" / "vllm"
SMALL: Final[dict[str, Any]] = {
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": "64M",
    "enforce_eager": True,
}
"""Boots in 13 s; the defaults take 33."""
CLOSE: Final = [
    "--structured-outputs-config",
    json.dumps({"backend": "xgrammar", "disable_any_whitespace": True}),
]
"""Random weights would else fill an answer with the white space that JSON allows."""
BOOT_SECONDS: Final = 600
"""For a machine under load: it is a hang that is ended."""
NAME: Final = "life"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


class Served(Agent):
    """An agent whose server is a process, with the folder that it keeps everything in."""

    def __init__(self, client: Client[Any], state_dir: Path, pid: int) -> None:
        super().__init__(client, [])
        self.state_dir = state_dir
        self.server = psutil.Process(pid)

    async def deploy(self, name: str, **flags: Any) -> Reply:
        """Start the tiny model on this machine."""
        reply = await self.call(
            "deploy_vllm", target="local", name=name, model=str(MODEL), **{**SMALL, **flags}
        )
        assert not reply.failed, reply
        return reply

    async def status(self, name: str, wait_s: float = 0) -> Reply:
        return await self.call("status_vllm", target="local", name=name, wait_s=wait_s)

    async def until(self, name: str, *wanted: str) -> tuple[Reply, list[str]]:
        """Wait for one of these states or phases; give what was gone through."""
        through: list[str] = []
        with anyio.fail_after(BOOT_SECONDS):
            while True:
                reply = await self.status(name, wait_s=20)
                now = reply.data.get("phase", {}).get("name", reply.state)
                through += [now] if now not in through[-1:] else []
                if now in wanted or reply.state in {"ready", "failed"}:
                    return reply, through


@asynccontextmanager
async def stdio(state_dir: Path, **environment: str) -> AsyncIterator[Served]:
    """Start a server over stdio and connect to it."""
    chosen = {
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "ENGINE": "real",
        "VLLM_EXECUTABLE": str(VLLM),
        "TOOLSETS": "all",
        "CONFIRM": "never",
    }
    transport = StdioTransport(
        sys.executable,
        [str(ROOT / "server.py")],
        env={**inherited_environment(), **chosen, **environment},
        keep_alive=False,
        log_file=state_dir.with_name(f"{state_dir.name}.log"),
    )
    before = {child.pid for child in psutil.Process().children()}
    async with Client(transport) as client:
        started = [child for child in psutil.Process().children() if child.pid not in before]
        assert len(started) == 1
        yield Served(client, state_dir, started[0].pid)


@pytest.fixture
async def served(state_dir: Path) -> AsyncIterator[Served]:
    """A server of this test's own; every engine of it is dead afterwards."""
    async with stdio(state_dir) as agent:
        yield agent


@pytest.fixture(scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One server for all that ask one deployment, which `test_tear_down` takes away."""
    state_dir = tmp_path_factory.mktemp("shared") / "state"
    try:
        async with stdio(state_dir) as agent:
            yield agent
    finally:
        for process in processes_of(state_dir):
            process.kill()


@pytest.fixture(scope="session")
async def phases(shared: Served) -> list[str]:
    """The states and phases of that deployment's boot."""
    deployed = await shared.deploy(NAME, engine_args=CLOSE)
    assert any("access=internal" in said for said in deployed.structured["warnings"]), deployed
    ready, through = await shared.until(NAME)
    assert ready.state == "ready", ready
    first = str(deployed.data["phase"]["name"])
    return through if through[0] == first else [first, *through]


@pytest.fixture
async def life(shared: Served, phases: list[str]) -> Served:
    """The agent of the shared server, whose model answers."""
    return shared


def engine_of(agent: Served) -> tuple[int, str]:
    """The port and the key of the shared deployment."""
    folder = folder_of(agent.state_dir, NAME)
    port = json.loads((folder / "deployment.json").read_text())["port"]
    return port, (folder / "api-key").read_text()
