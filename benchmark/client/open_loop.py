"""Open loops: requests come when they are due, and wait where there is no connection."""

from collections import deque
from math import inf
from time import perf_counter

from benchmark.client.clock import Alarm
from benchmark.client.exchange import Connection
from benchmark.client.loads import Base, in_time
from benchmark.client.pool import NotConnectedError
from benchmark.client.rows import Row, Rows
from benchmark.client.shares import Share
from benchmark.client.wire import Wire
from benchmark.errors import Outcome


class Open(Base):
    """Requests come when they are due, whatever became of those before."""

    def __init__(self, share: Share, rows: Rows, wire: Wire) -> None:
        super().__init__(share, rows, wire)
        self._free: list[Connection] = []
        self._waiting: deque[tuple[int, float, bytes | None]] = deque()
        self._opening = 0
        self._arrivals = share.due()
        self._alarm = Alarm(self._due)
        self._start = self._at = inf

    async def prepare(self) -> None:
        await in_time(self._connect() for _ in range(self.share.connections_ahead))

    def start(self, at: float) -> None:
        self.last_answer = self._start = at
        self._at = at + next(self._arrivals)
        self._alarm.set(self._at)

    def _due(self) -> None:
        now = perf_counter()
        while self._at <= now:
            self._waiting.append((next(self._numbers), self._at, None))
            self._at = self._start + next(self._arrivals)
            self._serve()
        self._alarm.set(self._at)

    def _serve(self) -> None:
        """Send what waits on what is free, and open more where that is not enough."""
        while self._waiting and self._free:
            connection = self._free.pop()
            if connection.alive:
                number, intended, wire = self._waiting.popleft()
                connection.send(number, wire or self.wire(number), intended)
        room = self.share.most_connections - len(self.pool.connections) - self._opening
        for _ in range(min(len(self._waiting) - self._opening, room)):
            self.pool.spawn(self._connect())
            self._opening += 1

    async def _connect(self) -> None:
        counted = self._start != inf
        try:
            connection = await self.pool.open()
        except NotConnectedError as exc:
            self.last_words = f"{exc.outcome.name.lower()}: {exc}"
            if counted and self._waiting:
                number, intended, _ = self._waiting.popleft()
                self.unconnected(number, intended, exc)
        else:
            connection.ended = self._ended
            self._free.append(connection)
        finally:
            self._opening -= counted
        self._serve()

    def _ended(self, connection: Connection, outcome: Outcome) -> None:
        self.answered(outcome)
        if connection.alive:
            self._free.append(connection)
        if self._waiting:
            self._serve()

    def lost(self, connection: Connection) -> None:
        if connection.busy:
            self._waiting.appendleft((connection.request, connection.intended, connection.wire))
            connection.forget()
        if self._waiting:
            self._serve()

    def unended(self, before: float, since: float = 0.0) -> bool:
        if self._at < before or any(since <= due < before for _, due, _ in self._waiting):
            return True
        return any(c.busy and since <= c.intended < before for c in self.pool.connections)

    def sweep(self, now: float) -> None:
        self.pool.sweep(now, self._timeout)
        while self._waiting and self._waiting[0][1] < now - self._timeout:
            self._unsent(Outcome.TIMEOUT, now)

    def _unsent(self, outcome: Outcome, now: float) -> None:
        number, intended, _ = self._waiting.popleft()
        self.rows.add(Row(request=number, intended=intended, done=now, outcome=outcome))

    async def cut(self) -> None:
        self._alarm.close()
        await self.pool.close()
        now = perf_counter()
        while self._waiting:
            self._unsent(Outcome.CUT, now)
