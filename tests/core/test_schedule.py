"""The times of a schedule hold together: crons, hours, what is on and when it changes."""

import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.schedule import EXAMPLE, Schedule, parse
from simulators.common.cron import due_next

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONDAY: Final = datetime(2026, 11, 30, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)


def time_of(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


times = st.tuples(st.integers(0, 1439), st.integers(0, 1440)).filter(lambda two: two[0] != two[1])
days = st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True)


@st.composite
def said(draw: st.DrawFn) -> tuple[set[int], list[tuple[int, int]], str]:
    """Give days, ranges of minutes and how that is written, in UTC."""
    on, ranges = draw(days), draw(st.lists(times, min_size=1, max_size=3))
    text = ",".join(f"{time_of(begin)}-{time_of(end)}" for begin, end in ranges)
    return {DAYS.index(day) for day in on}, ranges, f"{','.join(on)} {text}"


def on_minutes(on: set[int], ranges: list[tuple[int, int]]) -> set[int]:
    """Return the minutes of a week at which it is on, one by one."""
    return {
        (day * 1440 + minute) % (7 * 1440)
        for day in on
        for begin, end in ranges
        for minute in range(begin, end if end > begin else end + 1440)
    }


def read(on: set[int], ranges: list[tuple[int, int]], text: str) -> Schedule | None:
    """Return it read; None where it is on all the time, which is refused."""
    if len(on_minutes(on, ranges)) == 7 * 1440:
        with pytest.raises(ValueError, match="never ends"):
            parse(text)
        return None
    return parse(text)


@given(said())
def test_every_minute_is_on_that_was_written_and_no_other(
    one: tuple[set[int], list[tuple[int, int]], str],
) -> None:
    if (schedule := read(*one)) is None:
        return
    expected = on_minutes(*one[:2])
    assert schedule.hours_a_week == len(expected) / 60
    edges = {edge for span in schedule.spans for edge in span}
    for minute in {at % (7 * 1440) for edge in edges for at in (edge - 1, edge, edge + 1)}:
        assert schedule.is_on(MONDAY + minute * MINUTE) == (minute in expected)


@given(said(), st.integers(0, 7 * 1440 - 1))
def test_it_changes_when_it_says_and_not_before(
    one: tuple[set[int], list[tuple[int, int]], str], minute: int
) -> None:
    if (schedule := read(*one)) is None:
        return
    now = MONDAY + minute * MINUTE
    change = schedule.changes(now)
    assert now < change <= now + timedelta(days=7)
    assert schedule.is_on(change) != schedule.is_on(now) == schedule.is_on(change - MINUTE)


@given(said(), st.integers(0, 7 * 1440 - 1))
def test_its_crons_begin_and_end_when_it_changes(
    one: tuple[set[int], list[tuple[int, int]], str], minute: int
) -> None:
    """By the simulated clouds' own reading of a cron."""
    if (schedule := read(*one)) is None:
        return
    now = MONDAY + minute * MINUTE
    nexts = {
        edge: min(
            due_next(getattr(window, edge), now.timestamp()) or 0 for window in schedule.windows
        )
        for edge in ("begin", "end")
    }
    assert min(nexts.values()) == schedule.changes(now).timestamp()
    assert (nexts["end"] < nexts["begin"]) == schedule.is_on(now)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("Sat 22:00-02:30 Europe/Berlin", "0 22 * * 6", "30 2,3 * * 0"),
        ("Sun 02:00-09:00 America/New_York", "0 2,3 * * 0", "0 9 * * 0"),
        ("Sat 22:00-02:30 Asia/Kolkata", "0 22 * * 6", "30 2 * * 0"),
        ("Sat 22:00-03:30 Europe/Berlin", "0 22 * * 6", "30 3 * * 0"),
        # What comes within the hour sets it right, and must not be undone.
        ("daily 22:00-02:30,03:00-09:00 Europe/Berlin", "0 22 * * *", "30 2 * * *"),
    ],
)
def test_what_summer_time_skips_comes_again_an_hour_later(text: str, begin: str, end: str) -> None:
    assert (begin, end) in parse(text).repeated_windows


@given(st.text(max_size=60))
def test_whatever_is_written_is_read_or_refused_with_an_example(text: str) -> None:
    refusal = ""
    try:
        parse(text)
    except ValueError as exc:
        refusal = str(exc)
    assert not refusal or EXAMPLE in refusal


def test_its_zone_keeps_the_clock_on_the_wall() -> None:
    """Berlin leaves summer time on 25 October 2026: 09:00 is an hour later by UTC."""
    schedule = parse("daily 09:00-10:00 Europe/Berlin")
    before = schedule.changes(datetime(2026, 10, 24, 12, tzinfo=UTC) - timedelta(days=1))
    after = schedule.changes(datetime(2026, 10, 25, 12, tzinfo=UTC))
    assert (before.hour, after.hour) == (7, 8)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Mon-Fry 08:00-09:00", "'fry' is no day"),
        ("Mon 08:00-25:00", "25:00"),
        ("Mon 08:60-09:00", "08:60"),
        ("Mon 09:00-09:00", "09:00-09:00"),
        ("Mon 08:00-09:00 Berlin", "'Berlin' is no time zone"),
        ("Mon 08:00", "days, times and a time zone"),
        ("daily 00:00-24:00", "min_replicas=1"),
    ],
)
def test_a_refusal_names_what_was_not_understood(text: str, names: str) -> None:
    with pytest.raises(ValueError, match="write it like") as refused:
        parse(text)
    assert names in str(refused.value)


def test_zones_are_known_on_a_machine_that_has_no_files_of_them() -> None:
    """As in slim images."""
    try:
        zoneinfo.reset_tzpath(to=())
        zoneinfo.ZoneInfo.clear_cache()
        assert parse("daily 09:00-10:00 America/Argentina/Ushuaia").zone.endswith("Ushuaia")
    finally:
        zoneinfo.reset_tzpath()
