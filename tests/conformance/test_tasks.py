"""Our server offers no tasks: long work has tools of its own to look at it."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.over_http import DISCOVER, TOKEN, posted, served, settings_of

pytestmark = pytest.mark.anyio

_TASKS: Final = "io.modelcontextprotocol/tasks"
_META: Final = {
    **DISCOVER["params"]["_meta"],  # type: ignore[index]  # it is a request
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {_TASKS: {}}},
}


async def test_our_server_offers_no_tasks(state_dir: Path) -> None:
    """A client that could follow one is answered at once, and told that there is none."""
    async with served(settings_of(state_dir, mcp_bearer_token=TOKEN)) as url:
        offered = (await _ask(url, "server/discover"))["result"]["capabilities"]
        told = await _ask(url, "tasks/get", taskId="one")
        called = (await _ask(url, "tools/call", name="get_help", arguments={}))["result"]
    assert _TASKS not in offered.get("extensions", {})
    assert told["error"]["code"] == -32601
    assert called["resultType"] == "complete"


async def _ask(url: str, method: str, **params: Any) -> dict[str, Any]:
    """Send one request as a client that can follow tasks; return what is answered."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": _META}}
    headers = {
        "Mcp-Method": method,
        "Mcp-Name": str(params.get("taskId", params.get("name", ""))),
        "Authorization": f"Bearer {TOKEN}",
    }
    told = await posted(url, body, **headers)
    (said,) = re.findall(r"^(?:data: )?(\{.*\})\s*$", told.text, re.MULTILINE)
    answer: dict[str, Any] = json.loads(said)
    return answer
