"""The journal between servers, versions and wrong clocks."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from core.journal import Journal, Outcome


def test_a_clock_that_is_set_back_makes_no_token_live_longer(tmp_path: Path) -> None:
    """One from what is now the future is as good as none."""
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    token = Journal(tmp_path / "j.db", clock=lambda: now).mint("this")
    earlier = Journal(tmp_path / "j.db", clock=lambda: now - timedelta(hours=5))
    assert not earlier.redeem(token, "this")
    assert Journal(tmp_path / "j.db", clock=lambda: now).redeem(token, "this")


def test_of_many_who_use_one_token_at_once_one_wins(tmp_path: Path) -> None:
    """Each with a connection of its own, as servers are."""
    token = Journal(tmp_path / "j.db").mint("this")
    ready = threading.Barrier(8)

    def use(_number: int) -> bool:
        journal = Journal(tmp_path / "j.db")
        ready.wait()
        return journal.redeem(token, "this")

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(use, range(8))) == [False] * 7 + [True]


def test_an_older_journal_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """It lacks what calls were about; what is written from now on has it."""
    path = tmp_path / "j.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE operations"
            " (id INTEGER PRIMARY KEY, at TEXT, client TEXT, tool TEXT, arguments TEXT,"
            " result TEXT)"
        )
        row = ("2026-11-01T00:00:00+00:00", "x", "stop_vllm", "{}", "ok")
        db.execute(
            "INSERT INTO operations (at, client, tool, arguments, result) VALUES (?,?,?,?,?)", row
        )
    assert [one.about for one in Journal(path, read_only=True).operations()] == [""]
    journal = Journal(path)
    journal.end(journal.begin("x", "y", {}), Outcome(result="ok", about="local/one"))
    assert [one.about for one in journal.operations()] == ["", "local/one"]
