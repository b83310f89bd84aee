"""A client that knows nothing: it calls what the answer before named, and so leads a whole life."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from core.settings import Settings
from tests.conversation import Agent, Human, Reply, agent_of
from tests.stories.chips import left
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import MODEL

pytestmark = pytest.mark.anyio

TARGETS: Final = ("local", "cloud-run-l4", "aca-a100", "tpu-v6e-1")
_LONGEST_SECONDS: Final = 180.0
_MOST_CALLS: Final = 120
_QUESTION: Final = "query_gemma4"


class Walker:
    """Calls only what the last answer offered: the first of it, or what leads to where it goes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._listed: Mapping[str, Any] = {}
        self.walked: list[str] = []
        """What was called, in order."""

    async def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool that the client sees listed, with all that it needs."""
        if not self._listed:
            tools = await self._agent.client.list_tools()
            self._listed = {one.name: one.input_schema for one in tools}
        assert tool in self._listed, (tool, self.walked)
        assert set(self._listed[tool].get("required", ())) <= set(arguments), (tool, arguments)
        self.walked.append(tool)
        assert len(self.walked) < _MOST_CALLS, self.walked
        return await self._agent.brief(tool, **arguments)

    async def follow(self, reply: Reply, *goals: str) -> Reply:
        """Take the first step that an answer offers, or the one that is called as a goal is."""
        steps = reply.structured["next"]
        assert steps, reply
        step = next((one for one in steps if one["tool"] in goals), steps[0])
        return await self.call(step["tool"], **step["arguments"])


async def _walks(agent: Agent, target: str) -> list[str]:
    """From nothing to ready, a question, and back to nothing."""
    walker = Walker(agent)
    with anyio.fail_after(_LONGEST_SECONDS):
        reply = await walker.call("deploy_vllm", model=MODEL, target=target)
        while walker.walked[-1] != _QUESTION:
            reply = await walker.follow(reply)
        assert not reply.failed, reply
        while walker.walked[-1] != "list_deployments":
            reply = await walker.follow(reply, "destroy_vllm")
    assert reply.structured["summary"].startswith("Nothing is deployed"), (reply, walker.walked)
    return walker.walked


@asynccontextmanager
async def _new_user(settings: Settings, human: Human | None) -> AsyncIterator[Agent]:
    """Somebody with the tools that are listed by default, and a question before what is paid."""
    new = settings.model_copy(update={"toolsets": (), "confirm": "ask", "engine": "simulated"})
    async with agent_of(new, human=human) as agent:
        yield agent


@pytest.mark.parametrize(
    ("target", "asked"), [*((target, False) for target in TARGETS), ("aca-a100", True)]
)
async def test_following_next_leads_from_nothing_to_nothing(
    request: pytest.FixtureRequest, target: str, *, asked: bool
) -> None:
    """The model and the target are all that is chosen; a human only says yes."""
    cloud: Cloud | Azure = request.getfixturevalue(
        "bare_azure" if target.startswith("aca") else "bare_cloud"
    )
    human: Human | None = (lambda _question: "accept") if asked else None
    async with _new_user(cloud.settings, human) as agent:
        walked = await _walks(agent, target)
        assert bool(agent.asked) == asked, walked
    if isinstance(cloud, Cloud):
        assert cloud.is_empty()
        assert left(cloud) == []
    else:
        billed = ("/containerapps/", "/storageaccounts/")  # the rest below an app costs nothing
        there = [one.lower() for one in cloud.get()["resources"]]
        assert [one for one in there if any(kind in one for kind in billed)] == []


@pytest.mark.parametrize("target", ["cloud-run-l4", "tpu-v6e-1"])
async def test_where_an_api_is_off_the_next_step_enables_it(bare_cloud: Cloud, target: str) -> None:
    """Of each tool, in a project in which nothing was ever made; it named none."""
    async with _new_user(bare_cloud.settings, lambda _question: "accept") as agent:
        for tool in ("list_deployments", "status_vllm", "get_logs", "verify_model_health"):
            reply = await agent.call(tool, target=target)
            assert reply.code == "API_DISABLED", reply
            (step,) = reply.structured["next"]
            assert step == {"tool": "setup_target", "arguments": {"target": target}}
        await agent.call(step["tool"], **step["arguments"])
        assert not (await agent.call("list_deployments", target=target)).failed
