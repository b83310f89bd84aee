"""What to write into an MCP client's configuration, with this checkout's own paths."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from core.errors import InvalidArgument
from core.records import Record

SERVER_KEY: Final = "gpu-devops-agent"

_CALL_SECONDS: Final = 120
"""Above the 45 s that a tool takes at most; Codex would cut at 60 s, a busy machine is slower."""
_START_SECONDS: Final = 30
"""Codex gives a server 10 s; the first start after an install compiles every module."""


class ClientConfig(Record):
    """One thing to put into one place for one client."""

    client: str
    where: str
    """The file that it goes into, or that it is typed into a shell."""
    text: str


def client_configs(root: Path) -> tuple[ClientConfig, ...]:
    """Give every client its own words for the server of the checkout at `root`."""
    python, server = str(root / ".venv" / "bin" / "python"), str(root / "server.py")
    stdio = {"command": python, "args": [server]}
    gemini = {**stdio, "timeout": _CALL_SECONDS * 1000}
    command = shlex.join((python, server))
    add = f"mcp add --scope user {SERVER_KEY}"
    add_gemini = f"mcp add --scope user --timeout {_CALL_SECONDS * 1000} {SERVER_KEY}"
    table = (
        ("Antigravity", "~/.gemini/antigravity/mcp_config.json", _json(stdio)),
        ("Antigravity CLI", "~/.gemini/antigravity-cli/mcp_config.json", _json(stdio)),
        ("Gemini CLI", "~/.gemini/settings.json", _json(gemini)),
        ("Gemini CLI", "a shell", f"gemini {add_gemini} {command}"),
        ("Claude Code", "a shell", f"claude {add} -- {command}"),
        ("Claude Code", ".mcp.json of a project", _json({"type": "stdio", **stdio})),
        ("Codex", "~/.codex/config.toml", _toml(python, server)),
    )
    return tuple(ClientConfig(client=who, where=where, text=text) for who, where, text in table)


def render(configs: Sequence[ClientConfig], client: str | None) -> str:
    """Write them one below the other; `client` picks those whose name begins so.

    Raises:
        InvalidArgument: No client is called so.
    """
    wanted = [one for one in configs if one.client.lower().startswith((client or "").lower())]
    if not wanted:
        known = ", ".join(dict.fromkeys(one.client for one in configs))
        raise InvalidArgument(f"No client is called '{client}'.", fix=f"Choose one of: {known}.")
    return "\n".join(f"# {one.client}: {one.where}\n{one.text}\n" for one in wanted)


def _json(server: dict[str, Any]) -> str:
    return json.dumps({"mcpServers": {SERVER_KEY: server}}, indent=2, ensure_ascii=False)


def _toml(python: str, server: str) -> str:
    return "\n".join(
        (
            f"[mcp_servers.{SERVER_KEY}]",
            f"command = {_quoted(python)}",
            f"args = [{_quoted(server)}]",
            f"startup_timeout_sec = {_START_SECONDS}",
            f"tool_timeout_sec = {_CALL_SECONDS}",
        )
    )


def _quoted(text: str) -> str:
    """A JSON string is also a TOML basic string: the same quotes, the same escapes."""
    return json.dumps(text, ensure_ascii=False)
