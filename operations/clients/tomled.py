"""TOML changed in place: comments, order and everything that is not meant stay."""

import tomllib
from collections.abc import Collection, Mapping
from typing import Any


def read(text: str) -> dict[str, Any]:
    """Give the tables.

    Raises:
        ValueError: It is no TOML; the message names the line.
    """
    return tomllib.loads(text)


def put(
    text: str, path: tuple[str, str], fields: Mapping[str, Any], gone: Collection[str] = ()
) -> str:
    """Set fields of the table `path`, which is made if need be, and take others away.

    Raises:
        ValueError: It is no TOML, or something on the way is no table.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text)
        under, key = path
        if under not in document:
            document[under] = tomlkit.table(is_super_table=True)
        new = key not in document[under]
        if new:
            document[under][key] = tomlkit.table()
        table = document[under][key]
        for name in gone:
            del table[name]
        for name, value in fields.items():
            table[name] = value
        if new:
            table.add(tomlkit.nl())  # apart from the table that follows, if one does
        written = tomlkit.dumps(document)
        return _as_there(_apart(written, text, path) if new else written, text)
    except (TOMLKitError, TypeError, AttributeError) as exc:
        raise ValueError("its tables are written in a way that cannot be added to") from exc


def _apart(new: str, old: str, path: tuple[str, str]) -> str:
    """Leave a line free before the table, and none at the end of the file."""
    before, header, rest = new.partition(f"\n[{'.'.join(path)}]")
    space = "\n" if header and before.strip() and not before.endswith("\n") else ""
    text = f"{before}{space}{header}{rest}"
    return text.removesuffix("\n") if text.endswith("\n\n") and not old.endswith("\n\n") else text


def _as_there(new: str, old: str) -> str:
    """End our lines as all of the others do."""
    lines = old.count("\n")
    if not lines or old.count("\r\n") != lines:
        return new
    return new.replace("\r\n", "\n").replace("\n", "\r\n")
