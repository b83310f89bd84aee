"""One process of load: python -m benchmark.client.worker, spoken to over its pipes."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol

import uvloop

from benchmark.client import words
from benchmark.client.closed_loop import Closed
from benchmark.client.health import Pulse, no_collection
from benchmark.client.loads import Arriving
from benchmark.client.open_loop import Open
from benchmark.client.pool import raise_file_limit
from benchmark.client.rows import Rows
from benchmark.client.shares import Share
from benchmark.client.wire import Wire
from benchmark.client.words import LATENCIES, Order, Part, Report
from core.errors import OpsError

_DRAIN_LOOK_SECONDS: Final = 0.02
REFRESH_SECONDS: Final = 1.0
"""How often the credential's file is looked at, at most."""


Tell = Callable[[Report], None]


class Orders(Protocol):
    """What the fleet wants."""

    async def next(self) -> Order:
        """Wait for one.

        Raises:
            EOFError: The fleet is gone.
        """
        ...


class Lines:
    """Orders from stdin; the end of them is the end of us."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> Order:
        """Wait for a line."""
        line = await self._reader.readline()
        if not line:
            raise EOFError
        return words.order(line)


def say(report: Report) -> None:
    """Say it in one line."""
    sys.stdout.buffer.write(words.line(report))
    sys.stdout.buffer.flush()


class Cell:
    """This worker's part of one cell."""

    def __init__(self, share: Share, tell: Tell) -> None:
        self._tell = tell
        self._share = share
        self._rows = Rows()
        self._wire = Wire(share)
        kind = Closed if share.arrivals in {"closed", "once"} else Open
        self._load: Arriving = kind(share, self._rows, self._wire)
        self._pulse = Pulse()
        self._told = (0, 0, 0.0, 0.0, 0.0)

    async def run(self, orders: Orders) -> None:
        """Do as told, until the samples are handed over."""
        await self._load.prepare()
        self._tell(Report(is_="ready"))
        order = await orders.next()
        with no_collection():
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._ticking(order.at))
                if order.do == "start":
                    self._load.start(order.at)
                    self._pulse.start(order.at)
                    order = await self._until_cut(orders)
                ticking.cancel()
            await self._load.cut()
            self._pulse.look()
            self._pulse.close()
        self._hand_over(order)

    async def _until_cut(self, orders: Orders) -> Order:
        while (order := await orders.next()).do != "cut":
            self._load.pool.spawn(self._drain(order.begin, order.end))
        return order

    async def _drain(self, begin: float, end: float) -> None:
        """Wait for what is measured; what an overloaded engine has let lie since before is not."""
        while self._load.unended(end, begin):  # noqa: ASYNC110  an event would cost every request
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        self._tell(Report(is_="drained"))

    async def _ticking(self, start: float) -> None:
        index = 0
        every = self._share.slice_seconds
        refreshed = start
        while True:
            await asyncio.sleep(start + index * every - perf_counter())
            now = perf_counter()
            self._pulse.look()
            self._load.sweep(now)
            if index:
                self._tell(Report(is_="slice", part=self._part(index - 1, now)))
                self._look_for_death(now)
            if now >= refreshed + REFRESH_SECONDS:
                self._wire.refresh()
                refreshed = now
            index += 1

    def _part(self, index: int, now: float) -> Part:
        rows, before = self._rows, self._told
        flying = sum(len(c.times) for c in self._load.pool.connections if c.busy)
        tokens = rows.tokens + rows.tokens_of(flying)
        self._told = (rows.requests, rows.failed, tokens, rows.ttft_sum, rows.e2el_sum)
        requests, failed, made, ttft, e2el = (
            a - b for a, b in zip(self._told, before, strict=True)
        )
        latencies = rows.latencies[:: len(rows.latencies) // LATENCIES + 1]
        rows.latencies.clear()
        return Part(
            place=index,
            requests=int(requests),
            failed=int(failed),
            tokens=made,
            ttft_sum=ttft,
            e2el_sum=e2el,
            latencies=latencies,
            idle=not self._load.unended(now),
        )

    def _look_for_death(self, now: float) -> None:
        load = self._load
        waited = now - load.last_answer
        if waited < self._share.patience_seconds or not self._rows.failed:
            return
        if any(
            c.busy and c.intended < now - self._share.slice_seconds for c in load.pool.connections
        ):
            return
        last = f" ({load.last_words})" if load.last_words else ""
        because = f"No request was answered for {waited:.1f} s{last}."
        self._tell(Report(is_="dead", because=because))

    def _hand_over(self, window: Order) -> None:
        share = self._share
        samples = self._rows.samples(share.worker)
        file = Path(share.samples_file) / f"{share.cell}.{share.worker}.npz"
        samples.save(file)
        health = self._pulse.over(
            samples,
            begin=window.begin,
            end=window.end,
            scheduled=share.arrivals not in {"closed", "once"},
        )
        self._tell(Report(is_="done", health=health, file=str(file)))


async def work(orders: Orders, tell: Tell) -> None:
    """Do cell after cell."""
    while True:
        order = await orders.next()
        if order.do != "prepare" or order.share is None:
            continue
        try:
            await Cell(order.share, tell).run(orders)
        except OpsError as exc:
            tell(Report(is_="failed", because=f"{exc.summary} {exc.fix}"))
        except OSError as exc:
            full = exc.errno in {errno.ENOSPC, errno.EDQUOT}
            tell(Report(is_="failed", because=str(exc), disk_full=full))


async def main() -> None:
    """Read orders from stdin until it ends."""
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await work(Lines(reader), say)
    except EOFError:
        return


if __name__ == "__main__":
    # Ctrl-C is for the sweep, which ends its cell and then us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    uvloop.run(main())
    os._exit(0)  # taking the interpreter apart takes 15 ms, and nothing is left to be written
