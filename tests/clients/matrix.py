"""Every client, what it is to do, and what came of it."""

import json
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from tests.clients.agents import claude_code, codex, gemini_cli
from tests.clients.commandlines import fastmcp_client, inspector, mcpdo, mcporter
from tests.clients.desk import ClientFailedError, Desk
from tests.clients.installing import Installed, NotInstalledError, installed, packages
from tests.clients.libraries import library
from tests.clients.seen import DESTROY, Seen, complaints, halves
from tests.clients.wire import Wire


class Way(NamedTuple):
    """One client, used in one way."""

    title: str
    package: str
    """Its row of `clients.toml`."""
    use: Callable[[Desk, Installed], Awaitable[Seen]]


class Result(NamedTuple):
    """What came of it."""

    way: Way
    wire: Wire
    seen: Seen
    seconds: float
    wrong: Sequence[str]
    missing: bool = False
    """Whether it could not be installed."""

    def cells(self) -> tuple[str, ...]:
        """Give its cells of the table, without the time that it took."""
        wire, version = self.wire, packages()[self.way.package].version
        if self.missing:
            return (self.way.title, version, "not installed", *[""] * 4)
        return (
            self.way.title,
            version,
            wire.protocol,
            " and ".join(wire.elicitation) or "no",
            str(len(self.seen.tools)),
            halves("".join(self.seen.told[:1])),
            _deletion(wire, agreed=self.seen.agreed),
        )


HEADS: Final = ("client", "version", "protocol", "can ask", "tools", "passes on", "to delete")

WAYS: Final = (
    Way("Claude Code", "claude-code", claude_code),
    Way("Gemini CLI", "gemini-cli", gemini_cli),
    Way("Codex", "codex", codex),
    Way("mcpdo, new era, asking", "inspector", partial(mcpdo, "modern", "form")),
    Way("mcpdo, new era", "inspector", partial(mcpdo, "modern", "off")),
    Way("mcpdo, old era, asking", "inspector", partial(mcpdo, "legacy", "form")),
    Way("mcpdo, old era", "inspector", partial(mcpdo, "legacy", "off")),
    Way("MCP Inspector", "inspector", inspector),
    Way("mcporter", "mcporter", mcporter),
    Way("OpenAI Agents SDK", "openai-agents", partial(library, "openai-agents")),
    Way("Google ADK", "google-adk", partial(library, "google-adk")),
    Way("LangChain", "langchain", partial(library, "langchain")),
    Way("FastMCP", "fastmcp", fastmcp_client),
)
_AT_ONCE: Final = 2
"""Most of a client's time is its start, which takes a processor."""


async def run(ways: Sequence[Way], names: Sequence[str], folder: Path) -> list[Result]:
    """Install every client, then use them, some at once; `names` are the tools that there are."""
    results: dict[int, Result] = {}
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def once(number: int, way: Way, found: Installed) -> None:
        async with limit:
            results[number] = await _used(way, found, names, folder / str(number))

    async with anyio.create_task_group() as tasks:
        for number, way in enumerate(ways):
            try:
                found = await installed(way.package)
            except NotInstalledError as exc:
                results[number] = Result(way, Wire(), Seen((), ()), 0, [str(exc)], missing=True)
                continue
            tasks.start_soon(once, number, way, found)
    return [results[number] for number in sorted(results)]


async def _used(way: Way, found: Installed, names: Sequence[str], folder: Path) -> Result:
    desk = Desk(folder)
    began = time.monotonic()
    seen, wrong = Seen((), ()), []
    try:
        seen = await way.use(desk, found)
    except (ClientFailedError, NotInstalledError) as exc:
        wrong.append(str(exc))
    except (KeyError, IndexError, json.JSONDecodeError):
        # It printed something else than it should; where that was noticed says what.
        wrong.append(traceback.format_exc())
    seconds = time.monotonic() - began
    wire = await desk.wire()
    wrong += complaints(seen, wire, names, kept=desk.is_kept)
    if wrong and wire.errors:
        wrong.append(f"Its server said:\n{wire.errors}")
    return Result(way, wire, seen, seconds, wrong)


def _deletion(wire: Wire, *, agreed: bool) -> str:
    code = {call.tool: call.code for call in wire.calls}.get(DESTROY.tool, "")
    if agreed and code == "ok":
        return "asks, then deletes" if wire.asked else "wants the token, then deletes"
    if wire.asked and code == "CANCELLED":
        return "asks; nobody is there, nothing deleted"
    return "wants the token" if code == "CONFIRMATION_REQUIRED" else code
