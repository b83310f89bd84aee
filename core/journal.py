"""What was asked for and done, in SQLite: the audit log and the memory between two lives."""

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

from core.errors import DiskFull, JournalDamaged
from core.records import Record

TOKEN_MINUTES: Final = 10
"""How long a confirmation token may be used: long enough to read a preview."""

STARTED: Final = "started"
"""The result of a call that has not ended: it still runs, or its server died."""
BROKEN_OFF: Final = "broken off"
"""The result of a call that its client took back, or whose server was told to end."""
_LATER: Final = ("about", "said", "ended_at")
"""Columns of `operations` that older journals lack."""

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
    at: datetime


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
        """Keep how long one phase of one boot took."""
        with self._open() as db:
            db.execute(
                "INSERT INTO phases VALUES (?,?,?,?,?)",
                (target, engine, phase, seconds, self._now()),
            )

    def usual_seconds(self, target: str, engine: str, phase: str) -> float | None:
        """Give the median of the last ten, None where there is none."""
        with self._open() as db:
            rows = db.execute(
                "SELECT seconds FROM phases WHERE target = ? AND engine = ? AND phase = ?"
                " ORDER BY at DESC LIMIT 10",
                (target, engine, phase),
            ).fetchall()
        return median(row[0] for row in rows) if rows else None

    def keep_pair(self, kind: str, key: str, pair_json: str) -> None:
        """Keep what was predicted beside what came of it; the same key replaces.

        A read-only journal keeps nothing, quietly.
        """
        if self._read_only:
            return
        with self._open() as db:
            row = (kind, key, self._now(), pair_json)
            db.execute("INSERT OR REPLACE INTO pairs VALUES (?,?,?,?)", row)

    def pairs(self, kind: str) -> tuple[str, ...]:
        """Give the pairs of a kind as they were kept, newest last."""
        with self._open() as db:
            # A journal that is only read may be older than this table.
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'pairs'").fetchone():
                return ()
            rows = db.execute("SELECT pair FROM pairs WHERE kind = ? ORDER BY rowid", (kind,))
            return tuple(pair for (pair,) in rows.fetchall())

    @property
    def exists(self) -> bool:
        """Whether anything was ever written down."""
        return self._path.exists()

    def keep_expiry(self, expiry: Expiry) -> None:
        """Remember when a deployment's time is over; a later one takes its place."""
        row = (expiry.target, expiry.name, expiry.at.isoformat())
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO expiries VALUES (?,?,?)", row)

    def expiries(self) -> tuple[Expiry, ...]:
        """Give what is to be stopped, earliest first."""
        with self._open() as db:
            rows = db.execute("SELECT target, name, at FROM expiries ORDER BY at").fetchall()
        return tuple(Expiry(target=target, name=name, at=at) for target, name, at in rows)

    def forget_expiry(self, expiry: Expiry) -> None:
        """Forget it, unless another one has taken its place."""
        row = (expiry.target, expiry.name, expiry.at.isoformat())
        with self._open() as db:
            db.execute("DELETE FROM expiries WHERE target = ? AND name = ? AND at = ?", row)

    def mint(self, bound_to: str) -> str:
        """Give a token that says yes to exactly this, once, for ten minutes."""
        token = secrets.token_hex(6)
        expires = self._clock() + timedelta(minutes=TOKEN_MINUTES)
        with self._open() as db:
            db.execute("DELETE FROM confirmations WHERE expires_at < ?", (self._now(),))
            db.execute(
                "INSERT INTO confirmations VALUES (?,?,?)",
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
            db = self._connect()
            try:
                if not (self._read_only and self._path.exists()):
                    with suppress(sqlite3.OperationalError):  # another server is doing it now
                        db.execute("PRAGMA journal_mode = WAL")
                    db.executescript(_SCHEMA)
                with db:
                    yield db
            finally:
                db.close()
        except (sqlite3.OperationalError, OSError) as exc:
            raise DiskFull(
                f"The journal cannot be written: {exc}.",
                fix=f"Make room on the disk of {self._path.parent}, or set VLLM_DEVOPS_STATE_DIR.",
            ) from exc
        except sqlite3.DatabaseError as exc:
            raise JournalDamaged(
                f"The journal {self._path} is damaged: {exc}.",
                fix="Move that file away; a new one is made.",
            ) from exc

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


def _operation(row: Mapping[str, Any]) -> Operation:
    told = {name: row.get(name) for name in ("at", "client", "tool", "result", *_LATER)}
    known = {name: value for name, value in told.items() if value is not None}
    return Operation(**known, arguments=json.loads(row["arguments"]))


def _add_columns(db: sqlite3.Connection) -> None:
    there = {row[1] for row in db.execute("PRAGMA table_info(operations)")}
    for column in _LATER:
        if column not in there:
            with suppress(sqlite3.OperationalError):  # another server was quicker
                db.execute(f"ALTER TABLE operations ADD COLUMN {column} TEXT")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
