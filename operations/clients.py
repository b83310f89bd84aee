"""MCP clients: where each keeps its configuration, and what it must say to reach this server."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import platformdirs

from core.environment import read_toml
from core.errors import InvalidArgument
from core.records import Record, named

SERVER_KEY: Final = "gpu-devops-agent"
"""What this server is called in every client's configuration."""

CALL_SECONDS: Final = 120
"""Above the 45 s that a tool takes at most; Codex would cut at 60 s, a busy machine is slower."""
START_SECONDS: Final = 30
"""Codex gives a server 10 s; the first start after an install compiles every module."""

SCRIPT: Final = "server.py"
_TABLE: Final = Path(__file__).with_name("clients.toml")

Entry = dict[str, Any]


class Timeout(Record):
    """A client's field for how long something may take."""

    field: str
    per_second: int
    """How many of the field's unit are a second."""


class Client(Record):
    """One MCP client; a row of `clients.toml`, whose head says what each field is."""

    name: str
    title: str
    form: Literal["json", "toml"]
    under: str
    variable: str | None = None
    folder: str
    file: str
    address: str | None = None
    call: Timeout | None = None
    start: Timeout | None = None
    stdio: dict[str, str] = {}
    http: dict[str, str] = {}
    token: dict[str, Any] = {}
    shell: str | None = None
    note: str = ""
    source: str

    def place(self, environment: Mapping[str, str]) -> Path:
        """Its own file, on this machine, for this user."""
        moved = environment.get(self.variable or "")
        config = platformdirs.user_config_path(roaming=True)
        return Path(moved or self.folder.format(config=config)).expanduser() / self.file

    @property
    def times(self) -> dict[str, int]:
        """Its fields for what a call and a start may take, with our values."""
        pairs = ((self.call, CALL_SECONDS), (self.start, START_SECONDS))
        return {one.field: seconds * one.per_second for one, seconds in pairs if one}


@cache
def clients() -> tuple[Client, ...]:
    """Every client that is known, those of this project's first users first."""
    return tuple(named(Client, read_toml(_TABLE)).values())


def alike(name: str) -> list[Client]:
    """Return the client of this name, or all whose name or title begins so.

    Case, spaces and dashes do not count.

    Raises:
        InvalidArgument: There is none.
    """
    said = _plain(name)
    names = {one.name: (_plain(one.name), _plain(one.title)) for one in clients()}
    found = [one for one in clients() if said in names[one.name]]
    found = found or [
        one for one in clients() if said and any(each.startswith(said) for each in names[one.name])
    ]
    if not found:
        known = ", ".join(f"{one.title} ({one.name})" for one in clients())
        raise InvalidArgument(f"No client is called '{name}'.", fix=f"Choose one of: {known}.")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def by_command(client: Client, root: Path, settings: Mapping[str, str] | None = None) -> Entry:
    """Let the client start the server of the checkout at `root`, with these settings."""
    started = {"command": str(root / ".venv" / "bin" / "python"), "args": [str(root / SCRIPT)]}
    env = {"env": dict(settings)} if settings else {}
    return {**client.stdio, **started, **env, **client.times}


def by_address(client: Client, url: str, *, token: bool) -> Entry:
    """Let the client call a server that runs; a token is named by its variable, never written.

    Raises:
        InvalidArgument: It is no address, or one that holds a secret, or the client takes none.
    """
    _require_address(url)
    if client.address is None:
        raise InvalidArgument(
            f"{client.title} takes no address in its file: it starts servers itself.",
            fix="Leave URL out; or add the address in the client's own settings (Connectors).",
        )
    return {**client.http, client.address: url, **client.times, **(client.token if token else {})}


def is_local(url: str) -> bool:
    """Whether nobody but this machine can be meant."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_address(url: str) -> None:
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


def printed(client: Client, entry: Entry, environment: Mapping[str, str]) -> str:
    """Write what to put into the client's file; also as a command of the client, if it has one."""
    file, home = client.place(environment), Path.home()
    where = str("~" / file.relative_to(home)) if file.is_relative_to(home) else str(file)
    lines = [f"# {client.title}: {where}", *([f"# {client.note}"] if client.note else [])]
    lines.append(rendered(client, entry))
    if client.shell and "command" in entry:
        lines += [f"\n# {client.title}: a shell", typed(client, entry)]
    return "\n".join((*lines, ""))


def rendered(client: Client, entry: Entry) -> str:
    """Write a configuration that holds nothing but our entry."""
    if client.form == "json":
        return json.dumps({client.under: {SERVER_KEY: entry}}, indent=2, ensure_ascii=False)
    return "\n".join(_toml(f"{client.under}.{SERVER_KEY}", entry))


def typed(client: Client, entry: Entry) -> str:
    """Write the client's own command that adds a server which it starts."""
    command = shlex.join((entry["command"], *entry["args"]))
    pairs = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
    env = "".join(f" --env {shlex.quote(pair)}" for pair in pairs)
    return (client.shell or "").format(key=SERVER_KEY, command=command, env=env)


def _toml(table: str, entry: Entry) -> Iterator[str]:
    """Yield the lines of a table; strings, numbers and lists of JSON are those of TOML."""
    yield f"[{table}]"
    for name, value in entry.items():
        if not isinstance(value, dict):
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in entry.items():
        if isinstance(value, dict):
            yield ""
            yield from _toml(f"{table}.{name}", value)
