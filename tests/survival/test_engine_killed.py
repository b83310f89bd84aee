"""Engine, watcher or worker are killed with -9 while the server lives.

Each test starts engines as processes: that is one or two seconds.
"""

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from core.settings import Settings
from tests.conversation import Agent, Reply, agent_of
from tests.processes import lives
from tests.soon import soon, until
from tests.survival.servers import MODEL
from tests.survival.world import assert_nothing_left, engines, facts, kill

pytestmark = pytest.mark.anyio


async def status(agent: Agent, name: str) -> Reply:
    return await agent.call("status_vllm", target="local", name=name)


async def deploy(agent: Agent, name: str) -> Reply:
    reply = await agent.call("deploy_vllm", target="local", name=name, model=MODEL)
    assert not reply.failed, reply
    return reply


async def test_an_engine_killed_when_ready_has_failed_even_if_asked_in_the_same_instant(
    state_dir: Path, agent: Agent
) -> None:
    """A dying engine is waited for, a moment, not called ill; its watcher stays no zombie."""
    before = psutil.Process().children()  # other tests share this process
    await agent.serve("one")
    kill(facts(state_dir, "one")["engine"])
    assert (await status(agent, "one")).data["failure"]["code"] == "KILLED"

    async def children() -> list[psutil.Process]:
        await status(agent, "one")
        return psutil.Process().children()

    await soon(children, lambda left: set(left) <= set(before))


async def test_an_engine_without_its_watcher_serves_on_and_its_end_is_told(
    state_dir: Path, agent: Agent
) -> None:
    """Nobody sees how it ends then, and that is what the failure says; deploy starts it again."""
    await agent.serve("one")
    process = facts(state_dir, "one")
    kill(process["session"])
    assert (await status(agent, "one")).state == "ready"
    kill(process["engine"])
    assert (await agent.settled("one")).data["failure"]["code"] == "ENGINE_GONE"
    await agent.serve("one")
    await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(state_dir)


async def test_the_watcher_ends_the_workers_of_a_killed_engine(
    state_dir: Path, halting: Settings
) -> None:
    """They would keep the accelerator."""
    async with agent_of(halting) as agent:
        await deploy(agent, "ready-worker")
        leader = facts(state_dir, "ready-worker")["engine"]
        await until(lambda: bool(psutil.Process(leader).children()), "its worker")
        kill(leader)
        await until(lambda: not engines(state_dir), "the worker to be gone")
        assert (await status(agent, "ready-worker")).data["failure"]["code"] == "KILLED"


async def test_workers_that_outlive_engine_and_watcher_are_named_and_ended_with_it(
    state_dir: Path, halting: Settings
) -> None:
    """Looking only says that they live, and what ends them; destroying does."""
    async with agent_of(halting) as agent:
        worker = await _worker_alone(state_dir, agent)
    async with agent_of(halting.model_copy(update={"read_only": True})) as agent:
        cause = (await status(agent, "ready-worker")).data["failure"]["cause"]
        assert f"pid {worker}" in cause
        assert "live on" in cause
        assert lives(worker)
    async with agent_of(halting) as agent:
        failed = (await status(agent, "ready-worker")).data["failure"]
        assert failed["code"] == "ENGINE_GONE"
        assert f"pid {worker}" in failed["cause"]
        assert lives(worker)
        await agent.call("destroy_vllm", target="local", name="ready-worker")
        assert not lives(worker)
    assert_nothing_left(state_dir)


@pytest.mark.parametrize("then", ["destroy_vllm", "deploy_vllm", "start_vllm"])
async def test_what_outlives_engine_and_watcher_is_ended_by_the_next_call(
    state_dir: Path, halting: Settings, then: str
) -> None:
    """It is not taken for the engine, and a new start clears it away."""
    async with agent_of(halting) as agent:
        worker = await _worker_alone(state_dir, agent)
        more = {"model": MODEL} if then == "deploy_vllm" else {}
        reply = await agent.call(then, target="local", name="ready-worker", **more)
        assert not reply.failed, reply
        assert not lives(worker)
        await agent.call("destroy_vllm", target="local", name="ready-worker")
    assert_nothing_left(state_dir)


async def _worker_alone(state_dir: Path, agent: Agent) -> int:
    """Kill watcher and engine of one that has a worker; give that worker."""
    await deploy(agent, "ready-worker")
    process = facts(state_dir, "ready-worker")
    leader = process["engine"]

    def own() -> int | None:  # the script that boots it has other children before, which end
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(leader).children()
            return next((one.pid for one in children if one.name() == "sleep"), None)
        return None

    await until(own, "its worker")
    worker = own()
    assert worker
    kill(process["session"])
    kill(leader)
    await until(lambda: not (lives(leader) or lives(process["session"])), "both to be gone")
    assert lives(worker)
    return worker
