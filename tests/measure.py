"""The budgets, measured on this machine: `.venv/bin/python -m tests.measure`.

Ours and a bare FastMCP server take turns, so that a busy machine slows both; medians count. With
`--write` docs/tools.md tells how long the start took.
"""

import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport

from core.environment import ROOT, inherited_environment
from core.settings import Settings
from server import build
from tests.listing import tokens
from tests.readme import write
from tests.survival.servers import hello

STARTS: Final = 11
CALLS: Final = 400
START_BUDGET: Final = 1.25
_BARE: Final = """\
from fastmcp import FastMCP

mcp = FastMCP("bare")


@mcp.tool
def say(size: int) -> str:
    return "a word " * (size // 7)


if __name__ == "__main__":
    mcp.run(show_banner=False, log_level="WARNING")
"""
_OURS: Final[tuple[tuple[str, dict[str, Any], float], ...]] = (
    ("list_targets", {}, 2.5),  # which prices every target and looks for a vLLM
    ("get_help", {"topic": "model_name"}, 4.0),  # which searches all tools, settings and words
)
"""Tools that look at nothing outside this machine, and how many times a bare call they may take."""
_SET: Final = ("", "plan", "deploy", "models", "observe", "ask", "diagnose", "help", "all")


async def start_seconds(script: Path, env: Mapping[str, str]) -> float:
    """From the start of a process to its answer to tools/list."""
    began = time.perf_counter()
    async with hello([sys.executable, str(script)], env=env) as one:
        await one.request("tools/list")
        return time.perf_counter() - began


async def starts(bare: Path, env: Mapping[str, str]) -> str:
    """Print (a), return the sentence for docs/tools.md."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(STARTS + 1):
        seconds = await start_seconds(bare, env), await start_seconds(ROOT / "server.py", env)
        if number:  # the first ones read the disk
            theirs.append(seconds[0])
            ours.append(seconds[1])
    told("(a) start to tools/list answered", ours, theirs, START_BUDGET)
    ratio, today = median(ours) / median(theirs), datetime.now(UTC)
    return (
        f"From start to `tools/list` answered: {median(ours):.2f} s, {ratio:.2f} times a bare"
        f" FastMCP server's (at most {START_BUDGET}); medians of {STARTS} in turn on"
        f" {os.cpu_count()} cores, {today:%Y-%m-%d} (`make measure`)."
    )


Call = Callable[[], Awaitable[Any]]


async def turns(ours: Call, theirs: Call) -> tuple[list[float], list[float]]:
    """Time both, one call each in turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(CALLS + 20):
        for seconds, call in zip(taken, (ours, theirs), strict=True):
            began = time.perf_counter()
            await call()
            if number >= 20:
                seconds.append(time.perf_counter() - began)
    return taken


async def calls(how: str, ours: Client[Any], theirs: Client[Any]) -> None:
    """Print (b) for one way of connecting."""
    async with ours, theirs:
        for tool, arguments, budget in _OURS:

            async def call(tool: str = tool, given: dict[str, Any] = arguments) -> None:
                assert not (await ours.call_tool(tool, given)).is_error

            size = await _size(ours, tool, arguments)

            async def say(size: int = size) -> None:
                await theirs.call_tool("say", {"size": size})

            what = f"(b) {tool}, {size:,} characters, {how}"
            told(what, *await turns(call, say), budget)


async def _size(client: Client[Any], tool: str, arguments: Mapping[str, Any]) -> int:
    """Give how long an answer is: the bare server's is as long."""
    reply = await client.call_tool(tool, dict(arguments))
    return sum(len(getattr(part, "text", "")) for part in reply.content)


async def sizes() -> None:
    """Print (c): tokens as characters of name, description and input schema, divided by four."""
    print("(c) toolset     tools  tokens")
    for group in _SET:
        settings = Settings(toolsets=(group,) if group else ())
        async with Client(build(settings)) as client:
            listed = await client.list_tools()
        print(f"    {group or '(default)':10} {len(listed):6} {tokens(listed):7}")


def told(what: str, ours: list[float], theirs: list[float], budget: float) -> None:
    """Print both medians, their ratio and the budget."""
    mine, bare = median(ours) * 1000, median(theirs) * 1000
    verdict = "within" if mine <= budget * bare else "OVER"
    print(
        f"{what}: {mine:.2f} ms, bare {bare:.2f} ms, ratio {mine / bare:.2f}"
        f" ({verdict} {budget}; n = {len(ours)})"
    )


def _bare() -> FastMCP[Any]:
    mcp: FastMCP[Any] = FastMCP("bare")

    @mcp.tool
    def say(size: int) -> str:
        return "a word " * (size // 7)

    return mcp


async def main(folder: Path) -> str:
    """Print everything, return the sentence for docs/tools.md."""
    script = folder / "bare.py"
    await anyio.Path(script).write_text(_BARE)
    state = folder / "state"
    env = {**inherited_environment(), "VLLM_DEVOPS_STATE_DIR": str(state), "TOOLSETS": ""}
    start = await starts(script, env)
    await calls("in process", Client(build(Settings(vllm_devops_state_dir=state))), Client(_bare()))
    await calls(
        "over stdio",
        Client(StdioTransport(sys.executable, [str(ROOT / "server.py")], env=env)),
        Client(StdioTransport(sys.executable, [str(script)], env=env)),
    )
    await sizes()
    return start


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="vllm-devops-measure-") as name:
        sentence = anyio.run(main, Path(name))
    if "--write" in sys.argv:
        write("start", sentence)
