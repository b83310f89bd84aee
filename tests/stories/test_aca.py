"""A deployment's whole life on Container Apps, from an empty subscription to what is left."""

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import pytest

from tests.conversation import SETTLED, Agent, agent_of
from tests.soon import HANGS
from tests.stories.conftest import Azure
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

WISHES: Final[dict[str, dict[str, Any]]] = {
    "aca-a100": {"model": MODEL, "max_model_len": 4096},
    "aca-t4": {"model": MODEL, "max_model_len": 4096, "image": "docker.io/you/vllm-sm75:v0.32.0"},
}
"""The published vLLM has no tiles for such heads on a T4; an image of one's own may."""
SMALL = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "output_tokens": 4}
SCALE = 0.01
"""Real seconds of a simulated one, where a boot is told in minutes."""


@pytest.fixture
async def agent(bare_azure: Azure) -> AsyncIterator[Agent]:
    """An agent before an empty subscription; a human agrees to everything."""
    settings = bare_azure.settings.model_copy(update={"confirm": "ask"})
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        yield agent


async def looked_at(life: Life) -> None:
    """Health, details, metrics, an answer, a benchmark, logs."""
    assert (await life.call("verify_model_health")).data["healthy"]
    details = await life.call("get_model_details")
    assert details.data["max_model_len"] == 4096
    assert (await life.call("get_metrics")).data["metrics"]["requests_running"] == 0
    answer = await life.call("query_gemma4_with_stats", prompt="What is Gemma?", max_tokens=8)
    assert answer.data["completion_tokens"] == 8
    assert answer.data["timing"]["ttft_seconds"] > 0
    run = await life.call("run_benchmark", wait_s=40, **SMALL)
    assert run.data["state"] == "done", run
    assert (await life.call("get_logs", lines=50)).data["lines"]


@pytest.mark.parametrize("target", WISHES)
async def test_a_life_with_vllm(agent: Agent, bare_azure: Azure, target: str) -> None:
    """Plan, check, deploy, look, ask, measure, scale, stop, start, destroy, purge."""
    life = Life(agent, target)
    plan = await agent.call("plan_deployment", target=target, check=True, **WISHES[target])
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    await life.begins(**WISHES[target], ttl_minutes=30)
    await looked_at(life)
    await life.call("update_vllm_scaling", min_replicas=0, max_replicas=2)
    await life.becomes_one_of("ready", "asleep")
    await life.call("stop_vllm")
    assert (await life.becomes("stopped")).data["replicas"] == 0
    await life.call("start_vllm")
    await life.becomes_one_of("ready", "asleep")
    gone = await life.call("destroy_vllm")
    assert gone.data["gone"]
    listed = await agent.call("list_deployments")
    assert listed.data["deployments"] == []
    for reply in (gone, listed):
        assert "$25 a month" in reply.structured["summary"]
    step = listed.structured["next"][0]
    assert (await agent.call(step["tool"], **step["arguments"])).data["removed"]
    last = await agent.call("list_deployments")
    assert last.structured["summary"] == "Nothing is deployed; $0 an hour."
    left = bare_azure.get()
    assert not [one for one in left["replicas"] if one["ended"] is None]
    assert not [one for one in left["resources"] if "/microsoft.app/" in one.lower()]


async def test_a_question_wakes_what_sleeps_only_if_it_says_so(
    agent: Agent, bare_azure: Azure
) -> None:
    bare_azure.set(prepared=True, cooldown_scale=0.01)
    life = Life(agent, "aca-a100")
    await life.begins(max_model_len=4096)
    with anyio.fail_after(HANGS):
        while (await life.call("status_vllm", wait_s=5)).state != "asleep":
            continue
    refused = await agent.call("query_gemma4", target=life.target, name=life.name, prompt="Hello")
    assert refused.code == "ASLEEP"
    usual = r"t usually takes [\d,]+ s \(.* by the plan\) and costs about \$[\d.]+"
    assert re.search(usual, refused.text), refused
    woken = await life.call("query_gemma4", prompt="Hello", max_tokens=4, wake=True)
    assert woken.data["completion_tokens"] == 4


async def test_a_boot_of_26_minutes_is_watched_by_waits_of_45_seconds(
    agent: Agent, bare_azure: Azure
) -> None:
    """Told in hundredths: each wait ends in time and says what it waits for."""
    bare_azure.set(
        prepared=True, boot_seconds=26 * 60 * SCALE, probe_scale=SCALE, cooldown_scale=SCALE
    )
    life = Life(agent, "aca-a100")
    began = anyio.current_time()
    await life.call("deploy_vllm", model="31b", max_model_len=8192)
    phases: list[str] = []
    waits = 0
    with anyio.fail_after(HANGS):
        while (seen := await life.call("status_vllm", wait_s=45 * SCALE)).state not in SETTLED:
            waits += 1
            assert seen.data["phase"]["name"], seen
            phases += [seen.data["phase"]["name"]]
    assert seen.state == "ready", seen
    assert anyio.current_time() - began > 25 * 60 * SCALE
    assert waits >= 10
    assert len(set(phases)) >= 3, set(phases)
