"""Failures found in any number of lines."""

import random
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.failures import USERS, WRITERS, Finder, Writer
from logs.read import Line
from tests.logs.conftest import NOW
from tests.logs.failures import PLATFORM, SEEN, found, healthy, lines_of

FULL = "OSError: [Errno 28] No space left on device: '/data/x'"
DEAD = "RuntimeError: Engine core initialization failed. See root cause above."
BUSY = "INFO 11-20 [loggers.py:350] Running: 8 reqs, Waiting: 41 reqs, GPU KV cache usage: 97.1%"
PROBE = (
    "STARTUP HTTP probe failed 60 times consecutively for container. The instance was not started."
)


def noise(seed: int) -> Iterator[str]:
    """Give lines of a service that is well, without end."""
    draw = random.Random(seed)
    rows = healthy("engine")
    while True:
        yield f"{draw.choice(rows)} {draw.random()}"


def codes(finder: Finder) -> list[str]:
    return [one.failure.code for one in finder.findings()]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_failure_is_found_among_lines_that_are_none(writer: Writer) -> None:
    """Whatever its page, and once; the cause has the figures of the line. One request that was
    refused is none: a judge weighs them against those that were answered.
    """
    platform = "" if writer == "engine" else PLATFORM
    quiet, missed = noise(1), []
    for seen in (one for one in SEEN if one.writer == writer and not USERS.search(one.line)):
        lines = [Line(NOW + timedelta(seconds=at), next(quiet)) for at in range(5)]
        lines[3] = Line(lines[3].at, seen.line, platform)
        finder = Finder(writer)
        finder.feed(lines[2:])
        finder.feed(lines[:2])
        told = [
            (one.failure.code, one.first, one.last, one.count, one.line)
            for one in finder.findings()
            if seen.words in one.failure.cause
        ]
        if told != [(seen.code, lines[3].at, lines[3].at, 1, seen.line.strip()[:400])]:
            missed.append((seen.line, told))
    assert missed == []


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_pages_of_any_size_tell_the_same(size: int) -> None:
    """First, last and how often; the words are those of the newest line."""
    texts = [FULL.replace("x", str(number)) if number % 10 == 3 else "x" for number in range(100)]
    lines = lines_of(texts)
    finder = Finder()
    for end in range(100, 0, -size):
        finder.feed(lines[max(0, end - size) : end])
    one = finder.findings()[0]
    assert (one.first, one.last, one.count) == (lines[3].at, lines[93].at, 10)
    assert one.line.endswith("'/data/93'")


def test_the_cause_is_told_before_its_results_and_warnings_last() -> None:
    """Whatever their order in the log, and whoever says them."""
    lines = [
        *lines_of([BUSY.replace("97.1", "47.1"), DEAD, FULL]),
        *lines_of([PROBE], "cloud_run"),
    ]
    for order in (lines, lines[::-1]):
        finder = Finder("cloud_run")
        finder.feed(order)
        assert codes(finder) == [
            "DISK_FULL",
            "STARTUP_PROBE_FAILED",
            "ENGINE_CORE_DIED",
            "REQUESTS_WAIT",
        ]


def test_two_wordings_of_one_failure_are_told_as_one() -> None:
    """The wording that says more is told, and both are counted."""
    exact = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB."
    one, *more = found(["RuntimeError: CUDA error: out of memory", exact])
    assert more == []
    assert (one.failure.code, one.count) == ("DOES_NOT_FIT", 2)
    assert "2.62 GiB" in one.failure.cause


def test_a_platform_that_passes_on_what_an_engine_wrote_is_heard_as_well() -> None:
    """Its own words go first, then those of engines."""
    assert [one.writer for one in found([FULL], "aca")] == ["engine"]
    assert [one.writer for one in found([PROBE], "cloud_run")] == ["cloud_run"]


