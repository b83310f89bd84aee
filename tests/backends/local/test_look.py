"""What a folder and its processes say of a deployment."""

import os
import signal

import anyio
import pytest

from core.records import State
from tests.backends.local.conftest import Machine

pytestmark = pytest.mark.anyio


async def test_many_that_look_at_once_ask_the_model_once(machine: Machine) -> None:
    """The first answer of a model may take seconds; it is asked for one time only."""
    await machine.apply("counts")
    await machine.says("startup complete")
    states = []

    async def look() -> None:
        states.append((await machine.backend.describe("one")).state)

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(look)
    assert states == [State.READY] * 5
    assert (await machine.says("asked")).count("asked") == 1


async def test_many_that_look_at_a_mute_model_are_all_told(machine: Machine) -> None:
    """None of them takes another's question for an answer. It waits half a second for its end."""
    await machine.apply("mute")
    await machine.says("startup complete")
    codes = []

    async def look() -> None:
        seen = await machine.backend.describe("one")
        assert seen.state is State.LOADING
        assert seen.failure is not None
        codes.append(seen.failure.code)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(look)
    assert set(codes) == {"ENDPOINT_ERROR", "NOT_READY"}


async def test_a_model_that_answered_and_does_so_no_more_is_ill(machine: Machine) -> None:
    """It is neither ready nor booting; it waits half a second, in case it is just ending."""
    await machine.apply("hangs-up")
    await machine.until(State.READY)
    seen = await machine.backend.describe("one")
    assert seen.state is State.UNKNOWN
    assert seen.failure is not None
    assert seen.failure.code == "UNHEALTHY"
    assert seen.replicas == 1


async def test_an_engine_that_died_since_it_was_ready_is_failed(machine: Machine) -> None:
    """Also in the moment between its end and its watcher's note of it."""
    await machine.apply()
    await machine.until(State.READY)
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    os.kill(process.engine, signal.SIGKILL)
    seen = await machine.backend.describe("one")
    assert seen.state is State.FAILED
    assert seen.failure is not None
    assert seen.failure.code == "KILLED"


@pytest.mark.parametrize("alive", [True, False])
async def test_what_is_being_deleted_says_so(machine: Machine, *, alive: bool) -> None:
    """While its engine still runs and after, until the folder is gone."""
    await machine.apply("boots")
    if not alive:
        await machine.backend.stop("one")
    machine.folder().want("deleted")
    assert (await machine.backend.describe("one")).state is State.DELETING
    (machine.folder().path / "deployment.json").unlink()
    assert (await machine.backend.describe("one")).state is State.DELETING
    assert (await machine.backend.delete("one")).gone
    await machine.empties()


async def test_what_was_interrupted_before_it_was_made_can_be_begun_again(
    machine: Machine,
) -> None:
    """A folder with nothing but a log: failed, with what to do; applying goes on."""
    machine.folder().fresh()
    seen = await machine.backend.describe("one")
    assert (seen.state, seen.model) == (State.FAILED, "not known")
    assert seen.failure is not None
    assert seen.failure.code == "INTERRUPTED"
    assert (await machine.apply("boots")).replicas == 1


async def test_what_was_interrupted_before_its_engine_was_started_says_so(
    machine: Machine,
) -> None:
    """Everything was written down, and the server died."""
    await machine.apply("boots")
    await machine.backend.stop("one")
    machine.folder().fresh()
    machine.folder().want("running")
    machine.folder().log.unlink()
    seen = await machine.backend.describe("one")
    assert seen.failure is not None
    assert (seen.state, seen.failure.code) == (State.FAILED, "INTERRUPTED")
    assert seen.since == seen.created_at


async def test_a_stopped_engine_did_not_fail(machine: Machine) -> None:
    """Whatever it wrote when it was asked to end: vLLM calls its own core dead then."""
    await machine.apply("boots")
    await machine.says("asleep")
    with machine.folder().log.open("a") as log:
        log.write("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n")
    stopped = await machine.backend.stop("one")
    assert (stopped.state, stopped.failure) == (State.STOPPED, None)


@pytest.mark.parametrize("name", ["deployment.json", "process.json", "exit.json"])
async def test_a_damaged_file_of_one_hides_no_other(machine: Machine, name: str) -> None:
    """Its state is not known, why is said with the path, and the others are as they are."""
    await machine.apply("boots", name="two")
    await machine.apply("boots")
    await machine.backend.stop("one")
    (machine.folder().path / name).write_text("{broken")
    one, two = await machine.backend.list()
    assert (one.state, two.state) == (State.UNKNOWN, State.LOADING)
    assert one.failure is not None
    assert one.failure.code == "HOST_ERROR"
    assert str(machine.folder().path / name) in one.failure.cause
