"""Load from three machines, one of which dies: `make cluster-demo`.

Starts three nodes of Ray on this machine and a simulated engine, sweeps it from all three, kills a
node on the way, and shows what the report says of it.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from benchmark.folder import RunFolder
from core.environment import ROOT, inherited_environment

_MODEL: Final = "google/gemma-4-E4B-it"
_BOOT_SECONDS: Final = 60
_CELLS: Final = ("--contexts=64", "--concurrencies=6,24,96", "--output-tokens=16")


def main() -> int:
    if find_spec("ray") is None:
        print("Ray is not installed. Run: .venv/bin/pip install -r requirements-ray.txt")
        return 1
    with tempfile.TemporaryDirectory() as folder, _engine() as url, _raylets() as (orders, cluster):
        print(f"Three nodes with a token; a simulated engine at {url}.\n")
        sweep = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmark", "run", f"--url={url}", *_CELLS),
                *("--cell-seconds=5", "--cluster=auto", "--usd-per-hour=0", f"--folder={folder}"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **inherited_environment(),
                "RAY_ADDRESS": cluster["address"],
                "RAY_AUTH_TOKEN_PATH": cluster["token_file"],
            },
        )
        assert sweep.stdout
        for line in sweep.stdout:
            print(f"  {line.rstrip()[:300]}")
            if line.startswith("[1/"):
                run = RunFolder(next(Path(folder).glob("*")))
                _until(partial(_is_measuring, run))
                print("\nA node is killed.\n")
                orders.write(b"kill 2\n")
                orders.flush()
        run = RunFolder(next(Path(folder).glob("*")))
        for cell in run.cells():
            print(f"\n{cell.id}: {cell.worth}")
            for node in cell.nodes:
                print(f"  {node.node}: {node.requests} requests, {node.lost or 'there to the end'}")
        page = Path(tempfile.gettempdir()) / "vllm-devops-agent-cluster.html"
        page.write_bytes(run.page_file.read_bytes())
        print(f"\nThe report, with a row for each node: {page}")
        return sweep.wait()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _BOOT_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.2)


def _is_measuring(run: RunFolder) -> bool:
    now = run.progress()
    return now is not None and now.doing == "measuring" and now.cells_done > 0


@contextmanager
def _engine() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def answers() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    with _started("simulators.engine", "serve", _MODEL, f"--port={port}") as process:
        try:
            _until(answers)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@contextmanager
def _raylets() -> Iterator[tuple[IO[bytes], dict[str, Any]]]:
    with _started("simulators.cluster", "3", "1", stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        yield process.stdin, json.loads(process.stdout.readline())


def _started(*words: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=inherited_environment(),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
