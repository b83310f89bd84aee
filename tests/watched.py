"""A program run on one core, with what its processes took while they ran."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import anyio
import numpy as np
import psutil
from anyio.abc import Process

from core.environment import inherited_environment
from core.errors import HostError
from tests.truth.recorded import Floats

LOOK_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 180


class Usage(NamedTuple):
    """What a program and its children took, looked at every tenth of a second."""

    times: Floats
    """Of the looks, as `perf_counter` has it."""
    cpu_seconds: Floats
    """Since their start, at each look."""
    busy_seconds: Floats
    """Of the whole core, whoever took them."""
    memory_mib: float
    """Resident, all together, at most."""

    def others_share(self, begin: float, end: float) -> float:
        """Give the share of the core that other programs took in that time."""
        at = np.interp([begin, end], self.times, self.busy_seconds - self.cpu_seconds)
        return max(float(at[1] - at[0]) / (end - begin), 0.0)

    def cpu_between(self, begin: float, end: float) -> float:
        """Give the CPU seconds of that time, straight between the looks."""
        at = np.interp([begin, end], self.times, self.cpu_seconds)
        return float(at[1] - at[0])


def cores() -> tuple[int, int]:
    """Give the client's core and the endpoint's.

    Raises:
        HostError: There is only one.
    """
    free = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    if len(free) < 2:
        raise HostError(
            "Client and endpoint need a core each.", fix="Measure on Linux with two cores or more."
        )
    return free[0], free[-1]


@contextmanager
def _on(core: int) -> Iterator[None]:
    """Children started within stay on that core; we come back."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def run_watched(argv: Sequence[str], environment: Mapping[str, str], *, core: int) -> Usage:
    """Run a program to its end on one core.

    Raises:
        HostError: It failed; the cause is the end of what it said.
    """
    with _on(core):
        process = await anyio.open_process(argv, env={**inherited_environment(), **environment})
    said: list[bytes] = []
    async with process, anyio.create_task_group() as group:
        for stream in (process.stdout, process.stderr):
            group.start_soon(_listen, stream, said)
        with anyio.fail_after(_LONGEST_SECONDS):
            usage = await _watch(process, core)
    if process.returncode:
        raise HostError(
            f"{argv[0]} ended with {process.returncode}.",
            fix="Run it by hand to see why.",
            cause=b"".join(said)[-2000:].decode(errors="replace"),
        )
    return usage


async def _listen(stream: anyio.abc.ByteReceiveStream | None, said: list[bytes]) -> None:
    assert stream
    async for data in stream:
        said.append(data)
        del said[:-50]


async def _watch(process: Process, core: int) -> Usage:
    root = psutil.Process(process.pid)
    known: dict[int, float] = {}
    looks: list[tuple[float, float, float]] = []
    memory = 0
    while process.returncode is None:
        memory = max(memory, _look([root, *_children(root)], known))
        looks.append((time.perf_counter(), sum(known.values()), _busy_seconds(core)))
        await anyio.sleep(LOOK_SECONDS)
    times, cpu_seconds, busy_seconds = np.array(looks).T
    return Usage(times, cpu_seconds, busy_seconds, memory / 2**20)


def _busy_seconds(core: int) -> float:
    taken = psutil.cpu_times(percpu=True)[core]
    return float(sum(taken) - taken.idle - taken.iowait - taken.guest - taken.guest_nice)


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _look(processes: Sequence[psutil.Process], known: dict[int, float]) -> int:
    """Note each one's CPU seconds, which stay when it has ended; give their memory in bytes."""
    memory = 0
    for process in processes:
        try:
            taken = process.cpu_times()
            memory += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        known[process.pid] = taken.user + taken.system
    return memory
