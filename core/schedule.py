"""The times of a week at which a deployment is to be warm, as people write them."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

EXAMPLE: Final = "Mon-Fri 08:55-18:00 Europe/Berlin"
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = 24 * 60
_WEEK: Final = 7 * _DAY
_TERM: Final = r"[A-Za-z]+(?:-[A-Za-z]+)?"
_RANGE: Final = r"\d{1,2}:\d\d-\d{1,2}:\d\d"
_WHOLE: Final = re.compile(rf"({_TERM}(?:,{_TERM})*) ({_RANGE}(?:, ?{_RANGE})*)(?: (\S+))?")


class Window(NamedTuple):
    """Times that begin at one time of the day and last equally long."""

    begin: str
    """As cron writes it, of the schedule's zone; Sunday is 0."""
    end: str


class Schedule(NamedTuple):
    """When a deployment is warm."""

    zone: str
    spans: tuple[tuple[int, int], ...]
    """Begin and end in minutes since Monday 00:00, apart from each other; the last may end after
    its week."""

    @property
    def hours_a_week(self) -> float:
        """Return the hours by the clock on the wall; a change to summer time adds none."""
        return sum(end - begin for begin, end in self.spans) / 60

    @property
    def windows(self) -> tuple[Window, ...]:
        """Return the times as crons, with as few of them as that takes."""
        return self._windows(lambda _edge: False)

    @property
    def repeated_windows(self) -> tuple[Window, ...]:
        """Return them for a cron that leaves out the hour that summer time skips.

        What falls into that hour comes again an hour later, unless something else comes by then.
        """
        edges = {edge % _WEEK for span in self.spans for edge in span}

        def again(edge: int) -> bool:
            alone = all((edge + more) % _WEEK not in edges for more in range(1, 61))
            return alone and _is_skipped(self.zone, edge % _DAY // 60)

        return self._windows(again)

    def _windows(self, again: Callable[[int], bool]) -> tuple[Window, ...]:
        days: dict[tuple[int, int, bool, bool], list[int]] = {}
        for begin, end in self.spans:
            key = (begin % _DAY, end - begin, again(begin), again(end))
            days.setdefault(key, []).append(begin // _DAY)
        return tuple(
            Window(
                _cron(at, on, again=first),
                _cron((at + long) % _DAY, [one + (at + long) // _DAY for one in on], again=last),
            )
            for (at, long, first, last), on in days.items()
        )

    def is_on(self, at: datetime) -> bool:
        """Whether it is warm at a moment."""
        local = at.astimezone(ZoneInfo(self.zone))
        minute = local.weekday() * _DAY + local.hour * 60 + local.minute
        return any(
            begin <= one < end for begin, end in self.spans for one in (minute, minute + _WEEK)
        )

    def changes(self, at: datetime) -> datetime:
        """Return the next moment at which it begins or ends."""
        local = at.astimezone(ZoneInfo(self.zone))
        monday = local.date() - timedelta(days=local.weekday())
        edges = (edge + week for week in (-_WEEK, 0, _WEEK) for span in self.spans for edge in span)
        moments = (
            datetime(day.year, day.month, day.day, *divmod(edge % _DAY, 60), tzinfo=local.tzinfo)
            for edge in edges
            for day in [monday + timedelta(days=edge // _DAY)]
        )
        return min(one for one in (each.astimezone(UTC) for each in moments) if one > at)


@lru_cache
def parse(said: str) -> Schedule:
    """Read days, ranges of times and a zone of the IANA's (UTC if left out).

    >>> parse("Mon-Fri 08:55-18:00 Europe/Berlin").windows
    (Window(begin='55 8 * * 1-5', end='0 18 * * 1-5'),)
    >>> parse("Sat,Sun 22:00-02:30").windows, parse("daily 9:00-9:30").hours_a_week
    ((Window(begin='0 22 * * 0,6', end='30 2 * * 0-1'),), 3.5)

    Raises:
        ValueError: It says what was not understood, with an example.
    """
    try:
        return _read(" ".join(said.split()))
    except ValueError as exc:
        raise ValueError(f"{exc}; write it like {EXAMPLE}") from exc


def _read(said: str) -> Schedule:
    found = _WHOLE.fullmatch(said)
    if found is None:
        raise ValueError(f"{said[:80]!r} is not days, times and a time zone")
    days, ranges, zone = set(_days(found[1])), [*_ranges(found[2])], found[3] or "UTC"
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as exc:  # a folder of zones is an OSError
        raise ValueError(f"{zone[:60]!r} is no time zone of the IANA's") from exc
    spans = _joined(
        sorted((day * _DAY + begin, day * _DAY + end) for day in days for begin, end in ranges)
    )
    if spans[-1][1] - spans[0][0] >= _WEEK and len(spans) == 1:
        raise ValueError("it never ends: min_replicas=1 without a schedule is always warm")
    return Schedule(zone, spans)


def _days(said: str) -> Iterator[int]:
    for term in said.lower().split(","):
        low, dash, high = term.partition("-")
        if term == "daily":
            yield from range(7)
            continue
        for one in (low, *([high] if dash else [])):
            if one not in _DAYS:
                raise ValueError(f"{one[:60]!r} is no day: they are Mon, Tue … Sun and daily")
        first = _DAYS.index(low)
        for ahead in range((_DAYS.index(high) - first) % 7 + 1 if dash else 1):
            yield (first + ahead) % 7


def _ranges(said: str) -> Iterator[tuple[int, int]]:
    """Give begin and end of each in minutes of its first day; one over midnight ends after it."""
    for term in said.split(","):
        begin, end = (_minute(one) for one in term.strip().split("-"))
        if begin in (_DAY, end):
            raise ValueError(f"{term.strip()} is no time of any length")
        yield begin, end if end > begin else end + _DAY


def _minute(said: str) -> int:
    hours, minutes = map(int, said.split(":"))
    if minutes > 59 or hours * 60 + minutes > _DAY:
        raise ValueError(f"{said} is no time of a day")
    return hours * 60 + minutes


def _joined(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Make one of those that touch: what ends one must not end the other."""
    found: list[tuple[int, int]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    while len(found) > 1 and found[-1][1] - _WEEK >= found[0][0]:  # over the week's end
        _, end = found.pop(0)
        found[-1] = found[-1][0], max(end + _WEEK, found[-1][1])
    return tuple(found)


@lru_cache
def _is_skipped(zone: str, hour: int) -> bool:
    """Whether the clock on the wall leaves an hour out on some day of 2026; 23 is left out nowhere.

    The year is fixed, so that a schedule is written alike whenever it is.
    """
    here = ZoneInfo(zone)
    first = datetime(2026, 1, 1, hour, tzinfo=here)
    days = (first + timedelta(days=ahead) for ahead in range(365))
    return hour < 23 and any(one.astimezone(UTC).astimezone(here).hour != hour for one in days)


def _cron(minute: int, days: Sequence[int], *, again: bool = False) -> str:
    """Write a time of some days, where Monday is 0 and more than 6 is of the next week.

    `again` is an hour later as well.
    """
    on = sorted({(day + 1) % 7 for day in days})
    runs: list[list[int]] = []
    for day in on:
        if runs and day == runs[-1][-1] + 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    said = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    hours, minutes = divmod(minute, 60)
    later = f",{hours + 1}" if again else ""
    return f"{minutes} {hours}{later} * * {'*' if len(on) == 7 else said}"
