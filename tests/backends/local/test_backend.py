"""Deployments on this machine, from the first plan to the last trace.

Each starts processes of its own: a watcher and a small fake engine, a fifth of a second together.
"""

import json
import os
import signal
import socket
from pathlib import Path

import anyio
import psutil
import pytest

from backends.base import HasHost, HasLogs, KnowsEngine, NamesEngine, Scales, Stops, WritesConfig
from core.errors import (
    CommandNotFound,
    DeploymentNotFound,
    DiskFull,
    HostError,
    InvalidArgument,
    PortInUse,
)
from core.records import SIMULATED, ModelShape, State
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
    assert access.credential_command == f"cat {machine.folder().path / 'api-key'}"
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


async def test_an_engine_that_ignores_the_polite_signal_is_killed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its grace it has none."""
    monkeypatch.setattr("backends.local.session.GRACE_SECONDS", 0.1)
    await machine.apply("deaf")
    await machine.says("asleep")
    assert (await machine.backend.stop("one")).state is State.STOPPED
    assert machine.processes() == []


async def test_workers_of_a_dead_engine_are_killed_by_its_watcher(machine: Machine) -> None:
    """They would keep the accelerator; the exit status is the engine's own."""
    await machine.apply("leaves-a-worker")
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert (failed.failure.code, "status 3" in failed.failure.cause) == ("ENGINE_EXITED", True)
    await machine.empties()


async def test_workers_are_found_after_watcher_and_engine_died(machine: Machine) -> None:
    """By their session and their folder: stopping ends them too."""
    await machine.apply("has-a-worker")
    await machine.says("asleep\nasleep")
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    watcher, engine = psutil.Process(process.session), psutil.Process(process.engine)
    watcher.suspend()  # so that it cannot end the worker
    engine.kill()
    watcher.kill()
    await machine.until(State.FAILED)
    assert len(machine.processes()) == 1
    await machine.backend.stop("one")
    assert machine.processes() == []


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


async def test_a_port_that_is_taken_is_told_before_anything_is_ended(machine: Machine) -> None:
    """Of a plan beforehand, too; and what ran under that name runs on."""
    await machine.apply()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse):
            await machine.apply(port=port)
        plan = machine.backend.plan(machine.spec(port=port), ModelShape(model="fake/ready"))
        checks = {check.what: check.outcome for check in (await machine.backend.check(plan)).checks}
        assert checks["port"] == "fail"
    assert (await machine.until(State.READY)).replicas == 1
    plan = machine.backend.plan(machine.spec(port=port), ModelShape(model="m", weight_bytes=1))
    checks = {check.what: check.outcome for check in (await machine.backend.check(plan)).checks}
    assert checks == {"disk": "pass", "memory": "pass", "port": "pass"}


async def test_an_engine_that_cannot_be_started_is_told(machine: Machine) -> None:
    """A program that was removed between plan and apply leaves nothing running."""
    (machine.root.parent.parent / "vllm").write_bytes(b"\x7fno program")
    with pytest.raises(HostError) as caught:
        await machine.apply()
    assert caught.value.cause
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert failed.failure.code == "NOT_STARTED"
    await machine.empties()


async def test_without_a_vllm_there_is_no_plan(state_dir: Path) -> None:
    """What to install or set is said; the simulated engine is named as what it is."""
    machine = Machine(state_dir, vllm_executable="/nowhere/vllm")
    assert machine.backend.engine_name()[0] == "none"
    with pytest.raises(CommandNotFound):
        machine.backend.plan(machine.spec(), ModelShape(model="m"))
    simulated = Machine(state_dir, engine="simulated").backend
    assert simulated.engine_name() == ("simulated vLLM 0.32.0", SIMULATED)
    assert simulated.plan(machine.spec(), ModelShape(model="m")).warnings == (SIMULATED,)


async def test_a_full_disk_is_told_before_the_engine_is_started(machine: Machine) -> None:
    """An engine that cannot write its log could not say what is wrong."""
    machine.folder().path.mkdir(parents=True)
    machine.folder().log.symlink_to("/dev/full")
    with pytest.raises(DiskFull):
        await machine.apply()
    assert machine.processes() == []


