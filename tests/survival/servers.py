"""`python server.py` as a child that a test may kill, spoken to over its stdin and stdout."""

import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from core.environment import ROOT, inherited_environment
from tests.conversation import Reply
from tests.soon import HANGS

MODEL: Final = "google/gemma-4-E2B-it"
_LONGEST_LINE: Final = 1_000_000
_HELLO: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "survival", "version": "1"},
}


class ServerDied(Exception):
    """It closed its output before it answered."""


class Server:
    """One child, and the answers it still owes."""

    def __init__(self, process: Process) -> None:
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
    state_dir: Path, *, dies_at: str | None = None, **environment: str
) -> AsyncIterator[Server]:
    """Start one; it is dead afterwards."""
    script = str(ROOT / "server.py")
    dying = ["-m", "tests.survival.dying", dies_at] if dies_at else []
    chosen = {
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "ENGINE": "simulated",
        "TOOLSETS": "all",
        "CONFIRM": "never",
        "SIMULATED_ENGINE_BOOT_SECONDS": "0",
    }
    env = {**inherited_environment(), **chosen, **environment}
    async with hello([sys.executable, *dying, script], env=env) as child:
        yield child


@asynccontextmanager
async def hello(argv: Sequence[str], *, env: Mapping[str, str]) -> AsyncIterator[Server]:
    """Start any MCP server and open a session; it is dead afterwards."""
    process = await anyio.open_process(argv, cwd=ROOT, stderr=None, env=env)
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
