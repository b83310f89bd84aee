"""Deployments on this machine, from the first plan to the last trace.

Each starts processes of its own: a watcher and a small fake engine, a fifth of a second together.
"""

import os
import signal
from pathlib import Path

import anyio
import pytest

from backends.base import (
    HasHost,
    HasLogs,
    KnowsEngine,
    LogQuery,
    NamesEngine,
    Scales,
    Stops,
    WritesConfig,
)
from core.errors import (
    DeploymentNotFound,
    InvalidArgument,
)
from core.records import State
from tests.backends.local.conftest import Machine

pytestmark = pytest.mark.anyio


async def test_a_deployment_becomes_ready_once_its_model_answered(machine: Machine) -> None:
    """Its key is its own, its address this machine's, and it runs as the plan said."""
    first = await machine.apply(max_model_len=64)
    assert first.state in {State.LOADING, State.READY}
    ready = await machine.until(State.READY)
    access = await machine.backend.access("one")
    assert ready.url == access.base_url
    assert ready.failure is None
    assert (ready.replicas, ready.usd_so_far, ready.model) == (1, 0.0, "fake/ready")
    assert access.api_key is not None
    assert access.header_commands == {"Authorization": f"cat {machine.folder().path / 'api-key'}"}
    assert [one.name for one in await machine.backend.list()] == ["one"]


async def test_an_engine_gets_its_key_and_no_secret_of_ours(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its environment, not its command line; the Hub's token only because it loads models."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-another-endpoint")
    machine = Machine(state_dir, hf_token="hf_mine")
    await machine.apply("tells")
    said = await machine.says("asleep")
    key = (await machine.backend.access("one")).api_key
    assert key is not None
    assert "'VLLM_API_KEY'" in said
    assert "'HF_TOKEN'" in said
    assert str(machine.folder().path) in said
    commands = [word for process in machine.processes() for word in process.cmdline()]
    files = "".join(
        path.read_text() for path in machine.folder().path.iterdir() if path.name != "api-key"
    )
    for secret in (key.get_secret_value(), "hf_mine", "sk-of-another-endpoint"):
        assert not [word for word in commands if secret in word]
        assert secret not in files


async def test_applying_twice_starts_one_engine(machine: Machine) -> None:
    """The same spec goes on with what runs; another one takes its place and keeps the key."""
    first = await machine.apply()
    again = await machine.apply()
    assert first.instance == again.instance
    key = (await machine.backend.access("one")).api_key
    other = await machine.apply(max_model_len=32)
    assert other.revision != first.revision
    assert other.instance != first.instance
    assert (await machine.backend.access("one")).api_key == key
    assert len(machine.processes()) == 2


async def test_two_that_apply_at_once_start_one_engine(machine: Machine, state_dir: Path) -> None:
    """Two servers on one folder: the second waits, and finds it running."""
    other = Machine(state_dir)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.apply)
        tasks.start_soon(other.apply)
    assert len(machine.processes()) == 2
    assert [path.name for path in machine.root.iterdir()] == ["one"]


async def test_stopping_and_starting_twice_is_harmless(machine: Machine) -> None:
    """Stopped stays stopped with nothing running; started keeps address, key and creation."""
    first = await machine.apply()
    for _ in range(2):
        assert (await machine.backend.stop("one")).state is State.STOPPED
        assert machine.processes() == []
    started = [await machine.backend.start("one") for _ in range(2)]
    assert started[0].instance == started[1].instance
    assert started[0].created_at == first.created_at
    assert (await machine.until(State.READY)).revision == first.revision
    assert (machine.folder().path / "engine.1.log").exists()


async def test_scaling_is_none_or_one(machine: Machine) -> None:
    """Zero stops it, one starts it, two are refused."""
    await machine.apply()
    scaled = await machine.backend.scale("one", min_replicas=0, max_replicas=0)
    assert (scaled.state, scaled.replicas) == (State.STOPPED, 0)
    scaled = await machine.backend.scale("one", min_replicas=1, max_replicas=1)
    assert scaled.replicas == 1
    with pytest.raises(InvalidArgument):
        await machine.backend.scale("one", min_replicas=1, max_replicas=2)


async def test_deleting_leaves_no_process_and_no_file(machine: Machine) -> None:
    """Key, log and lock included; a second time there is nothing to do."""
    await machine.apply()
    gone = await machine.backend.delete("one")
    assert gone.gone
    assert gone.removed
    assert machine.processes() == []
    assert list(machine.root.iterdir()) == []
    again = await machine.backend.delete("one")
    assert (again.gone, again.removed) == (True, ())
    for ask in (machine.backend.describe, machine.backend.access, machine.backend.stop):
        with pytest.raises(DeploymentNotFound):
            await ask("one")


async def test_an_engine_that_dies_says_what_it_died_of(machine: Machine) -> None:
    """The catalogue's words, and its last lines as evidence."""
    await machine.apply("dies")
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert failed.failure.code == "DOES_NOT_FIT"
    assert "2.62 GiB" in failed.failure.evidence[0]
    assert failed.replicas == 0


async def test_an_engine_killed_from_outside_says_by_which_signal(machine: Machine) -> None:
    """Often the kernel, for lack of memory."""
    await machine.apply("boots")
    await machine.says("asleep")
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    os.kill(process.engine, signal.SIGKILL)
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert (failed.failure.code, "signal 9" in failed.failure.cause) == ("KILLED", True)


async def test_a_boot_is_told_by_its_phase(machine: Machine) -> None:
    """As the log has it."""
    await machine.apply("boots")
    seen = await machine.sees(lambda one: bool(one.phase and one.phase.name == "loading weights"))
    assert seen.state is State.LOADING


@pytest.mark.parametrize(("mode", "state"), [("ill", State.UNKNOWN), ("mute", State.LOADING)])
async def test_an_engine_that_is_up_but_does_not_answer_is_not_ready(
    machine: Machine, mode: str, state: State
) -> None:
    """What is wrong is said in its failure."""
    await machine.apply(mode)
    seen = await machine.sees(lambda one: one.failure is not None)
    assert seen.state is state


async def test_the_log_and_what_it_says_can_be_read(machine: Machine) -> None:
    """Its newest lines, its facts, what its processes take, and how to make it by hand."""
    await machine.apply("boots")
    await machine.says("asleep")
    (page,) = [page async for page in machine.backend.log_pages("one", LogQuery())]
    assert [line.text for line in page[-1:]] == ["asleep"]
    facts = await machine.backend.engine_facts("one")
    assert facts.version is None
    assert "serve fake/boots" in (await machine.backend.config("one")).command
    usage = await machine.backend.usage("one")
    assert usage is not None
    assert usage.processes == 2
    assert usage.resident_memory_bytes > 0
    await machine.backend.stop("one")
    assert await machine.backend.usage("one") is None


def test_this_machine_can_do_everything_there_is_a_word_for(machine: Machine) -> None:
    """Having the method is the flag."""
    for ability in (Scales, Stops, HasLogs, KnowsEngine, NamesEngine, WritesConfig, HasHost):
        assert isinstance(machine.backend, ability)
