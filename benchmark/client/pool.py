"""Connections to one endpoint: opened, watched for those that take too long, and closed."""

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from operator import ne
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

from benchmark.client.exchange import Connection
from benchmark.client.rows import Rows
from benchmark.errors import Outcome
from core.records import socket_of

CONNECT_SECONDS: Final = 10.0
"""TCP and TLS together."""
_AT_ONCE: Final = 128
"""Connections being opened at a time: more would overflow a server's queue of them."""
_ADDRESSES_SECONDS: Final = 30.0
"""How long a name's addresses are believed."""

Address = tuple[socket.AddressFamily, Any]


class NotConnectedError(Exception):
    """No connection came about; `outcome` says at which step."""

    def __init__(self, outcome: Outcome, words: str) -> None:
        super().__init__(words)
        self.outcome = outcome


class Pool:
    """Opens connections to one address and knows them all."""

    def __init__(
        self,
        base_url: str,
        rows: Rows,
        *,
        ca_file: str | None,
        lost: Callable[[Connection], None],
    ) -> None:
        url = urlsplit(base_url)
        self._host = url.hostname or ""
        self._socket = socket_of(base_url)
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._trust = _trust(ca_file) if url.scheme == "https" else None
        self._rows = rows
        self._lost = lost
        self._addresses: list[Address] = []
        self._resolved_at = float("-inf")
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: BaseException | None = None
        self.connections: set[Connection] = set()

    async def open(self) -> Connection:
        """Give a new connection, which knows how long it took.

        Raises:
            NotConnectedError: There is none.
        """
        async with self._gate:
            began = perf_counter()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    connection = await self._opened()
            except TimeoutError as exc:
                raise NotConnectedError(Outcome.CONNECT, "It took too long.") from exc
            connection.connect_seconds = perf_counter() - began
        self.connections.add(connection)
        return connection

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside; it ends with the pool at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._broken = self._broken or task.exception()

    def sweep(self, now: float, timeout: float) -> None:
        """End what has taken too long; cheaper than a timer for each request."""
        if self._broken is not None:
            raise self._broken
        latest = now - timeout
        for connection in [c for c in self.connections if c.busy and c.intended < latest]:
            connection.fail(Outcome.TIMEOUT, now)

    async def close(self) -> None:
        """Cut what is under way, and close everything."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        now = perf_counter()
        for connection in tuple(self.connections):
            connection.ended = None
            connection.fail(Outcome.CUT, now)

    def _gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._lost(connection)

    async def _opened(self) -> Connection:
        failure: OSError | None = None
        for address in await self._resolve():
            try:
                sock = await _connected(address)
            except OSError as exc:
                failure = exc
                continue
            # The one that answered is tried first from now on.
            self._addresses.sort(key=partial(ne, address))
            return await self._spoken_to(sock)
        self._resolved_at = float("-inf")
        raise NotConnectedError(Outcome.CONNECT, str(failure)) from failure

    async def _spoken_to(self, sock: socket.socket) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                partial(Connection, self._rows, self._gone),
                sock=sock,
                ssl=self._trust,
                server_hostname=self._host if self._trust else None,
            )
        except (ssl.SSLError, ssl.CertificateError) as exc:
            sock.close()
            raise NotConnectedError(Outcome.TLS, str(exc)) from exc
        except OSError as exc:
            sock.close()
            outcome = Outcome.TLS if self._trust else Outcome.CONNECT
            raise NotConnectedError(outcome, str(exc)) from exc
        return connection

    async def _resolve(self) -> list[Address]:
        if self._socket:
            return [(socket.AF_UNIX, self._socket)]
        if perf_counter() - self._resolved_at > _ADDRESSES_SECONDS:
            loop = asyncio.get_running_loop()
            try:
                found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as exc:
                raise NotConnectedError(Outcome.DNS, str(exc)) from exc
            self._addresses = [(family, address) for family, _, _, _, address in found]
            self._resolved_at = perf_counter()
        return list(self._addresses)


async def _connected(address: Address) -> socket.socket:
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003  the library's own form
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


def _trust(ca_file: str | None) -> ssl.SSLContext:
    from core.endpoint import trusted  # noqa: PLC0415  httpx2: 20 ms that plain HTTP need not pay

    return trusted(Path(ca_file).read_text(encoding="utf-8") if ca_file else None)


def raise_file_limit() -> None:
    """Allow as many connections as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
