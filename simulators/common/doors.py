"""Web servers inside the one process, and ports that pass requests on to an app's instances."""

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import anyio
import httpx2
import uvicorn
from anyio.abc import TaskGroup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For what stays on this machine: to load the authorities' certificates takes 70 ms each time."""
UNVERIFIED_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For a probe on this machine, which asks whether anybody answers, not who."""
UNVERIFIED_TLS.check_hostname = False
UNVERIFIED_TLS.verify_mode = ssl.CERT_NONE
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"}
)


class WebServer(uvicorn.Server):
    """Serves at one socket, leaves signals to the process, and says when it listens."""

    def __init__(
        self, app: ASGIApp, listener: socket.socket, certificate: Path | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                timeout_keep_alive=60,  # as clouds do: clients let go first, after 5 s
                ssl_certfile=certificate,
                log_config=None,
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        self.listening = anyio.Event()
        self._listener = listener
        self.port: Final[int] = listener.getsockname()[1]
        self.url: Final = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}"

    async def live(self) -> None:
        """Answer until it is closed."""
        await self.serve([self._listener])

    def close(self) -> None:
        """Listen no more."""
        self.should_exit = True

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
    """Serve an application in the background; returns its base URL.

    `certificate` is a file with a key and its certificate: it is then served by TLS.
    """
    web = WebServer(app, listener, certificate)
    tasks.start_soon(web.live)
    await web.listening.wait()
    return web.url


def loopback(port: int = 0) -> socket.socket:
    """Return a socket on this machine's loopback.

    asyncio writes at once if the protocol is named.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener


def open_door(tasks: TaskGroup, host: ASGIApp, port: int = 0) -> WebServer:
    """Listen for an app; at the port it had before where that is still free."""
    try:
        listener = loopback(port)
    except OSError:
        listener = loopback()
    listener.listen(128)
    web = WebServer(host, listener)
    tasks.start_soon(web.live)
    return web


class TurnedAway(Exception):
    """The door answers by itself."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class Host(ABC):
    """Answers for one app, by whichever of its instances has room."""

    late: ClassVar[str]
    """What is answered when an instance took too long to begin."""
    but: ClassVar[frozenset[str]] = frozenset()
    """Headers that are for the door alone."""
    _world: Any
    """Is told that somebody is there."""

    @abstractmethod
    def admit(self, request: Request) -> float:
        """Return how many seconds a request may take. Raises TurnedAway."""

    @abstractmethod
    async def instance(self) -> Any:
        """Wait for one with room, which counts the request until `end_request` is called."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self._world.touch()
        request, begun = Request(scope, receive), False

        async def answer(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            with anyio.fail_after(self.admit(request)):
                body = await request.body()
                found = await self.instance()
                try:
                    url, guard = found.process.url, found.process.guard
                    path = await guard.admit(request, url) if guard else None
                    await pass_on(request, body, url, answer, path=path, but=self.but)
                finally:
                    found.end_request()
                    self._world.touch()
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
        except TimeoutError:
            if not begun:  # else it is cut short
                await PlainTextResponse(self.late, status_code=504)(scope, receive, send)
        except ClientDisconnect:
            return


async def pass_on(
    request: Request,
    body: bytes,
    url: str,
    send: Send,
    *,
    path: str | None = None,
    but: frozenset[str] = frozenset(),
) -> None:
    """Send the request to an instance, and its answer back as it comes.

    Args:
        request: Whose path, query and headers are sent on.
        body: Of that request.
        url: The instance's.
        send: Takes the answer.
        path: What the instance is asked for, if not what the request asks for.
        but: Headers that are for the door alone.

    Raises:
        TurnedAway: The instance cannot be reached.
    """
    left_out = _HOP_BY_HOP | but
    async with httpx2.AsyncClient(trust_env=False, timeout=None, verify=NO_TLS) as client:
        asked = client.build_request(
            request.method,
            f"{url}{path or request.url.path}",
            params=request.query_params,
            headers=[pair for pair in request.headers.items() if pair[0] not in left_out],
            content=body,
        )
        try:
            reply = await client.send(asked, stream=True)
        except httpx2.HTTPError as exc:
            words = "upstream connect error or disconnect/reset before headers"
            raise TurnedAway(PlainTextResponse(words, status_code=503)) from exc
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_with_the_client, request, tasks.cancel_scope)
            await _send(reply, send)
            tasks.cancel_scope.cancel()
        await reply.aclose()


async def _send(reply: httpx2.Response, send: Send) -> None:
    pairs = [(name.lower(), value) for name, value in reply.headers.raw]
    headers = [pair for pair in pairs if pair[0].decode() not in _HOP_BY_HOP]
    await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
    with contextlib.suppress(httpx2.HTTPError):  # the instance ended: the answer is cut short
        async for piece in reply.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leave_with_the_client(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
    scope.cancel()
