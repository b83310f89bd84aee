"""What a container runs here: the simulated engine, and nginx as far as it is configured."""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import posixpath
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import anyio
import anyio.to_thread
import httpx2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from core.address import free_port
from core.environment import inherited_environment
from simulators.common.carrying import Carrying, Store, store_in
from simulators.common.doors import NO_TLS, TurnedAway
from simulators.common.world import Knobs

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  every address of the container
_LISTENS: Final = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
_LISTENS.add_argument("--port", default="8000")
_LISTENS.add_argument("--host", default="0.0.0.0")  # noqa: S104  vLLM's default
_RHYTHM_SECONDS: Final = 0.03
"""From SIGTERM to SIGKILL; ten or more in reality."""


class CannotStart(Exception):
    """The container's program cannot be run; the text is the system's line about it."""


class Program:
    """One process on this machine that stands for a container, at a port of its own."""

    def __init__(
        self,
        words: Sequence[str],
        env: dict[str, str],
        *,
        port: int,
        here: Callable[[str], str] = str,
        carry: Callable[[str], Store],
        ollama: bool = False,
        guard: "Guard | None" = None,
    ) -> None:
        """Say what is to be run for what follows `serve`.

        Args:
            words: As the container has them.
            env: Of the process.
            port: Where the cloud asks the container.
            here: Says where on this machine the container's path to the weights is.
            carry: Opens the place where what it compiles is carried.
            ollama: Whether the engine only stands for Ollama, which logs other lines.
            guard: What stands before it, where the cloud asks that.
        """
        listens, words = _LISTENS.parse_known_args(words)
        asked, host = int(listens.port), listens.host
        model = [here(word) for word in words[:1]]
        real = free_port()
        self.argv: Final = (
            *("serve", *model, *words[1:]), "--host", "127.0.0.1", "--port", str(real)
        )  # fmt: skip
        self.env: Final = env
        self.port: Final = real
        self.listens: Final = asked
        """Where it listens in its container."""
        self.loopback: Final = host in _LOOPBACK
        """Whether it listens for its own instance alone."""
        found = asked == port
        if guard:
            found = guard.port == port and guard.engine_ports == {asked}
        self.reachable: Final = found and (host in _ANY or bool(self.loopback and guard))
        """Whether the container would listen where its cloud asks for it."""
        self.shown: Final = (
            *zip(model, words[:1], strict=True),
            (f"127.0.0.1:{real}", f"{host}:{asked}"),
            (f"'port': {real}", f"'port': {asked}"),
        )
        """What its log says here, and what it would say in the container."""
        self.ollama: Final = ollama
        self.guard: Final = guard
        self.store: Final = carry(at) if (at := store_in(env)) else None

    def is_asked(self, port: int, path: str) -> bool:
        """Whether what a probe asks for at a port of the instance gets to it."""
        if self.guard and self.guard.port == port:
            return self.listens in self.guard.engine_ports and self.guard.opens(path)
        return self.listens == port and not self.loopback


