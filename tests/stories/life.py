"""One deployment, led through its life by an agent."""

from collections.abc import Mapping
from typing import Any, Final

import anyio

from core.settings import REHEARSAL
from tests.conversation import SETTLED, Agent, Reply
from tests.soon import HANGS

MODEL: Final = "google/gemma-4-E2B-it"


class Life:
    """One deployment on one target."""

    def __init__(
        self, agent: Agent, target: str, name: str = "one", *, at: str = "http://127.0.0.1:"
    ) -> None:
        self.agent, self.target, self.name, self._at = agent, target, name, at

    async def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool for this deployment and see that it went well."""
        reply = await self.agent.call(tool, target=self.target, name=self.name, **arguments)
        assert not reply.failed, reply
        assert reply.structured["warnings"][0] == REHEARSAL
        return reply

    async def becomes(self, state: str) -> Reply:
        """Watch it until its state stays."""
        return await self.becomes_one_of(state)

    async def becomes_one_of(self, *states: str) -> Reply:
        """Watch it until its state stays, and is one of these."""
        with anyio.fail_after(HANGS):
            while True:
                reply = await self.call("status_vllm", wait_s=10)
                if reply.state in SETTLED:
                    assert reply.state in states, reply
                    return reply

    async def begins(self, model: str = MODEL, **flags: Any) -> None:
        """Set the project up, plan, check, deploy, and see it ready."""
        prepared = await self.agent.call("setup_target", target=self.target)
        assert not prepared.failed, prepared
        await self.call("deploy_vllm", model=model, **flags)
        ready = await self.becomes("ready")
        assert ready.data["url"].startswith(self._at)

    async def sleeps_and_wakes(self) -> None:
        """Stop it, start it, and wake it with a question that says so."""
        await self.call("stop_vllm")
        stopped = await self.becomes("stopped")
        assert stopped.data["replicas"] == 0
        await self.call("start_vllm")
        await self.becomes("asleep")
        refused = await self.agent.call(
            "query_gemma4", target=self.target, name=self.name, prompt="Hello"
        )
        assert refused.code == "ASLEEP"
        woken = await self.call("query_gemma4", prompt="Hello", max_tokens=4, wake=True)
        assert woken.data["completion_tokens"] == 4

    async def ends(self) -> None:
        """Remove it and see that nothing is left."""
        gone = await self.call("destroy_vllm")
        assert gone.data["gone"]
        assert (await self.agent.call("list_deployments")).data["deployments"] == []


async def both_deploy(one: Agent, other: Agent, wish: Mapping[str, Any]) -> None:
    """Let two agents deploy the same at once: one of them does, the other may be told to wait."""
    replies: list[Reply] = []

    async def deploy(agent: Agent) -> None:
        replies.append(await agent.call("deploy_vllm", **wish))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deploy, one)
        tasks.start_soon(deploy, other)
    assert not all(reply.failed for reply in replies), replies
    for reply in replies:
        assert not reply.failed or (reply.structured["retryable"] and reply.structured["fix"])
