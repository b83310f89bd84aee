"""Log files."""

import tracemalloc
from pathlib import Path

import pytest

from logs.read import head_lines, newest_lines, size_of


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def test_the_newest_lines_stand_last(log: Path) -> None:
    """As many as were asked for; empty ones say nothing."""
    log.write_text("one\n\n   \ntwo\nthree")
    assert newest_lines(log, 2) == ("two", "three")
    assert newest_lines(log, 9) == ("one", "two", "three")
    assert list(head_lines(log)) == ["one", "two", "three"]


def test_steps_of_a_progress_bar_are_lines(log: Path) -> None:
    """Carriage returns and Windows line ends alike."""
    log.write_bytes(b"\r 10%\r 20%\r\nnext\r\n")
    assert list(head_lines(log)) == [" 10%", " 20%", "next"]


def test_bytes_that_are_no_text_are_shown_as_such(log: Path) -> None:
    """An engine may write anything."""
    log.write_bytes(b"ok\n\xff\xfe\x00\n")
    assert newest_lines(log, 1) == ("\ufffd\ufffd\x00",)


@pytest.mark.parametrize("name", ["missing.log", "file/engine.log"])
def test_a_log_that_is_not_there_is_empty(tmp_path: Path, name: str) -> None:
    """Before the first start there is none."""
    (tmp_path / "file").touch()
    assert newest_lines(tmp_path / name, 5) == ()
    assert list(head_lines(tmp_path / name)) == []


def test_a_size_is_known_of_any_path(log: Path) -> None:
    """In bytes; what is not there has none."""
    assert size_of(log) == 0
    log.write_bytes(b"12345")
    assert size_of(log) == 5


def test_a_huge_line_is_read_in_pieces(log: Path) -> None:
    """Memory stays small, however much is written without a line end."""
    with log.open("wb") as file:
        for _ in range(8):
            file.write(b"x" * 1024 * 1024)
        file.write(b"\nend\n")
    tracemalloc.start()
    lines = newest_lines(log, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines[-1] == "end"
    assert peak < 1024 * 1024


def test_only_the_beginning_of_a_long_log_is_read_for_the_boot(log: Path) -> None:
    """A day of serving does not make a look slower."""
    log.write_text("first\n" + f"{'y' * 1000}\n" * 6000)
    lines = list(head_lines(log))
    assert lines[0] == "first"
    assert 4000 < len(lines) < 4300
