"""Whether clients know this server, and whether what they know is true."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from core.records import Record
from operations.clients.changing import entry_in
from operations.clients.entries import ADDRESSES, by_command
from operations.clients.showing import SCRIPT, host, names_server, program
from operations.clients.table import SERVER_KEY, Client, clients
from operations.clients.writing import text_of, why

_LEAST_SECONDS: Final = {"call": 60, "start": 20}
"""A tool takes 45 s at most; the first start after an install compiles every module."""


class Seen(Record):
    """One client's configuration."""

    client: Client
    state: Literal["absent", "without", "well", "off", "wrong", "unreadable"]
    """`absent`: no such file; `without`: a file that does not name this server; `off`: its owner
    has switched it off, and writing leaves it so."""
    detail: str


def look(root: Path, environment: Mapping[str, str]) -> tuple[Seen, ...]:
    """Look at every client's own file; `root` is this checkout."""
    return tuple(look_at(client, client.place(environment), root) for client in clients())


def look_at(client: Client, file: Path, root: Path) -> Seen:
    """Look at one file of a client."""
    try:
        text = text_of(file)
        entry = entry_in(client, text or "")
    except (OSError, ValueError) as exc:
        return Seen(client=client, state="unreadable", detail=f"{file} cannot be read: {why(exc)}.")
    if text is None:
        return Seen(client=client, state="absent", detail=f"{file} is not there.")
    if entry is None:
        return Seen(client=client, state="without", detail=f"{file} does not name {SERVER_KEY}.")
    wrong = (*_of_start(client, entry, root), *_of_times(client, entry))
    if wrong:
        return Seen(client=client, state="wrong", detail=f"{file}: {'; '.join(wrong)}.")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        said = f"{file} names {SERVER_KEY}, and has it switched off."
        return Seen(client=client, state="off", detail=said)
    does = "starts this checkout" if "command" in entry else f"calls {_host(entry)}"
    return Seen(client=client, state="well", detail=f"{file} {does}.")


def _of_start(client: Client, entry: Mapping[str, Any], root: Path) -> Sequence[str]:
    if ADDRESSES & entry.keys() and "command" not in entry:
        return ()
    command, arguments = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not isinstance(arguments, list):
        return ("it says neither a command nor an address",)
    script = next((one for one in arguments if names_server(one)), None)
    if script is None:
        return ("it starts something else",)
    if not Path(script).is_absolute():
        return (f"'{SCRIPT}' is found only where the client starts in this checkout",)
    if Path(script).resolve() != (root / SCRIPT).resolve():
        return (f"it starts another checkout: {script}",)
    return () if shutil.which(command) else (_missing(command, by_command(client, root)),)


def _missing(command: str, ours: Mapping[str, Any]) -> str:
    """Name it whole where it is ours; else by the program alone, where one can be told."""
    name = program(command)
    named = f"its program '{name}'" if name else "its program"
    return f"{command if command == ours['command'] else named} is not there; run `make install`"


def _host(entry: Mapping[str, Any]) -> str:
    """Name whom it calls; the rest of an address may hold a secret."""
    return host(next(entry[name] for name in entry if name in ADDRESSES))


def _of_times(client: Client, entry: Mapping[str, Any]) -> Sequence[str]:
    fields = ((client.call, "call"), (client.start, "start"))
    return [
        f"{one.field} gives a {what} less than {_LEAST_SECONDS[what]} s"
        for one, what in fields
        if one and not _enough(entry.get(one.field), _LEAST_SECONDS[what] * one.per_second, client)
    ]


def _enough(value: Any, least: int, client: Client) -> bool:
    if value is None:  # of those who have such a field, Codex alone is impatient by itself
        return client.form == "json"
    return isinstance(value, int | float) and value >= least
