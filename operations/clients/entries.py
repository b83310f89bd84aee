"""What a client's entry for this server says, beside what its owner added to it."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from core.errors import InvalidArgument
from operations.clients.table import Client

ADDRESSES: Final = frozenset(("url", "httpUrl", "serverUrl"))
"""The fields by which entries name the address of a server; some clients read several."""
_OF_STDIO: Final = frozenset(("command", "args", "cwd", "env", "env_vars", "envFile"))
_OF_HTTP: Final = ADDRESSES | {"headers", "http_headers", "bearer_token_env_var", "oauth"}

Entry = dict[str, Any]


def by_command(client: Client, root: Path, settings: Mapping[str, str] | None = None) -> Entry:
    """Let the client start the server of the checkout at `root`, with these settings."""
    started = {"command": str(root / ".venv" / "bin" / "python"), "args": [str(root / "server.py")]}
    env = {"env": dict(settings)} if settings else {}
    return {**client.stdio, **started, **env, **client.times}


def by_address(client: Client, url: str, *, token: bool) -> Entry:
    """Let the client call a server that runs; a token is named by its variable, never written.

    Raises:
        InvalidArgument: It is no address, or one that holds a secret, or the client takes none.
    """
    _checked(url)
    if client.address is None:
        raise InvalidArgument(
            f"{client.title} takes no address in its file: it starts servers itself.",
            fix="Leave URL out; or add the address in the client's own settings (Connectors).",
        )
    entry = {**client.http, client.address: url, **client.times}
    return {**entry, **client.token} if token else entry


def merged(old: Mapping[str, Any], ours: Entry) -> Entry:
    """Set what is ours and keep the rest; of two time-outs the longer one stays.

    What belongs to the other way of reaching a server goes: no client takes both. What was meant
    for another address goes too: its headers may hold a secret; and so does another script's `cwd`.
    An address in another field is such a one: some clients would call it still.
    """
    there = {"args"} if "command" in ours else ADDRESSES & (ours.keys() | old.keys())
    moved = any(name not in ours or old.get(name) != ours[name] for name in there)
    gone = _OF_HTTP if "command" in ours else _OF_STDIO
    if moved:
        gone |= _OF_HTTP | {"cwd"}
    kept = {name: value for name, value in old.items() if name not in gone}
    if (kept.get("type") in {None, "stdio"}) != ("command" in ours):
        kept.pop("type", None)  # of the other way
    both = {name: _both(kept.get(name), value) for name, value in ours.items()}
    if "env" in ours:
        both["env"] = {**(kept.get("env") or {}), **ours["env"]}
    return {**kept, **both}


def is_local(url: str) -> bool:
    """Whether nobody but this machine can be meant."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _both(old: Any, new: Any) -> Any:
    if isinstance(new, dict) and isinstance(old, Mapping):
        return {**old, **{name: old.get(name, value) for name, value in new.items()}}
    number = isinstance(new, int) and isinstance(old, int | float) and not isinstance(old, bool)
    return max(old, new) if number else new


def _checked(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or not url.isprintable() or " " in url:
        raise InvalidArgument(
            "That is no address of a server.", fix="Give it as http://127.0.0.1:8765/mcp."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument(
            "The address holds more than a place: what stands there may be a secret.",
            fix="Leave out user, password, query and fragment; the token comes from the variable"
            " MCP_BEARER_TOKEN.",
        )
    if parts.scheme == "http" and not is_local(url):
        raise InvalidArgument(
            "Plain http carries the token in clear to another machine.",
            fix="Use https (server.py --http --tls-cert … --tls-key …), or a tunnel to 127.0.0.1.",
        )
