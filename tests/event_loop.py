"""The event loop that the tests run on: an answer for a test that is over troubles no other.

Where a test says so, nobody waits for what only time brings.
"""

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final, TypeVarTuple

import anyio
import anyio.to_thread

Ts = TypeVarTuple("Ts")


class _Clock(selectors.DefaultSelector):
    """Waits for what is to be read and written, and for time."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0
        self._still: float | None = None
        self.threads: anyio.CapacityLimiter | None = None

    def now(self) -> float:
        return time.monotonic() + self._ahead if self._still is None else self._still

    def hasten(self) -> None:
        self._still = self.now()

    def let_go(self) -> None:
        self._ahead, self._still = self.now() - time.monotonic(), None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._still is None or timeout is None or timeout <= 0:
            return super().select(timeout)
        is_alone = len(self.get_map()) <= 1 and not (self.threads and self.threads.borrowed_tokens)
        began = time.monotonic()
        events = super().select(0 if is_alone else timeout)
        if not events:
            self._still += timeout
        elif not is_alone:
            self._still += min(timeout, time.monotonic() - began)
        return events


class TestLoop(asyncio.SelectorEventLoop):
    """A loop that lets go of what comes after its end.

    All loops of a process share one poller of grpc.aio. The end of a call that was cancelled in
    one test may reach it when that test's loop is closed, and the poller then fails in the loop
    of whatever test runs by then, leaving the rest of what it held undelivered.
    """

    __test__ = False

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Give the moment, which the clock may have put forward."""
        return self._clock.now()

    @contextmanager
    def hastened(self) -> Iterator[None]:
        """Let time stand still while anybody works, and pass at once where all wait for it alone.

        So no limit is reached because a machine is slow, and a limit of minutes is reached at
        once. While a socket is open or a thread works, what is waited for may be theirs: then a
        wait takes as long as it takes.
        """
        self._clock.threads = anyio.to_thread.current_default_thread_limiter()
        self._clock.hasten()
        try:
            yield
        finally:
            self._clock.let_go()

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Ask for a call in this loop, and for none if the loop is closed."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def close(self) -> None:
        """Close, and drop the connections that are still open.

        What a cancelled call leaves behind is closed by asyncio in its own time, which a test's
        loop does not have: it would be warned of in whatever test runs when it is found.
        """
        if not (self.is_closed() or self.is_running()):
            transports: dict[int, asyncio.Transport] = vars(self)["_transports"]
            for transport in list(transports.values()):
                transport.abort()
            self.run_until_complete(asyncio.sleep(0))
        super().close()


BACKEND: Final[tuple[str, dict[str, Any]]] = ("asyncio", {"loop_factory": TestLoop})
"""What an `anyio_backend` fixture gives."""


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Do this in a loop of its own, as a fixture that outlives a test must."""
    anyio.run(work, backend=BACKEND[0], backend_options=BACKEND[1])