def test_a_container_cannot_speak_for_its_platform() -> None:
    """Google says that there is no chip, or nobody does."""
    line = "Memory limit of 32768 MiB exceeded with 33000 MiB used."
    finder = Finder("cloud_run")
    finder.feed(lines_of([line]))
    assert codes(finder) == []
    finder.feed(lines_of([line], "cloud_run"))
    assert codes(finder) == ["OUT_OF_HOST_MEMORY"]


@pytest.mark.parametrize(
    "before",
    [
        "INFO 11-20 12:00:00 [request_logger.py:66] Received request cmpl-1: prompt: '",
        "DEBUG 11-20 12:00:00 [request_logger.py:56] Request cmpl-1 details: prompt: '",
        "INFO 11-20 12:00:00 [request_logger.py:109] Generated response cmpl-1: output: '",
        'INFO:     10.0.0.7:53122 - "GET /v1/models?why=',
        "ERROR 11-20 12:00:00 [dump_input.py:79] Dumping scheduler output for model execution: ",
        "ERROR 11-20 12:00:00 [serving.py:9] Error with model error=ErrorInfo(message='The model `",
    ],
)
def test_what_a_user_writes_is_no_failure(before: str) -> None:
    """Somebody who asks an engine about its own errors does not cause one."""
    assert found([f"{before}{FULL}'"]) == ()
    assert found([FULL]) != ()


def test_colours_and_breaks_do_not_hide_a_failure() -> None:
    """They are taken out before anything is looked for."""
    (red,) = found(["well", "\x1b[31mNo space left on device\x1b[0m"])
    assert (red.failure.code, red.line) == ("DISK_FULL", "No space left on device")
    (odd,) = found(["No space left on device\x07"])
    assert odd.line == "No space left on device"
    two = f"first\nsecond {FULL}"
    finder = Finder()
    finder.feed([Line(NOW, two), Line(NOW + timedelta(seconds=1), "well")])
    assert [(one.failure.code, one.first) for one in finder.findings()] == [("DISK_FULL", NOW)]


@pytest.mark.parametrize(
    ("first", "filler"),
    [(0, "a"), (1, " '"), (2, "0,"), (3, "a b "), (4, "secret quota huggingface.co ")],
)
def test_no_pattern_runs_away(first: int, filler: str) -> None:
    """The beginning of what was seen, then thousands of what may repeat; nothing is found twice.

    Each filler stands after another tenth of the lines.
    """
    for writer in WRITERS:
        some = [one for one in SEEN if one.writer == writer][first::10]
        lines = [f"{one.line[:40]}{filler * 2000}" for one in some]
        seen = found([*lines, filler * 50_000], writer)
        assert len({one.failure.code for one in seen}) == len(seen)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=300), max_size=20), st.sampled_from(WRITERS), st.booleans())
def test_no_text_is_too_odd(texts: list[str], writer: Writer, said: bool) -> None:  # noqa: FBT001  hypothesis draws it
    """Any characters, in any number of lines, of anybody; a failure among them is still found."""
    platform = PLATFORM if said else ""
    finder = Finder(writer)
    finder.feed([Line(NOW, text, platform) for text in texts])
    finder.feed([Line(NOW, text, platform) for text in (*texts, FULL, *texts)])
    assert "No space left" in " ".join(one.line for one in finder.findings())


def test_what_is_held_grows_with_the_failures_and_not_with_the_lines() -> None:
    """Bytes, after thousands of lines of which many tell the same."""
    finder, quiet = Finder(), noise(2)
    pages = [lines_of([*islice(quiet, 200), FULL, DEAD, BUSY]) for _ in range(12)]
    tracemalloc.start()
    try:
        for page in pages[:7]:
            finder.feed(page)
        held = tracemalloc.get_traced_memory()[0]
        for page in pages[7:]:
            finder.feed(page)
        more = tracemalloc.get_traced_memory()[0] - held
    finally:
        tracemalloc.stop()
    assert more < 100_000
    assert [one.count for one in finder.findings()] == [12, 12, 12]
