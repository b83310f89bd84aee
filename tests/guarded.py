"""A real nginx, started as the guard's container starts it, before an engine on this machine."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import pytest

from backends import container
from core.address import free_port
from core.environment import inherited_environment
from simulators.common.doors import UNVERIFIED_TLS
from tests.soon import HANGS

SPELLINGS: Final = (
    "//invocations",
    "/./invocations",
    "/v1/../invocations",
    "/v1//../invocations",
    "/v1/%2e%2e/invocations",
    "/v1/.%2e/invocations",
    "/v1/..%2finvocations",
    "/v1/..%2Finvocations",
    "/v1%2f..%2finvocations",
    "/v1%2f%2e%2e%2finvocations",
    "/health/../invocations",
    "/health%2f..%2finvocations",
    "/health/..;/invocations",
    "/metrics/../invocations",
    "/invocations/",
    "/invocations%00",
    "/invocations?/v1/",
    "/invocations#/v1/",
    "/invocations;/v1/",
    "/invocations/../invocations",
    "/health;/../invocations",
    "/%69nvocations",
    "/%2569nvocations",
    "\\invocations",
    "/v1\\..\\invocations",
    "/v1\\../invocations",
    "invocations",
    "http://127.0.0.1/invocations",
    "http://127.0.0.1/v1/../invocations",
    "/guard/key",
    "/health/../guard/key",
)
"""Ways to write a path that is not let through, as one would write them to get round a proxy."""


def need_nginx() -> None:
    """Skip the test where there is none; to be called outside of any task group."""
    if shutil.which("nginx") is None:
        pytest.skip("There is no nginx here: apt-get install nginx-light.")


@asynccontextmanager
async def guarded(
    engine_port: int, folder: Path, tls: container.Certificate | None = None
) -> AsyncIterator[str]:
    """Start it; give its base URL."""
    made = container.guard_container("nginx", port=free_port(), engine_port=engine_port, tls=tls)
    env = {**inherited_environment(), "TMPDIR": str(folder), **made.env}
    async with await anyio.open_process([*made.command, *made.args], env=env) as process:
        try:
            await _until_it_listens(process, made.port)
            yield f"http{'s' if tls else ''}://127.0.0.1:{made.port}"
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()


async def _until_it_listens(process: anyio.abc.Process, port: int) -> None:
    with anyio.fail_after(HANGS):
        while process.returncode is None:
            try:
                await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
            except OSError:
                await anyio.lowlevel.checkpoint()
            else:
                return
    pytest.fail("nginx does not take the configuration.")


async def raw(base_url: str, path: str, *, method: str = "GET", body: str = "") -> tuple[int, str]:
    """Ask for a path exactly as it is written, without a key; give the status and the answer."""
    request = (
        f"{method} {path} HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    url = urlsplit(base_url)
    tls: dict[str, Any] = {"tls": False}
    if url.scheme == "https":  # the certificate is not what is asked about
        tls = {"tls": True, "ssl_context": UNVERIFIED_TLS, "tls_standard_compatible": False}
    async with await anyio.connect_tcp(str(url.hostname), url.port or 443, **tls) as stream:
        await stream.send(request.encode("latin-1"))
        answer = b"".join([piece async for piece in stream]).decode(errors="replace")
    return int(answer.split()[1]), answer
