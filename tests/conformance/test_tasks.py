"""Calls that run as tasks pass the same gate as all others; our server itself offers none."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.redaction import MASK
from tests.conformance.lasting import HIDDEN
from tests.over_http import DISCOVER, TOKEN, posted, served, settings_of, started
from tests.tools.shared import state_dir
from tests.tools.world import operations_of

__all__ = ["state_dir"]

pytestmark = pytest.mark.anyio

_TASKS: Final = "io.modelcontextprotocol/tasks"
_META: Final = {
    **DISCOVER["params"]["_meta"],  # type: ignore[index]  # it is a request
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {_TASKS: {}}},
}
_ENDED: Final = ("completed", "failed", "cancelled")


class Client:
    """One that can follow tasks, and shows the token with each request."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one request; give what is answered, result or error."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _META}}
        headers = {
            "Mcp-Method": method,
            "Mcp-Name": str(params.get("taskId", params.get("name", ""))),
            "Authorization": f"Bearer {TOKEN}",
        }
        told = await posted(self._url, body, **headers)
        (said,) = re.findall(r"^(?:data: )?(\{.*\})\s*$", told.text, re.MULTILINE)
        answer: dict[str, Any] = json.loads(said)
        return answer

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; give a task or an answer."""
        told = await self.ask("tools/call", name=tool, arguments=arguments)
        result: dict[str, Any] = told["result"]
        return result

    async def end(self, task: str) -> dict[str, Any]:
        """Look at a task until it has ended."""
        with anyio.fail_after(20):
            while True:
                result: dict[str, Any] = (await self.ask("tasks/get", taskId=task))["result"]
                if result["status"] in _ENDED:
                    return result


@asynccontextmanager
async def fixture(state_dir: Path, **environment: str) -> AsyncIterator[Client]:
    """Start the server that the suite is run against; that takes three seconds."""
    settings = {
        "MCP_BEARER_TOKEN": TOKEN,
        "VLLM_DEVOPS_STATE_DIR": str(state_dir),
        "ENGINE": "simulated",
        **environment,
    }
    async with started(["-m", "tests.conformance.fixture"], **settings) as (process, errors):
        where = (await errors.receive_until(b"\n", 1000)).decode()
        (url,) = re.findall(r"http://\S+/mcp", where)
        yield Client(url)
        process.terminate()


async def test_a_task_is_written_down_and_hides_what_broke_it(state_dir: Path) -> None:
    """The journal has the call without its secrets; the client reads that it broke, and no more."""
    async with fixture(state_dir) as client:
        begun = await client.call("failing_job")
        assert begun["resultType"] == "task"
        ended = await client.end(begun["taskId"])
        told = await client.call("slow_compute", seconds=0, label=TOKEN)
        assert told["resultType"] == "task"
        refused = await client.call("slow_compute", seconds="long")
        unknown = await client.call("no_such_tool")
    assert ended["result"]["isError"] is True
    assert HIDDEN not in json.dumps(ended)
    written = {row.tool: row for row in operations_of(state_dir)}
    assert written["failing_job"].client == "test 1 (from 127.0.0.1)"
    assert written["slow_compute"].arguments
    assert TOKEN not in repr(operations_of(state_dir))
    assert MASK in repr(operations_of(state_dir))
    assert _code(refused) == "INVALID_ARGUMENT"
    assert _code(unknown) == "NOT_FOUND"


async def test_what_may_not_be_called_may_not_be_begun(state_dir: Path) -> None:
    """A server that only looks refuses before there is a task."""
    async with fixture(state_dir, READ_ONLY="true") as client:
        told = await client.call("slow_compute", seconds=0)
    assert _code(told) == "READ_ONLY"


async def test_our_server_offers_no_tasks(state_dir: Path) -> None:
    """No client of today asks for them: long work has tools of its own to look at it."""
    async with served(settings_of(state_dir, mcp_bearer_token=TOKEN)) as url:
        client = Client(url)
        offered = (await client.ask("server/discover"))["result"]["capabilities"]
        told = await client.ask("tasks/get", taskId="one")
        called = await client.call("get_help")
    assert _TASKS not in offered.get("extensions", {})
    assert told["error"]["code"] == -32601
    assert called["resultType"] == "complete"


def _code(told: dict[str, Any]) -> str:
    assert told["isError"]
    assert "taskId" not in told
    return str(told["structuredContent"]["code"])
