"""When a job of the unix-cron format is due next."""

import calendar
import re
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = {calendar.month_abbr[number].lower(): number for number in range(1, 13)}
_DAYS: Final = {calendar.day_abbr[number - 1].lower(): number % 7 for number in range(1, 8)}
_PARTS: Final[tuple[tuple[int, int, Mapping[str, int]], ...]] = (
    *((0, 59, {}), (0, 23, {}), (1, 31, {})),
    *((1, 12, _MONTHS), (0, 7, _DAYS)),
)
"""Least and most of minute, hour, day, month and day of the week, and names that they have."""
_TERM: Final = re.compile(r"(\*|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_YEARS: Final = 9
"""Within which there is a 29th of February, even about the year 2100."""


def due_next(schedule: str, zone: str, after: float) -> float | None:
    """Return the first moment of a schedule that is later, in epoch seconds; None is never.

    Raises:
        ValueError: It is no schedule of that format, or no time zone.
    """
    words = schedule.split()
    if len(words) != len(_PARTS):
        raise ValueError(schedule)
    parts = [_numbers(*each) for each in zip(words, _PARTS, strict=True)]
    minutes, hours, days, months, weekdays = parts
    try:
        where = zoneinfo.ZoneInfo({"": "UTC", "utc": "UTC"}.get(zone, zone))
    except zoneinfo.ZoneInfoNotFoundError as exc:
        raise ValueError(zone) from exc
    either = words[2] != "*" and words[4] != "*"  # cron takes any of both where both are given
    begin = datetime.fromtimestamp(after, UTC).astimezone(where)
    for number in range(366 * _YEARS):
        day = begin.date() + timedelta(days=number)
        fits = (day.day in days, day.isoweekday() % 7 in {one % 7 for one in weekdays})
        if day.month not in months or not (any(fits) if either else all(fits)):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                told = datetime(day.year, day.month, day.day, hour, minute, tzinfo=where)
                if told.timestamp() > after:
                    return told.timestamp()
    return None


def _numbers(word: str, part: tuple[int, int, Mapping[str, int]]) -> set[int]:
    least, most, names = part
    found: set[int] = set()
    for term in word.split(","):
        read = _TERM.fullmatch(term)
        if read is None:
            raise ValueError(word)
        every, first, last, step = read.groups()
        if every == "*":
            begin, end = least, most
        else:
            begin = names.get(first.lower()[:3], -1) if first.isalpha() else int(first)
            end = begin
            if last:
                end = names.get(last.lower()[:3], -1) if last.isalpha() else int(last)
            elif step:
                end = most
        if not least <= begin <= end <= most or step == "0":
            raise ValueError(word)
        found.update(range(begin, end + 1, int(step or 1)))
    return found
