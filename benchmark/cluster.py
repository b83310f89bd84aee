"""Load from the machines of a Ray cluster: workers there, one cell as if they were here."""

import logging
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmark import worker
from benchmark.client import CellRun, Orders, ended, last_words, view
from benchmark.loads import Job
from benchmark.node import SPARED
from benchmark.records import Cluster, Measured, NodeView, Slice
from core.environment import ROOT, inherited_environment
from core.errors import ClusterError, CommandNotFound

_MOST_LINE_BYTES: Final = 2**24
_JOIN_SECONDS: Final = 180.0
_SILENT_SECONDS: Final = 60.0
"""Without a line of the driver, which writes one every second once it has joined; or of a worker,
each of which reports four times a second until it hands over."""
_END_SECONDS: Final = 15.0
"""For actors to end their workers; then the driver is killed, and Ray ends its actors."""
_LEAD_SECONDS: Final = 0.5
"""From the order to start until the common moment: nodes may be a continent away."""
_TOKEN: Final = {"RAY_AUTH_MODE": "token"}
_ATTEMPTS: Final = {"RAY_NUM_REDIS_GET_RETRIES": "4"}
"""Seconds in which a head is to answer (Ray 2.60 takes 20): one that refuses the token never does.
"""
_log = logging.getLogger(__name__)


class ClusterFleet:
    """A cluster that was joined; nodes that were lost are replaced for the next cell."""

    def __init__(self, process: Process, log_file: Path, say: Callable[[str], object]) -> None:
        assert process.stdin
        assert process.stdout
        self._process = process
        self._orders = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._log_file = log_file
        self._tell = say
        self.silent_seconds = _JOIN_SECONDS
        self._workers = 0
        self._places: list[dict[str, Any]] = []

    async def hire(self, workers: int) -> None:
        """Place so many workers, at least one on each node and at most one for each core.

        Raises:
            ClusterError: Too few nodes are free, or one cannot put load on.
        """
        self._places = (await self.ask("hired", do="hire", workers=workers))["hired"]
        self._workers = sum(len(one["workers"]) for one in self._places)

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> Measured:
        """Measure one cell, as `benchmark.client.Fleet` does.

        A node of which nothing is heard ends the cell: `NodeView.lost` says so, and what the
        others measured until then is there.

        Raises:
            ClusterError: The connection to the cluster is gone.
            DiskFull: A worker could not write its samples.
        """
        run = CellRun(
            job, workers=self._workers, enough=enough, tell=tell, lead_seconds=_LEAD_SECONDS
        )
        lost: dict[str, str] = {}
        ordered = replace(job, workers=self._workers)
        await self._say(do="prepare", job=asdict(ordered))
        heard_at = anyio.current_time()
        while not run.over:
            said = await self._hear()
            if "alive" not in said:
                heard_at = anyio.current_time()
            elif anyio.current_time() > heard_at + _SILENT_SECONDS:
                raise self._gone(f"No worker has said anything for {_SILENT_SECONDS:.0f} s.")
            if "lost" in said:
                lost[said["lost"]] = said["why"]
                because = f"The node {said['lost']} was lost: {said['why']}."
                await self._give(run.lost(said["workers"], because))
            elif "died" in said:
                await self._give(run.died(said["worker"], said["died"]))
            elif "report" in said:
                report = worker.report(orjson.dumps(said["report"]))
                await self._give(run.hear(said["worker"], report, stop=stop))
        measured = run.measured()
        clocks = {one["node"]: one for one in (await self.ask("clocks", do="clocks"))["clocks"]}
        views = (
            NodeView(
                workers=tuple(one["workers"]),
                lost=lost.get(one["node"]),
                client=view(health) if health else None,
                **(clocks.get(one["node"]) or {"node": one["node"]}),
            )
            for one in self._places
            for health in [[run.health[n] for n in one["workers"] if n in run.health]]
        )
        return replace(measured, nodes=tuple(views))

    async def _give(self, orders: Orders) -> None:
        """Give each order once, to all who get it."""
        several: defaultdict[worker.Order, list[int]] = defaultdict(list)
        for number, order in orders.items():
            several[order].append(number)
        for order, numbers in several.items():
            await self._say(do="order", workers=numbers, order=asdict(order))

    async def ask(self, answer: str, **words: Any) -> dict[str, Any]:
        """Say something, and give the line that answers it."""
        await self._say(**words)
        while answer not in (said := await self._hear()):
            pass
        return said

    async def _say(self, **words: Any) -> None:
        try:
            await self._orders.send(orjson.dumps(words, option=orjson.OPT_APPEND_NEWLINE))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            raise self._gone() from exc

    async def _hear(self) -> dict[str, Any]:
        try:
            with anyio.fail_after(self.silent_seconds):
                line = await self._lines.receive_until(b"\n", _MOST_LINE_BYTES)
        except TimeoutError as exc:
            words = f"The Ray cluster has not answered for {self.silent_seconds:.0f} s."
            raise self._gone(words) from exc
        except (anyio.EndOfStream, anyio.IncompleteRead) as exc:
            raise self._gone() from exc
        said: dict[str, Any] = orjson.loads(line)
        if "refused" in said:
            raise ClusterError(**said["refused"])
        if "waiting" in said:
            self._tell(said["waiting"])
        return said

    def _gone(self, words: str = "The connection to the Ray cluster is gone.") -> ClusterError:
        return ClusterError(
            words,
            fix="See that its head runs and is reached from here; `resume` goes on with this cell.",
            cause=last_words(self._log_file)[:300],
        )


def require_ray() -> None:
    """Say how to install what a cluster needs.

    Raises:
        CommandNotFound: Ray is not installed.
    """
    if find_spec("ray") is None:
        raise CommandNotFound(
            "A cluster needs Ray, which is not installed.",
            fix="Run `make ray`, or `.venv/bin/pip install -r requirements-ray.txt`.",
        )


@asynccontextmanager
async def joined(
    cluster: Cluster,
    base_url: str,
    log_file: Path,
    *,
    patience_seconds: float,
    say: Callable[[str], object] = _log.warning,
) -> AsyncIterator[ClusterFleet]:
    """Join a cluster; at the end nothing of ours runs on its nodes. `say` is told of its waits.

    Raises:
        CommandNotFound: Ray is not installed.
        ClusterError: The cluster is out of reach, or is not protected by a token.
    """
    require_ray()
    with log_file.open("ab") as log:
        process = await anyio.open_process(
            [sys.executable, "-m", "benchmark.ray_driver"],
            stderr=log,
            cwd=ROOT,
            env=SPARED | _ATTEMPTS | inherited_environment() | ({} if cluster.insecure else _TOKEN),
            start_new_session=True,  # a Ctrl-C is for the sweep, which ends its cell and then this
        )
    crew = ClusterFleet(process, log_file, say)
    words = {**cluster.model_dump(), "base_url": base_url, "patience_seconds": patience_seconds}
    try:
        await crew.ask("joined", **words)
        crew.silent_seconds = _SILENT_SECONDS
        yield crew
    finally:
        with anyio.CancelScope(shield=True):
            await ended(process, _END_SECONDS)
