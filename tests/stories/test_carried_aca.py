"""What vLLM compiles on Container Apps is carried on the share of weights, and how it goes."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.conversation import Agent, agent_of
from tests.soon import soon
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    WISH,
    asked,
    becomes,
    deploys,
    destroyed,
    orphans,
    refused,
    seen,
    trouble,
)

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

SLOW: Final = {"SIMULATED_ENGINE_BOOT_PHASES": '{"loading": 1.5, "compiling": 2.5}'}
SHARED: Final = {"weights": "hub:share"}
PLANNED: Final = {key: one for key, one in WISH.items() if key != "name"}
FOLDER: Final = "vllm-devops-cache/one"


async def said(agent: Agent) -> Sequence[str]:
    """Return what the program before the engine wrote, newest last."""
    found = await asked(agent, "get_logs", lines=200, contains="compile-cache")
    return [line.partition("compile-cache: ")[2] for line in found.data["lines"]]


async def says(agent: Agent, word: str) -> Sequence[str]:
    """Wait until its newest line begins so."""

    async def look() -> Sequence[str]:
        return await said(agent)

    def fits(lines: Sequence[str]) -> bool:
        return bool(lines) and lines[-1].startswith(word)

    return await soon(look, fits, waiting_for=word)


async def loads(agent: Agent) -> None:
    """Wait until vLLM itself says that it compiles nothing anew."""

    async def look() -> Sequence[str]:
        return list((await asked(agent, "get_logs", contains="from the cache, took")).data["lines"])

    await soon(look, waiting_for="a loaded cache")


async def caches(agent: Agent) -> list[dict[str, Any]]:
    """Return the compile caches that no deployment needs."""
    found = await agent.call("get_system_status", target="aca-a100", leftovers=True)
    assert not found.failed, found
    return [one for one in found.data["leftovers"] if one["kind"] == "compile cache"]


async def test_a_woken_replica_loads_what_the_first_boot_compiled(trouble: Azure) -> None:
    """With other flags it compiles again; what it left goes with it, and is seen to be gone."""
    async with agent_of(trouble.settings) as agent:
        plan = await agent.call("plan_deployment", **{**PLANNED, **SHARED})
        assert "/weights/vllm-devops-cache/" in str(plan.structured["warnings"]), plan
        trouble.set(engine_environment={"SIMULATED_ENGINE_TIME_SCALE": "0", **SLOW})
        await deploys(agent, **SHARED)
        await becomes(agent, "ready")
        assert [one.split()[0] for one in await says(agent, "saved")] == ["none", "saved"]
        await asked(agent, "stop_vllm")
        await becomes(agent, "stopped")
        await asked(agent, "start_vllm")
        await becomes(agent, "asleep")
        cold = (await becomes(agent, "asleep")).data["last_boot"]
        late = {"method": "GET logstream", "status": 503, "code": "ServiceUnavailable", "times": 3}
        trouble.set(faults=[late])
        await asked(agent, "query_gemma4", prompt="Hello", max_tokens=4, wake=True)
        woken = await asked(agent, "status_vllm")
        assert woken.data.get("last_boot") != cold, woken  # its own log comes late
        trouble.set(faults=[])
        warm = await seen(agent, lambda reply: "last_boot" in reply.data)
        assert warm.data["last_boot"] != cold
        await says(agent, "carried")
        await loads(agent)
        await deploys(agent, **SHARED, max_model_len=2048)
        await becomes(agent, "ready")
        assert [one.split()[0] for one in await says(agent, "saved")][-2:] == ["none", "saved"]
        gone = await destroyed(agent, trouble)
        assert any(FOLDER in one for one in gone.data["removed"]), gone
        assert await caches(agent) == []


async def test_a_kept_cache_is_named_with_its_price_and_removed_by_its_id(trouble: Azure) -> None:
    """A deployment of the same name begins warm with it."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, **SHARED)
        await becomes(agent, "ready")
        await says(agent, "saved")
        assert await caches(agent) == []
        gone = await asked(agent, "destroy_vllm", keep_cache=True)
        assert gone.data["gone"]
        [kept] = [one for one in gone.data["stays"] if FOLDER in one["what"]]
        assert kept["usd_per_month"] > 0
        await deploys(agent, **SHARED)
        await becomes(agent, "ready")
        assert (await says(agent, "carried"))[-1]
        assert (await asked(agent, "destroy_vllm", keep_cache=True)).data["gone"]
        [left] = await caches(agent)
        removed = await agent.call("destroy_vllm", target="aca-a100", leftover=left["id"])
        assert removed.data["gone"], removed
        assert await caches(agent) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"weights": "hub:disk"}, "weights=hub:share has one"),
        ({"weights": "files://models/gemma"}, "weights=hub:share has one"),
        ({**SHARED, "compile_cache": "off"}, "compile_cache=off"),
        ({**SHARED, "enforce_eager": True}, "enforce_eager"),
    ],
)
async def test_a_plan_says_why_nothing_is_carried(
    trouble: Azure, more: dict[str, Any], why: str
) -> None:
    async with agent_of(trouble.settings) as agent:
        plan = await agent.call("plan_deployment", **{**PLANNED, **more})
    [line] = [one for one in plan.structured["warnings"] if "nothing is carried" in one]
    assert why in line


@pytest.mark.parametrize(
    ("weights", "warmer"), [("hub:share", True), ("files://models/gemma", False)]
)
async def test_a_plan_foresees_a_shorter_later_boot_where_it_is_carried(
    trouble: Azure, weights: str, *, warmer: bool
) -> None:
    async with agent_of(trouble.settings) as agent:
        plan = await agent.call("plan_deployment", **PLANNED, weights=weights)
    assert (", then " in plan.text) is warmer, plan


async def test_a_cache_that_may_not_be_removed_stops_no_bill_from_ending(trouble: Azure) -> None:
    """The app is gone by then, and the answer says how to leave the rest."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, **SHARED)
        await becomes(agent, "ready")
        await says(agent, "saved")
        trouble.set(denied_actions=["Microsoft.Storage/storageAccounts/listKeys/action"])
        no = await refused(agent, "destroy_vllm", "PERMISSION_DENIED")
        assert "keep_cache=true" in no.structured["fix"], no
        assert orphans(trouble) == []
        assert (await asked(agent, "destroy_vllm", keep_cache=True)).data["gone"]
        trouble.set(denied_actions=[])
        assert len(await caches(agent)) == 1
        assert (await asked(agent, "destroy_vllm")).data["gone"]
        assert await caches(agent) == []
