"""Log files read from their end."""

import os
import re
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.read import PAGE_LINES, Line, Wanted, head_lines, newest_pages

EVERY = Wanted()
WORDS = st.text("ab \u00e9\u20ac\U0001f600", max_size=9)
LINES = st.lists(st.tuples(WORDS, st.sampled_from(("\n", "\r", "\r\n", "\n\n"))), max_size=30)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "engine.log"


def read(path: Path, wanted: Wanted = EVERY, **sizes: int) -> list[Line]:
    """Read all pages, oldest line first."""
    pages = list(newest_pages(path, wanted, **sizes))
    return [line for page in reversed(pages) for line in page]


def texts(path: Path, wanted: Wanted = EVERY, **sizes: int) -> list[str]:
    return [line.text for line in read(path, wanted, **sizes)]


def stamp(at: datetime) -> str:
    return f"INFO {at.astimezone():%m-%d %H:%M:%S} [x.py:1]"


@given(LINES, st.sampled_from(("", "last")), st.integers(40, 200), st.integers(1, 7))
def test_no_line_is_lost_or_doubled(
    scratch: Path, lines: list[tuple[str, str]], end: str, block: int, page: int
) -> None:
    """Whatever the sizes of blocks and pages, and wherever a line ends."""
    text = "".join(word + after for word, after in lines) + end
    scratch.write_bytes(text.encode())
    expected = [part for part in re.split(r"[\r\n]", text) if part.strip()]
    assert texts(scratch, block_bytes=block, page_lines=page) == expected
    pages = newest_pages(scratch, EVERY, block_bytes=block, page_lines=page)
    assert max(map(len, pages), default=0) <= page


@given(st.text("ab\u00e9\u20ac\U0001f600\n", max_size=200), st.integers(4, 20))
def test_a_line_may_be_longer_than_a_block(scratch: Path, text: str, block: int) -> None:
    """It is whole all the same, and none of its letters is cut in two."""
    scratch.write_bytes(text.encode())
    whole = [line for line in text.split("\n") if line.strip()]
    assert texts(scratch, block_bytes=block) == whole


@pytest.mark.parametrize("place", range(8180, 8193, 3))
def test_where_a_line_is_cut_no_key_is_halved(log: Path, place: int) -> None:
    """Half a key has no shape that anybody knows, and is half of a secret."""
    log.write_text("x" * (place - 1) + f" hf_{'a' * 34}")
    assert "hf_" not in texts(log)[0]
    assert texts(log) == list(head_lines(log))


@pytest.mark.parametrize("before", [0, 1, 100_000, 128 * 1024])
def test_of_a_line_without_end_only_the_beginning_is_given(log: Path, before: int) -> None:
    """What follows has no head that would say whose words it is; that it is left out is said."""
    log.write_bytes(b"x" * before + b"\nReceived request: " + b"y" * 1_000_000 + b"\nlast")
    *_, long, last = texts(log)
    assert long.startswith("Received request: yyy")
    assert long.endswith("y […]")
    assert len(long) < 9_000
    assert last == "last"
    assert [line[-20:] for line in head_lines(log)] == [line[-20:] for line in texts(log)]


@given(st.binary(max_size=300), st.integers(4, 50), st.integers(1, 5))
def test_any_bytes_are_read_to_their_beginning(
    scratch: Path, raw: bytes, block: int, page: int
) -> None:
    """An engine may write anything."""
    scratch.write_bytes(b"first\n" + raw)
    assert "".join(texts(scratch, block_bytes=block, page_lines=page)).startswith("first")


def test_the_newest_page_comes_first(log: Path) -> None:
    """Each page has its oldest line first, and none is too long."""
    log.write_text("".join(f"line {number}\n" for number in range(PAGE_LINES + 500)))
    first, second, *rest = newest_pages(log, EVERY)
    assert (first[0].text, first[-1].text) == ("line 500", f"line {PAGE_LINES + 499}")
    assert (second[0].text, second[-1].text) == ("line 0", "line 499")
    assert rest == [[]]


def test_a_time_is_that_of_the_line_or_of_the_one_before(log: Path) -> None:
    """A traceback has none of its own; what is before the first has that of the next."""
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    later = at + timedelta(seconds=5)
    log.write_text(f"banner\n{stamp(at)} one\nTraceback\n  File\n{stamp(later)} two\n")
    assert [line.at for line in read(log)] == [at, at, at, at, later]


def test_a_log_without_times_has_that_of_its_file(log: Path) -> None:
    """When it was written last."""
    log.write_text("one\ntwo\n")
    os.utime(log, (1763790000, 1763790000))
    assert {line.at for line in read(log)} == {datetime.fromtimestamp(1763790000, UTC)}


def test_lines_are_chosen_by_time(log: Path) -> None:
    """Both ends are included; a stamp tells the second, so a part of one leaves nothing out."""
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    times = [begin + timedelta(seconds=number) for number in range(100)]
    log.write_text("".join(f"{stamp(at)} line {place}\n" for place, at in enumerate(times)))
    wanted = Wanted(since=times[40] + timedelta(seconds=0.7), until=times[42])
    for block in (100, 500, 100_000):
        found = texts(log, wanted, block_bytes=block)
        assert [text.rpartition(" ")[2] for text in found] == ["40", "41", "42"]


def test_what_is_older_than_wanted_is_not_read(log: Path) -> None:
    """The last minute of a week's log costs a minute's reading."""
    now = datetime.now(UTC).replace(microsecond=0)
    old = f"{stamp(now - timedelta(days=2))} old\n" * 5000
    log.write_text(f"{old}{stamp(now)} new\n")
    pages = list(newest_pages(log, Wanted(since=now - timedelta(minutes=1)), block_bytes=1000))
    assert [[line.text.rpartition(" ")[2] for line in page] for page in pages[:1]] == [["new"]]
    assert len(pages) <= 3


def test_lines_are_chosen_by_any_of_some_words(log: Path) -> None:
    """Whatever their case."""
    log.write_text("An ERROR\nfine\nout of Memory\n")
    assert texts(log, Wanted(contains=("error", "OUT OF"))) == ["An ERROR", "out of Memory"]
    assert texts(log, Wanted(contains=("nothing",))) == []


def test_whoever_asks_may_stop_after_each_block(log: Path) -> None:
    """Also where nothing is found for long: an empty page comes in between."""
    log.write_text("needle\n" + "hay\n" * 1000)
    pages = list(newest_pages(log, Wanted(contains=("needle",)), block_bytes=400))
    assert pages.count([]) >= 10
    assert [line.text for page in pages for line in page] == ["needle"]


@pytest.mark.parametrize("name", ["missing.log", "file/engine.log"])
def test_a_log_that_is_not_there_has_no_pages(tmp_path: Path, name: str) -> None:
    """Before the first start there is none."""
    (tmp_path / "file").touch()
    assert list(newest_pages(tmp_path / name, EVERY)) == []


def test_memory_stays_small_whatever_is_written(log: Path) -> None:
    """Four megabytes without a line end, then some that are no text, then short lines."""
    log.write_bytes(b"x" * (1 << 22) + b"\n" + b"\xff\xfe" * (1 << 20) + b"\n" + b"yy\n" * 20_000)
    tracemalloc.start()
    lines = sum(len(page) for page in newest_pages(log, EVERY))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == 20_000 + 2
    assert peak < 5 * 1024 * 1024
