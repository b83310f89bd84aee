"""The lists of tools as they are sent, kept to be reviewed when they change."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from mcp.types import Tool

from core.settings import Toolset
from tests.listing import listing

PROFILES: Final[dict[str, tuple[tuple[Toolset, ...], bool]]] = {
    "default": ((), False),
    "all": (("all",), False),
    "read-only": (("all",), True),
    "compat": (("compat",), False),
}
"""Toolsets and READ_ONLY of each list."""


def file_of(profile: str) -> Path:
    return Path(__file__).parent / f"tools.{profile}.json"


async def sent(profile: str) -> list[dict[str, Any]]:
    """Give what a server of the profile sends, in its order."""
    toolsets, read_only = PROFILES[profile]
    return as_sent(await listing(*toolsets, read_only=read_only))


def as_sent(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Write tools as they stand on the wire."""
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]


def written(tools: list[dict[str, Any]]) -> str:
    """Give a list as its file holds it."""
    return json.dumps(tools, indent=1, ensure_ascii=False) + "\n"
