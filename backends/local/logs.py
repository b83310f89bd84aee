"""What an engine of this machine has written, and what that tells of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import anyio

from backends.base import EngineFacts, LogLines, LogQuery
from backends.common.engine import facts_of
from logs.boot import read_boot
from logs.files import Wanted, head_lines, newest_lines, newest_pages
from logs.lines import Line


def newest(log: Path, lines: int, contains: str | None) -> LogLines:
    """Give the newest lines, and how many there are."""
    found, total = newest_lines(log, lines, contains)
    return LogLines(lines=found, total=total)


async def pages(log: Path, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give what was written since the engine was started last; each block is read in a thread."""
    wanted = Wanted(query.since, query.until, query.contains)
    with closing(newest_pages(log, wanted)) as found:
        while (page := await anyio.to_thread.run_sync(next, found, None)) is not None:
            if page:
                yield page


def facts(log: Path) -> EngineFacts:
    """Give what the boot tells."""
    return facts_of(read_boot(head_lines(log), now=datetime.now(UTC)))
