"""Web servers inside the one process: they leave its signals alone."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import uvicorn
from anyio.abc import TaskGroup
from starlette.types import ASGIApp

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For what stays on this machine: to load the authorities' certificates takes 70 ms each time."""


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


UNVERIFIED_TLS: Final = _unverified()
"""For a probe on this machine, which asks whether anybody answers, not who."""


class WebServer(uvicorn.Server):
    """Leaves signals to the process, and says when it listens."""

    def __init__(self, app: ASGIApp, certificate: Path | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ssl_certfile=certificate,
                log_config=None,
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self.listening = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell that it listens."""
        await super().startup(sockets)
        self.listening.set()


async def start_web(
    tasks: TaskGroup, listener: socket.socket, app: ASGIApp, *, certificate: Path | None = None
) -> str:
    """Serve an application in the background; gives its base URL.

    `certificate` is a file with a key and its certificate: it is then served by TLS.
    """
    web = WebServer(app, certificate)
    tasks.start_soon(web.serve, [listener])
    await web.listening.wait()
    return f"http{'s' if certificate else ''}://127.0.0.1:{listener.getsockname()[1]}"


def loopback(port: int = 0) -> socket.socket:
    """Give a socket on this machine's loopback; asyncio writes at once if the protocol is named."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener
