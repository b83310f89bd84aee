"""Real engines that are refused, killed in their boot, or killed when ready.

Each boots vLLM, as far as it comes: 5 to 40 s.
"""

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from core.waiting import wait_until
from tests.conftest import processes_of
from tests.real.conftest import BOOT_SECONDS, VLLM, Served, stdio
from tests.soon import soon, until
from tests.survival.world import assert_nothing_left, facts, kill

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


def wrapped(folder: Path, more: str = "") -> str:
    """Make a program that starts vLLM, with more words behind those that it is given."""
    script = folder / "vllm"
    script.write_text(f'#!/bin/sh\nexec {VLLM} "$@" {more}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


@pytest.fixture
async def many_processes(state_dir: Path, tmp_path: Path) -> AsyncIterator[Served]:
    """A server whose vLLM runs its core as a process of its own, as it does with an accelerator."""
    async with stdio(state_dir, VLLM_EXECUTABLE=wrapped(tmp_path)) as agent:
        yield agent


def core_of(agent: Served, name: str) -> list[int]:
    """The engine's processes below its first one."""
    engine = facts(agent.state_dir, name)["engine"]
    return [
        child.pid
        for child in psutil.Process(engine).children(recursive=True)
        if "EngineCore" in _words(child)
    ]


def _words(process: psutil.Process) -> str:
    """How a process calls itself; nothing for one that has just ended, as helpers of a boot do."""
    try:
        return " ".join((*process.cmdline(), process.name()))
    except psutil.Error:
        return ""


async def booting_core(agent: Served, name: str) -> int:
    """The core's process, once a boot has come so far; looking is not to slow that boot."""

    async def look() -> list[int]:
        return core_of(agent, name)

    found = await wait_until(
        look, bool, waiting_for="the engine's core", every=0.2, timeout=BOOT_SECONDS
    )
    return found[0]


async def refused(agent: Served, code: str, word: str, **flags: Any) -> None:
    """See it fail with cause, fix and the line that says it; nothing is left of it."""
    await agent.deploy("refused", **flags)
    failed, _ = await agent.until("refused")
    assert failed.state == "failed"
    failure = failed.data["failure"]
    assert failure["code"] == code
    assert word in failure["cause"]
    assert failure["evidence"]
    await agent.call("destroy_vllm", target="local", name="refused")
    assert_nothing_left(agent.state_dir)


async def test_what_vllm_refuses_is_recognized_from_its_own_log(served: Served) -> None:
    """A flag that nothing before it knows."""
    await refused(served, "BAD_ENGINE_ARGUMENT", "no-such-flag", engine_args=["--no-such-flag"])


async def test_a_length_that_vllm_alone_refuses_is_recognized(
    state_dir: Path, tmp_path: Path
) -> None:
    """Here a program between adds it; else it would not come so far."""
    longer = wrapped(tmp_path, "--max-model-len 99999")
    async with stdio(state_dir, VLLM_EXECUTABLE=longer) as agent:
        await refused(agent, "MAX_MODEL_LEN_TOO_LONG", "99999")


@pytest.mark.parametrize(
    "said", [{"max_model_len": 8193}, {"engine_args": ["--max-model-len", "8193"]}]
)
async def test_a_length_beyond_the_model_is_refused_before_anything_starts(
    served: Served, said: dict[str, Any]
) -> None:
    """The model's own files say how long it can be."""
    model = str(VLLM.parent.parent / "tiny-gemma-4")
    reply = await served.call("deploy_vllm", target="local", model=model, **said)
    assert reply.code == "INVALID_ARGUMENT"
    assert "8192" in reply.text
    assert_nothing_left(served.state_dir)


async def test_the_main_process_killed_in_its_boot_is_told_and_takes_its_core_with_it(
    many_processes: Served,
) -> None:
    """Failed by signal 9, and no worker stays."""
    agent = many_processes
    await agent.deploy("one")
    await booting_core(agent, "one")
    kill(facts(agent.state_dir, "one")["engine"])
    await until(lambda: not processes_of(agent.state_dir), "every process to be gone")
    failed = await agent.status("one")
    assert failed.state == "failed"
    assert failed.data["failure"]["code"] == "KILLED"
    await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(agent.state_dir)


async def test_a_core_killed_when_ready_is_told(
    many_processes: Served,
) -> None:
    """The main process notices, ends, and is reported as an engine whose core died."""
    agent = many_processes
    await agent.deploy("one")
    ready, _ = await agent.until("one")
    assert ready.state == "ready", ready
    (core,) = core_of(agent, "one")
    kill(core)

    async def state() -> str:
        return (await agent.status("one")).state

    await soon(state, "failed".__eq__)
    failed = await agent.status("one")
    assert failed.data["failure"]["code"] == "ENGINE_CORE_DIED", failed
    await until(lambda: not processes_of(agent.state_dir), "every process to be gone")
    await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(agent.state_dir)


async def test_a_core_killed_in_its_boot_is_told(many_processes: Served) -> None:
    """The main process says that its core failed, and ends."""
    agent = many_processes
    await agent.deploy("one")
    kill(await booting_core(agent, "one"))
    failed, _ = await agent.until("one")
    assert failed.state == "failed"
    assert failed.data["failure"]["code"] == "ENGINE_CORE_DIED", failed
    await agent.call("destroy_vllm", target="local", name="one")
    assert_nothing_left(agent.state_dir)
