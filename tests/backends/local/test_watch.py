"""The watcher of one engine, as the program that it is."""

import os
import signal
import sys

import psutil
import pytest

from backends.local.identity import look
from core.environment import ROOT, inherited_environment
from core.processes import detach
from core.records import State
from tests.backends.local.conftest import Machine
from tests.core.conftest import open_null

pytestmark = pytest.mark.anyio


async def watched(machine: Machine, mode: str, ttl_seconds: int) -> None:
    """An engine whose time is counted in seconds: a ttl of a deployment is in minutes."""
    await machine.apply(mode)
    await machine.backend.stop("one")
    machine.folder().fresh()
    machine.folder().want("running")
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    argv = ("-P", "-m", "backends.local.watch", str(machine.folder().path), str(ttl_seconds))
    with open_null() as null:
        detach((sys.executable, *argv), env=env, stdin=null)
    await machine.sees(lambda seen: seen.instance is not None)


async def test_an_engine_whose_time_is_over_is_stopped(machine: Machine) -> None:
    """It takes a second, for an alarm knows no less; stopped, not failed, and it can start anew."""
    await watched(machine, "boots", ttl_seconds=1)
    stopped = await machine.until(State.STOPPED)
    assert stopped.failure is None
    assert "its time was over at" in stopped.summary()
    ended = machine.folder().exit()
    assert ended is not None
    assert ended.reason == "ttl"
    await machine.empties()
    assert (await machine.backend.start("one")).replicas == 1


async def test_a_time_that_is_given_is_told(machine: Machine) -> None:
    """From the start of what runs now; started again, it counts again."""
    first = await machine.apply("boots", ttl_minutes=30)
    assert first.expires_at is not None
    assert 29 * 60 < (first.expires_at - first.since).total_seconds() <= 30 * 60
    await machine.backend.stop("one")
    again = await machine.backend.start("one")
    assert again.expires_at is not None
    assert again.expires_at > first.expires_at
    assert again.created_at == first.created_at


async def test_a_watcher_that_is_asked_to_end_ends_its_engine_first(machine: Machine) -> None:
    """And still writes down how: by that signal."""
    await machine.apply("boots")
    await machine.says("asleep")
    process = machine.folder().process()
    assert process is not None
    os.kill(process.session, signal.SIGTERM)
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert "signal 15" in failed.failure.cause
    await machine.empties()


async def test_an_engine_is_no_child_of_this_server(machine: Machine) -> None:
    """It has a session of its own, and no terminal can end it."""
    await machine.apply("boots")
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    assert os.getsid(process.engine) == process.session != os.getsid(0)
    assert psutil.Process(process.engine).terminal() is None


async def test_a_watcher_that_died_leaves_the_truth_to_be_found(machine: Machine) -> None:
    """Its engine runs on and is seen; when that dies, nobody knows how."""
    await machine.apply("boots")
    process = machine.folder().process()
    assert process is not None
    assert process.engine is not None
    os.kill(process.session, signal.SIGKILL)
    assert (await machine.sees(lambda _seen: look(process.session) is None)).replicas == 1
    os.kill(process.engine, signal.SIGKILL)
    failed = await machine.until(State.FAILED)
    assert failed.failure is not None
    assert failed.failure.code == "ENGINE_GONE"
