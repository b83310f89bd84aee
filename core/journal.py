"""What was asked for and done, in SQLite: the audit log and the memory between two lives."""

import errno
import hashlib
import json
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from pydantic import AwareDatetime, ValidationError

from core.errors import Busy, DiskFull, JournalDamaged, OpsError
from core.records import Record

TOKEN_MINUTES: Final = 10
"""How long a confirmation token may be used: long enough to read a preview."""

STARTED: Final = "started"
"""The result of a call that has not ended: it still runs, or its server died."""
BROKEN_OFF: Final = "broken off"
"""The result of a call that its client took back, or whose server was told to end."""
UNREADABLE: Final = "cannot be read"
"""The result of a call whose row was edited, or written by another version."""
_LATER: Final = ("about", "said", "ended_at")
"""Columns of `operations` that older journals lack."""

_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Ends of the names of files that SQLite keeps beside a database."""
_OUT_OF_REACH: Final = frozenset(
    (
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_AUTH,
    )
)
_NO_TIME: Final = datetime.fromtimestamp(0, UTC)

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS operations (
    id INTEGER PRIMARY KEY, at TEXT, client TEXT, tool TEXT, arguments TEXT, result TEXT
);
CREATE TABLE IF NOT EXISTS phases (
    target TEXT, engine TEXT, phase TEXT, seconds REAL, at TEXT
);
CREATE TABLE IF NOT EXISTS confirmations (
    digest TEXT PRIMARY KEY, bound_to TEXT, expires_at TEXT
);
CREATE TABLE IF NOT EXISTS pairs (
    kind TEXT, key TEXT, at TEXT, pair TEXT, PRIMARY KEY (kind, key)
);
CREATE TABLE IF NOT EXISTS expiries (
    target TEXT, name TEXT, at TEXT, PRIMARY KEY (target, name)
);
"""


def utc_now() -> datetime:
    """Give the time; tests give another."""
    return datetime.now(UTC)


class Operation(Record):
    """One mutating call: who, what, when, result."""

    at: datetime
    client: str
    tool: str
    arguments: dict[str, Any]
    result: str
    """`ok`, an error's code, `asked` while a human is asked, `broken off`, or `started`."""
    about: str = ""
    """What it was about, as TARGET/NAME or as much of it as is known."""
    said: str = ""
    """What was answered, in a sentence."""
    ended_at: datetime | None = None


class Outcome(Record):
    """How a mutating call ended."""

    result: str
    about: str = ""
    said: str = ""


class Expiry(Record):
    """When a deployment is to be stopped."""

    target: str
    name: str
    at: AwareDatetime


