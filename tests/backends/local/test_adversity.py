"""Deployments on this machine that meet with a bad disk, a taken port, or a stranger.

Each starts processes of its own: a watcher and a small fake engine, a fifth of a second together.
"""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

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
from tests.soon import HANGS

pytestmark = pytest.mark.anyio


async def test_an_engine_that_ignores_the_polite_signal_is_killed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its grace it has none."""
    monkeypatch.setattr("backends.local.process.GRACE_SECONDS", 0.1)
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
    """By their session and their folder: they are named, and the next start or end ends them."""
    await machine.apply("has-a-worker")
    await machine.says("asleep\nasleep")
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    watcher, engine = psutil.Process(process.session), psutil.Process(process.engine)
    watcher.suspend()  # so that it cannot end the worker
    engine.kill()
    watcher.kill()
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert "1 of its processes (pid " in failed.failure.cause
    assert len(machine.processes()) == 1
    await machine.backend.stop("one")
    assert machine.processes() == []


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


def test_a_folder_without_weights_is_planned_with_a_warning(
    machine: Machine, state_dir: Path
) -> None:
    """A config.json alone tells what a model takes; no engine can load it."""
    folder = str(state_dir)
    spec = machine.spec().model_copy(update={"model": folder})
    for size, said in ((None, True), (1, False)):
        made = machine.backend.plan(spec, ModelShape(model=folder, weight_bytes=size))
        assert any("no safetensors files" in warning for warning in made.warnings) is said


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


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process of somebody else, in a session of its own: not ours, should a test go wrong."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {}, setsid=True)
    process = psutil.Process(pid)
    yield process
    process.kill()
    process.wait(HANGS)


async def test_a_stranger_with_our_numbers_is_never_signalled(
    machine: Machine, stranger: psutil.Process
) -> None:
    """A pid and a session are given away again; the start of a process is not, and its own engine
    is still found.
    """
    await machine.apply("boots")
    path = machine.folder().path / "process.json"
    before = json.loads(path.read_text())
    boot = before["started"].partition(":")[0]
    numbers = {"session": stranger.pid, "engine": stranger.pid}
    starts = {"started": f"{boot}:1", "engine_started": f"{boot}:2"}
    path.write_text(json.dumps({**before, **numbers, **starts}))
    seen = await machine.backend.describe("one")
    assert (seen.state, seen.replicas) == (State.UNKNOWN, 1)
    assert str(before["engine"]) in str(seen.instance)
    assert (await machine.backend.stop("one")).state is State.STOPPED
    assert stranger.is_running()
    assert stranger.status() != psutil.STATUS_ZOMBIE
    assert machine.processes() == []


async def test_a_look_ends_no_engine_whose_number_was_written_wrong(machine: Machine) -> None:
    """It lives below its watcher: the file is damaged, not the engine gone."""
    await machine.apply("boots")
    path = machine.folder().path / "process.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "engine": 2**22 + 1}))
    seen = await machine.backend.describe("one")
    assert (seen.state, seen.replicas) == (State.UNKNOWN, 1)
    path.write_text(json.dumps(before))
    assert (await machine.backend.describe("one")).state is State.LOADING


async def test_a_plan_asks_nothing_that_the_model_or_machine_cannot_do(machine: Machine) -> None:
    """Refused before anything is made."""
    shape = ModelShape(model="m", max_position_embeddings=100)
    assert machine.backend.plan(machine.spec(max_model_len=100), shape)
    with pytest.raises(InvalidArgument):
        machine.backend.plan(machine.spec(max_model_len=101), shape)
    longer = ("--max-model-len", "101")
    with pytest.raises(InvalidArgument):
        machine.backend.plan(machine.spec(engine_args=longer), shape)
    stretched = (*longer, '--hf-overrides={"max_position_embeddings": 101}')
    assert machine.backend.plan(machine.spec(engine_args=stretched), shape)
    with pytest.raises(InvalidArgument):
        machine.backend.plan(machine.spec(max_replicas=2), shape)
    with pytest.raises(InvalidArgument, match="access: this machine has no such choice"):
        machine.backend.plan(machine.spec(access="public"), shape)
    assert not machine.root.exists()
