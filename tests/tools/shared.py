"""Fixtures for tests through the front door; each folder's conftest imports them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from core.settings import Settings
from tests.conftest import end_all
from tests.conversation import Agent, agent_of
from tests.tools.calls import MODEL
from tests.tools.world import hurry, plant_runs


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture(scope="session")
def served_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder with a deployment `one` that is ready; tests only look at it."""
    folder = tmp_path_factory.mktemp("served") / "state"
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        anyio.run(_serve, _settings(folder))
    plant_runs(folder)
    yield folder
    end_all(folder)


@pytest.fixture
def served_settings(served_dir: Path) -> Settings:
    return _settings(served_dir)


@pytest.fixture
async def served(served_settings: Settings) -> AsyncIterator[Agent]:
    """A server, newly started, that finds the deployment `one` ready."""
    async with agent_of(served_settings) as agent:
        yield agent


def _settings(folder: Path) -> Settings:
    return Settings(
        vllm_devops_state_dir=folder, engine="simulated", toolsets=("all",), confirm="never"
    )


async def _serve(settings: Settings) -> None:
    async with agent_of(settings) as agent:
        await agent.serve(
            "one", model=MODEL, engine_args=["--reasoning-parser", "gemma4", "--max-log-len=9"]
        )
