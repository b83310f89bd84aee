"""A real vLLM behind a real `python server.py`, spoken to over stdio."""

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

MODEL: Final = ROOT / ".vllm" / "tiny-gemma-4"
VLLM: Final = ROOT / ".vllm" / "bin" / "vllm"
SMALL: Final[dict[str, Any]] = {
    "max_model_len": 2048,
    "max_num_seqs": 64,
    "kv_cache_memory_bytes": "64M",
    "enforce_eager": True,
}
"""Boots in 13 s; the defaults take 33."""
BOOT_SECONDS: Final = 240


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One server for a module, and what it deployed."""
    state_dir = tmp_path_factory.mktemp("shared") / "state"
    try:
        async with stdio(state_dir) as agent:
            yield agent
    finally:
        for process in processes_of(state_dir):
            process.kill()
