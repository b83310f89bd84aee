"""A client's configuration with our entry in it, as text; nothing is written here."""

from collections.abc import Mapping
from typing import Any, Final

from operations.clients import jsonc, tomled
from operations.clients.entries import Entry, merged
from operations.clients.table import SERVER_KEY, Client

_BOM: Final = "\ufeff"
"""Editors of Windows begin a file with it."""


def entry_in(client: Client, text: str) -> Mapping[str, Any] | None:
    """Give our entry as it stands in a client's configuration.

    Raises:
        ValueError: The text is not what the client writes; the message quotes nothing of it.
    """
    found = _servers(client, _read(client, text)).get(SERVER_KEY)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"'{SERVER_KEY}' is no table of settings")
    return found


def changed(client: Client, text: str, ours: Entry) -> str:
    """Give the text with our entry, and all else as it was.

    It is read again before it is given: what means anything else than it should is refused.

    Raises:
        ValueError: The text cannot be read, or cannot be changed so.
    """
    if text.startswith(_BOM):
        return _BOM + changed(client, text.removeprefix(_BOM), ours)
    before = _read(client, text)
    old = entry_in(client, text)
    entry = merged(old or {}, ours)
    if old == entry:
        return text
    fields = {name: value for name, value in entry.items() if (old or {}).get(name) != value}
    gone = tuple(name for name in old or {} if name not in entry)
    new = _edited(client, text, fields, gone, new=old is None)
    servers = {**_servers(client, before), SERVER_KEY: entry}
    if _read(client, new) != {**before, client.under: servers}:
        raise ValueError("it is written in a way that cannot be added to safely")
    return new


def rendered(client: Client, entry: Entry) -> str:
    """Write a configuration that holds nothing but our entry."""
    return _edited(client, "", entry, (), new=True).strip()


def _edited(client: Client, text: str, fields: Entry, gone: tuple[str, ...], *, new: bool) -> str:
    path = (client.under, SERVER_KEY)
    if client.form == "toml":
        return tomled.put(text, path, fields, gone)
    if new:
        return jsonc.put(text, path, fields)
    for name in gone:
        text = jsonc.drop(text, (*path, name))
    for name, value in fields.items():
        text = jsonc.put(text, (*path, name), value)
    return text


def _read(client: Client, text: str) -> Mapping[str, Any]:
    try:
        found = (tomled if client.form == "toml" else jsonc).read(text.removeprefix(_BOM))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    if isinstance(found, dict):
        return found
    raise ValueError("it is no table of settings")


def _servers(client: Client, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tables.get(client.under, {})
    if isinstance(found, dict):
        return found
    raise ValueError(f"'{client.under}' is no table of servers")
