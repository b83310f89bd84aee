"""What all kinds of load have in common: what they are asked, how they wait, what they keep."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from math import inf
from time import perf_counter
from typing import Any, Final, Protocol

from benchmark.client.exchange import Connection
from benchmark.client.pool import NotConnectedError, Pool
from benchmark.client.rows import Row, Rows
from benchmark.client.shares import Share
from benchmark.client.wire import Wire
from benchmark.errors import Outcome

_OK: Final = Outcome.OK
FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_AHEAD_SECONDS: Final = 15.0
"""For all connections that are opened before the first request."""
_LONGEST_RETRY_AFTER_SECONDS: Final = 5.0


class Arriving(Protocol):
    """What the worker asks of every kind of load."""

    pool: Pool
    last_answer: float
    """When a request was last answered, well or with «later»."""
    last_words: str
    """Of the last connection that did not come about."""

    async def prepare(self) -> None:
        """Open connections ahead, where the first request must not wait for one."""

    def start(self, at: float) -> None:
        """Let the first request come at that moment."""

    def unended(self, before: float, since: float = 0.0) -> bool:
        """Whether a request is still under way that was due between these moments."""

    def sweep(self, now: float) -> None:
        """End what has taken too long."""

    async def cut(self) -> None:
        """End everything now; each request under way becomes a row."""


class Base(ABC):
    """What closed and open loops have in common."""

    def __init__(self, share: Share, rows: Rows, wire: Wire) -> None:
        self.share = share
        self.rows = rows
        self.wire = wire
        self.pool = Pool(share.base_url, rows, ca_file=share.ca_file, lost=self.lost)
        self.last_answer = inf
        self.last_words = ""
        self._numbers = share.numbers()
        self._timeout = share.request_timeout_seconds

    @abstractmethod
    def lost(self, connection: Connection) -> None:
        """Go on without a connection that is gone, with its request if it has one."""

    def answered(self, outcome: Outcome) -> None:
        if outcome is _OK or outcome is Outcome.THROTTLED:
            self.last_answer = perf_counter()

    def unconnected(self, request: int, intended: float, exc: NotConnectedError) -> None:
        self.last_words = f"{exc.outcome.name.lower()}: {exc}"
        now = perf_counter()
        self.rows.add(Row(request=request, intended=intended, done=now, outcome=exc.outcome))


async def in_time(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Open connections ahead, as many as come about in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_AHEAD_SECONDS):
            await asyncio.gather(*work)


def pause_seconds(failures: int, outcome: Outcome, retry_after: float | None) -> float:
    """Give how long to wait after so many failures in a row, in seconds."""
    if outcome is Outcome.THROTTLED and retry_after is not None:
        return min(retry_after, _LONGEST_RETRY_AFTER_SECONDS)
    if outcome in {Outcome.OK, Outcome.TIMEOUT}:
        return 0.0
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 10), _LONGEST_PAUSE_SECONDS))