async def test_a_folder_that_was_damaged_is_told_and_can_be_taken_away(machine: Machine) -> None:
    """It does not hide the others, and it is never taken for one that is well."""
    await machine.apply("boots", name="two")
    await machine.apply("boots")
    await machine.backend.stop("one")
    (machine.folder().path / "deployment.json").write_text("{broken")
    seen = {one.name: one for one in await machine.backend.list()}
    assert seen["two"].state is State.LOADING
    assert seen["one"].state is State.UNKNOWN
    assert seen["one"].failure is not None
    assert seen["one"].failure.code == "HOST_ERROR"
    with pytest.raises(HostError):
        await machine.backend.start("one")
    assert (await machine.backend.delete("one")).gone


async def test_a_file_that_is_no_deployment_is_not_listed(machine: Machine) -> None:
    """What a person or a desktop left there is left alone."""
    await machine.apply("boots")
    (machine.root / "notes.txt").write_text("mine")
    (machine.root / "empty").mkdir()
    assert [one.name for one in await machine.backend.list()] == ["one"]


@pytest.mark.parametrize("name", ["..", ".", "", "../local", "one/../one", "One", "x" * 41])
async def test_a_name_never_leads_out_of_the_folder(machine: Machine, name: str) -> None:
    """Nothing of that name was made here, so nothing is touched."""
    await machine.apply("boots")
    for ask in (machine.backend.describe, machine.backend.access, machine.backend.stop):
        with pytest.raises(DeploymentNotFound):
            await ask(name)
    with pytest.raises(DeploymentNotFound):
        await machine.backend.delete(name)
    assert (await machine.backend.describe("one")).replicas == 1


async def test_a_stranger_with_our_numbers_is_never_signalled(machine: Machine) -> None:
    """A pid is given away again; its start is not."""
    await machine.apply("boots")
    path = machine.folder().path / "process.json"
    before = json.loads(path.read_text())
    me = psutil.Process()
    stranger = {**before, "started": "another-boot:1", "engine_started": "another-boot:2"}
    path.write_text(json.dumps({**stranger, "session": os.getsid(0), "engine": me.pid}))
    assert (await machine.backend.stop("one")).state is State.STOPPED
    path.write_text(json.dumps(before))
    assert (await machine.backend.describe("one")).replicas == 1


async def test_the_log_and_what_it_says_can_be_read(machine: Machine) -> None:
    """Its newest lines, its facts, what its processes take, and how to make it by hand."""
    await machine.apply("boots")
    await machine.says("asleep")
    logs = await machine.backend.logs("one", lines=1)
    assert (logs.lines, logs.total) == (("asleep",), 2)
    assert (await machine.backend.logs("one", lines=9, contains="LOAD")).total == 1
    facts = await machine.backend.engine_facts("one")
    assert facts.version is None
    assert "serve fake/boots" in (await machine.backend.config("one")).command
    usage = await machine.backend.usage("one")
    assert usage is not None
    assert usage.processes == 2
    assert usage.resident_memory_bytes > 0
    await machine.backend.stop("one")
    assert await machine.backend.usage("one") is None


async def test_a_plan_asks_nothing_that_the_model_or_machine_cannot_do(machine: Machine) -> None:
    """Refused before anything is made."""
    shape = ModelShape(model="m", max_position_embeddings=100)
    assert machine.backend.plan(machine.spec(max_model_len=100), shape)
    with pytest.raises(InvalidArgument):
        machine.backend.plan(machine.spec(max_model_len=101), shape)
    with pytest.raises(InvalidArgument):
        machine.backend.plan(machine.spec(max_replicas=2), shape)
    assert not machine.root.exists()


def test_this_machine_can_do_everything_there_is_a_word_for(machine: Machine) -> None:
    """Having the method is the flag."""
    for ability in (Scales, Stops, HasLogs, KnowsEngine, NamesEngine, WritesConfig, HasHost):
        assert isinstance(machine.backend, ability)
