"""A deployment's log read page by page, until all, enough or no more time."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

import anyio

from backends.base import LogQuery, StreamsLogs
from core.errors import Unsupported
from core.records import Record
from logs.read import Line
from operations.resolve import Found

READ_SECONDS: Final = 20.0
"""Of a call's 45 s; the rest is for what is made of the lines."""

Feed = Callable[[Sequence[Line]], None]
"""Takes one page, oldest line first; the newest page comes first."""


class ReadSoFar(Record):
    """How much of a log was read."""

    lines: int
    complete: bool
    left_out: str = ""
    """What was not read, and why."""


async def read_log(
    found: Found,
    query: LogQuery,
    feeds: Sequence[Feed],
    *,
    most_lines: int,
    seconds: float = READ_SECONDS,
) -> ReadSoFar:
    """Give each page to all feeds, newest first.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    backend = _streaming(found)
    lines, enough = 0, False
    with anyio.move_on_after(seconds) as limit:
        async with aclosing(backend.log_pages(found.name, query)) as pages:
            async for page in pages:
                kept = page[-(most_lines - lines) :]
                for feed in feeds:
                    feed(kept)
                lines += len(kept)
                if enough := lines >= most_lines:
                    break
                await anyio.lowlevel.checkpoint()
    left_out = f"Whatever is older than {lines} lines." if enough else ""
    if limit.cancelled_caught:
        left_out = f"Older lines: {seconds:.0f} s were over."
    return ReadSoFar(lines=lines, complete=not left_out, left_out=left_out)


def _streaming(found: Found) -> StreamsLogs:
    if isinstance(found.backend, StreamsLogs):
        return found.backend
    raise Unsupported(
        f"{found.deployment.target} keeps no logs that can be read from here.",
        fix="Read them where the endpoint runs.",
    )
