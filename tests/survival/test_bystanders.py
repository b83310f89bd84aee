"""Nothing is ever signalled that was not started here, whatever a folder says."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from backends.local.identity import look
from tests.conversation import Agent
from tests.processes import lives
from tests.soon import HANGS
from tests.survival.world import facts, forge, kill

pytestmark = pytest.mark.anyio

_ORPHANED = (
    "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3).pid)"
)
"""A session whose leader ends and leaves a child, as a daemon does."""


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Bystanders that no parent ends."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        kill(pid)


@asynccontextmanager
async def bystander(*words: str) -> AsyncIterator[int]:
    """A process in a session of its own that has nothing to do with us."""
    code = "import time; time.sleep(1000)"  # ours only to look at
    async with await anyio.open_process(
        [sys.executable, "-c", code, *words], start_new_session=True
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def gone(state_dir: Path, agent: Agent) -> None:
    """End the real engine, as a reboot would: the folder still says what it said."""
    process = facts(state_dir, "one")
    for pid in (process["session"], process["engine"]):
        kill(pid)
        psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=HANGS)


@pytest.mark.parametrize(
    "role", [("engine", "engine_started"), ("session", "started")], ids=["engine", "watcher"]
)
async def test_a_pid_that_was_given_to_somebody_else_is_left_alone(
    state_dir: Path, agent: Agent, role: tuple[str, str]
) -> None:
    """The same number with another start is another process: failed, and never signalled."""
    await agent.serve("one")
    command = psutil.Process(facts(state_dir, "one")["engine"]).cmdline()[1:]
    await gone(state_dir, agent)
    async with bystander(*command) as pid:
        forge(state_dir, "one", **{role[0]: pid})
        reply = await agent.call("status_vllm", target="local", name="one")
        assert reply.state == "failed"
        await agent.call("stop_vllm", target="local", name="one")
        destroyed = await agent.call("destroy_vllm", target="local", name="one")
        assert destroyed.data["gone"] is True
        assert lives(pid)


async def test_a_session_number_that_was_given_to_somebody_else_is_left_alone(
    state_dir: Path, agent: Agent, orphans: list[int]
) -> None:
    """Its leader is gone and says nothing; its members work elsewhere, so they are not ours."""
    await agent.serve("one")
    await gone(state_dir, agent)
    words = [sys.executable, "-c", _ORPHANED]
    orphaned = await anyio.run_process(words, start_new_session=True)
    pid = int(orphaned.stdout)
    orphans.append(pid)
    seen = look(pid)
    assert seen
    assert not lives(seen.session)
    forge(state_dir, "one", session=seen.session)
    assert (await agent.call("status_vllm", target="local", name="one")).state == "failed"
    destroyed = await agent.call("destroy_vllm", target="local", name="one")
    assert destroyed.data["gone"] is True
    assert lives(pid)


async def test_an_engine_of_the_same_command_that_we_did_not_start_is_left_alone(
    state_dir: Path, agent: Agent
) -> None:
    """Names and command lines prove nothing."""
    await agent.serve("one")
    command = psutil.Process(facts(state_dir, "one")["engine"]).cmdline()[1:]
    async with bystander(*command) as pid:
        await agent.call("destroy_vllm", target="local", name="one")
        assert lives(pid)
