"""What a first call to Google has to import: `.venv/bin/python -m tests.measure_imports`."""

import sys
from statistics import median
from typing import Final

import anyio

from core.processes import run
from core.settings import ROOT, inherited_environment

BUDGET_SECONDS: Final = 0.6
_RUNS: Final = 7
_CODE: Final = """
import time
import server
import backends.cloud_run.backend
began = time.process_time()
from backends.cloud_run.slim import client_class
client_class("google.cloud.run_v2", "services", "ServicesAsyncClient")
client_class("google.cloud.run_v2", "revisions", "RevisionsAsyncClient")
client_class("google.cloud.monitoring_v3", "metric_service", "MetricServiceAsyncClient")
client_class("google.cloud.secretmanager_v1", "secret_manager_service",
             "SecretManagerServiceAsyncClient")
print(time.process_time() - began)
"""


async def main() -> None:
    """Print the median of some processes' time, in seconds of CPU."""
    taken = []
    for _ in range(_RUNS):
        done = await run((sys.executable, "-c", _CODE), cwd=ROOT, env=inherited_environment())
        taken.append(float(done.stdout))
    kept = "within" if median(taken) <= BUDGET_SECONDS else "OVER"
    print(f"first call's imports: {median(taken):.2f} s of CPU, {kept} {BUDGET_SECONDS} s")


if __name__ == "__main__":
    anyio.run(main)
