"""The server is killed with -9; the next one tells the truth and can take all away.

Each test starts real servers and engines: that is one to four seconds.
"""

import sys
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.abc import Process

from core.environment import ROOT
from core.settings import Settings
from tests.conftest import processes_of
from tests.conversation import Agent, agent_of
from tests.processes import lives
from tests.soon import HANGS, soon, until
from tests.survival.servers import MODEL, ServerDied, executed, server
from tests.survival.world import (
    assert_nothing_left,
    engines,
    facts,
    folder_of,
    journal,
    kill,
)

pytestmark = pytest.mark.anyio

PHASES = {
    "config": "starting",
    "loading": "loading weights",
    "profiling": "compiling",
    "graphs": "capturing graphs",
    "serving": "warming",
}
"""Where the simulated engine halts, and what status calls that."""


async def phase_of(agent: Agent, name: str) -> str:
    data = (await agent.call("status_vllm", target="local", name=name)).data
    return str(data.get("phase", {}).get("name", data["state"]))


async def failure_of_the_killed(agent: Agent, state_dir: Path, name: str) -> None:
    engine = facts(state_dir, name)["engine"]
    kill(engine)
    await until(lambda: not lives(engine), "the engine to be dead")
    failed = await agent.call("status_vllm", target="local", name=name)
    assert failed.state == "failed"
    assert failed.data["failure"]["code"] == "KILLED"
    assert "signal 9" in failed.data["failure"]["cause"]
    assert failed.data["failure"]["fix"]


@pytest.mark.parametrize(
    ("moment", "code"),
    [
        ("os.mkdir:/one", None),
        ("open:/one/engine.log", None),
        ("os.rename:/deployment.json", "INTERRUPTED"),
        ("os.posix_spawn:", "INTERRUPTED"),
    ],
)
async def test_a_server_killed_before_there_is_a_process_leaves_what_can_be_seen_and_removed(
    state_dir: Path, settings: Settings, moment: str, code: str | None
) -> None:
    """Whatever step of making it was next, status says so and destroy clears it away."""
    async with server(state_dir, dies_at=moment) as first:
        with pytest.raises(ServerDied):
            await first.deploy("one")
    async with agent_of(settings) as agent:
        listed = (await agent.call("list_deployments")).data["deployments"]
        status = await agent.call("status_vllm", target="local", name="one")
        if code is None:
            assert listed == []
            assert status.code == "DEPLOYMENT_NOT_FOUND"
        else:
            assert [one["state"] for one in listed] == ["failed"]
            assert status.data["failure"]["code"] == code
            assert status.data["failure"]["fix"]
        assert journal(state_dir) == [("deploy_vllm", "started")]
        gone = await agent.call("destroy_vllm", target="local", name="one")
        assert gone.data["gone"] is True
    assert_nothing_left(state_dir)


async def test_a_server_killed_before_its_watcher_speaks_makes_the_next_one_wait_for_it(
    state_dir: Path, settings: Settings
) -> None:
    """The watcher holds the lock until its engine is written down: never two, never a lost one."""
    async with server(state_dir, dies_at="os.posix_spawn:,open:/one/process.json") as first:
        with pytest.raises(ServerDied):
            await first.deploy("one")
    async with agent_of(settings) as agent:
        reply = await agent.call("deploy_vllm", target="local", name="one", model=MODEL)
        assert not reply.failed, reply
        assert len(engines(state_dir)) == 2, "one watcher and one engine"
        await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(state_dir)


async def test_server_and_then_engine_killed_in_any_phase_are_told_by_the_next_server(
    state_dir: Path, halting: Settings
) -> None:
    """It tells each phase as it is, each death by the next status call, and destroys each."""
    names = [*PHASES, "ready"]
    executable = str(halting.vllm_executable)
    async with server(state_dir, ENGINE="real", VLLM_EXECUTABLE=executable) as first:
        for name in names:
            assert not (await first.deploy(name)).failed
        await first.kill()
    ports = [facts(state_dir, name, "deployment.json")["port"] for name in names]
    async with agent_of(halting) as agent:
        for name in names:
            expected = PHASES.get(name, name)
            await soon(partial(phase_of, agent, name), expected.__eq__)
        listed = (await agent.call("list_deployments")).data["deployments"]
        states = {one["name"]: one["state"] for one in listed}
        assert states == dict.fromkeys(PHASES, "loading") | {"ready": "ready"}
        assert journal(state_dir) == [("deploy_vllm", "ok")] * len(names)
        for name in names:
            await failure_of_the_killed(agent, state_dir, name)
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(partial(agent.call, "destroy_vllm", name=name))
    assert_nothing_left(state_dir, *ports)


