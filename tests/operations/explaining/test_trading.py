"""The trade-offs of a deployment: what moves it does move it, and is possible there."""

import re
from typing import Final

import pytest

from core.records import DeploymentSpec
from operations.explain import trade_offs
from operations.explain_case import Case
from planner.model import read_model
from planner.places import place
from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Azure, Cloud, bare_azure, bare_cloud, cloud, ready_azure

pytestmark = pytest.mark.anyio

__all__ = ["bare_azure", "bare_cloud", "cloud", "ready_azure"]

MODEL: Final = "google/gemma-4-E2B-it"
BOOT: Final = "a quick boot against speed once it runs"
COST: Final = "readiness against cost"


def to_move(where: str, between: str, **flags: object) -> str:
    """Say what moves a deployment of E2B there between two things."""
    spec = DeploymentSpec.model_validate({"name": "one", "model": MODEL, **flags})
    case = Case(spec, read_model(MODEL), place(where), usd_per_hour=2.7)
    return {one.between: one.to_move for one in trade_offs(case, "yes")}[between]


async def explained(agent: Agent, target: str, **wish: object) -> Reply:
    """Deploy there, and explain it."""
    wish = {"model": MODEL, "max_model_len": 4096, "ttl_minutes": 60, **wish}
    deployed = await agent.call("deploy_vllm", target=target, name="one", **wish)
    assert not deployed.failed, deployed
    ready = await agent.settled("one", target=target)
    assert ready.state == "ready", ready
    return await agent.call("explain_deployment")


async def test_what_a_chip_is_told_to_do_can_be_done(bare_cloud: Cloud) -> None:
    """stop_vllm is not advised where it answers that it cannot, while the bill goes on."""
    async with agent_of(bare_cloud.settings) as agent:
        await agent.call("setup_target", target="tpu-v6e-1")
        reply = await explained(agent, "tpu-v6e-1", zones=["us-east5-b"])
        stopped = await agent.call("stop_vllm", target="tpu-v6e-1", name="one")
    assert stopped.code == "UNSUPPORTED"
    assert "stop_vllm" not in reply.text
    assert "until it is stopped" not in reply.text
    moves = {one["between"]: one["to_move"] for one in reply.data["trade_offs"]}
    assert moves[COST].startswith("destroy_vllm or a ttl_minutes")


@pytest.mark.parametrize(
    ("where", "plane", "first"),
    [
        ("local", "auto", "stop_vllm"),
        ("tpu-v6e-1", "queued", "stop_vllm"),
        ("tpu-v6e-1", "compute", "destroy_vllm"),
        ("tpu-v6e-1-spot", "queued", "destroy_vllm"),
    ],
)
def test_a_chip_is_stopped_where_the_queue_can_start_it_again(
    where: str, plane: str, first: str
) -> None:
    """Neither Compute Engine nor spot chips can."""
    assert to_move(where, COST, control_plane=plane).startswith(first)


def test_a_move_that_changes_nothing_is_left_out() -> None:
    """A TPU boots as long with enforce_eager as without, as far as anybody knows."""
    assert "enforce_eager" not in to_move("tpu-v6e-1", BOOT)
    assert "enforce_eager on: " in to_move("cloud-run-l4", BOOT)


def test_what_would_be_possible_is_no_reason_against_itself() -> None:
    """The note of an fp8 cache is told only where it says why there is none."""
    between = "precision against memory"
    here = to_move("local", between, engine_args=("--kv-cache-memory-bytes=4G",))
    assert here == "only smaller weights"
    assert "needs SM 8.9" in to_move("aca-t4", between)


async def test_what_sleeps_is_not_said_to_cost_nothing_at_once(ready_azure: Azure) -> None:
    """It bills on for as long after its last request as deploying it warns of."""
    async with agent_of(ready_azure.settings) as agent:
        wish = {"target": "aca-a100", "name": "one", "model": MODEL, "min_replicas": 0}
        deployed = await agent.call("deploy_vllm", max_model_len=4096, **wish)
        await agent.settled("one", target="aca-a100")
        reply = await agent.call("explain_deployment")
    warned = re.search(r"stays for (\d+ min) after its last request(, \$\d+\.\d+)", deployed.text)
    assert warned, deployed
    told = f"nothing once {warned[1]} after the last request are over{warned[2]} each time"
    assert reply.text.count(told) >= 2


async def test_an_instance_of_cloud_run_stays_for_a_quarter_of_an_hour(cloud: Cloud) -> None:
    """As the note says which waking it leaves."""
    async with agent_of(cloud.settings) as agent:
        reply = await explained(agent, "cloud-run-l4", min_replicas=0)
    assert "nothing once 15 min after the last request are over, $" in reply.text
