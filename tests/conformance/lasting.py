"""The suite's tools that may run as tasks: begun by one request, looked at by others."""

from typing import Any, Final

import anyio
from fastmcp import Context
from fastmcp.tools import ToolResult
from mcp import MCPError
from mcp.types import INTERNAL_ERROR

from tests.conformance.asked_for import tool
from tests.conformance.asking import answers, form, needs

HIDDEN: Final = "what only the log of a server may say"
"""Why a task broke: its client must not read it."""


@tool()
async def greet(name: str) -> ToolResult:
    """Greet at once: never a task."""
    return ToolResult(content=f"Hello, {name}!")


@tool(task="optional")
async def slow_compute(seconds: float, label: str = "") -> ToolResult:
    """Take as long as it is told."""
    await anyio.sleep(seconds)
    return ToolResult(content=f"{label} took {seconds} s.")


@tool(task="required")
async def failing_job() -> ToolResult:
    """Break for a reason that is nobody's business."""
    raise RuntimeError(HIDDEN)


@tool(task="optional")
async def protocol_error_job() -> ToolResult:
    """End in an error of the protocol."""
    raise MCPError(code=INTERNAL_ERROR, message="This job cannot be done.")


@tool(task="optional")
async def confirm_delete(filename: str, ctx: Context) -> Any:
    """Ask before it goes on."""
    for said in answers(ctx, "confirm"):
        return ToolResult(content=f"{filename}: {said.action}")
    return needs({"confirm": form(f"Delete {filename}?", confirm="boolean")})


@tool(task="optional")
async def multi_input(ctx: Context) -> Any:
    """Ask two things at once, which may be answered one by one."""
    asked = {name: form(f"The {name} name?", name="string") for name in ("first", "last")}
    given = answers(ctx, *asked)
    return ToolResult(content=f"{len(given)} answers.") if given else needs(asked)


@tool(task="required")
async def test_tool_with_task(ctx: Context) -> Any:
    """Ask for a name, then greet, as a task."""
    for said in answers(ctx, "user_name"):
        return ToolResult(content=f"Hello, {said.content['name']}!")
    return needs({"user_name": form("What is your name?", name="string")})
