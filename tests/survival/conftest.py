"""Engines that stop where a test wants them."""

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.environment import ROOT
from core.settings import Settings
from tests.survival.servers import template

_ENGINE = """\
#!/bin/sh
# Boots as far as its deployment's name says; with a worker of its own if the name ends in that.
export PYTHONPATH={root} SIMULATED_ENGINE_BOOT_SECONDS=0
name=$(basename "$PWD")
case $name in
    ready*) ;;
    *) export SIMULATED_ENGINE_FAIL="never-ready@$name" ;;
esac
case $name in *worker) sleep 1000 & ;; esac
exec {python} -m simulators.engine "$@"
"""


@pytest.fixture(scope="session", autouse=True)
def _one_template() -> Iterator[None]:
    yield
    if template.cache_info().currsize:
        template().door.close()


@pytest.fixture(autouse=True)
def _boots_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")


@pytest.fixture
def halting_engine(tmp_path: Path) -> str:
    """A `vllm` that is the simulated engine and halts in the phase its deployment is named for."""
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(_ENGINE.format(root=ROOT, python=sys.executable))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture
def halting(state_dir: Path, halting_engine: str) -> Settings:
    """A server whose engines are those."""
    return Settings(
        vllm_devops_state_dir=state_dir,
        engine="real",
        vllm_executable=halting_engine,
        toolsets=("all",),
        confirm="never",
    )
