"""Kinds of load: open and closed loops over a pool of connections, with alarms on time."""

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import ssl
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, repeat
from math import inf
from operator import ne
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import numpy as np

from benchmark.samples import Outcome
from benchmark.wire import Connection, Row, Rows
from benchmark.workload import bodies
from core.address import HTTP, IDENTITY_HEADER, KEY_HEADER, socket_of

_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_FLAGS: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Timer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """Calls once at a moment of `time.perf_counter`; setting it again moves it.

    On Linux it is a timer of the kernel, late by microseconds; elsewhere the loop's.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._fd = -1
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._wake)

    def set(self, at: float) -> None:
        if self._fd < 0 or self._libc is None:
            self.cancel()
            self._handle = self._loop.call_later(max(at - perf_counter(), 0), self._ring)
            return
        seconds, nanoseconds = divmod(max(int(at * 1e9), 1), 10**9)
        timer = _Timer(0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(timer), None)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0 and self._libc is not None:
            timer = _Timer(0, 0, 0, 0)
            self._libc.timerfd_settime(self._fd, 0, ctypes.byref(timer), None)

    def close(self) -> None:
        self.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew between ringing and now
            return
        self._ring()


MOST_CONNECTIONS: Final = 8192
"""Of all workers, in open loops; what comes beyond waits, and its latency counts."""
_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell: every `workers`-th slot, arrival and prompt of it, from `worker` on.

    Load, workload and stop rule are those of `benchmark.records`, field by field: a worker that
    imported them would pay for pydantic.
    """

    worker: int = 0
    workers: int = 1
    cell: str
    base_url: str
    path: str
    """Of the API, such as /v1/completions."""
    credential_file: str | None = None
    """Holds the bearer token; read again when it changes."""
    ca_file: str | None = None
    """The certificate to trust, and nothing else; the usual authorities if there is none."""
    arrivals: Literal["closed", "constant", "poisson", "bursts", "once"] = "closed"
    concurrency: int | None = None
    requests_per_second: float | None = None
    context: int
    model: str
    api: Literal["completion", "chat"]
    output_tokens: int
    fixed_output: bool
    prefix_share: float
    dataset: str | None
    seed: int
    token_ids: Sequence[int]
    """What prompts are made of."""
    words: Sequence[str] = ()
    """What a chat's prompts are made of: texts of one token each, wherever they stand."""
    template_tokens: int = 0
    """Of a chat's `context`, which its template takes."""
    refuses: Sequence[str] = ()
    """Fields of a request that the endpoint does not take."""
    min_requests: int
    max_seconds: float
    warmup_max_seconds: float
    request_timeout_seconds: float
    ramp_seconds: float = 1.0
    slice_seconds: float = 0.25
    """How often the workers report."""
    patience_seconds: float = 3.0
    """Without an answer, and with nothing under way, the endpoint is gone after so long."""
    first_request: int = 0
    """The number of the first prompt, so that no cell of a run repeats one."""
    samples_file: str
    """A folder for what the workers hand over."""

    @property
    def slots(self) -> int:
        return len(range(self.worker, self.concurrency or 0, self.workers))

    def slot_delay(self, slot: int) -> float:
        """Give when a slot begins in the ramp, in seconds from its start: all workers' evenly."""
        place = self.worker + slot * self.workers
        return self.ramp_seconds * place / max(self.concurrency or 1, 1)

    def numbers(self) -> Iterator[int]:
        return count(self.first_request + self.worker, self.workers)

    def due(self) -> Iterator[float]:
        """Give when this worker's requests are due, in seconds from the start, without end."""
        every = self._due_of_all()
        return (due for place, due in enumerate(every) if place % self.workers == self.worker)

    @property
    def most_connections(self) -> int:
        return max(MOST_CONNECTIONS // self.workers, 1)

    @property
    def connections_ahead(self) -> int:
        """Give how many connections to open before the first request."""
        expected = self.concurrency or round(min(self.requests_per_second or 1, 64))
        return max(-(-expected // self.workers), 1)

    def _due_of_all(self) -> Iterator[float]:
        gap = 1 / (self.requests_per_second or 1)
        if self.arrivals == "poisson":
            yield from _poisson(gap, self.seed)
        elif self.arrivals == "bursts":
            size = self.concurrency or 1
            for burst in count():
                yield from repeat(burst * size * gap, size)
        else:
            for place in count():
                yield place * gap


def _poisson(gap: float, seed: int) -> Iterator[float]:
    random = np.random.default_rng((seed % 2**64, 1))
    now = 0.0
    while True:
        times = now + np.cumsum(random.exponential(gap, _BLOCK))
        now = float(times[-1])
        yield from times.tolist()


_HEADERS: Final = (KEY_HEADER.lower().encode(), IDENTITY_HEADER.lower().encode())
"""Of the lines of a credential's file."""


class Wire:
    """Makes the bytes of the request with a number; the credential is the newest there is."""

    def __init__(self, job: Job) -> None:
        self._body: Callable[[int], bytes] = bodies(job)
        self._front = _front(job)
        self._credential = _Credential(job.credential_file)
        self._heads: dict[int, bytes] = {}

    def __call__(self, number: int) -> bytes:
        body = self._body(number)
        size = len(body)
        return (self._heads.get(size) or self._head(size)) + body

    def refresh(self) -> None:
        """Read the credential again if its file has changed."""
        if self._credential.refresh():
            self._heads.clear()

    def _head(self, size: int) -> bytes:
        head = b"%b%bcontent-length: %d\r\n\r\n" % (self._front, self._credential.line, size)
        self._heads[size] = head
        return head


class _Credential:
    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)
        self._seen: tuple[int, int] | None = None
        self.line = b""
        self.refresh()

    def refresh(self) -> bool:
        """Say whether it is another now; one that cannot be read stays as it was."""
        if self._file is None:
            return False
        try:
            stat = self._file.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen == self._seen:
                return False
            said = [line.strip() for line in self._file.read_bytes().splitlines()]
        except OSError:
            return False
        self._seen = seen
        named = zip(_HEADERS, said, strict=False)
        self.line = b"".join(b"%b: Bearer %b\r\n" % (name, said) for name, said in named if said)
        return True


def _front(job: Job) -> bytes:
    url = urlsplit(HTTP if socket_of(job.base_url) else job.base_url)
    path = url.path.rstrip("/") + job.path
    host = url.netloc.rpartition("@")[2]
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        "accept: text/event-stream\r\naccept-encoding: identity\r\n"
    ).encode()


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
        if self._broken is not None:
            raise self._broken
        latest = now - timeout
        for connection in [c for c in self.connections if c.busy and c.intended < latest]:
            connection.fail(Outcome.TIMEOUT, now)

    async def close(self) -> None:
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
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_OK: Final = Outcome.OK
FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_AHEAD_SECONDS: Final = 15.0
"""For all connections that are opened before the first request."""
_LONGEST_RETRY_AFTER_SECONDS: Final = 5.0


class Arriving(ABC):
    """What the worker asks of every kind of load, and what closed and open loops share."""

    def __init__(self, job: Job, rows: Rows, wire: Wire) -> None:
        self.job = job
        self.rows = rows
        self.wire = wire
        self.pool = Pool(job.base_url, rows, ca_file=job.ca_file, lost=self.lost)
        self.last_answer = inf
        """When a request was last answered, well or with «later»."""
        self.last_words = ""
        """Of the last connection that did not come about."""
        self._numbers = job.numbers()
        self._timeout = job.request_timeout_seconds

    @abstractmethod
    async def prepare(self) -> None:
        """Open connections ahead, where the first request must not wait for one."""

    @abstractmethod
    def start(self, at: float) -> None:
        """Let the first request come at that moment."""

    @abstractmethod
    def unended(self, before: float, since: float = 0.0) -> bool:
        """Whether a request is still under way that was due between these moments."""

    @abstractmethod
    async def cut(self) -> None:
        """End everything now; each request under way becomes a row."""

    @abstractmethod
    def lost(self, connection: Connection) -> None:
        """Go on without a connection that is gone, with its request if it has one."""

    def sweep(self, now: float) -> None:
        self.pool.sweep(now, self._timeout)

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


class Open(Arriving):
    """Requests come when they are due, whatever became of those before."""

    def __init__(self, job: Job, rows: Rows, wire: Wire) -> None:
        super().__init__(job, rows, wire)
        self._free: list[Connection] = []
        self._waiting: deque[tuple[int, float, bytes | None]] = deque()
        self._opening = 0
        self._arrivals = job.due()
        self._alarm = Alarm(self._due)
        self._start = self._at = inf

    async def prepare(self) -> None:
        await in_time(self._connect() for _ in range(self.job.connections_ahead))

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
        room = self.job.most_connections - len(self.pool.connections) - self._opening
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
        super().sweep(now)
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


class Closed(Arriving):
    """So many slots; each asks again as soon as it was answered, or, of one burst, never."""

    def __init__(self, job: Job, rows: Rows, wire: Wire) -> None:
        super().__init__(job, rows, wire)
        self._once = job.arrivals == "once"
        self._failures: dict[Connection, int] = {}
        self._opening: set[float] = set()
        self._ready: list[Connection] = []
        self._failed_ahead: list[NotConnectedError] = []
        self._alarm: Alarm | None = None
        self._next = self._numbers.__next__

    async def prepare(self) -> None:
        if self._once:
            await in_time(self._open_ahead() for _ in range(self.job.slots))

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
        for slot in range(self.job.slots):
            self.pool.spawn(self._fill(at + self.job.slot_delay(slot) - perf_counter()))

    def _burst(self, at: float) -> None:
        missing = self.job.slots - len(self._ready) - len(self._failed_ahead)
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

    async def cut(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
        await self.pool.close()
