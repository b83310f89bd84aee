"""The MCP clients that are known, as `clients.toml` lists them."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import platformdirs

from core.errors import InvalidArgument
from core.records import Record

SERVER_KEY: Final = "gpu-devops-agent"
"""What this server is called in every client's configuration."""

CALL_SECONDS: Final = 120
"""Above the 45 s that a tool takes at most; Codex would cut at 60 s, a busy machine is slower."""
START_SECONDS: Final = 30
"""Codex gives a server 10 s; the first start after an install compiles every module."""

_TABLE: Final = Path(__file__).with_name("clients.toml")


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
    project: str | None = None
    address: str | None = None
    call: Timeout | None = None
    start: Timeout | None = None
    stdio: dict[str, str] = {}
    http: dict[str, str] = {}
    token: dict[str, Any] = {}
    shell: str | None = None
    see: str | None = None
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
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(Client.model_validate({"name": name, **row}) for name, row in rows.items())


def called(name: str) -> Client:
    """Give the client whose name begins so; case, spaces and dashes do not count.

    Raises:
        InvalidArgument: None is called so, or several are.
    """
    found = alike(name)
    if len(found) > 1:
        several = ", ".join(one.name for one in found)
        raise InvalidArgument(f"'{name}' may mean {several}.", fix="Give more of its name.")
    return found[0]


def alike(name: str) -> list[Client]:
    """Return the client of this name, or all whose name or title begins so.

    Raises:
        InvalidArgument: There is none.
    """
    said = _plain(name)
    found = [one for one in clients() if said and said in {_plain(one.name), _plain(one.title)}]
    found = found or [
        one
        for one in clients()
        if said and (_plain(one.title).startswith(said) or _plain(one.name).startswith(said))
    ]
    if not found:
        known = ", ".join(f"{one.title} ({one.name})" for one in clients())
        raise InvalidArgument(f"No client is called '{name}'.", fix=f"Choose one of: {known}.")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
