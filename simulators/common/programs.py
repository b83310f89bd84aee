"""What a container runs here: the simulated engine, and nginx as far as it is configured."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import anyio
import httpx2
from anyio.abc import Process
from starlette.requests import Request
from starlette.responses import HTMLResponse

from core.environment import ROOT, inherited_environment
from simulators.common.doors import NO_TLS, UNVERIFIED_TLS, TurnedAway

_PORT: Final = 8000
"""Where vLLM listens when no flag says otherwise."""
_SERVE: Final = ("vllm", "serve")
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  every address of the container


class CannotStart(Exception):
    """The container's program cannot be run; the text is the system's line about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process on this machine that stands for a container."""

    argv: tuple[str, ...]
    """Of `python -m simulators.engine`."""
    env: dict[str, str]
    port: int
    """Where it really listens."""
    reachable: bool
    """Whether the container would listen where its cloud asks for it."""
    shown: tuple[tuple[str, str], ...] = ()
    """What its log says here, and what it would say in the container."""
    home: str = "/"
    """The path here of what the container answers at `/`."""
    quiet: bool = False
    """Whether the log is not what the container's own program would write."""
    tls: bool = False
    """Whether it is to answer by TLS alone."""
    listens: int = 0
    """Where it listens in its container."""
    loopback: bool = False
    """Whether it listens for its own instance alone."""
    guard: "Guard | None" = None
    """What stands before it."""

    def is_asked(self, port: int, path: str) -> bool:
        """Whether what a probe asks for at a port of the instance gets to it."""
        if self.guard and self.guard.port == port:
            return self.listens in self.guard.engine_ports and self.guard.opens(path)
        return self.listens == port and not self.loopback


def program(
    words: Sequence[str],
    env: dict[str, str],
    *,
    port: int,
    here: Callable[[str], str],
    ollama: bool = False,
    guard: "Guard | None" = None,
) -> Program:
    """Say what is to be run for what follows `serve`; every call takes a port of its own.

    Args:
        words: As the container has them.
        env: Of the process.
        port: Where the cloud asks the container.
        here: Says where on this machine the container's path to the weights is.
        ollama: Whether the engine only stands for Ollama.
        guard: What stands before it, where the cloud asks that.
    """
    asked = flag(words, "--port") or str(_PORT)
    host = flag(words, "--host") or "0.0.0.0"  # noqa: S104  vLLM's default
    words = without(words, ("--port", "--host"))
    model = [here(word) for word in words[:1]]
    real, loopback = free_port(), host in _LOOPBACK
    if guard:
        reachable = guard.port == port and guard.engine_ports == {int(asked)}
    else:
        reachable = asked == str(port)
    return Program(
        argv=("serve", *model, *words[1:], "--host", "127.0.0.1", "--port", str(real)),
        env=env,
        port=real,
        shown=(
            *zip(model, words[:1], strict=True),
            (f"127.0.0.1:{real}", f"{host}:{asked}"),
            (f"'port': {real}", f"'port': {asked}"),
        ),
        home="/health" if ollama else "/",
        quiet=ollama,
        reachable=reachable and (host in _ANY or (loopback and guard is not None)),
        listens=int(asked),
        loopback=loopback,
        guard=guard,
    )


def served(command: Sequence[str], args: Sequence[str]) -> list[str]:
    """Give what follows `serve` on a container's command line.

    Raises:
        CannotStart: The image has no such program.
    """
    words = [*command, *args]
    if not command:
        return list(args)
    if tuple(words[:2]) == _SERVE:
        return words[2:]
    raise CannotStart(
        f"Application failed to start: failed to load {words[0]}: no such file or directory"
    )


def environment(
    *, boot_seconds: float, phases: Mapping[str, float], more: Mapping[str, str], accelerator: str
) -> dict[str, str]:
    """Give the engine's environment, as a test's knobs have it, on an accelerator or on none."""
    env = {**inherited_environment(), "SIMULATED_ENGINE_BOOT_SECONDS": str(boot_seconds)}
    if accelerator:
        env["SIMULATED_ENGINE_ACCELERATOR"] = accelerator
    if phases:
        env["SIMULATED_ENGINE_BOOT_PHASES"] = json.dumps(dict(phases))
    return {**env, **more}


