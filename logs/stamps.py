"""The time that a line of vLLM's says it was written at."""

import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from logs.lines import clean

_STAMP: Final = re.compile(
    r"(?:\([^()]{1,80}\) ?)*(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b",
    re.ASCII,
)
"""At the line's begin, behind its process' name: what stands further in may be a
prompt's. Source: the formats of vllm/logging_utils and vllm/envs.py, vLLM 0.10 to 0.33."""
_KNOWN: Final = 4096
"""Stamps kept: a busy log has many lines of each second."""


class Stamps:
    """Reads stamps, which tell neither year nor zone: they are of this machine, and not to come."""

    def __init__(self, now: datetime) -> None:
        self._latest = now + timedelta(days=1)
        self._years = (now.year + 1, now.year, now.year - 1)
        self._read: dict[tuple[str, ...], datetime | None] = {}

    def of(self, line: str) -> datetime | None:
        """Give a line's own time, None where it tells none.

        >>> now = datetime(2026, 1, 1, tzinfo=UTC)
        >>> Stamps(now).of("(EngineCore pid=7) INFO 12-31 01:50:17 [core.py:1] up").year
        2025
        """
        match = _STAMP.match(clean(line) if "\x1b" in line else line)
        if match is None:
            return None
        said = match.groups()
        if said not in self._read:
            if len(self._read) >= _KNOWN:
                self._read.clear()
            self._read[said] = self._moment(*map(int, said))
        return self._read[said]

    def _moment(self, month: int, day: int, hour: int, minute: int, second: int) -> datetime | None:
        for year in self._years:
            with contextlib.suppress(ValueError):  # not every year has a 29 February
                local = datetime(year, month, day, hour, minute, second).astimezone()
                if local <= self._latest:
                    return local.astimezone(UTC)
        return None