def served(command: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return what follows `serve` on a container's command line.

    Raises:
        CannotStart: The image has no such program.
    """
    if not command:
        return list(args)
    carries = list(command[:2]) == ["python3", "-c"]  # the program before it: see carrying.py
    words = [*(command[3:] if carries else command), *args]
    if words[:2] == ["vllm", "serve"]:
        return words[2:]
    raise CannotStart(
        f"Application failed to start: failed to load {words[0]}: no such file or directory"
    )


def environment(knobs: Knobs, accelerator: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the engine's environment on an accelerator or on none: as given, but for the knobs."""
    boot = {"SIMULATED_ENGINE_BOOT_SECONDS": str(knobs.boot_seconds)}
    card = {"SIMULATED_ENGINE_ACCELERATOR": accelerator} if accelerator else {}
    return {**inherited_environment(), **boot, **card, **given, **knobs.engine_environment}


_DIRECTIVE: Final = re.compile(r"(?:^|[;{}])\s*(\w+)")
_UNDERSTOOD: Final = frozenset(
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
"""Directives of nginx: any other might let more through."""
_LOCATION: Final = re.compile(r"location (=?) ?(\S+) \{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Way:
    """One location of nginx."""

    path: str
    exact: bool
    passed_to: str
    """The engine's path that takes its place; with none, nothing is found."""
    engine_port: int
    asks: str
    """The location that says by its status whether a request may pass."""
    internal: bool


@dataclass(frozen=True, slots=True)
class Guard:
    """An nginx that listens before an engine."""

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
        path = _plain(request.scope["raw_path"].decode("latin-1"))
        way = self._way(path)
        if any(one.path == f"{path}/" for one in self.ways):
            raise _turned(301, "Moved Permanently", location=f"{path}/")
        if way is None or way.internal or not way.passed_to:
            raise _turned(404, "Not Found")
        if way.asks:
            await self._ask(way.asks, request, url)
        return quote(way.passed_to + path.removeprefix(way.path))

    async def _ask(self, location: str, request: Request, url: str) -> None:
        asked = next(way for way in self.ways if way.exact and way.path == location)
        shown = {name: said for name, said in request.headers.items() if name == "authorization"}
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
            try:
                status = (await client.get(url + asked.passed_to, headers=shown)).status_code
            except httpx2.HTTPError:
                status = 502
        titles = {401: "Authorization Required", 403: "Forbidden"}
        if status in titles:
            raise _turned(status, titles[status])
        if not 200 <= status < 300:
            raise _turned(500, "Internal Server Error")

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
        CannotStart: It is no such container, listens nowhere, or says what is not known here.
    """
    last = command[-1] if command else ""
    written = re.search(r'"\$(\w+)" *>', last) if "nginx" in last else None
    text = re.sub(r"(?m)^\s*#.*$", "", env.get(written[1], "") if written else "")
    if not text:
        raise CannotStart("Application failed to start: no nginx with a configuration is started")
    if unknown := {*_DIRECTIVE.findall(text)} - _UNDERSTOOD:
        raise _emerg(f'unknown directive "{min(unknown)}"')
    listens, ways = re.findall(r"\blisten (\d*)", text), _LOCATION.findall(text)
    if len(listens) != 1 or not listens[0] or len(ways) != len(re.findall(r"\blocation\b", text)):
        raise _emerg(f"servers that listen {len(listens)} times, {len(ways)} locations understood")
    return Guard(port=int(listens[0]), ways=tuple(_read_way(*one) for one in ways))


def _read_way(exact: str, path: str, body: str) -> Way:
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


def _plain(path: str) -> str:
    """Return a path as nginx compares it."""
    decoded = re.sub("/+", "/", unquote(path.partition("?")[0], errors="replace"))
    if "\0" in decoded or not decoded.startswith("/") or f"{decoded}/".startswith("/../"):
        raise _turned(400, "Bad Request")
    plain = posixpath.normpath(decoded)
    return f"{plain}/" if decoded.endswith(("/", "/.", "/..")) and plain != "/" else plain


def _turned(status: int, title: str, **headers: str) -> TurnedAway:
    told = f"<html><body><center><h1>{status} {title}</h1></center><hr>nginx</body></html>\r\n"
    return TurnedAway(HTMLResponse(told, status_code=status, headers=headers))


_ENGINE: Final = "simulators.engine.__main__"
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([_ENGINE])
"""A process that has imported the simulated engine once, and forks it."""
_TURN: Final = threading.Lock()


def _become(argv: Sequence[str], env: Mapping[str, str], *outputs: Connection) -> None:
    """Be a simulated engine, which dies at the latest with the process that asked for it."""
    os.setsid()
    for number, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), number)
        output.close()
    os.environ.clear()  # noqa: TID251  the environment of the process that this becomes
    os.environ.update(env)  # noqa: TID251  the same
    threading.Thread(target=_die_with_the_cloud, daemon=True).start()
    sys.exit(importlib.import_module(_ENGINE).main(argv))


def _die_with_the_cloud() -> None:
    if cloud := multiprocessing.parent_process():
        cloud.join()
    os.kill(os.getpid(), signal.SIGKILL)


class Child:
    """One simulated engine; `argv` are those of `python -m simulators.engine`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        pairs = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
        self.output: Final = {"stdout": pairs[0][0], "stderr": pairs[1][0]}
        """What it prints and what it complains about."""
        theirs = [writes for _, writes in pairs]
        self._process = _FORKS.Process(target=_become, args=(argv, env, *theirs), daemon=True)
        with _TURN:
            self._process.start()
        for one in theirs:
            one.close()

    async def wait(self) -> int:
        """Wait for its end; returns its status, -9 if it was killed."""
        await anyio.wait_readable(self._process.sentinel)
        status = self._process.exitcode
        return 1 if status is None else status

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if self._process.exitcode is None and self._process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


Said = Callable[[str, str], None]
"""Is told the stream, stdout or stderr, and each line of it."""


class EngineProcess:
    """Comes up once and ends once; it may be told to end before it is there."""

    def __init__(self, grace_seconds: float = 2.0) -> None:
        self._grace_seconds: Final = grace_seconds
        """From being told to end politely until it is killed."""
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
        """Tell it to end, politely unless at once; `run` then returns its status."""
        self._farewell = signal.SIGKILL if at_once else signal.SIGTERM
        self.told_to_end.set()

    async def run(
        self,
        program: Program,
        *,
        said: Said,
        beside: Callable[[], Coroutine[Any, Any, None]],
    ) -> int:
        """Run it to its end, and something beside it; returns its status."""
        if store := program.store:
            carrying = Carrying(program.env, partial(said, "stdout"))
            await carrying.before(store)
            program.env["SIMULATED_ENGINE_CACHED"] = str(carrying.found)
        self.url = f"http://127.0.0.1:{program.port}"
        self.guard = program.guard
        child = await anyio.to_thread.run_sync(Child, program.argv, program.env)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(beside)
                if store:
                    tasks.start_soon(self._save, carrying, store)
                tasks.start_soon(self._end_when_told, child)
                async with anyio.create_task_group() as ears:
                    for stream, output in child.output.items():
                        ears.start_soon(_listen, output, stream, program, said)
                self.status = status = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            child.send(signal.SIGKILL)
        return status

    async def _save(self, carrying: Carrying, store: Store) -> None:
        """Save what it compiled, once it has answered."""
        await self.first_answer()
        await carrying.after(store)

    async def first_answer(self) -> None:
        """Wait until it answers; whoever waits beside it ends with it."""
        answered = False
        while not answered:
            await anyio.sleep(_RHYTHM_SECONDS)
            answered = await self.answers("/health", 1)

    async def answers(self, path: str, timeout_seconds: float, *, any_status: bool = False) -> bool:
        """Ask it as a probe does."""
        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
                reply = await client.get(self.url + path, timeout=timeout_seconds)
            return any_status or reply.status_code < 400
        return False

    async def _end_when_told(self, child: Child) -> None:
        await self.told_to_end.wait()
        child.send(self._farewell)
        await anyio.sleep(self._grace_seconds)
        child.send(signal.SIGKILL)


async def _listen(output: Connection, stream: str, program: Program, said: Said) -> None:
    rest = b""
    while True:
        await anyio.wait_readable(output.fileno())
        if not (piece := os.read(output.fileno(), 65536)):
            return
        *lines, rest = (rest + piece).split(b"\n")
        for line in () if program.ollama else lines:
            text = line.decode(errors="replace")
            for here, there in program.shown:
                text = text.replace(here, there)
            said(stream, text)