def flag(words: Sequence[str], name: str) -> str | None:
    """Give a flag's value."""
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def without(words: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Leave out flags with their values."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(tuple(f"{name}=" for name in names)):
            skip = False
        elif word in names:
            skip = True
        else:
            kept.append(word)
    return kept


def free_port() -> int:
    """Give a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


_COMMENT: Final = re.compile(r"(?m)^\s*#.*$")
_WRITTEN: Final = re.compile(r'"\$(\w+)" *>')
"""The variable that its command writes to the file."""
_DIRECTIVE: Final = re.compile(r"(?:^|[;{}])\s*([a-z_]+)")
_LOCATION: Final = re.compile(r"location (=?) ?(\S+) \{([^{}]*)\}")
_KNOWN: Final = frozenset(
    (
        *("daemon", "worker_processes", "pid", "error_log", "events", "http", "worker_connections"),
        *("access_log", "server_tokens", "absolute_redirect", "client_max_body_size", "server"),
        *(f"{kind}_temp_path" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")),
        *("proxy_http_version", "proxy_buffering", "proxy_request_buffering"),
        *("proxy_read_timeout", "proxy_send_timeout", "ssl_certificate", "ssl_certificate_key"),
        *("listen", "location", "proxy_pass", "auth_request", "internal", "return"),
        *("proxy_pass_request_body", "proxy_set_header"),
    )
)
"""Directives that are understood: any other might let more through."""


@dataclass(frozen=True, slots=True)
class Way:
    """One location."""

    path: str
    exact: bool
    passed_to: str = ""
    """The engine's path that takes its place; with none, nothing is found."""
    engine_port: int = 0
    asks: str = ""
    """The location that says by its status whether a request may pass."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """One that listens."""

    port: int
    ways: tuple[Way, ...]

    @property
    def engine_ports(self) -> frozenset[int]:
        """Where it looks for an engine."""
        return frozenset(way.engine_port for way in self.ways if way.passed_to)

    def opens(self, path: str) -> bool:
        """Whether everybody is let through to a path."""
        way = self._way(path)
        return bool(way and way.passed_to and not way.asks and not way.internal)

    async def admit(self, request: Request, url: str) -> str:
        """Return the path that an engine at `url` is asked for, as it is put on the wire.

        Raises:
            TurnedAway: nginx answers by itself.
        """
        path = plain(request.scope["raw_path"].decode("latin-1"))
        way = self._way(path)
        if any(one.path == f"{path}/" for one in self.ways):
            raise TurnedAway(_page(301, "Moved Permanently", location=f"{path}/"))
        if way is None or way.internal or not way.passed_to:
            raise TurnedAway(_page(404, "Not Found"))
        if way.asks:
            await self._ask(way.asks, request, url)
        return quote(way.passed_to + path.removeprefix(way.path))

    async def _ask(self, location: str, request: Request, url: str) -> None:
        asked = next(way for way in self.ways if way.exact and way.path == location)
        headers = {
            name: value for name, value in request.headers.items() if name == "authorization"
        }
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
            try:
                status = (await client.get(url + asked.passed_to, headers=headers)).status_code
            except httpx2.HTTPError:
                status = 502
        if status in {401, 403}:
            raise TurnedAway(
                _page(status, {401: "Authorization Required", 403: "Forbidden"}[status])
            )
        if not 200 <= status < 300:
            raise TurnedAway(_page(500, "Internal Server Error"))

    def _way(self, path: str) -> Way | None:
        fitting = [
            way
            for way in self.ways
            if (path == way.path if way.exact else path.startswith(way.path))
        ]
        return max(fitting, key=lambda way: (way.exact, len(way.path)), default=None)


def guard_of(command: Sequence[str], env: Mapping[str, str]) -> Guard:
    """Return what a container that writes its configuration and starts nginx lets through.

    Raises:
        CannotStart: It is no such container, or nginx would not take its configuration.
    """
    written = _WRITTEN.search(command[-1]) if command and "nginx" in command[-1] else None
    if written is None or written[1] not in env:
        raise CannotStart("Application failed to start: no nginx with a configuration is started")
    return read(env[written[1]])


def read(configuration: str) -> Guard:
    """Return what a configuration lets through.

    Raises:
        CannotStart: nginx would not take it, or it says what is not known here.
    """
    text = _COMMENT.sub("", configuration)
    if unknown := {*_DIRECTIVE.findall(text)} - _KNOWN:
        raise _emerg(f'unknown directive "{min(unknown)}"')
    listens = re.findall(r"\blisten (\d+)", text)
    ways = tuple(_way(*found) for found in _LOCATION.findall(text))
    if (len(listens), len(ways)) != (1, len(re.findall(r"\blocation\b", text))):
        raise _emerg(f"servers that listen {len(listens)} times, {len(ways)} places understood")
    lost = {way.asks for way in ways if way.asks} - {way.path for way in ways if way.exact}
    if lost:
        raise _emerg(f"auth_request asks {min(lost)}, which is no location")
    return Guard(port=int(listens[0]), ways=ways)


def plain(path: str) -> str:
    """Return a path as nginx compares it.

    Raises:
        TurnedAway: It is no path.
    """
    decoded = unquote(path.partition("?")[0], errors="replace")
    parts: list[str] = []
    for part in re.sub("/+", "/", decoded).split("/")[1:]:
        if part == ".." and not parts:
            raise TurnedAway(_page(400, "Bad Request"))
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    if "\0" in decoded or not decoded.startswith("/"):
        raise TurnedAway(_page(400, "Bad Request"))
    closing = "/" if decoded.endswith(("/..", "/.")) and parts else ""
    return f"/{'/'.join(parts)}{closing}"


def _way(exact: str, path: str, body: str) -> Way:
    """Return a location by its path and directives."""
    place = {words[0]: words[1:] for words in map(str.split, body.split(";")) if words}
    if ("return" in place) == ("proxy_pass" in place) or place.get("return", ["404"]) != ["404"]:
        raise _emerg(f"location {path} neither passes on nor finds nothing")
    engine = urlsplit(place.get("proxy_pass", [""])[0])
    return Way(
        path=path,
        exact=bool(exact),
        passed_to=engine.path,
        engine_port=engine.port or 0,
        asks=place.get("auth_request", [""])[0],
        internal="internal" in place,
    )


def _emerg(words: str) -> CannotStart:
    return CannotStart(f"nginx: [emerg] {words} in nginx.conf")


def _page(status: int, title: str, **headers: str) -> HTMLResponse:
    told = f"{status} {title}"
    return HTMLResponse(
        f"<html>\r\n<head><title>{told}</title></head>\r\n<body>\r\n<center><h1>{told}</h1></center>"
        "\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
        status_code=status,
        headers=headers,
    )


_GRACE_SECONDS: Final = 2.0
"""From SIGTERM to SIGKILL; ten or more in reality."""
_NOT_FOUND: Final = 400

Said = Callable[[str, str], None]
"""Is told the stream, stdout or stderr, and each line of it."""


class Child:
    """One process; it ends at the latest with this one."""

    def __init__(self, pid: int, *, leash: int, stdout: int, stderr: int, status: int) -> None:
        self._pid: Final = pid
        self._leash: Final = leash
        self._stdout: Final = stdout
        self._stderr: Final = stderr
        self._status: Final = status
        self.returncode: int | None = None

    def stdout(self) -> AsyncIterator[bytes]:
        """Give what it prints, to its end."""
        return _pieces(self._stdout)

    def stderr(self) -> AsyncIterator[bytes]:
        """Give what it complains about, to its end."""
        return _pieces(self._stderr)

    async def wait(self) -> int:
        """Wait for its end; gives its status, -9 if it was ended by a signal."""
        told = b"".join([piece async for piece in _pieces(self._status)])
        self.returncode = int(told) if told else -int(signal.SIGKILL)
        return self.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def close(self) -> None:
        """Let go of its files; what still lives then dies."""
        for file in (self._leash, self._stdout, self._stderr, self._status):
            os.close(file)


class Nursery:
    """Forks from a process that is started with the first child."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._socket: socket.socket | None = None
        self._turn = anyio.Lock()

    async def born(self, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a simulated engine with `python -m simulators.engine`'s arguments."""
        async with self._turn:
            asked = await self._open()
            theirs, ours = zip(*(_pipe(ours_writes=n == 0) for n in range(4)), strict=True)
            message = json.dumps({"argv": list(argv), "env": dict(env)}).encode() + b"\n"
            socket.send_fds(asked, [message], theirs)
            for file in theirs:
                os.close(file)
            with anyio.CancelScope(shield=True):  # or the next one would be told of this child
                pid = await _pid(asked)
        leash, stdout, stderr, status = ours
        return Child(pid, leash=leash, stdout=stdout, stderr=stderr, status=status)

    async def _open(self) -> socket.socket:
        if self._socket and self._process and self._process.returncode is None:
            return self._socket
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = await anyio.open_process(
                [sys.executable, "-m", "simulators.common.forking"],
                stdin=theirs.fileno(),
                stdout=None,
                stderr=None,
                cwd=ROOT,
                env=inherited_environment(),
                start_new_session=True,
            )
        return self._socket


async def _pieces(file: int) -> AsyncIterator[bytes]:
    while True:
        await anyio.wait_readable(file)
        piece = os.read(file, _PIECE)
        if not piece:
            return
        yield piece


_PIECE: Final = 65536


async def _pid(asked: socket.socket) -> int:
    told = b""
    while not told.endswith(b"\n"):
        await anyio.wait_readable(asked)
        told += asked.recv(64)
    return int(told)


def _pipe(*, ours_writes: bool) -> tuple[int, int]:
    """Give their end and ours."""
    reads, writes = os.pipe()
    return (reads, writes) if ours_writes else (writes, reads)


class EngineProcess:
    """Comes up once and ends once; it may be told to end before it is there."""

    def __init__(self) -> None:
        self.url = ""
        self.guard: Guard | None = None
        """What stands before it."""
        self.status: int | None = None
        """How it ended, as a shell tells it."""
        self.told_to_end: Final = anyio.Event()
        self._farewell = signal.SIGTERM

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.status is not None or self.told_to_end.is_set()

    def end(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `run` then gives its status."""
        self._farewell = signal.SIGKILL if at_once else signal.SIGTERM
        self.told_to_end.set()

    async def run(
        self,
        nursery: Nursery,
        program: Program,
        *,
        said: Said,
        beside: Callable[[], Coroutine[Any, Any, None]],
    ) -> int:
        """Run it to its end, and something beside it; gives its status."""
        self.url = f"http{'s' if program.tls else ''}://127.0.0.1:{program.port}"
        self.guard = program.guard
        child = await nursery.born(program.argv, program.env)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(beside)
                tasks.start_soon(self._end_when_told, child)
                async with anyio.create_task_group() as ears:
                    ears.start_soon(_listen, child.stdout(), "stdout", program, said)
                    ears.start_soon(_listen, child.stderr(), "stderr", program, said)
                self.status = status = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            child.close()
        return status

    async def answers(self, path: str, timeout_seconds: float, *, any_status: bool = False) -> bool:
        """Ask it as a probe does."""
        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(trust_env=False, verify=UNVERIFIED_TLS) as client:
                reply = await client.get(self.url + path, timeout=timeout_seconds)
            return any_status or reply.status_code < _NOT_FOUND
        return False

    async def _end_when_told(self, child: Child) -> None:
        await self.told_to_end.wait()
        child.send(self._farewell)
        await anyio.sleep(_GRACE_SECONDS)
        child.send(signal.SIGKILL)


async def _listen(heard: AsyncIterator[bytes], stream: str, program: Program, said: Said) -> None:
    rest = b""
    async for data in heard:
        *lines, rest = (rest + data).split(b"\n")
        for line in () if program.quiet else lines:
            text = line.decode(errors="replace")
            for here, there in program.shown:
                text = text.replace(here, there)
            said(stream, text)
