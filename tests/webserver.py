"""A web application on a free port of this machine, while a test lasts."""

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import uvicorn
from starlette.types import ASGIApp


class WebServer(uvicorn.Server):
    """Says when it listens, leaves signals to the tests, and is gone at once.

    uvicorn itself looks every 100 ms whether it should end, and takes another 100 ms for it.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = anyio.Event()
        self._end = anyio.Event()

    def end(self) -> None:
        """Take no more calls, and cut off those that are under way."""
        self._end.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell that it listens."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self.on_tick(0)
        await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close everything, without waiting for anybody."""
        for server in self.servers:
            server.close()
        for task in list(self.server_state.tasks):
            task.cancel()
        for connection in list[Any](self.server_state.connections):
            connection.transport.abort()
        while self.server_state.tasks or self.server_state.connections:
            await anyio.lowlevel.checkpoint()
        await self.lifespan.shutdown()


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Put an application behind a port; gives its URL."""
    server = WebServer(uvicorn.Config(app, log_config=None))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            await server.listening.wait()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.end()


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Put an application behind a port, in a thread of its own; gives its URL."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(listening(app)) as url,
    ):
        yield url
