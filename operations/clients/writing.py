"""A client's own file, changed so that nothing in it is lost: shown, backed up, read again."""

import difflib
import os
import stat
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from core.errors import Busy, HostError
from core.records import Record
from core.redaction import MASK
from operations.clients.changing import changed, entry_in, rendered
from operations.clients.entries import ADDRESSES, Entry
from operations.clients.showing import names_server, words
from operations.clients.table import SERVER_KEY, Client

_NEW_FOLDER: Final = 0o700
"""Such files hold other servers' secrets."""
_KINDS: Final = frozenset(("stdio", "http", "sse", "streamable-http", "streamableHttp"))
"""Types of an entry that clients know."""
_OURS_ONLY: Final = ADDRESSES | {"env", "headers", "http_headers"}
"""Fields of which nothing is shown that is not ours."""


class Change(Record):
    """What one client's file says now and would say."""

    client: Client
    file: Path
    """The file itself, not a link to it."""
    old: str | None
    """None where there is no file."""
    new: str
    entry: Entry
    """Ours, as it is written where none was."""

    @property
    def needed(self) -> bool:
        """Whether there is anything to change."""
        return self.old != self.new


def change(client: Client, file: Path, entry: Entry) -> Change:
    """Say what writing would change; nothing is written.

    Raises:
        HostError: The file cannot be read, understood or written; it says what to paste into it.
    """
    file = Path(os.path.realpath(file))
    try:
        old = text_of(file)
        new = changed(client, old or "", entry)
        if old is not None and old != new:
            _refuse_read_only(file)
    except (OSError, ValueError) as exc:
        raise _by_hand(client, file, entry, why(exc)) from exc
    return Change(client=client, file=file, old=old, new=new, entry=entry)


def difference(wanted: Change) -> str:
    """Show how our entry changes; nothing of anybody else's, and no value that may be secret."""
    old, new = _lines(wanted, wanted.old or ""), _lines(wanted, wanted.new)
    name = str(wanted.file)
    before = name if wanted.old is not None else os.devnull
    lines = difflib.unified_diff(old, new, before, name, lineterm="")
    return "\n".join(line for line in lines if not line.startswith("@@"))  # numbers of no file


def write(wanted: Change) -> Path | None:
    """Write it as a whole or not at all; give the copy of what was there before.

    Raises:
        Busy: Somebody else has changed the file since it was looked at.
        HostError: It cannot be written, or does not say afterwards what it should.
    """
    client, file = wanted.client, wanted.file
    again = f"Close {client.title}, then run the same command again."
    try:
        if text_of(file) != wanted.old:
            said = f"{file} was changed by somebody else meanwhile; nothing was written."
            raise Busy(said, fix=again)
        file.parent.mkdir(parents=True, exist_ok=True, mode=_NEW_FOLDER)
        copy = _copied(file, wanted.old) if wanted.old is not None else None
        _replaced(file, wanted.new, like=file)
        seen = entry_in(client, text_of(file) or "")
    except (OSError, ValueError) as exc:
        raise _by_hand(client, file, wanted.entry, why(exc)) from exc
    if seen != entry_in(client, wanted.new):
        raise Busy(f"{file} was written, and says something else again.", fix=again)
    return copy


def text_of(file: Path) -> str | None:
    """Read it to the letter, its line ends as well; None where there is none.

    Raises:
        OSError: It cannot be read, or is a folder, a pipe or a link in a circle.
        UnicodeError: It is not UTF-8.
    """
    file = Path(os.path.realpath(file))
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError("it is no file")
    return file.read_bytes().decode("utf-8")


def why(exc: Exception) -> str:
    """Say why a file cannot be used; nothing of it is quoted."""
    if isinstance(exc, UnicodeError):
        return "it is not UTF-8"
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc)).lower()
    return str(exc)


def _refuse_read_only(file: Path) -> None:
    """Leave alone what its owner or another program protects, though it could be replaced."""
    if not file.stat().st_mode & stat.S_IWUSR or not os.access(file, os.W_OK):
        raise OSError("it is read-only")


def _lines(wanted: Change, text: str) -> Sequence[str]:
    entry = entry_in(wanted.client, text)
    if entry is None:
        return ()
    shown = {name: _shown(name, one, wanted.entry.get(name)) for name, one in entry.items()}
    return rendered(wanted.client, shown).splitlines()


def _shown(name: str, value: Any, ours: Any) -> Any:
    """Hide what one field says, unless it is ours, the path of a file, or no secret by its kind."""
    if isinstance(value, dict) or name in _OURS_ONLY:
        return _ours(value, ours)
    if isinstance(value, list):
        return value if value == ours else [one if _is_path(one) else MASK for one in value]
    if isinstance(value, bool) or value == ours or _is_path(value):
        return value
    if isinstance(value, str) and name == "command":
        return words(value)
    number = isinstance(value, int | float) and isinstance(ours, int)  # a time-out
    return value if number or (name == "type" and value in _KINDS) else MASK


def _ours(value: Any, ours: Any) -> Any:
    if isinstance(value, dict):
        known = ours if isinstance(ours, dict) else {}
        return {name: _ours(one, known.get(name)) for name, one in value.items()}
    return value if value == ours else MASK


def _is_path(value: Any) -> bool:
    """Whether it names a file, and not only begins as one: so do secrets in base64."""
    if not isinstance(value, str) or not Path(value).is_absolute():
        return False
    return names_server(value) or os.path.lexists(value)


def _copied(file: Path, text: str) -> Path:
    """Copy it beside itself, under the first name that is free."""
    names = (f"{file.name}.bak{number or ''}" for number in count())
    copy = next(path for name in names if not os.path.lexists(path := file.with_name(name)))
    _replaced(copy, text, like=file)
    return copy


def _replaced(file: Path, text: str, *, like: Path) -> None:
    """Put a whole file in its place, with the owner and mode of another; else nobody else's."""
    there = like.stat() if like.exists() else None
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "wb") as made:
            made.write(text.encode("utf-8"))
            made.flush()
            if there:
                _belongs_as(made.fileno(), there)
            os.fsync(made.fileno())
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)


def _belongs_as(number: int, there: os.stat_result) -> None:
    if there.st_uid != os.geteuid():  # by sudo: its owner must be able to read it afterwards
        os.fchown(number, there.st_uid, there.st_gid)
    os.fchmod(number, stat.S_IMODE(there.st_mode))


def _by_hand(client: Client, file: Path, entry: Entry, why: str) -> HostError:
    return HostError(
        f"{file} stays as it is: {why}.",
        fix=f"Put '{SERVER_KEY}' into it by hand:\n{rendered(client, entry)}",
    )
