"""Deployments that would not fit are refused with what would; layouts are computed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from backends.base import World
from backends.local.backend import LocalBackend
from core.records import DeploymentSpec
from core.settings import Settings
from operations.planning import with_usual_length
from planner.model import read_model
from planner.places import Accelerator, accelerators
from tests.backends.local.conftest import TARGET
from tests.conftest import processes_of
from tests.conversation import Agent, Human, Reply, agent_of
from tests.tools.world import assert_envelope, assert_same_facts, still_engine

pytestmark = pytest.mark.anyio


@pytest.fixture
def l4(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """This machine rehearses an L4; its engine is a process that does nothing."""
    still_engine(monkeypatch)
    return settings.model_copy(update={"accelerator_type": "l4"})


@pytest.fixture
async def on_l4(l4: Settings) -> AsyncIterator[Agent]:
    async with agent_of(l4) as agent:
        yield agent


@asynccontextmanager
async def asking(settings: Settings, human: Human) -> AsyncIterator[Agent]:
    """A server that asks a human before what is paid, destructive or forced."""
    asked = settings.model_copy(update={"confirm": "ask"})
    async with agent_of(asked, human=human) as agent:
        yield agent


async def deploy(agent: Agent, model: str, **flags: Any) -> Reply:
    reply = await agent.call("deploy_vllm", model=model, target="local", name="one", **flags)
    assert_envelope(reply)
    assert_same_facts(reply)
    return reply


async def test_31b_qat_on_an_l4_is_refused_and_nothing_is_started(
    on_l4: Agent, state_dir: Path
) -> None:
    """The true reason, the memory drawn, why offloading is no way out, and what would load."""
    reply = await deploy(on_l4, "31b qat")
    assert reply.code == "DOES_NOT_FIT"
    assert "while loading: needs 22.10 GiB" in reply.structured["summary"]
    assert "--language-model-only" in reply.structured["fix"]
    assert "# weights" in reply.data["memory"]["drawing"]
    assert "32 GB/s against 300 GB/s" in reply.data["offload"]
    assert not processes_of(state_dir)
    assert (await on_l4.call("list_deployments")).data["deployments"] == []


async def test_a_length_that_does_not_fit_is_refused_with_one_that_does(on_l4: Agent) -> None:
    """What the error offers is the same call with what fits, and is deployed under its name."""
    reply = await deploy(on_l4, "26b qat", kv_cache_dtype="fp8", max_model_len=262_144)
    assert reply.code == "DOES_NOT_FIT"
    assert reply.data["nearest"][0] in reply.structured["fix"]
    step = reply.structured["next"][0]
    assert step["tool"] == "deploy_vllm"
    again = await on_l4.call(step["tool"], **step["arguments"])
    assert (again.state, again.data["name"]) == ("loading", "one")


LIVES_ON: Final = {"engine_args": ["--seed", "3"]}
TOO_MUCH: Final[tuple[dict[str, Any], ...]] = (
    {"model": "31b qat", **LIVES_ON},
    {"model": "12b qat", "kv_cache_memory_bytes": "40G", **LIVES_ON},
    {"model": "12b qat", "engine_args": ["--gpu-memory-utilization=0.3", "--seed", "3"]},
)


@pytest.mark.parametrize("asked", TOO_MUCH)
async def test_what_is_offered_keeps_the_callers_flags_but_what_did_not_fit(
    on_l4: Agent, asked: dict[str, Any]
) -> None:
    """It was refused again, for the size that had been refused, or had lost the other flags."""
    step = (await deploy(on_l4, **asked)).structured["next"][0]
    again = await on_l4.call(step["tool"], **step["arguments"])
    assert again.state == "loading", again
    config = (await on_l4.call("get_vllm_deployment_config", name="one")).text
    assert "--seed 3" in config
    assert ("--language-model-only" in config) == asked["model"].startswith("31b")


async def test_the_nearest_plan_keeps_what_ends_the_bill(on_l4: Agent) -> None:
    """From the plan that does not fit to the call that deploys, by `next` alone."""
    limits = {"ttl_minutes": 30, "max_usd": 5.0, "env": ["A=b"]}
    asked = {"model": "31b qat", "target": "cloud-run-l4", **LIVES_ON, **limits}
    reply = await on_l4.call("plan_deployment", **asked)
    for tool in ("plan_deployment", "deploy_vllm"):
        step = reply.structured["next"][0]
        assert step["tool"] == tool
        assert limits.items() <= step["arguments"].items()
        assert step["arguments"]["engine_args"] == ["--seed", "3", "--language-model-only"]
        reply = await on_l4.call("plan_deployment", **step["arguments"])


async def test_forced_asks_a_human_and_tells_them_that_it_does_not_fit(l4: Settings) -> None:
    """This machine costs nothing, and yet the question is put, with the reason in it."""
    async with asking(l4, lambda _question: "accept") as agent:
        reply = await deploy(agent, "31b qat", force=True)
    assert reply.state == "loading"
    (question,) = agent.asked
    assert "the plan says that it does not fit" in question
    assert "22.10 GiB" in question


async def test_a_humans_no_to_what_does_not_fit_starts_nothing(
    l4: Settings, state_dir: Path
) -> None:
    async with asking(l4, lambda _question: "decline") as agent:
        reply = await deploy(agent, "31b qat", force=True)
    assert reply.code == "CANCELLED"
    assert not processes_of(state_dir)


async def test_what_fits_is_deployed_without_a_question(l4: Settings) -> None:
    async with asking(l4, lambda _question: "decline") as agent:
        reply = await deploy(agent, "12b qat", max_model_len=8192)
    assert reply.state == "loading"
    assert agent.asked == []


async def test_layout_concurrency_computes_the_flags(on_l4: Agent) -> None:
    """fp8 cache and as many sequences as it holds: what vLLM's own defaults would not fit."""
    reply = await deploy(on_l4, "26b qat", layout="concurrency")
    assert reply.state == "loading"
    config = (await on_l4.call("get_vllm_deployment_config", name="one")).text
    planned = await on_l4.call(
        "plan_deployment", model="26b qat", target="local", layout="concurrency"
    )
    for words in planned.data["engine_line"].split(" --")[1:]:
        flag, _, value = words.partition(" ")
        assert f"--{flag}" in config
        assert value in config


