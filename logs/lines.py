"""One line of a log, whoever wrote it."""

import re
from datetime import datetime
from typing import Final, NamedTuple

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


def clean(line: str) -> str:
    r"""Take colours and control characters out of a line.

    >>> clean("\x1b[0;36m(EngineCore)\x1b[0m ready")
    '(EngineCore) ready'
    """
    return _CONTROL.sub("", line)


def pieces(text: str) -> list[str]:
    r"""Split what was written at once; a progress bar's steps are lines of their own.

    >>> pieces("10%\r20%\n\ndone")
    ['10%', '20%', 'done']
    """
    parts = (part for row in text.split("\n") for part in row.split("\r"))
    return [part for part in parts if part.strip()]
