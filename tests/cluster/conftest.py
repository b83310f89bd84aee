"""A Ray cluster on this machine, with a token, for a whole worker; and endpoints to put load on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from core.environment import ROOT, inherited_environment

CORES = 1
"""Of each node."""
_MARK = "VLLM_DEVOPS_TESTED_BY"
"""In the environment of all that is started from here: others may put load on beside it."""
_HERE = os.environ[_MARK] = str(os.getpid())
os.environ["SPT_NOENV"] = "1"  # or the titles that Ray gives its processes overwrite it


class Raylets:
    """A cluster's nodes: what `python -m simulators.cluster` began."""

    def __init__(self, nodes: int, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simulators.cluster", str(nodes), str(CORES), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=inherited_environment(),
        )
        began = self._read()
        self.client: str = began["client"]
        self.nodes: list[str] = began["nodes"]
        self.token_file = Path(began["token_file"])
        self.environment = {
            "RAY_ADDRESS": began["address"],
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "PYTHONPATH": str(ROOT),
        }

    def do(self, command: str) -> None:
        """Add, kill, freeze or thaw a node; one that is killed is forgotten."""
        assert self._process.stdin
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        self.nodes = self._read()["nodes"]

    def processes(self) -> list[psutil.Process]:
        """Give what was started for its nodes, and lives."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def end(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the cluster did not start"
        said: dict[str, Any] = json.loads(line)
        return said


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Raylets]:
    cluster = Raylets(3)
    yield cluster
    cluster.end()


def of_three(cluster: Raylets) -> Raylets:
    """Replace what a test has harmed."""
    while len(cluster.nodes) < 3:
        cluster.do("add")
    return cluster


@pytest.fixture
def raylets(_cluster: Raylets) -> Raylets:
    """Three nodes, of which a test may harm the last one; the first is the head."""
    return of_three(_cluster)


@pytest.fixture
def left(_cluster: Raylets) -> Raylets:
    """Two or three nodes, as the test before has left them: a new one takes three seconds."""
    return _cluster


@pytest.fixture(scope="session")
def open_cluster() -> Iterator[Raylets]:
    """Two nodes that take callers without a token; the last test that has them kills the head."""
    cluster = Raylets(2, "--open")
    yield cluster
    cluster.end()


def started(*names: str) -> list[psutil.Process]:
    """Give what lives of those names, and was started from here, however far down."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if any(name in words for name in names) and process.environ().get(_MARK) == _HERE:
                found.append(process)
        except psutil.Error:  # it is over, or another user's
            continue
    return found


def ours() -> list[psutil.Process]:
    """Give what puts load on, or places it, for a test of this process."""
    return started("benchmark.worker", "benchmark.ray_driver", "ray::Node")


def until(true: Callable[[], Any], what: str, seconds: float = 180) -> Any:
    """Wait for something to be true, and give it: Ray has limits of its own of 30 and 60 s."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)
    return value