class Journal:
    """One per stage; several servers may share it (SQLite's write-ahead log).

    Opened read-only it is never made and never written.
    """

    def __init__(
        self, path: Path, *, read_only: bool = False, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._path = path
        self._read_only = read_only
        self._clock = clock

    def begin(self, client: str, tool: str, arguments: Mapping[str, Any]) -> int:
        """Write down a mutating call before it is made; give its number."""
        row = (self._now(), client, tool, json.dumps(arguments, default=str), STARTED)
        with self._open() as db:
            done = db.execute(
                "INSERT INTO operations (at, client, tool, arguments, result) VALUES (?,?,?,?,?)",
                row,
            )
            return int(done.lastrowid or 0)

    def end(self, number: int, outcome: Outcome) -> None:
        """Write down how it ended."""
        with self._open() as db:
            _add_columns(db)
            db.execute(
                "UPDATE operations SET result = ?, about = ?, said = ?, ended_at = ? WHERE id = ?",
                (outcome.result, outcome.about, outcome.said, self._now(), number),
            )

    def operations(
        self, limit: int = 50, *, since: datetime | None = None
    ) -> tuple[Operation, ...]:
        """Give the newest mutating calls, newest last."""
        oldest = since.isoformat() if since else ""
        with self._open() as db:
            rows = db.execute(
                "SELECT * FROM operations WHERE at >= ? ORDER BY id DESC LIMIT ?", (oldest, limit)
            )
            columns = [column[0] for column in rows.description]
            found = [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]
        return tuple(_operation(row) for row in reversed(found))

    def record_phase(self, target: str, engine: str, phase: str, seconds: float) -> None:
        """Keep how long one phase of one boot took, if that can be written down."""
        with suppress(OpsError), self._open() as db:
            db.execute(
                "INSERT INTO phases (target, engine, phase, seconds, at) VALUES (?,?,?,?,?)",
                (target, engine, phase, seconds, self._now()),
            )

    def usual_seconds(self, target: str, engine: str, phase: str) -> float | None:
        """Give the median of the last ten, None where there is none that can be read."""
        rows: list[tuple[float]] = []
        with suppress(OpsError), self._open() as db:
            rows = db.execute(
                "SELECT seconds FROM phases WHERE target = ? AND engine = ? AND phase = ?"
                " AND typeof(seconds) IN ('real', 'integer') ORDER BY at DESC LIMIT 10",
                (target, engine, phase),
            ).fetchall()
        return median(row[0] for row in rows) if rows else None

    def keep_pair(self, kind: str, key: str, pair_json: str) -> None:
        """Keep what was predicted beside what came of it; the same key replaces.

        A journal that is read-only or cannot be used keeps nothing: an answer is worth more.
        """
        if self._read_only:
            return
        with suppress(OpsError), self._open() as db:
            row = (kind, key, self._now(), pair_json)
            db.execute("INSERT OR REPLACE INTO pairs (kind, key, at, pair) VALUES (?,?,?,?)", row)

    def pairs(self, kind: str) -> tuple[str, ...]:
        """Give the pairs of a kind as they were kept, newest last; none where they cannot be read.

        A journal that is only read may be older than their table.
        """
        rows: list[tuple[str]] = []
        query = "SELECT pair FROM pairs WHERE kind = ? AND typeof(pair) = 'text' ORDER BY rowid"
        with suppress(OpsError), self._open() as db:
            rows = db.execute(query, (kind,)).fetchall()
        return tuple(pair for (pair,) in rows)

    @property
    def exists(self) -> bool:
        """Whether anything was ever written down, be it out of reach now."""
        try:
            self._path.lstat()
        except OSError as exc:
            return not isinstance(exc, FileNotFoundError | NotADirectoryError)
        return True

    def keep_expiry(self, expiry: Expiry) -> None:
        """Remember when a deployment's time is over; a later one takes its place."""
        row = (expiry.target, expiry.name, expiry.at.isoformat())
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO expiries (target, name, at) VALUES (?,?,?)", row)

    def expiries(self) -> tuple[Expiry, ...]:
        """Give what is to be stopped, earliest first.

        A time that cannot be read is long ago: the deployment itself says whether it is over.
        """
        found = (_expiry(*row) for row in self._expiry_rows())
        return tuple(sorted((one for one in found if one), key=lambda one: one.at))

    def forget_expiry(self, expiry: Expiry) -> None:
        """Forget it, unless another one has taken its place."""
        same = [row for row in self._expiry_rows() if _expiry(*row) == expiry]
        with self._open() as db:
            query = "DELETE FROM expiries WHERE target IS ? AND name IS ? AND at IS ?"
            db.executemany(query, same)

    def _expiry_rows(self) -> list[tuple[Any, Any, Any]]:
        with self._open() as db:
            return db.execute("SELECT target, name, at FROM expiries").fetchall()

    def mint(self, bound_to: str) -> str:
        """Give a token that says yes to exactly this, once, for ten minutes."""
        token = secrets.token_hex(6)
        expires = self._clock() + timedelta(minutes=TOKEN_MINUTES)
        with self._open() as db:
            db.execute("DELETE FROM confirmations WHERE expires_at < ?", (self._now(),))
            db.execute(
                "INSERT INTO confirmations (digest, bound_to, expires_at) VALUES (?,?,?)",
                (_digest(token), bound_to, expires.isoformat()),
            )
        return token

    def redeem(self, token: str, bound_to: str) -> bool:
        """Use a token up; whether it was good for this.

        One from the future is not: a clock that is set back makes none live longer.
        """
        latest = (self._clock() + timedelta(minutes=TOKEN_MINUTES)).isoformat()
        with self._open() as db:
            done = db.execute(
                "DELETE FROM confirmations WHERE digest = ? AND bound_to = ?"
                " AND expires_at BETWEEN ? AND ?",
                (_digest(token), bound_to, self._now(), latest),
            )
            return done.rowcount == 1

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._refuse_obstacles()
            db = self._connect()
            db.text_factory = _text
            try:
                if not (self._read_only and self._path.exists()):
                    with suppress(sqlite3.OperationalError):  # another server is doing it now
                        db.execute("PRAGMA journal_mode = WAL")
                    db.executescript(_SCHEMA)
                with db:
                    yield db
            finally:
                db.close()
        except (sqlite3.DatabaseError, OSError) as exc:
            raise self._trouble(exc) from exc

    def _refuse_obstacles(self) -> None:
        """Refuse what is no file: a link to nowhere would begin another journal, quietly.

        Raises:
            JournalDamaged: The journal, or a file that SQLite keeps beside it, is something else.
        """
        for path in (self._path, *(self._path.with_name(self._path.name + end) for end in _BESIDE)):
            what = obstacle(path)
            if what:
                raise JournalDamaged(
                    f"The journal cannot be used: {path} {what}.",
                    fix=f"Move {path} away, which is made anew, or put back what was there.",
                )

    def _trouble(self, exc: sqlite3.DatabaseError | OSError) -> OpsError:
        """Say what is wrong with the journal, and only of a full disk that it is full."""
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # its extended codes say where
        number = exc.errno if isinstance(exc, OSError) else None
        if code == sqlite3.SQLITE_FULL or number in {errno.ENOSPC, errno.EDQUOT}:
            return DiskFull(
                f"The journal cannot be written: {exc}.",
                fix=f"Make room on the disk of {self._path.parent}, or set VLLM_DEVOPS_STATE_DIR.",
            )
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return Busy(f"Another program holds the journal {self._path}: {exc}.", fix="Try again.")
        if code in _OUT_OF_REACH or number is not None:
            return JournalDamaged(
                f"The journal {self._path} is out of reach: {exc}.",
                fix=f"Give this user the right to read and write {self._path.parent} and what is"
                " in it, or set VLLM_DEVOPS_STATE_DIR to another folder.",
            )
        return JournalDamaged(
            f"The journal {self._path} is damaged: {exc}.",
            fix="Move that file away; a new one is made.",
        )

    def _connect(self) -> sqlite3.Connection:
        if self._read_only and self._path.exists():
            # A reader of a write-ahead log leaves files beside it, unless told that nobody writes.
            used = self._path.with_name(f"{self._path.name}-wal").exists()
            how = "mode=ro" if used else "immutable=1"
            return sqlite3.connect(f"{self._path.as_uri()}?{how}", uri=True, timeout=10)
        if self._read_only:
            return sqlite3.connect(":memory:")
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sqlite3.connect(self._path, timeout=10)

    def _now(self) -> str:
        return self._clock().isoformat()


R = TypeVar("R", bound=Record)


def readable(texts: Iterable[str], record: type[R]) -> tuple[R, ...]:
    """Return those texts of the journal that are such records; another version wrote the rest."""
    found = []
    for text in texts:
        with suppress(ValidationError):
            found.append(record.model_validate_json(text))
    return tuple(found)


def _operation(row: Mapping[str, Any]) -> Operation:
    """Read a row; of one that was damaged what can be read, and that it was."""
    told = {name: row.get(name) for name in ("client", "tool", "result", *_LATER)}
    known = {name: value for name, value in told.items() if isinstance(value, str)}
    at, ended = _time(row.get("at")), _time(known.pop("ended_at", None))
    try:
        arguments = json.loads(row["arguments"])
    except (TypeError, ValueError, RecursionError):
        arguments = None
    lost = at is None or not isinstance(arguments, dict) or not {"tool", "result"} <= known.keys()
    known = {"client": "", "tool": "", "result": "", **known}
    return Operation(
        **{**known, "result": UNREADABLE} if lost else known,
        at=at or _NO_TIME,
        ended_at=ended if at else None,
        arguments=arguments if isinstance(arguments, dict) else {},
    )


def _time(text: object) -> datetime | None:
    """Read a time as it is written here; None of one without a zone, which may be any."""
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return at if at and at.tzinfo else None


def _expiry(target: object, name: object, at: object) -> Expiry | None:
    """Read a row; None where it names nothing."""
    if not (isinstance(target, str) and isinstance(name, str)):
        return None
    return Expiry(target=target, name=name, at=_time(at) or _NO_TIME)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def obstacle(path: Path) -> str:
    """Say what stands where a file should be; nothing where a file is, or nothing."""
    try:
        mode = path.stat().st_mode
    except OSError:
        is_link = path.is_symlink()
        return f"is a link to {str(path.readlink())!r}, which is not there" if is_link else ""
    if stat.S_ISDIR(mode):
        return "is a folder"
    return "" if stat.S_ISREG(mode) else "is neither a file nor a folder"


def _add_columns(db: sqlite3.Connection) -> None:
    there = {row[1] for row in db.execute("PRAGMA table_info(operations)")}
    for column in _LATER:
        if column not in there:
            with suppress(sqlite3.OperationalError):  # another server was quicker
                db.execute(f"ALTER TABLE operations ADD COLUMN {column} TEXT")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class HeldTokens:
    """As strict as the journal's: each is good for one thing, once, for ten minutes."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock: Final = clock
        self._held: Final[dict[str, tuple[str, datetime]]] = {}

    def mint(self, bound_to: str) -> str:
        """Give a token that says yes to exactly this."""
        now, token = self._clock(), secrets.token_hex(6)
        for key in [key for key, (_, expires) in self._held.items() if expires < now]:
            self._held.pop(key, None)
        self._held[_digest(token)] = bound_to, now + timedelta(minutes=TOKEN_MINUTES)
        return token

    def redeem(self, token: str, bound_to: str) -> bool:
        """Use a token up; whether it was good for this."""
        now, key = self._clock(), _digest(token)
        held_for, expires = self._held.get(key, ("", now))
        latest = now + timedelta(minutes=TOKEN_MINUTES)
        good = held_for == bound_to and now <= expires <= latest
        return good and self._held.pop(key, None) is not None
