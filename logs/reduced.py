"""A log reduced to its templates."""

from datetime import datetime

from core.records import Record
from logs.severity import Severity


class Sample(Record):
    """One line of the log, without secrets and personal data."""

    at: datetime
    text: str
    """At most 400 characters."""
    number: int
    """Its place among the lines read, from 1, in the order of time."""


class Template(Record):
    """Lines that say the same of different things."""

    text: str
    """What they have in common; `<*>` is what varies."""
    count: int
    severity: Severity
    first: Sample
    last: Sample
    platform: str = ""
    """Who said it, where it was not the container."""
    rare: bool = False
    """Seen once or twice in a log of a thousand lines or more."""

    def __str__(self) -> str:
        """Say it in one line, by the newest of its lines."""
        by = f" by {self.platform}" if self.platform else ""
        rare = ", rare" if self.rare else ""
        return f"[{self.severity}{by}{rare}, {times(self.count, self.last.at)}] {self.last.text}"


class Reduced(Record):
    """What any number of lines come down to."""

    lines: int
    characters: int
    since: datetime | None
    """The time of the first line; None without lines."""
    until: datetime | None
    templates: tuple[Template, ...]
    """Gravest first; among those, the most frequent and the newest take turns."""
    templates_left_out: int = 0
    """Less grave, or less frequent and older, than all that are here."""
    lines_left_out: int = 0
    """Lines of those; with the counts of `templates` they make `lines`."""
    cut: int = 0
    """Lines that were too long and of which only the beginning counted."""
    masked: dict[str, int] = {}
    """What was taken out of the texts that are here, by kind: secret, prompt, email, address."""


def times(count: int, last: datetime) -> str:
    """Say how often, and when last.

    >>> times(3, datetime(2026, 11, 22, 6, 0))
    '3 times, last 11-22 06:00:00'
    """
    at = f"{last:%m-%d %H:%M:%S}"
    return at if count == 1 else f"{count} times, last {at}"
