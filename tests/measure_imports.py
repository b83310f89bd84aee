"""What a first call to each cloud has to import: `.venv/bin/python -m tests.measure_imports`.

It costs what Python takes to run bytecode that is there, as `make install` writes it: each figure
is the median of some processes, after one that compiled what was not compiled.
"""

import sys
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from core.environment import ROOT
from core.processes import run

BUDGET_SECONDS: Final = 1.0
_RUNS: Final = 7
_CALLS: Final = {
    "Cloud Run": "import backends.cloud_run.backend",
    "Container Apps": "import backends.aca.backend",
    "Cloud TPU": "import backends.tpu.backend",
}
_CODE: Final = """
import resource, time
import server
from operations import deployments
MIB = 2**20 if __import__("sys").platform == "darwin" else 2**10
spent, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{call}
seconds = time.process_time() - spent
print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / MIB)
"""


async def main() -> None:
    """Print what the first calls take, in seconds of CPU and MiB."""
    for cloud, call in _CALLS.items():
        with TemporaryDirectory() as bytecode:
            taken = [await _taken(call, bytecode) for _ in range(_RUNS + 1)][1:]
        seconds, mib = (median(each) for each in zip(*taken, strict=True))
        kept = "within" if seconds <= BUDGET_SECONDS else "OVER"
        print(f"first call to {cloud}: {seconds:.2f} s of CPU, {kept} {BUDGET_SECONDS} s; ", end="")
        print(f"{mib:.0f} MiB")


async def _taken(call: str, bytecode: str) -> tuple[float, float]:
    """Give the seconds and MiB of one process."""
    env = {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    done = await run((sys.executable, "-c", _CODE.replace("{call}", call)), cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    seconds, mib = done.stdout.split()
    return float(seconds), float(mib)


if __name__ == "__main__":
    anyio.run(main)
