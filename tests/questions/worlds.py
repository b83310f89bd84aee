"""The worlds in which first lines are judged, one after the other on one stage."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from fastmcp import Client
from mcp.types import Implementation

from core.settings import Settings
from server import build
from tests.conversation import Agent
from tests.questions.figures import E4B, FASTER, FOUR_CHIPS, L4, QAT, dollars_an_hour
from tests.questions.planted import measured
from tests.stories.conftest import Azure, Cloud
from tests.tools.world import hurry

MODEL: Final = "google/gemma-4-E2B-it"
ASKED_BY: Final = Implementation(name="asked-by", version="2.1")
_L4_FLAGS: Final[dict[str, Any]] = {"max_num_seqs": 4, "kv_cache_dtype": "fp8"}
_DEPLOYED: Final[tuple[tuple[str, str, dict[str, Any]], ...]] = (
    ("cloud", L4, {"model": "12b qat", "max_model_len": 8192, **_L4_FLAGS}),
    ("tpu", "tpu-v6e-4", {"model": "12b", "max_model_len": 8192}),
)
_DEFAULT_PROFILE: Final[dict[str, Any]] = {"toolsets": (), "confirm": "ask"}


class World(NamedTuple):
    """What there is, and the server that is asked about it."""

    name: str
    settings: Settings


@asynccontextmanager
async def agent_on(settings: Settings, **changes: Any) -> AsyncIterator[Agent]:
    """Connect to a server of these settings under a name of one's own."""
    server = build(settings.model_copy(update=changes))
    async with Client(server, client_info=ASKED_BY) as client:
        yield Agent(client, [])


def _without_asking(settings: Settings) -> AbstractAsyncContextManager[Agent]:
    return agent_on(settings, confirm="never")


async def worlds(cloud: Cloud, azure: Azure, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Yield each world while it is there; the caller asks, and then takes the next."""
    folder = Path(str(cloud.settings.vllm_devops_state_dir))
    async for world in _on_clouds(cloud, azure, folder):
        yield world
    patch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")
    hurry(patch)
    async for world in _on_this_machine(folder, patch):
        yield world
    yield World("measured", _local(_with_runs(folder / "measured")))


async def _on_clouds(cloud: Cloud, azure: Azure, folder: Path) -> AsyncIterator[World]:
    both = {"azure_subscription_id": azure.subscription, **_DEFAULT_PROFILE}
    settings = cloud.settings.model_copy(update=both)

    def at(place: str) -> Settings:
        return settings.model_copy(update={"vllm_devops_state_dir": folder / place})

    yield World("bare", at("bare"))
    cloud.set(prepared=True)
    azure.set(prepared=True)
    for world, target, wish in _DEPLOYED:
        there = {"target": target, "name": "one"}
        async with _without_asking(at(world)) as agent:
            deployed = await agent.call("deploy_vllm", **there, **wish)
            assert not deployed.failed, deployed
            assert (await agent.settled("one", target=target)).state == "ready"
        yield World(world, at(world))
        async with _without_asking(at(world)) as agent:
            assert not (await agent.call("destroy_vllm", **there)).failed
    yield World("nothing", at("nothing"))


async def _on_this_machine(folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    patch.setenv("SIMULATED_ENGINE_FAIL", "hub-gated")
    failed = _local(folder / "failed")
    async with _without_asking(failed) as agent:
        assert not (await agent.call("deploy_vllm", model=MODEL, name="one")).failed
        assert (await agent.settled("one")).state == "failed"
    yield World("failed", failed)
    patch.delenv("SIMULATED_ENGINE_FAIL")
    async for world in _of_one_life(_local(folder / "life")):
        yield world
    patch.setenv("SIMULATED_ENGINE_BOOT_PHASES", '{"loading": 600}')
    loading = _local(folder / "loading")
    async with _without_asking(loading) as agent:
        assert not (await agent.call("deploy_vllm", model=MODEL, name="one")).failed
        seen = await agent.call("status_vllm", wait_s=30)
        assert seen.data["phase"]["name"] == "loading weights", seen
    yield World("loading", loading)


async def _of_one_life(settings: Settings) -> AsyncIterator[World]:
    async with _without_asking(settings) as agent:
        await agent.serve("one")
        assert not (await agent.call("query_gemma4", prompt="Hello", max_tokens=8)).failed
    yield World("ready", settings)
    yield World("read-only", settings.model_copy(update={"read_only": True}))
    async with _without_asking(settings) as agent:
        await agent.call("stop_benchmark")
        assert not (await agent.call("stop_vllm")).failed
        assert (await agent.settled("one")).state == "stopped"
    yield World("stopped", settings)
    async with _without_asking(settings) as agent:
        assert not (await agent.call("destroy_vllm", name="one")).failed
    yield World("gone", settings)


def _local(folder: Path) -> Settings:
    return Settings(vllm_devops_state_dir=folder, engine="simulated", **_DEFAULT_PROFILE)


def _with_runs(folder: Path) -> Path:
    for hour, (model, target, times) in enumerate(_runs(), start=12):
        chips = target.removeprefix("tpu-v6e-")
        measured(
            folder,
            f"20261121-{hour}0000-quick-one",
            model=model,
            target=target,
            times=times,
            accelerator="L4" if chips == target else "v6e",
            accelerator_count=int(chips) if chips.isdecimal() else 1,
            usd_per_hour=dollars_an_hour(model, target),
        )
    return folder


def _runs() -> Iterator[tuple[str, str, float]]:
    """Give model, target and how many times as fast as the law, the oldest run first."""
    yield MODEL, "tpu-v6e-1", 1.0
    yield MODEL, "tpu-v6e-4", FOUR_CHIPS
    yield "google/gemma-4-26B-A4B-it", "ec2-g6-2xlarge", 1.0
    yield "google/gemma-4-26B-A4B-it-qat-w4a16-ct", "ec2-g6-2xlarge", QAT
    yield E4B, L4, 1.0
    yield E4B, L4, FASTER
