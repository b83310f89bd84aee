"""A deployment's whole life on Cloud TPU, by each provisioning model and either control plane."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conversation import Agent, agent_of
from tests.stories.chips import HERE, left, watched
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

WAYS = ("tpu-v6e-1", "tpu-v6e-4-spot", "tpu-v6e-8-flex")
PLANES = ("queued", "compute")


@pytest.fixture
async def agent(bare_cloud: Cloud) -> AsyncIterator[Agent]:
    """An agent before an empty project; a human agrees to everything."""
    settings = bare_cloud.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        yield agent


@pytest.mark.parametrize("control_plane", PLANES)
@pytest.mark.parametrize("target", WAYS)
async def test_a_life(agent: Agent, bare_cloud: Cloud, target: str, control_plane: str) -> None:
    """Set up, plan, check, find a zone, deploy, look, ask, measure, destroy; nothing is left."""
    prepared = await agent.call("setup_target", target=target)
    assert not prepared.failed, prepared
    chosen: dict[str, Any] = {"control_plane": control_plane, "zones": [HERE]}
    plan = await agent.call("plan_deployment", model=MODEL, target=target, check=True, **chosen)
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    zones = await agent.call("get_zones_with_available_quota", target=target)
    [here] = [row for row in zones.data["zones"] if row["zone"] == HERE]
    is_usable = (
        None if target.endswith("flex") else True
    )  # which zones take flex-start was not seen
    assert here.get("usable") == is_usable, zones
    life = Life(agent, target, at="https://127.77.")
    await life.begins(max_model_len=4096, ttl_minutes=60, **chosen)
    await _serves(life)
    now = await life.call("status_vllm")
    assert HERE in " ".join(now.data["resources"].values())
    assert now.data["expires_at"]
    listed = await agent.call("list_queued_resources", target=target)
    assert [row for row in listed.data["resources"] if row["ours"] and row["deployment"] == "one"]
    await life.ends()
    assert left(bare_cloud) == []


async def _serves(life: Life) -> None:
    assert (await life.call("verify_model_health")).data["healthy"]
    details = await life.call("get_model_details")
    assert details.data["max_model_len"] == 4096
    metrics = await life.call("get_metrics")
    assert metrics.data["metrics"]["requests_running"] == 0
    answer = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=8)
    assert answer.data["completion_tokens"] == 8
    small = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "output_tokens": 4}
    run = await life.call("run_benchmark", wait_s=40, **small)
    assert run.data["state"] == "done", run
    assert (await life.call("get_logs", lines=50)).data["lines"]


async def test_the_first_chip_of_six_zones_is_in_the_fifth(agent: Agent, bare_cloud: Cloud) -> None:
    """Each zone has a reason of its own; every one of them is told, and nothing is left there."""
    zones = {
        "us-south1-a": {"accelerators": []},
        "us-central1-b": {"accepts": ["spot"]},
        "us-east1-d": {"free": 0},
        "us-east5-a": {},
        "europe-west4-a": {},
        "us-east5-b": {},
    }
    bare_cloud.set(tpu_zones=zones, tpu_quotas={"tpu@us-east5-a": 0, "compute@us-east5": 0})
    assert not (await agent.call("setup_target", target="tpu-v6e-4")).failed
    life = Life(agent, "tpu-v6e-4", at="https://127.77.")
    await life.call(
        "deploy_vllm", model=MODEL, max_model_len=4096, zones=list(zones), zone_wait_minutes=5
    )
    ready, told = await watched(life)
    assert ready.state == "ready", ready
    assert "europe-west4-a" in str(ready.data["resources"])
    for zone in list(zones)[:4]:
        assert any(zone in said for said in told), (zone, told)
    after = await agent.call("get_zones_with_available_quota", target="tpu-v6e-4")
    seen = {row["zone"]: row for row in after.data["zones"]}
    assert seen["europe-west4-a"]["outcomes"][0]["outcome"] == "GIVEN", seen
    await life.ends()
    assert left(bare_cloud) == []


async def test_a_wait_of_two_hours_is_told_call_by_call(agent: Agent, cloud: Cloud) -> None:
    """It is never called ready or failed meanwhile; what is waited for, and until when, is said."""
    cloud.set(tpu_zones={HERE: {"wait_seconds": 7200}}, tpu_clock=1200)
    life = Life(agent, "tpu-v6e-1-flex", at="https://127.77.")
    wish = {"zones": [HERE], "control_plane": "queued", "zone_wait_minutes": 180}
    wish["ttl_minutes"] = 10080  # in simulated time as well
    first = await life.call("deploy_vllm", model=MODEL, max_model_len=4096, **wish)
    assert first.state == "queued", first
    calls = 0
    while (now := await life.call("status_vllm", wait_s=1)).state == "queued":
        calls += 1
        assert now.data["phase"]["name"] == "waiting for a chip"
        assert HERE in now.data["phase"]["detail"]
        assert not now.data["replicas"]
        assert not now.data.get("usd_so_far")
    assert calls >= 2
    await life.becomes("ready")
    await life.ends()
    assert left(cloud) == []


async def test_a_search_outlives_its_server_and_the_next_one_goes_on_with_it(
    cloud: Cloud,
) -> None:
    """Nobody calls anything: it is resumed by itself (kill -9: `tests/survival`)."""
    cloud.set(tpu_zones={"us-east5-a": {"free": 0}, HERE: {}}, tpu_clock=600)
    wish = {"target": "tpu-v6e-1", "name": "one", "model": MODEL, "max_model_len": 4096}
    more = {"zones": ["us-east5-a", HERE], "control_plane": "queued", "zone_wait_minutes": 30}
    async with agent_of(cloud.settings) as agent:
        told = await agent.call("deploy_vllm", **wish, **more)
        assert told.state == "queued", told
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, "tpu-v6e-1", at="https://127.77.")
        ready, _ = await watched(life)
        assert ready.state == "ready", ready
        assert len(cloud.controls.get(cloud.project)["tpus"]) == 1
        await life.ends()
    assert left(cloud) == []
