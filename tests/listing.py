"""What a client is told of the tools before it calls any, and what that may cost."""

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fastmcp import Client
from mcp.types import Tool

from core.settings import Settings, Toolset
from server import build

MAX_TOKENS: Final[dict[tuple[Toolset, ...], int]] = {(): 3_000, ("all",): 7_000}
"""Of the tools that are listed by default, and of all but the old names: each session pays."""
MAX_TOOL_TOKENS: Final = 560
"""So that one tool cannot eat the others' room."""
MAX_DESCRIPTION: Final = 300
"""Characters: clients and people read the beginning of what is long."""
MAX_INSTRUCTIONS: Final = 1_500
"""Bytes: Claude Code cuts them at 2 KB."""
MAX_NAME: Final = 60
"""Characters of the server's key and a tool's name together: some clients drop what is longer."""


async def listing(*toolsets: Toolset, read_only: bool = False) -> list[Tool]:
    """Ask a server of these settings for its tools, as a client does."""
    with TemporaryDirectory(prefix="vllm-devops-listing-") as folder:
        settings = Settings(
            vllm_devops_state_dir=Path(folder),
            engine="simulated",
            toolsets=toolsets,
            read_only=read_only,
            rehearsal=False,
        )
        async with Client(build(settings)) as client:
            return list(await client.list_tools())


def tokens(tools: Iterable[Tool]) -> int:
    """Estimate what tools cost a model: name, description and parameters, four characters each."""
    characters = sum(
        len(tool.name) + len(tool.description or "") + len(json.dumps(tool.input_schema))
        for tool in tools
    )
    return -(-characters // 4)
