"""Servers that are spoken to over HTTP, in this process or as one of their own."""

import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from anyio.streams.buffered import BufferedByteReceiveStream

from core.environment import ROOT, inherited_environment
from core.settings import Settings
from server import build
from tests.soon import HANGS
from tests.webserver import WebServer
from tools.http import prepared

TOKEN: Final = "0123456789abcdef" * 2
DISCOVER: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "server/discover",
}


@asynccontextmanager
async def served(settings: Settings, *arguments: str) -> AsyncIterator[str]:
    """Serve in this process what `server.py --http` serves; give its URL."""
    door = prepared(build, settings, ["--port", "0", *arguments])
    (url,) = re.findall(r"https?://\S+/mcp", door.said[0])
    web = WebServer(door.config)
    async with anyio.create_task_group() as group:
        group.start_soon(web.serve, [door.listener])
        try:
            yield url
        finally:
            web.end()


def settings_of(state_dir: Path, **more: Any) -> Settings:
    return Settings(vllm_devops_state_dir=state_dir, engine="simulated", **more)


async def posted(url: str, body: Any = DISCOVER, **headers: str | bytes) -> httpx2.Response:
    """Send one request, by default a good one, as a client of the newest protocol does."""
    async with httpx2.AsyncClient() as client:
        sent: Any = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(url, json=body, headers=HEADERS | sent)


@asynccontextmanager
async def started(argv: Sequence[str], **environment: str) -> AsyncIterator[Any]:
    """Start a process that serves; give it and what it writes on standard error."""
    env = {**inherited_environment(), **environment}
    command = [sys.executable, *argv, "--port", "0"]
    async with await anyio.open_process(command, env=env, cwd=ROOT) as process:
        assert process.stderr
        with anyio.fail_after(HANGS):
            yield process, BufferedByteReceiveStream(process.stderr)


async def the_rest(errors: BufferedByteReceiveStream) -> str:
    """Read to the end."""
    read = b""
    while True:
        try:
            read += await errors.receive()
        except anyio.EndOfStream:
            return read.decode()
