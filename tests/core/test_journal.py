"""The journal."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.errors import DiskFull, HostError, OpsError
from core.journal import TOKEN_MINUTES, HeldTokens, Journal, Outcome
from tests.logs.conftest import NOW
from tests.soon import HANGS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stage" / "journal.db"


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_a_mutating_call_is_written_down_before_and_after(path: Path) -> None:
    """Who, what, when and the result; the newest stands last."""
    journal = Journal(path, clock=Hands())
    first = journal.begin("cline 1.0", "deploy_vllm", {"name": "one", "path": Path("/models")})
    journal.end(first, Outcome(result="ok", about="local/one", said="It is there."))
    journal.end(journal.begin("cline 1.0", "stop_vllm", {}), Outcome(result="BUSY"))
    operations = journal.operations()
    assert [(row.tool, row.result) for row in operations] == [
        ("deploy_vllm", "ok"),
        ("stop_vllm", "BUSY"),
    ]
    assert operations[0].arguments == {"name": "one", "path": "/models"}
    assert (operations[0].client, operations[0].at) == ("cline 1.0", NOW)


def test_a_call_that_never_came_back_stays_started(path: Path) -> None:
    """A server that died in the middle leaves `started` for the next one to read."""
    Journal(path).begin("x", "deploy_vllm", {})
    assert [row.result for row in Journal(path).operations()] == ["started"]


def test_only_the_newest_operations_are_given(path: Path) -> None:
    """As many as were asked for, in the order they happened."""
    journal = Journal(path)
    for number in range(5):
        journal.begin("x", f"tool{number}", {})
    assert [row.tool for row in journal.operations(2)] == ["tool3", "tool4"]
    assert [row.tool for row in journal.operations()] == [f"tool{n}" for n in range(5)]


@pytest.fixture(params=["in the file", "in memory"])
def tokens(request: pytest.FixtureRequest, path: Path) -> tuple[Journal | HeldTokens, Hands]:
    """Where tokens are kept: both are as strict."""
    clock = Hands()
    file = request.param == "in the file"
    return Journal(path, clock=clock) if file else HeldTokens(clock), clock


def test_a_token_says_yes_once_and_to_one_thing_only(
    tokens: tuple[Journal | HeldTokens, Hands],
) -> None:
    """For something else it is refused, and stays good for what it was made for."""
    kept, _ = tokens
    token = kept.mint("destroy one in state ready")
    assert not kept.redeem(token, "destroy one in state failed")
    assert not kept.redeem("another", "destroy one in state ready")
    assert kept.redeem(token, "destroy one in state ready")
    assert not kept.redeem(token, "destroy one in state ready")


@pytest.mark.parametrize(
    ("seconds", "good"), [(TOKEN_MINUTES * 60, True), (TOKEN_MINUTES * 60 + 1, False), (-1, False)]
)
def test_a_token_has_its_time(
    tokens: tuple[Journal | HeldTokens, Hands], seconds: int, *, good: bool
) -> None:
    """Ten minutes, and then no more; a clock that is set back makes none live longer."""
    kept, clock = tokens
    token = kept.mint("x")
    clock.now += timedelta(seconds=seconds)
    assert kept.redeem(token, "x") is good


def test_of_many_who_use_one_token_at_once_one_wins(
    tokens: tuple[Journal | HeldTokens, Hands],
) -> None:
    """There is no moment between looking and taking."""
    kept, _ = tokens
    token = kept.mint("x")
    assert sorted(map(bool, at_once(lambda: kept.redeem(token, "x")))) == [False] * 3 + [True]


def test_old_tokens_in_memory_are_swept_away() -> None:
    """What nobody used does not pile up, and none is kept as it is said."""
    clock = Hands()
    held = HeldTokens(clock)
    old = held.mint("x")
    clock.now += timedelta(hours=1)
    new, kept = held.mint("y"), f"{vars(held)}"
    assert "'y'" in kept
    assert not any(word in kept for word in ("'x'", old, new))


def test_old_tokens_are_swept_away(path: Path) -> None:
    """What nobody used does not pile up, and no token can be read from the file."""
    clock = Hands()
    journal = Journal(path, clock=clock)
    old = journal.mint("x")
    clock.now += timedelta(hours=1)
    new = journal.mint("y")
    db = sqlite3.connect(path)
    assert db.execute("SELECT bound_to FROM confirmations").fetchall() == [("y",)]
    db.close()
    everything = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert old.encode() not in everything
    assert new.encode() not in everything


def test_two_servers_share_one_journal(path: Path) -> None:
    """What one writes the other reads, and a token of one is good in the other, once."""
    one, other = Journal(path), Journal(path)
    token = one.mint("x")
    number = one.begin("a", "deploy_vllm", {})
    other.begin("b", "stop_vllm", {})
    one.end(number, Outcome(result="ok"))
    assert [row.client for row in other.operations()] == ["a", "b"]
    assert other.redeem(token, "x")
    assert not one.redeem(token, "x")


def at_once(work: Callable[[], object]) -> list[object]:
    """What four threads got that began at the same moment."""
    together, results = threading.Barrier(4), list[object]()

    def server() -> None:
        together.wait(HANGS)
        try:
            results.append(work())
        except OpsError as exc:
            results.append(exc)

    threads = [threading.Thread(target=server) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return results


def test_servers_that_begin_at_once_lose_nothing(path: Path) -> None:
    """Four of them make the file at the same moment; each call is written down."""
    numbers = at_once(lambda: [Journal(path).begin("x", "tool", {}) for _ in range(5)])
    assert all(isinstance(number, list) for number in numbers), numbers
    assert len(Journal(path).operations(100)) == 20


def test_the_usual_length_of_a_phase_is_the_median_of_the_last_ten(path: Path) -> None:
    """Of this target, engine and phase; without any there is none."""
    clock = Hands()
    journal = Journal(path, clock=clock)
    assert journal.usual_seconds("local", "vLLM", "warming") is None
    for seconds in (1000.0, *range(1, 11)):
        clock.now += timedelta(minutes=1)
        journal.record_phase("local", "vLLM", "warming", seconds)
    journal.record_phase("local", "vLLM", "compiling", 50)
    journal.record_phase("other", "vLLM", "warming", 50)
    assert journal.usual_seconds("local", "vLLM", "warming") == 5.5
    assert journal.usual_seconds("other", "vLLM", "warming") == 50
    assert journal.usual_seconds("local", "vLLM 2", "warming") is None


def test_a_pair_is_replaced_by_the_next_of_its_key(path: Path) -> None:
    """One row for each kind and key, the newest last; the text comes back as it was."""
    journal = Journal(path)
    journal.keep_pair("kv", "one", '{"n": 1}')
    journal.keep_pair("kv", "two", '{"n": 2}')
    journal.keep_pair("decode", "one", '{"n": 3}')
    journal.keep_pair("kv", "one", '{"n": 4, "said": "„ä"}')
    assert Journal(path).pairs("kv") == ('{"n": 2}', '{"n": 4, "said": "„ä"}')
    assert journal.pairs("decode") == ('{"n": 3}',)
    assert journal.pairs("other") == ()


def test_a_read_only_journal_keeps_no_pair_and_does_not_fail(path: Path) -> None:
    """Whoever only looks may compare all the same."""
    Journal(path, read_only=True).keep_pair("kv", "one", "{}")
    assert not path.parent.exists()
    Journal(path).keep_pair("kv", "one", "{}")
    Journal(path, read_only=True).keep_pair("kv", "two", "{}")
    assert Journal(path, read_only=True).pairs("kv") == ("{}",)


def test_a_journal_from_before_pairs_has_none(path: Path) -> None:
    """Read-only it cannot be given the table; otherwise it is."""
    Journal(path).begin("x", "y", {})
    db = sqlite3.connect(path)
    db.execute("DROP TABLE pairs")
    db.commit()
    db.close()
    assert Journal(path, read_only=True).pairs("kv") == ()
    Journal(path).keep_pair("kv", "one", "{}")
    assert Journal(path).pairs("kv") == ("{}",)


def test_a_read_only_journal_is_never_made(path: Path) -> None:
    """Looking leaves no file and no folder, and finds nothing."""
    journal = Journal(path, read_only=True)
    assert journal.operations() == ()
    assert journal.usual_seconds("a", "b", "c") is None
    assert not path.parent.exists()


def test_a_read_only_journal_is_read_and_left_as_it_was(path: Path) -> None:
    """Every byte is the same afterwards, and no file of SQLite's own stays beside it."""
    journal = Journal(path)
    journal.end(journal.begin("x", "deploy_vllm", {}), Outcome(result="ok"))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert [row.tool for row in Journal(path, read_only=True).operations()] == ["deploy_vllm"]
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    assert set(before) == {"journal.db"}


