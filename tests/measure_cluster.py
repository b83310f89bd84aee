"""What a cluster costs the load, and what ten kills at random moments leave: `make bench-cluster`.

Prints a row for each of five cells at full speed: the CPU of the workers, of the run's own driver
and actors, and of the cluster's daemons, as they are and as they were before anybody had joined.
Then a row for each kill: when it came, and what the report says of the node.
"""

import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import psutil

from benchmark.cluster import joined
from benchmark.records import Cluster, Code, Load
from tests.cluster.conftest import Raylets, ours, started, until
from tests.cluster.test_faults import Sweep, a_run, engine_on_a_free_port
from tests.cluster.test_load_from_nodes import a_job, measured_by
from tests.truth.serving import serving

CELLS: Final = 5
KILLS: Final = 10
MOST_SHARE: Final = 0.05
_WINDOW_SECONDS: Final = 8.0
"""As long as a cell of the profile `quick` may take."""
_RUN_SECONDS: Final = 15.0
"""About as long as a run takes over which the kills are spread: joining, warm-up, window."""
_NAMES: Final = {
    "workers": ("benchmark.worker",),
    "run": ("benchmark.ray_driver", "ray::Node"),
    "daemons": (
        *("/raylet/raylet", "gcs_server", "/ray/dashboard/", "/runtime_env/", "log_monitor"),
        *("ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray.util.client.server", "ray::IDLE"),
    ),
}
"""Parts of the command lines of who is counted together."""
_HANDING_OVER_SECONDS: Final = 1.0
"""At the end of a cell, when a node that dies may have given all that it had measured."""


def _seconds() -> dict[str, float]:
    """Give the CPU seconds so far of all processes that live, by group."""
    total = dict.fromkeys(_NAMES, 0.0)
    for group, names in _NAMES.items():
        for process in started(*names):
            with suppress(psutil.Error):
                used = process.cpu_times()
                total[group] += used.user + used.system
    return total


async def share(raylets: Raylets, folder: Path) -> float:
    """Return the median share of the client's CPU that a run on a cluster adds."""
    os.environ.update(raylets.environment)
    before = _seconds()["daemons"]
    await anyio.sleep(_WINDOW_SECONDS)
    idle = (_seconds()["daemons"] - before) / _WINDOW_SECONDS
    print(f"daemons of a cluster that nobody uses: {idle:.1%} of a core, for {_WINDOW_SECONDS} s")
    added, whole = [], []
    async with (
        serving(folder, ttft_ms=0, itl_ms=0) as mock,
        joined(
            Cluster(address="auto", nodes=3), mock.base_url, folder / "log", patience_seconds=20
        ) as crew,
    ):
        await crew.hire(3)
        job = a_job(mock.base_url, folder, Load(concurrency=384))
        job = replace(job, max_seconds=_WINDOW_SECONDS)
        await measured_by(crew, job)  # imports and connections are paid for
        for turn in range(1, CELLS + 1):
            used, began = _seconds(), time.monotonic()
            measured = await measured_by(crew, job)
            took = time.monotonic() - began
            workers, run, daemons = (
                now - then for now, then in zip(_seconds().values(), used.values(), strict=True)
            )
            caused = run + max(daemons - idle * took, 0.0)
            added.append(caused / (caused + workers))
            whole.append((run + daemons) / (run + daemons + workers))
            print(
                f"cell {turn}: {took:.1f} s, {len(measured.samples):,} requests; CPU: workers "
                f"{workers:.2f} s, driver and actors {run:.2f} s, daemons {daemons:.2f} s, idle "
                f"{idle * took:.2f} s. The run adds {added[-1]:.1%}, and {whole[-1]:.1%} with those"
            )
    for what, shares in (("the run adds", added), ("with idle daemons", whole)):
        print(
            f"share of the client's CPU, {what}: median {statistics.median(shares):.1%}, "
            f"{min(shares):.1%} to {max(shares):.1%} in {CELLS} cells"
        )
    return statistics.median(added)


def kills(raylets: Raylets, url: str, folder: Path) -> int:
    """Kill a node in each of ten runs; return how many reports were not truthful.

    A run may replace a node that dies before a cell has it, and has all of one that dies after it.
    """
    wrong = 0
    for turn in range(KILLS):
        runs = folder / str(turn)
        sweep = Sweep(runs, raylets, *a_run(url, "--nodes=3"), "--cell-seconds=8")
        until(sweep.doing, "the cell")
        wait = _RUN_SECONDS * (turn + random.random()) / KILLS
        time.sleep(wait)
        during, victim, at = sweep.doing(), raylets.nodes[2], datetime.now(UTC)
        raylets.do("kill 2")
        raylets.do("add")  # or a run that had not begun would wait for a third node
        (cell,), code = sweep.ended(), sweep.process.returncode
        lost = [node for node in cell.nodes if node.lost]
        codes = {verdict.code for verdict in cell.verdicts}
        told = Code.NODE_LOST in codes and not cell.valid and len(lost) == 1
        assert cell.started_at
        seconds = (at - cell.started_at).total_seconds()
        over = seconds > (cell.wall_seconds or 0.0) - _HANDING_OVER_SECONDS
        has_it = any(node.node.endswith(f"#{victim[:4]}") for node in cell.nodes)
        truthful = told or (not lost and len(cell.nodes) == 3 and (over or not has_it))
        until(lambda: not ours(), "nodes to be empty")
        wrong += not truthful
        words = lost[0].lost if lost else f"{'it was over' if over else 'another took its place'}"
        print(
            f"{turn + 1:2}. {seconds:+5.1f} s from the cell's start ({during}): exit {code}, "
            f"{'valid' if cell.valid else 'not valid'}, {sorted(codes)}, {words}, "
            f"{'truthful' if truthful else 'WRONG'}, no process left",
            flush=True,
        )
    print(f"{KILLS - wrong} of {KILLS} reports are truthful; no process was left")
    return wrong


def main() -> int:
    raylets = Raylets(3)
    try:
        with tempfile.TemporaryDirectory() as folder, engine_on_a_free_port() as url:
            print("load:", *os.getloadavg())
            added = anyio.run(share, raylets, Path(folder))
            wrong = kills(raylets, url, Path(folder))
            return int(wrong > 0 or added > MOST_SHARE)
    finally:
        raylets.end()


if __name__ == "__main__":
    sys.exit(main())
