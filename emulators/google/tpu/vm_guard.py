"""The proxy on a VM: docker starts it before the engine, and it outlives the engine."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from emulators.common.doors import Answer, TurnedAway, pass_on
from emulators.common.guard import Guard, guard_of
from emulators.common.web import WebServer, loopback
from emulators.google.tpu import vm_docker, vm_tls
from emulators.google.tpu.vm_machine import Machine
from emulators.google.tpu.vm_script import Decided

_NOBODY: Final = "http://127.0.0.1:9"
"""Nobody listens there."""
_FILE: Final = re.compile(r"ssl_certificate(?:_key)? ([^\s;]+);")


class VmGuard:
    """What it lets through, and how it is reached."""

    def __init__(self, machine: Machine, decided: Decided) -> None:
        docker = vm_docker.read(decided.guard_docker)
        given = {name: value for name, value in docker.environment.items() if value is not None}
        self.rules: Final[Guard] = guard_of(decided.guard_command, given)
        files = [file for value in given.values() for file in _FILE.findall(value)]
        folders = {(docker.outside(file) or "").rpartition("/")[0] for file in files}
        if not folders <= {vm_tls.HOST_FOLDER}:
            raise vm_docker.DockerRefused(f"nginx: [emerg] cannot load certificate {files[0]!r}")
        self.tls: Final = bool(files)
        self.reachable: Final = docker.host_network
        self._machine = machine

    @asynccontextmanager
    async def opened(self, engine: Callable[[], str]) -> AsyncIterator[None]:
        """Listen meanwhile; `engine` gives where the engine is now, empty where none runs."""
        machine, listener = self._machine, loopback()
        listener.listen(128)
        server = WebServer(
            _Host(self.rules, engine), machine.folder / vm_tls.BOTH if self.tls else None
        )
        machine.world.tasks.start_soon(server.serve, [listener])
        await server.listening.wait()
        if self.reachable:
            machine.listens[self.rules.port] = listener.getsockname()[1]
        try:
            yield
        finally:
            machine.listens.pop(self.rules.port, None)
            server.should_exit = True


class _Host:
    def __init__(self, rules: Guard, engine: Callable[[], str]) -> None:
        self._rules, self._engine = rules, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, answer = Request(scope, receive), Answer(send)
        try:
            body, url = await request.body(), self._engine() or _NOBODY
            path = await self._rules.admit(request, url)
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
            return
        except ClientDisconnect:
            return
        try:
            await pass_on(request, body, url, answer, path=path)
        except TurnedAway:
            page = HTMLResponse("<html><h1>502 Bad Gateway</h1>nginx</html>", status_code=502)
            await page(scope, receive, send)
