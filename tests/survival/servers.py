"""`python server.py` as a child that a test may kill, spoken to over its stdin and stdout."""

import functools
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from core.environment import ROOT, inherited_environment
from core.processes import detach
from tests.conversation import Reply
from tests.soon import HANGS

MODEL: Final = "google/gemma-4-E2B-it"
_SCRIPT: Final = str(ROOT / "server.py")
_LONGEST_LINE: Final = 1_000_000
_HELLO: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "survival", "version": "1"},
}


class ServerDied(Exception):
    """It closed its output before it answered."""


class _Reads(ByteReceiveStream):
    """The end of a pipe that is read."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await anyio.wait_readable(self._pipe)
        if not (piece := os.read(self._pipe, max_bytes)):
            raise anyio.EndOfStream
        return piece

    async def aclose(self) -> None:
        os.close(self._pipe)


class _Writes(ByteSendStream):
    """The end of a pipe that is written to."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    async def send(self, item: bytes) -> None:
        """Write it at once: whatever is asked here has room in a pipe."""
        try:
            os.write(self._pipe, item)
        except BrokenPipeError as exc:
            raise anyio.BrokenResourceError from exc

    async def aclose(self) -> None:
        os.close(self._pipe)


class Fork:
    """What the template has become, as a process that was started is asked."""

    def __init__(self, pid: int, stdin: int, stdout: int, life: int) -> None:
        self.stdin, self.stdout = _Writes(stdin), _Reads(stdout)
        self.returncode: int | None = None
        self._pid, self._life = pid, life

    def kill(self) -> None:
        """`kill -9`; until its template ends, no other process has its number."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    async def wait(self) -> None:
        """Wait until it has ended, however: its pipe is closed then."""
        if self.returncode is None:
            await anyio.wait_readable(self._life)
            self.returncode = -signal.SIGKILL

    async def aclose(self) -> None:
        await self.stdin.aclose()
        await self.stdout.aclose()
        os.close(self._life)


class Template:
    """The process that is forked; see `tests.survival.template`. It ends when nobody asks it."""

    def __init__(self) -> None:
        self.door, theirs = socket.socketpair()
        env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
        with theirs:
            argv = (sys.executable, "-m", "tests.survival.template")
            detach(argv, env=env, stdin=theirs.fileno())

    def fork(self, **wanted: Any) -> Fork:
        """Have a server of this script, environment and moment of death."""
        ends = [os.pipe() for _ in range(3)]
        (its_input, stdin), (stdout, its_output), (life, its_life) = ends
        theirs = [its_input, its_output, its_life]
        socket.send_fds(self.door, [json.dumps(wanted).encode()], theirs)
        for end in theirs:
            os.close(end)
        return Fork(int(self.door.recv(20)), stdin, stdout, life)


template = functools.cache(Template)
"""One for a whole worker, which `conftest.py` ends."""


class Server:
    """One child, and the answers it still owes."""

    def __init__(self, process: Process | Fork) -> None:
        self.process = process
        self._ids = itertools.count(1)
        self._owed: dict[int, anyio.Event] = {}
        self._told: dict[int, dict[str, Any]] = {}

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask; give the result.

        Raises:
            ServerDied: There will be none.
        """
        number = next(self._ids)
        self._owed[number] = anyio.Event()
        try:
            await self._send({"id": number, "method": method, "params": params})
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            raise ServerDied from exc
        with anyio.fail_after(HANGS):
            await self._owed[number].wait()
        if number not in self._told:
            raise ServerDied
        result: dict[str, Any] = self._told[number]["result"]
        return result

    async def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool."""
        result = await self.request("tools/call", name=tool, arguments=arguments)
        text = "\n".join(block["text"] for block in result["content"])
        return Reply(result.get("structuredContent"), text, is_error=bool(result.get("isError")))

    async def deploy(self, name: str, **flags: Any) -> Reply:
        """Start one on this machine."""
        return await self.call("deploy_vllm", target="local", name=name, model=MODEL, **flags)

    async def about(self, tool: str, name: str, **more: Any) -> Reply:
        """Call a tool for one deployment of this machine."""
        return await self.call(tool, target="local", name=name, **more)

    async def kill(self) -> None:
        """kill -9, seen to be dead."""
        self.process.kill()
        await self.process.wait()

    async def greet(self) -> None:
        """Open the session."""
        await self.request("initialize", **_HELLO)
        await self._send({"method": "notifications/initialized"})

    async def listen(self) -> None:
        """Take in what it says, until it says no more."""
        assert self.process.stdout
        lines = BufferedByteReceiveStream(self.process.stdout)
        try:
            while True:
                message = json.loads(await lines.receive_until(b"\n", _LONGEST_LINE))
                if owed := self._owed.get(message.get("id", 0)):
                    self._told[message["id"]] = message
                    owed.set()
        except (anyio.EndOfStream, anyio.IncompleteRead):
            for owed in self._owed.values():
                owed.set()

    async def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


@asynccontextmanager
async def server(
    state_dir: Path, *, dies_at: str = "", **environment: str
) -> AsyncIterator[Server]:
    """Start one, whose imports are its template's; it is dead afterwards."""
    wanted = {"script": _SCRIPT, "dies_at": dies_at, "env": _env(state_dir, environment)}
    process = await anyio.to_thread.run_sync(lambda: template().fork(**wanted))
    async with _greeted(process) as child:
        yield child


@asynccontextmanager
async def executed(state_dir: Path) -> AsyncIterator[Server]:
    """Start one as clients do."""
    async with hello([sys.executable, _SCRIPT], env=_env(state_dir, {})) as child:
        yield child


@asynccontextmanager
async def hello(argv: Sequence[str], *, env: Mapping[str, str]) -> AsyncIterator[Server]:
    """Start any MCP server and open a session; it is dead afterwards."""
    process = await anyio.open_process(argv, cwd=ROOT, stderr=None, env=env)
    async with _greeted(process) as child:
        yield child


def _env(state_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    chosen = {
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "ENGINE": "simulated",
        "TOOLSETS": "all",
        "CONFIRM": "never",
        "SIMULATED_ENGINE_BOOT_SECONDS": "0",
    }
    return {**inherited_environment(), **chosen, **environment}


@asynccontextmanager
async def _greeted(process: Process | Fork) -> AsyncIterator[Server]:
    child = Server(process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child.listen)
        try:
            await child.greet()
            yield child
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
                await process.aclose()
