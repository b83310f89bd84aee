"""A real vLLM that listens on a unix socket: asked through it, and reached in no other way."""

from pathlib import Path
from typing import Final

import httpx2
import psutil
import pytest

from core.processes import run
from tests.conftest import processes_of
from tests.real.conftest import Served
from tests.tools.calls import LOOKING

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

ASKED: Final = {"prompt": "Hello", "max_tokens": 2}


async def test_only_its_socket_computes(served: Served) -> None:
    """No port of its processes speaks HTTP; the printed curl is answered."""
    await served.deploy("socket", access="internal")
    ready, _ = await served.until("socket", "ready")
    assert ready.state == "ready", ready
    for address in listening(served.state_dir):
        with pytest.raises(httpx2.TransportError):
            await said_at(f"http://{address}")
    here = {"target": "local", "name": "socket"}
    for tool in ("get_metrics", "get_model_details", "verify_model_health", "query_gemma4"):
        reply = await served.call(tool, **LOOKING[tool], **here)
        assert not reply.failed, (tool, reply)
    endpoint = (await served.call("get_endpoint", **here)).data
    assert "tiny-gemma-4" in (await run(("sh", "-c", endpoint["curl"]))).stdout
    assert "content" in (await run(("sh", "-c", endpoint["ask"]))).stdout
    socket = endpoint["url"].removeprefix("unix:")
    assert (await served.call("destroy_vllm", **here)).data["gone"] is True
    assert socket not in {one.laddr for one in psutil.net_connections(kind="unix")}


def listening(folder: Path) -> set[str]:
    """Return the addresses at which its processes listen: their own, to talk among themselves."""
    inet = [one for each in processes_of(folder) for one in each.net_connections(kind="inet")]
    found = [one.laddr for one in inet if one.status == psutil.CONN_LISTEN]
    hosts = {"::": "[::1]", "0.0.0.0": "127.0.0.1"}  # noqa: S104  what may be bound
    return {f"{hosts.get(one.ip, one.ip)}:{one.port}" for one in found}


async def said_at(url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=5) as client:
        return await client.post(f"{url}/invocations", json=ASKED)
