"""When a schedule of unix-cron's five fields is due next; a time that there is not is left out."""

import calendar
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = {name.lower(): at for at, name in enumerate(calendar.month_abbr) if name}
_DAYS: Final = {name.lower(): (at + 1) % 7 for at, name in enumerate(calendar.day_abbr)}
_FIELDS: Final[tuple[tuple[int, int, Mapping[str, int]], ...]] = (
    *((0, 59, {}), (0, 23, {}), (1, 31, {})),
    *((1, 12, _MONTHS), (0, 7, _DAYS)),
)
"""Least and most of minute, hour, day, month and day of the week, and names that they have."""
_DAYS_AHEAD: Final = 366 * 9
"""Within which there is a 29th of February, even about the year 2100."""


def due_next(schedule: str, after: float, zone: str = "UTC") -> float | None:
    """Return the first moment of a schedule that is later, in epoch seconds; None is never.

    Raises:
        ValueError: It is no schedule of that format, or no time zone.

    >>> datetime.fromtimestamp(due_next("30 6 29 2 *", 1795900000), UTC).isoformat()
    '2028-02-29T06:30:00+00:00'
    """
    words = schedule.split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"a cron has five fields: {schedule!r}")
    minutes, hours, days, months, week = map(_numbers, words, _FIELDS)
    either = words[2] != "*" and words[4] != "*"  # cron takes any of both where both are given
    try:
        where = zoneinfo.ZoneInfo(zone.replace("utc", "UTC") or "UTC")
    except zoneinfo.ZoneInfoNotFoundError as exc:
        raise ValueError(zone) from exc
    begin = datetime.fromtimestamp(after, UTC).astimezone(where)
    for ahead in range(_DAYS_AHEAD):
        day = begin.date() + timedelta(days=ahead)
        fits = day.day in days, not week.isdisjoint({day.isoweekday(), day.isoweekday() % 7})
        if day.month not in months or not (any(fits) if either else all(fits)):
            continue
        for hour, minute in (
            (hour, minute) for hour in sorted(hours) for minute in sorted(minutes)
        ):
            found = datetime(day.year, day.month, day.day, hour, minute, tzinfo=where).timestamp()
            is_there = datetime.fromtimestamp(found, where).hour == hour  # summer time skips some
            if found > after and is_there:
                return found
    return None


def _numbers(word: str, field: tuple[int, int, Mapping[str, int]]) -> set[int]:
    least, most, names = field

    def number(text: str) -> int:
        named = names.get(text.lower())
        return int(text) if named is None else named

    found: set[int] = set()
    for term in word.split(","):
        span, stepped, step = term.partition("/")
        low, dash, high = span.partition("-")
        begin, end = (least, most) if span == "*" else (number(low), number(high if dash else low))
        end = most if stepped and not dash else end
        if not least <= begin <= end <= most or (stepped and not int(step) > 0):
            raise ValueError(f"{term!r} is not within {least} to {most}")
        found.update(range(begin, end + 1, int(step or 1)))
    return found
