"""The inspector's command line, strict about schemas, on our server over stdin and stdout."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from core.environment import ROOT
from tests.conformance.node import run
from tests.conformance.suite import settings

_SKILL: Final = "skill://tear-down/SKILL.md"
"""Skills are resources here; `skills/list` is an extension that FastMCP calls experimental."""
_CALLS: Final = {
    "tools/list --strict": ("--method", "tools/list", "--strict"),
    "resources/list": ("--method", "resources/list"),
    "resources/templates/list": ("--method", "resources/templates/list"),
    "prompts/list": ("--method", "prompts/list"),
    "resources/read skill://": ("--method", "resources/read", "--uri", _SKILL),
    "tools/call get_help": ("--method", "tools/call", "--tool-name", "get_help"),
}
_PATIENT: Final = ("--connect-timeout", "60000")
"""Milliseconds, where other work has the processors."""


async def complaints(inspector: Sequence[str], home: Path) -> dict[str, str]:
    """Give, of each call that was not clean, what the inspector said."""
    environment = {**settings(home), "TOOLSETS": "all", "MCP_INSPECTOR_SECRET_STORE": "memory"}
    told = {}
    for name, words in _CALLS.items():
        server = (sys.executable, str(ROOT / "server.py"))
        told_by = (*inspector, "--cli", *server, *words, *_PATIENT)
        status, _, errors = await run(*told_by, **environment)
        if status or errors.strip():
            told[name] = f"exit status {status}: {errors.strip()[:2000]}"
    return told