@pytest.mark.parametrize("accelerator", [None, "banana"])
async def test_where_the_accelerator_is_not_known_nothing_is_judged(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, accelerator: str | None
) -> None:
    """A planner that knows nothing stands in nobody's way."""
    still_engine(monkeypatch)
    async with agent_of(settings.model_copy(update={"accelerator_type": accelerator})) as agent:
        assert (await deploy(agent, "31b qat")).state == "loading"


async def test_a_model_that_nobody_has_read_is_not_judged(on_l4: Agent) -> None:
    """A Hub id outside the catalog is deployed as asked; a layout cannot be computed for it."""
    refused = await deploy(on_l4, "somebody/else", layout="speed")
    assert refused.code == "UNSUPPORTED"
    assert (await deploy(on_l4, "somebody/else")).state == "loading"


class SmallMachine(LocalBackend):
    """This machine, if it had little memory."""

    def hardware_known(self) -> tuple[Accelerator, int]:
        return accelerators()["cpu"].model_copy(update={"memory_gib": 8.0}), 1


@pytest.mark.parametrize(("memory", "shortened"), [(None, False), ((8.0, 7.0), True)])
def test_a_simulated_engine_is_shortened_for_simulated_memory_alone(
    state_dir: Path, memory: tuple[float, float] | None, *, shortened: bool
) -> None:
    """It holds no weights: a full machine is no reason for a shorter context."""
    world = World(Settings(engine="simulated"), state_dir, ("x",), simulated_memory_gib=memory)
    spec = DeploymentSpec(name="one", model="google/gemma-4-E2B-it")
    machine, model = SmallMachine(TARGET, world), read_model(spec.model)
    made = with_usual_length(machine, spec, model)
    assert (made.max_model_len is not None) is shortened
    said = spec.model_copy(update={"engine_args": ("--max-model-len=4096",)})
    assert with_usual_length(machine, said, model) == said
