"""What every test stands on: an empty world, no network, nothing left running."""

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from core.settings import Settings
from tests.conversation import Agent, agent_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setitem(Settings.model_config, "env_file", None)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            host = str(address[0])
            assert host.startswith("127.") or host in {"::1", "localhost"}, f"network: {host}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose processes are gone when the test is over."""
    folder = tmp_path / "state"
    yield folder
    for process in processes_of(folder):
        process.kill()
    psutil.wait_procs(processes_of(folder), timeout=5)


@pytest.fixture
def settings(state_dir: Path) -> Settings:
    """A server with every tool, on the simulated engine."""
    return Settings(
        vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",), confirm="never"
    )


@pytest.fixture
async def agent(settings: Settings) -> AsyncIterator[Agent]:
    async with agent_of(settings) as agent:
        yield agent


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every living process that has to do with a state folder: watchers and engines."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            files = process.cwd()
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if alive and (str(folder) in words or files.startswith(str(folder))):
            found.append(process)
    return found
