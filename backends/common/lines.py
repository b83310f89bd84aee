"""Lines of a cloud's log, and the boot that they tell of."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from core.boot_log import PHASES, WARMING, BootLog, clean, read_boot
from core.records import Phase


class Line(NamedTuple):
    """One line of the log."""

    at: datetime
    text: str
    platform: str = ""
    """Who said it, where it was not the container."""
    instance: str = ""

    def __str__(self) -> str:
        """The platform's lines carry no time of their own."""
        if not self.platform:
            return self.text
        return f"{self.at:%m-%d %H:%M:%S} [{self.platform}] {self.text}"


def pieces(text: str) -> list[str]:
    r"""Split what was written at once; a progress bar's steps are lines of their own.

    >>> pieces("10%\r20%\n\ndone")
    ['10%', '20%', 'done']
    """
    parts = (part for row in text.split("\n") for part in row.split("\r"))
    return [part for part in parts if part.strip()]


def boot_of(lines: Sequence[Line]) -> BootLog:
    """Say how far a boot is; its phase began when the cloud received the line that says so.

    The log's own clock is that of a container, whose zone is not ours.
    """
    boot = read_boot((line.text for line in lines), now=datetime.now(UTC))
    phase, since = None, None
    for line in lines:
        text = clean(line.text)
        said = next((name for pattern, name in PHASES if pattern.search(text)), phase)
        if said != phase:
            phase, since = said, line.at
    return boot.model_copy(update={"since": since})


def phase_of(lines: Sequence[Line]) -> Phase:
    """Give the phase that the newest boot among the lines is in; there must be one line."""
    boot = boot_of(lines)
    name = WARMING if boot.started else boot.phase
    return Phase(name=name, since=boot.since or lines[0].at, percent=boot.percent)
