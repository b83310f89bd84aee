"""A deployment with a lease whose server is killed, and the machine that looks at it then."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from core.settings import Settings
from tests.conversation import Agent
from tests.soon import soon
from tests.survival.servers import MODEL, Server, ServerDied

WISH: Final[Mapping[str, Any]] = {
    "name": "one",
    "model": MODEL,
    "max_model_len": 4096,
    "min_replicas": 1,
}


def elsewhere(tmp_path: Path, **clouds: Any) -> Settings:
    """Return the settings of another machine, with the same account of a simulated cloud."""
    return Settings(
        rehearsal=True,
        vllm_devops_state_dir=tmp_path / "elsewhere",
        toolsets=("all",),
        confirm="never",
        **clouds,
    )


async def deploy_if_alive(one: Server, wish: Mapping[str, Any]) -> None:
    """Deploy by a server that may die meanwhile."""
    with suppress(ServerDied):
        await one.call("deploy_vllm", **wish)


async def sees(agent: Agent, target: str, state: str) -> None:
    """Wait until an agent is told this state."""

    async def look() -> str | None:
        return (await agent.call("status_vllm", target=target, name="one")).state

    await soon(look, state.__eq__, waiting_for=state)