@pytest.mark.parametrize("alone", [True, False], ids=["engine", "engine-and-watcher"])
async def test_server_and_engine_killed_at_once_are_told_by_the_next_server(
    state_dir: Path, settings: Settings, *, alone: bool
) -> None:
    """The watcher saw the signal; without the watcher nobody did, and that is what is said."""
    async with server(state_dir) as first:
        await first.deploy("one")
        process = facts(state_dir, "one")
        if not alone:
            kill(process["session"])
        kill(process["engine"])
        await first.kill()
    await until(lambda: not engines(state_dir), "watcher and engine to be gone")
    async with agent_of(settings) as agent:
        failed = await agent.call("status_vllm", target="local", name="one")
        assert failed.state == "failed"
        assert failed.data["failure"]["code"] == ("KILLED" if alone else "ENGINE_GONE")
        assert failed.data["failure"]["fix"]
        await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(state_dir)


@pytest.mark.parametrize(
    ("tool", "moment", "state"),
    [
        ("stop_vllm", "os.kill:,open:/stat", "stopped"),
        ("destroy_vllm", "os.kill:", "deleting"),
        ("destroy_vllm", "os.remove:/api-key", "deleting"),
        ("destroy_vllm", "os.rmdir:one", None),
    ],
)
async def test_a_server_killed_while_it_ends_something_is_gone_on_with_by_the_next(
    state_dir: Path, settings: Settings, agent: Agent, tool: str, moment: str, state: str | None
) -> None:
    """What had been begun is visible, and destroy finishes it; nothing is left half-way."""
    await agent.serve("one")
    port = facts(state_dir, "one", "deployment.json")["port"]
    async with server(state_dir, dies_at=moment) as first:
        with pytest.raises(ServerDied):
            await first.about(tool, "one")
    assert journal(state_dir)[-1] == (tool, "started")
    async with agent_of(settings) as second:

        async def look() -> str | None:
            reply = await second.call("status_vllm", target="local", name="one")
            return None if reply.failed else reply.state

        await soon(look, lambda now: now == state)
        gone = await second.call("destroy_vllm", target="local", name="one")
        assert gone.data["gone"] is True
    assert_nothing_left(state_dir, port)


async def test_a_stop_that_was_cut_short_does_not_hide_a_later_crash(
    state_dir: Path, settings: Settings, agent: Agent
) -> None:
    """After start_vllm the engine is wanted again: its death is a failure, not a stop."""
    await agent.serve("one")
    async with server(state_dir, dies_at="os.kill:") as first:
        with pytest.raises(ServerDied):
            await first.about("stop_vllm", "one")
    async with agent_of(settings) as second:
        await second.call("start_vllm", target="local", name="one")
        assert (await second.settled("one")).state == "ready"
        kill(facts(state_dir, "one")["engine"])
        failed = await second.call("status_vllm", target="local", name="one")
        assert failed.state == "failed"


@pytest.mark.parametrize(
    ("moment", "engine_lives"),
    [("os.posix_spawn:", False), ("os.posix_spawn:,os.rename:process.json", True)],
    ids=["before the engine", "before it wrote the engine down"],
)
async def test_server_and_watcher_killed_around_the_start_of_the_engine_lose_nothing(
    state_dir: Path, settings: Settings, moment: str, *, engine_lives: bool
) -> None:
    """An engine that nobody wrote down is still found by its session, and ended."""
    async with server(state_dir, dies_at="os.posix_spawn:") as first:
        with pytest.raises(ServerDied):
            await first.deploy("one")
    watch = str(ROOT / "backends" / "local" / "watch.py")
    words = ["-m", "tests.survival.dying", moment, watch, str(folder_of(state_dir, "one")), "0"]
    await anyio.run_process([sys.executable, *words], cwd=ROOT, check=False)
    assert bool(processes_of(state_dir)) is engine_lives
    async with agent_of(settings) as agent:
        status = await agent.call("status_vllm", target="local", name="one")
        if engine_lives:
            assert (await agent.settled("one")).state == "ready"
        else:
            assert status.data["failure"]["code"] == "INTERRUPTED"
        again = await agent.call("deploy_vllm", target="local", name="one", model=MODEL)
        assert not again.failed, again
        assert len(engines(state_dir)) == 2
        await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(state_dir)


@pytest.mark.parametrize("how", ["stdin closed", "SIGTERM"])
async def test_a_server_that_is_ended_politely_leaves_its_engines_running(
    state_dir: Path, settings: Settings, how: str
) -> None:
    """It ends at once, in the middle of a wait too, and takes nothing with it."""
    before = psutil.Process().children()  # other tests share this process
    async with executed(state_dir) as first:
        await first.deploy("one")
        if how == "SIGTERM":
            assert isinstance(first.process, Process)
            first.process.terminate()
        else:
            assert first.process.stdin
            await first.process.stdin.aclose()
        with anyio.fail_after(HANGS):
            await first.process.wait()
        assert set(psutil.Process().children()) <= set(before)
    process = facts(state_dir, "one")
    assert lives(process["session"])
    assert lives(process["engine"])
    async with agent_of(settings) as agent:
        assert (await agent.settled("one")).state == "ready"
        await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(state_dir)
