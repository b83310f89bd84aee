"""A connection that breaks before the answer: who comes back for the rest gets it."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest

from tests.over_http import TOKEN, posted, served, settings_of
from tests.tools.world import plant, still_engine

pytestmark = pytest.mark.anyio

_HELLO: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {"form": {}}},
    "clientInfo": {"name": "breaks off", "version": "1"},
}
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-11-25",
}


class Event(NamedTuple):
    id: str
    message: dict[str, Any]
    """Empty where a stream begins."""


class Session:
    """A client of 2025-11-25 that reads as far as the test wants, and no farther."""

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self._url, self._client = url, client

    async def open(self) -> None:
        """Say hello and keep the name of the session."""
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _HELLO}
        told = await self._client.post(self._url, json=hello, headers=_HEADERS)
        self._client.headers["Mcp-Session-Id"] = told.headers["Mcp-Session-Id"]
        await self.send({"method": "notifications/initialized"})

    async def send(self, message: dict[str, Any]) -> None:
        """Send what is not answered."""
        said = {"jsonrpc": "2.0", **message}
        told = await self._client.post(self._url, json=said, headers=_HEADERS)
        assert told.status_code == 202

    async def call(self, tool: str) -> AsyncGenerator[Event]:
        """Call a tool; whoever ends the loop breaks the connection."""
        params = {"name": tool, "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        sent = self._client.stream("POST", self._url, json=body, headers=_HEADERS)
        async with sent as reply:
            async for event in _events(reply):
                yield event

    async def rest(self, last: str) -> AsyncGenerator[Event]:
        """Come back for what came after an event."""
        headers = {**_HEADERS, "Last-Event-ID": last}
        async with self._client.stream("GET", self._url, headers=headers) as reply:
            assert reply.status_code == 200
            async for event in _events(reply):
                yield event


async def _events(reply: httpx2.Response) -> AsyncGenerator[Event]:
    told: dict[str, str] = {}
    async for line in reply.aiter_lines():
        if line:
            name, _, said = line.partition(": ")
            told[name] = said
        elif told:
            yield Event(told.get("id", ""), json.loads(told.get("data") or "{}"))
            told = {}


async def _until(events: AsyncGenerator[Event], key: str) -> Event:
    """Read until a message has a key, then break the connection."""
    async with aclosing(events) as reading:
        async for event in reading:
            if key in event.message:
                return event
    pytest.fail(f"No message had {key}.")


async def test_an_answer_that_was_not_read_is_read_later(state_dir: Path) -> None:
    """A stream begins with a number, and with when to come back; the answer has one as well."""
    async with served(settings_of(state_dir)) as url, httpx2.AsyncClient() as client:
        session = Session(url, client)
        await session.open()
        async with aclosing(session.call("get_help")) as reading:
            begin = await anext(reading)
            answer = await anext(reading)
        again = await _until(session.rest(begin.id), "result")
    assert begin.message == {}
    assert answer.message["result"]["structuredContent"]["ok"]
    assert again == answer


async def test_a_yes_reaches_a_call_whose_connection_broke(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a human thinks, a laptop sleeps: the question is not asked again, and the work done."""
    still_engine(monkeypatch)
    folder = plant(state_dir)
    async with served(settings_of(state_dir)) as url, httpx2.AsyncClient() as client:
        session = Session(url, client)
        await session.open()
        asked = await _until(session.call("destroy_vllm"), "method")
        assert asked.message["method"] == "elicitation/create"
        yes = {"action": "accept", "content": {"confirm": True, "value": True}}
        await session.send({"id": asked.message["id"], "result": yes})
        answer = await _until(session.rest(asked.id), "result")
    assert answer.message["id"] == 7
    assert answer.message["result"]["structuredContent"]["data"]["gone"] is True
    assert not folder.path.exists()


async def test_nobody_reads_the_answers_of_another_session(state_dir: Path) -> None:
    """An event's number, whoever has learned it, opens nothing but what was sent in its session."""
    async with served(settings_of(state_dir)) as url:
        async with httpx2.AsyncClient() as client:
            mine = Session(url, client)
            await mine.open()
            async with aclosing(mine.call("get_help")) as reading:
                begin = await anext(reading)
        async with httpx2.AsyncClient() as client:
            other = Session(url, client)
            await other.open()
            read = [event async for event in other.rest(begin.id) if event.message]
            assert not [one for one in read if one.message.get("id") == 7]


async def test_the_rest_is_behind_the_token_as_well(state_dir: Path) -> None:
    """Whoever comes back shows it again."""
    settings = settings_of(state_dir, mcp_bearer_token=TOKEN)
    async with served(settings) as url, httpx2.AsyncClient() as client:
        assert (await posted(url)).status_code == 401
        told = await client.get(url, headers={**_HEADERS, "Last-Event-ID": "1"})
    assert told.status_code == 401
