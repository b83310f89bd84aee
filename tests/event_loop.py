"""The event loop that the tests run on: an answer for a test that is over troubles no other."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final, TypeVarTuple

import anyio

Ts = TypeVarTuple("Ts")


class TestLoop(asyncio.SelectorEventLoop):
    """A loop that lets go of what comes after its end.

    All loops of a process share one poller of grpc.aio. The end of a call that was cancelled in
    one test may reach it when that test's loop is closed, and the poller then fails in the loop
    of whatever test runs by then, leaving the rest of what it held undelivered.
    """

    __test__ = False

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
