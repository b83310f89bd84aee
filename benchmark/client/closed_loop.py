"""Closed loops and single bursts: so many slots, each with one request at a time."""

import asyncio
from functools import partial
from time import perf_counter
from typing import Final

from benchmark.client.clock import Alarm
from benchmark.client.exchange import Connection
from benchmark.client.loads import FIRST_PAUSE_SECONDS, Base, in_time, pause_seconds
from benchmark.client.pool import NotConnectedError
from benchmark.client.rows import Rows
from benchmark.client.shares import Share
from benchmark.client.wire import Wire
from benchmark.errors import Outcome

_OK: Final = Outcome.OK


class Closed(Base):
    """So many slots; each asks again as soon as it was answered, or, of one burst, never."""

    def __init__(self, share: Share, rows: Rows, wire: Wire) -> None:
        super().__init__(share, rows, wire)
        self._once = share.arrivals == "once"
        self._failures: dict[Connection, int] = {}
        self._opening: set[float] = set()
        self._ready: list[Connection] = []
        self._failed_ahead: list[NotConnectedError] = []
        self._alarm: Alarm | None = None
        self._next = self._numbers.__next__

    async def prepare(self) -> None:
        if self._once:
            await in_time(self._open_ahead() for _ in range(self.share.slots))

    async def _open_ahead(self) -> None:
        try:
            self._ready.append(await self.pool.open())
        except NotConnectedError as exc:
            self._failed_ahead.append(exc)

    def start(self, at: float) -> None:
        self.last_answer = at
        if self._once:
            self._opening.add(at)
            self._alarm = Alarm(partial(self._burst, at))
            self._alarm.set(at)
            return
        for slot in range(self.share.slots):
            self.pool.spawn(self._fill(at + self.share.slot_delay(slot) - perf_counter()))

    def _burst(self, at: float) -> None:
        missing = self.share.slots - len(self._ready) - len(self._failed_ahead)
        slow = NotConnectedError(Outcome.CONNECT, "It took too long.")
        for exc in (*self._failed_ahead, *[slow] * missing):
            self.unconnected(self._next(), at, exc)
        for connection in self._ready:
            self._ask(connection, at)
        self._opening.clear()

    def _ask(self, connection: Connection, intended: float | None = None) -> None:
        connection.ended = self._ended
        number = self._next()
        connection.send(number, self.wire(number), intended)

    def _ended(self, connection: Connection, outcome: Outcome) -> None:
        if outcome is _OK and connection.alive and not self._once:
            number = self._next()
            connection.send(number, self.wire(number))
            self.last_answer = connection.sent
            return
        self.answered(outcome)
        if outcome is not Outcome.CUT and not self._once:
            self.pool.spawn(self._go_on(connection, outcome))

    async def _go_on(self, connection: Connection, outcome: Outcome) -> None:
        """After a failure wait a little; a connection that is gone is opened anew."""
        failures = 0 if outcome is Outcome.OK else self._failures.pop(connection, 0) + 1
        await asyncio.sleep(pause_seconds(failures, outcome, connection.retry_after))
        if not connection.alive:
            await self._fill(0, failures)
            return
        self._failures[connection] = failures
        self._ask(connection)

    async def _fill(self, delay: float, failures: int = 0) -> None:
        """Open a slot's connection, however often it takes, and ask."""
        await asyncio.sleep(max(delay, 0))
        while True:
            began = perf_counter()
            self._opening.add(began)
            try:
                connection = await self.pool.open()
            except NotConnectedError as exc:
                self.unconnected(self._next(), began, exc)
                failures += 1
            else:
                break
            finally:
                self._opening.discard(began)
            await asyncio.sleep(pause_seconds(failures, Outcome.CONNECT, None))
        if failures:
            self._failures[connection] = failures
        self._ask(connection)

    def lost(self, connection: Connection) -> None:
        self._failures.pop(connection, None)
        if connection.busy:
            request, wire = connection.request, connection.wire
            connection.forget()
            self.pool.spawn(self._again(request, wire))

    async def _again(self, request: int, wire: bytes) -> None:
        """The server closed an idle connection while we wrote: that says nothing of it."""
        began = perf_counter()
        self._opening.add(began)
        try:
            connection = await self.pool.open()
        except NotConnectedError as exc:
            self.unconnected(request, began, exc)
            if not self._once:
                await self._fill(FIRST_PAUSE_SECONDS, 1)
            return
        finally:
            self._opening.discard(began)
        connection.ended = self._ended
        connection.send(request, wire)

    def unended(self, before: float, since: float = 0.0) -> bool:
        if any(since <= began < before for began in self._opening):
            return True
        return any(c.busy and since <= c.intended < before for c in self.pool.connections)

    def sweep(self, now: float) -> None:
        self.pool.sweep(now, self._timeout)

    async def cut(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
        await self.pool.close()
