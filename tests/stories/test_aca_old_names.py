"""Whoever still speaks of a virtual machine on Azure is understood, and told what it is today."""

from typing import Any

import anyio
import pytest

from tests.conversation import SETTLED, Agent, Reply, agent_of
from tests.soon import HANGS
from tests.stories.conftest import Azure
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

MODEL = "google/gemma-4-E2B-it"


async def told(agent: Agent, tool: str, **arguments: Any) -> Reply:
    """Call by an old name: both halves are the same, and both say what it stands for."""
    reply = await agent.call(tool, **arguments)
    assert_envelope(reply)
    assert_same_facts(reply)
    assert [said for said in reply.structured["warnings"] if "no virtual machine" in said], reply
    return reply


async def watched(agent: Agent) -> Reply:
    """Look until the state stays; neither target nor name is needed."""
    with anyio.fail_after(HANGS):
        while True:
            reply = await told(agent, "status_azure_vm", wait_s=5)
            if reply.failed or reply.state in SETTLED:
                return reply


async def test_a_machine_of_old_is_seen_stopped_and_started(ready_azure: Azure) -> None:
    """It is the deployment on whichever target of Azure has one; starting it wants a yes.

    A few seconds: an engine boots twice.
    """
    settings = ready_azure.settings.model_copy(update={"toolsets": ()})
    async with agent_of(settings) as agent:
        wish = {"target": "aca-a100", "name": "one", "model": MODEL, "min_replicas": 1}
        deployed = await agent.call("deploy_vllm", **wish)
        assert not deployed.failed, deployed
        ready = await watched(agent)
        assert (ready.state, ready.data["target"], ready.data["name"]) == (
            "ready",
            "aca-a100",
            "one",
        )
        await told(agent, "stop_azure_vm")
        assert (await watched(agent)).state == "stopped"
    async with agent_of(settings.model_copy(update={"confirm": "token"})) as agent:
        preview = await told(agent, "start_azure_vm")
        assert preview.code == "CONFIRMATION_REQUIRED"
        started = await told(agent, "start_azure_vm", confirm=preview.data["confirm"])
        assert not started.failed, started
        assert (await watched(agent)).state in {"ready", "asleep"}
