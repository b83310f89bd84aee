"""All workers as one client: kept from cell to cell, ended with this process whatever ends it."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from benchmark.client import words
from benchmark.client.cells import CellRun
from benchmark.client.jobs import Job
from benchmark.client.words import Order, Report
from benchmark.measured import Measured, Slice
from core.environment import ROOT, inherited_environment

_MOST_LINE_BYTES: Final = 2**20
_END_SECONDS: Final = 3.0
"""For a worker whose stdin was closed; then it is killed."""
_ALONE: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""A worker has a core to itself, and no matrices: NumPy starts faster without threads for them."""


class Said(NamedTuple):
    """A report and who made it; None when that worker is gone."""

    worker: int
    report: Report | None


class Fleet:
    """So many worker processes; what they print to stderr is in the log file."""

    def __init__(self, workers: int, log_file: Path) -> None:
        self._count = workers
        self._log_file = log_file
        self._stack = AsyncExitStack()
        self._processes: dict[int, Process] = {}
        self._reports: MemoryObjectReceiveStream[Said]
        self._say: MemoryObjectSendStream[Said]

    async def __aenter__(self) -> Self:
        """Begin; the workers are started with the first cell."""
        self._say, self._reports = anyio.create_memory_object_stream[Said](1024)
        await self._stack.__aenter__()
        self._stack.enter_context(self._say)
        self._stack.enter_context(self._reports)
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers."""
        with anyio.CancelScope(shield=True):
            for process in tuple(self._processes.values()):
                await _ended(process)
        self._group.cancel_scope.cancel()
        await self._stack.__aexit__(kind, error, trace)

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str, Sequence[Slice]], None],
        stop: Callable[[], bool],
    ) -> Measured:
        """Measure one cell: warm up, a window, and the drain of what began in it, under load.

        `enough` is asked after each slice of the window; `stop` ends the cell now. An endpoint
        that is gone, or a worker that dies, is told in `Measured.failed`, with what there is.

        Raises:
            DiskFull: A worker could not write its samples.
        """
        for number in range(self._count):
            if number not in self._processes:
                await self._start(number)
        run = CellRun(job, workers=self._count, enough=enough, tell=tell)
        await self._send(run.prepare())
        async for said in self._reports:
            orders = (
                run.died(said.worker, self._log_file)
                if said.report is None
                else run.hear(said.worker, said.report, stop=stop)
            )
            await self._send(orders)
            if run.over:
                break
        return run.measured()

    async def _start(self, number: int) -> None:
        with self._log_file.open("ab") as log:
            process = await anyio.open_process(
                [sys.executable, "-m", "benchmark.client.worker"],
                stderr=log,
                cwd=ROOT,
                env={**inherited_environment(), **_ALONE},
            )
        self._processes[number] = process
        self._group.start_soon(self._listen, number, process)

    async def _listen(self, number: int, process: Process) -> None:
        assert process.stdout
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            while True:
                line = await lines.receive_until(b"\n", _MOST_LINE_BYTES)
                await self._say.send(Said(number, words.report(line)))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            self._processes.pop(number, None)
            await _ended(process)
            await self._say.send(Said(number, None))

    async def _send(self, orders: dict[int, Order]) -> None:
        for number, order in orders.items():
            process = self._processes.get(number)
            if process is None or process.stdin is None:
                continue
            try:
                await process.stdin.send(words.line(order))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                continue  # `_listen` tells of its end


async def _ended(process: Process) -> None:
    """Close its stdin, which ends it, and wait; one that does not end is killed."""
    if process.stdin:
        await process.stdin.aclose()
    with anyio.move_on_after(_END_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
    await process.aclose()