def test_a_read_only_journal_sees_what_a_living_server_has_just_written(path: Path) -> None:
    """Also what stands only in the write-ahead log of another server."""
    Journal(path).begin("x", "first", {})
    writer = sqlite3.connect(path)
    writer.execute("SELECT * FROM operations").fetchall()
    Journal(path).begin("x", "second", {})
    assert "journal.db-wal" in names(path.parent)
    assert [row.tool for row in Journal(path, read_only=True).operations()] == ["first", "second"]
    writer.close()


def test_a_read_only_journal_refuses_to_be_written(path: Path) -> None:
    """Whoever asks for it gets an error of ours, and the file stays as it was."""
    Journal(path).begin("x", "first", {})
    with pytest.raises(OpsError):
        Journal(path, read_only=True).begin("x", "second", {})
    assert len(Journal(path).operations()) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """The error names what to set."""
    (tmp_path / "file").touch()
    with pytest.raises(HostError) as caught:
        Journal(tmp_path / "file" / "journal.db").begin("x", "y", {})
    assert "VLLM_DEVOPS_STATE_DIR" in caught.value.fix


def test_a_full_disk_is_told(path: Path) -> None:
    """SQLite's own refusal to grow the file becomes DISK_FULL, and nothing half is left."""
    journal = Journal(path)
    journal.begin("x", "y", {})

    class Full(Journal):
        def _connect(self) -> sqlite3.Connection:
            db = super()._connect()
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}")
            return db

    with pytest.raises(DiskFull) as caught:
        Full(path).begin("x", "y", {"long": "x" * 100_000})
    assert caught.value.retryable
    assert len(journal.operations()) == 1


def test_a_damaged_journal_is_told_with_its_path(path: Path) -> None:
    """It is never silently replaced: it is the audit log."""
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(HostError) as caught:
        Journal(path).begin("x", "y", {})
    assert str(path) in caught.value.summary
    assert path.read_bytes().startswith(b"this is no database")


def test_the_journal_lies_in_a_folder_of_its_owner(path: Path) -> None:
    """Nobody else of this machine reads who did what."""
    Journal(path).begin("x", "y", {})
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_times_are_told_with_their_zone(path: Path) -> None:
    """The real clock is UTC."""
    Journal(path).begin("x", "y", {})
    assert Journal(path).operations()[0].at.tzinfo == UTC


def test_an_older_journal_is_read_and_gone_on_with(path: Path) -> None:
    """It lacks what calls were about; what is written from now on has it."""
    path.parent.mkdir()
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


def test_a_journal_out_of_reach_is_not_taken_for_one_that_never_was(tmp_path: Path) -> None:
    """Who is told that nothing was ever deployed looks for no bill."""
    (tmp_path / "loop").symlink_to("loop")
    assert Journal(tmp_path / "loop" / "journal.db", read_only=True).exists
    assert not Journal(tmp_path / "nothing" / "journal.db", read_only=True).exists
