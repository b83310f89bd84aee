"""Servers whose human says what a test says, in both protocol eras."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import pytest

from core.settings import Settings
from tests.conversation import Agent, Human, Reply, agent_of
from tests.tools.world import still_engine

Policy = Literal["ask", "token", "deny", "never"]
Open = Callable[..., AbstractAsyncContextManager[Agent]]

ONE: Final = {"target": "local", "name": "one"}


def yes(_question: str) -> str:
    return "accept"


@pytest.fixture(params=["legacy", "auto"])
def mode(request: pytest.FixtureRequest) -> str:
    """The protocol: up to 2025-11-25 a server asks, from 2026-07-28 it answers with a question."""
    return str(request.param)


@pytest.fixture
def opened(state_dir: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Connect to a server whose human, if it has one, says what the test says."""
    still_engine(monkeypatch)

    @asynccontextmanager
    async def connect(human: Human | None = None, policy: Policy = "ask") -> AsyncIterator[Agent]:
        settings = Settings(
            vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",), confirm=policy
        )
        async with agent_of(settings, human=human, mode=mode) as agent:
            yield agent

    return connect


def token_of(reply: Reply) -> str:
    """The token that a preview carries."""
    assert reply.code in {"CONFIRMATION_REQUIRED", "CONFIRMATION_STALE"}, reply
    return str(reply.data["confirm"])
