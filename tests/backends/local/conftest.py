"""This machine, with a `vllm` that starts in a tenth of a second."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from backends.base import World
from backends.local.backend import LocalBackend
from backends.local.process import Folder
from core.records import Deployment, DeploymentSpec, State, Target
from core.settings import Settings
from planner.model import read_model
from tests.conftest import processes_of
from tests.soon import soon

TARGET = Target(name="local", backend="local", description="this machine", usd_per_hour=0.0)


class Machine:
    """The backend, the folders below it and the processes that belong to them."""

    def __init__(self, state_dir: Path, **settings: Any) -> None:
        self.root = state_dir / "local"
        program = state_dir.parent / "vllm"
        if not program.exists():
            fake = Path(__file__).with_name("fake_vllm.py")
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {fake} "$@"\n')
            program.chmod(0o700)
        wanted = {"engine": "real", "vllm_executable": str(program), **settings}
        self.world = World(Settings(**wanted), state_dir, ("nothing",))
        self.backend = LocalBackend(TARGET, self.world)

    def spec(self, mode: str = "ready", name: str = "one", **flags: Any) -> DeploymentSpec:
        return DeploymentSpec(name=name, model=f"fake/{mode}", **flags)

    async def apply(self, mode: str = "ready", name: str = "one", **flags: Any) -> Deployment:
        spec = self.spec(mode, name, **flags)
        return await self.backend.apply(self.backend.plan(spec, read_model(spec.model)))

    async def until(self, *states: State, name: str = "one") -> Deployment:
        """Look until it is in one of these states."""
        return await self.sees(lambda seen: seen.state in states, name=name)

    async def sees(self, good: Callable[[Deployment], bool], *, name: str = "one") -> Deployment:
        return await soon(lambda: self.backend.describe(name), good, waiting_for=name)

    async def says(self, words: str, *, name: str = "one") -> str:
        """Wait for words in an engine's log; give the whole log."""

        async def read() -> str:
            return self.folder(name).log.read_text()

        return await soon(read, lambda log: words in log, waiting_for=words)

    async def empties(self) -> None:
        """Wait until nothing of it lives; a killed process takes a moment to go."""

        async def living() -> list[psutil.Process]:
            return self.processes()

        await soon(living, lambda p: not p, waiting_for="its end")

    def folder(self, name: str = "one") -> Folder:
        return Folder(self.root / name)

    def processes(self) -> list[psutil.Process]:
        return processes_of(self.root.parent)


@pytest.fixture
def machine(state_dir: Path) -> Machine:
    return Machine(state_dir)
