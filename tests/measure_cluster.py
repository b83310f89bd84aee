"""What a cluster costs the load, and what ten kills at random moments leave: `make bench-cluster`.

Prints the CPU of Ray's processes (driver, actors, raylets, head) beside that of the workers over a
closed loop at full speed, and a row for each kill: when it came, when it was noticed, the report.
"""

import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import anyio
import psutil

from benchmark.cluster import joined
from benchmark.records import Cluster, Load, NodeView
from tests.cluster.conftest import Raylets, ours, until
from tests.cluster.test_faults import Sweep, a_run, engine_on_a_free_port
from tests.cluster.test_load_from_nodes import a_job, measured_by
from tests.truth.serving import serving

KILLS = 10
_WINDOW_SECONDS = 8.0
"""As long as a cell of the profile `quick` may take."""
_WORKERS = ("benchmark.worker",)
_OURS = ("ray_driver", "ray::Node")
_CLUSTER = ("/raylet/raylet", "gcs_server", "/ray/dashboard/", "/runtime_env/", "log_monitor")


def _seconds(parts: tuple[str, ...]) -> float:
    """Give the CPU seconds so far of all processes that are named so."""
    total = 0.0
    for process in psutil.process_iter():
        try:
            if any(part in " ".join(process.cmdline()) for part in parts):
                used = process.cpu_times()
                total += used.user + used.system
        except psutil.Error:
            continue
    return total


async def share(raylets: Raylets, folder: Path) -> None:
    os.environ.update(raylets.environment)
    wanted = Cluster(address="auto", nodes=3)
    async with (
        serving(folder, ttft_ms=0, itl_ms=0) as mock,
        joined(wanted, mock.base_url, folder / "log", patience_seconds=20) as crew,
    ):
        await crew.hire(3)
        job = a_job(mock.base_url, folder, Load(concurrency=384))
        job = replace(job, max_seconds=_WINDOW_SECONDS)
        await measured_by(crew, job)  # imports and connections are paid for
        used, began = [_seconds(parts) for parts in (_CLUSTER, _OURS, _WORKERS)], time.monotonic()
        measured = await measured_by(crew, job)
        cluster, ours_, workers = (
            _seconds(parts) - before
            for parts, before in zip((_CLUSTER, _OURS, _WORKERS), used, strict=True)
        )
        took = time.monotonic() - began
        before = _seconds(_CLUSTER)
        await anyio.sleep(took)
        idle = _seconds(_CLUSTER) - before
    added = ours_ + max(cluster - idle, 0.0)
    print(
        f"CPU of a cell of {took:.1f} s with {len(measured.samples):,} requests: workers "
        f"{workers:.2f} s; driver and actors {ours_:.2f} s; raylets and head {cluster:.2f} s, idle "
        f"{idle:.2f} s. The run adds {added / (added + workers):.1%} (wanted: 5 % at most)"
    )


def kills(raylets: Raylets, url: str, folder: Path) -> int:
    """Kill a node in each of ten runs; return how many reports were not truthful."""
    wrong = 0
    for turn in range(KILLS):
        runs = folder / str(turn)
        sweep = Sweep(runs, raylets, *a_run(url, "--nodes=3"), "--cell-seconds=8")
        until(sweep.doing, "the cell")
        wait = random.uniform(0, 15)
        time.sleep(wait)
        during = sweep.doing()
        raylets.do("kill 2")
        raylets.do("add")  # or a run that had not begun would wait for a third node
        cells, code = sweep.ended(), sweep.process.returncode
        lost = [node.lost for cell in cells for node in cell.nodes if node.lost]
        replaced = not lost and all(cell.nodes for cell in cells) and during != "measuring"
        truthful = not any(cell.valid and any(map(_lost, cell.nodes)) for cell in cells)
        truthful &= bool(lost) or replaced or code == 1
        until(lambda: not ours(), "nodes to be empty")
        wrong += not truthful
        codes = [v.code.value for cell in cells for v in cell.verdicts if v.spoils]
        seen = f"exit {code}, {lost or 'no node lost'}, {codes}"
        print(f"{turn + 1:2}. after {wait:.1f} s, {during}: {seen}", flush=True)
    print(f"{KILLS - wrong} of {KILLS} reports are truthful; no process was left")
    return wrong


def _lost(node: NodeView) -> bool:
    return node.lost is not None


def main() -> int:
    raylets = Raylets(3)
    try:
        with tempfile.TemporaryDirectory() as folder, engine_on_a_free_port() as url:
            anyio.run(share, raylets, Path(folder))
            return kills(raylets, url, Path(folder))
    finally:
        raylets.end()


if __name__ == "__main__":
    sys.exit(main())
