"""A server that may only look, beside chips and a search that another server has left."""

from typing import Any, Final

import anyio
import pytest

from tests.conversation import Agent, agent_of
from tests.soon import soon
from tests.stories.chips import HERE, calls, changes
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life
from tests.tools.calls import CHANGING, LOOKING
from tests.tools.world import snapshot

pytestmark = pytest.mark.anyio

WAITS: Final = "us-east5-a"
ONE: Final = {"target": "tpu-v6e-1", "name": "one"}
TWO: Final = {"target": "tpu-v6e-1-spot", "name": "two"}
WISH: Final = {"model": MODEL, "max_model_len": 4096}
LEFTOVER: Final = "vllm-devops-two"
CHANGES: Final[dict[str, dict[str, Any]]] = {
    **CHANGING,
    "setup_target": {},
    "save_hf_token": {"token": f"hf_{'a' * 34}"},
    "manage_queued_resource": {"action": "delete"},
    "destroy_queued_resource": {},
    "run_benchmark": {},
}
_SHOWN: Final = 2.0
"""Seconds in which a server that may write would long have gone on."""


@pytest.fixture
async def left_alone(cloud: Cloud) -> Cloud:
    """One serves and one waits in the queue; whoever made them is gone, and the wait is over."""
    cloud.set(tpu_zones={WAITS: {"free": 0}, HERE: {}})
    async with agent_of(cloud.settings) as agent:
        here = {"zones": [HERE], "control_plane": "compute", "ttl_minutes": 0}
        await agent.call("deploy_vllm", **ONE, **WISH, **here)
        more = {"zones": [WAITS], "control_plane": "queued", "zone_wait_minutes": 60}
        cloud.set(tpu_clock=600)
        await Life(agent, ONE["target"], at="https://127.77.").becomes("ready")
        two = await agent.call("deploy_vllm", **TWO, **WISH, **more)
        assert two.state == "queued", two
    await _comes_to(cloud, "WAITING_FOR_RESOURCES")
    cloud.set(tpu_clock=1e6)
    await _comes_to(cloud, "FAILED")
    return cloud


async def test_all_is_shown_and_nothing_is_written_or_changed(left_alone: Cloud) -> None:
    """Though the search's next step is due, which the next server that may takes at once."""
    folder = left_alone.settings.vllm_devops_state_dir
    assert folder
    before, first = snapshot(folder), len(calls(left_alone))
    reader = left_alone.settings.model_copy(update={"read_only": True})
    async with agent_of(reader) as agent:
        await _shows_both(agent)
        await _looks_at(agent)
        with anyio.move_on_after(_SHOWN):
            while True:
                two = await agent.call("status_vllm", **TWO, wait_s=1)
                assert two.state == "queued", two
        await _refuses(agent)
    made = calls(left_alone, since=first)
    assert {"google.cloud.tpu.v2.Tpu/ListQueuedResources", "compute.instances.get"} <= set(made)
    assert changes(made) == []
    assert snapshot(folder) == before
    async with agent_of(left_alone.settings) as agent:
        two = await Life(agent, TWO["target"], TWO["name"]).becomes("failed")
        assert two.data["failure"]["code"] == "NO_CAPACITY"
    assert "google.cloud.tpu.v2.Tpu/DeleteQueuedResource" in calls(left_alone, since=first)


async def _shows_both(agent: Agent) -> None:
    listed = await agent.call("list_deployments")
    rows = {row["name"]: row["state"] for row in listed.data["deployments"]}
    assert rows == {"one": "ready", "two": "queued"}, listed
    queue = await agent.call("list_queued_resources")
    leftovers = {row["deployment"]: row["leftover"] for row in queue.data["resources"]}
    assert leftovers == {"one": False, "two": True}, queue
    zones = await agent.call("get_zones_with_available_quota", target=ONE["target"])
    assert {row["zone"]: row["usable"] for row in zones.data["zones"]}[HERE], zones
    quotas = await agent.call("check_gpu_quotas", target=ONE["target"])
    assert quotas.data["quotas"], quotas
    asked = await agent.call("query_gemma4", **ONE, prompt="Hello", max_tokens=4)
    assert asked.data["completion_tokens"] == 4
    logs = await agent.call("get_logs", **ONE, lines=50)
    assert logs.data["lines"], logs
    plan = await agent.call(
        "plan_deployment", model=MODEL, target=ONE["target"], check=True, zones=[HERE]
    )
    assert plan.data["checks"], plan
    shown = await agent.call("describe_queued_resource", name="two")
    assert shown.data["resources"][0]["id"] == LEFTOVER


async def _looks_at(agent: Agent) -> None:
    """Call all that looks, of either: whether it answers or not, nothing is done."""
    for one in (ONE, TWO):
        for tool, said in LOOKING.items():
            takes = {} if "target" in said or tool in _GENERAL else one
            await agent.call(tool, **takes, **said)


_GENERAL: Final = frozenset(
    tool
    for tool in LOOKING
    if tool.startswith(("list_", "compare_", "recommend_", "get_h", "get_benchmark", "get_vertex"))
    or tool in {"get_system_status", "get_vllm_gpu_deployment_config"}
)


async def _refuses(agent: Agent) -> None:
    for tool, said in CHANGES.items():
        refused = await agent.call(tool, **{**TWO, **said})
        assert refused.code == "READ_ONLY", (tool, refused)


async def _comes_to(cloud: Cloud, state: str) -> None:
    """Wait until every request of the queue is in this state."""

    async def states() -> set[str]:
        return set(cloud.controls.get(cloud.project)["queued_resources"].values())

    await soon(states, {state}.__eq__, waiting_for=state)
