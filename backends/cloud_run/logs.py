"""A deployment's log: what its containers write, and the platform's own lines."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

from google.cloud.run_v2 import Revision

from backends.base import LogLines, LogQuery
from backends.cloud_run.service import get_service
from backends.cloud_run.site import Site
from backends.google import logs
from backends.google.clients import when
from backends.google.logs import any_of, between, quoted, read_page
from core.reply import note
from logs.read import Line

_BOOT: Final = timedelta(hours=1)
"""A boot ends within 30 minutes: Cloud Run's own limit with a GPU."""
_OUTPUT: Final = ("run.googleapis.com/stdout", "run.googleapis.com/stderr")
_SYSTEM: Final = "run.googleapis.com/varlog/system"
_START: Final = "Starting new instance"
"""So Cloud Run says of each that it starts."""


async def boot_lines(
    site: Site, name: str, revision: "Revision", *, newest: bool
) -> Sequence[Line]:
    """Give a revision's output, oldest first: of its newest boot, or of its first."""
    begin = when(revision.create_time)
    until = None if newest else begin + _BOOT
    which = revision.name.rpartition("/")[2]
    query = log_query(site, name, begin, until=until, revision=which)
    found, _ = await read_page(site, query, newest=newest)
    starts = [place for place, line in enumerate(found) if line.platform and _START in line.text]
    output = [line for line in found[starts[-1] if newest and starts else 0 :] if not line.platform]
    one = output[-1 if newest else 0].instance if output else ""
    return [line for line in output if line.instance == one]


def log_query(
    site: Site,
    name: str,
    begin: datetime,
    *,
    until: datetime | None = None,
    revision: str | None = None,
    contains: Sequence[str] = (),
    platform: bool = True,
) -> str:
    """Write the query; without a begin it would read a day of everything."""
    which = " OR ".join(
        f"log_id({quoted(log)})" for log in (*_OUTPUT, *([_SYSTEM] if platform else []))
    )
    terms = [
        'resource.type="cloud_run_revision"',
        f"resource.labels.service_name={quoted(name)}",
        f"resource.labels.location={quoted(site.clients.region)}",
        between(begin, until),
        f"({which})",
    ]
    terms += [f"resource.labels.revision_name={quoted(revision)}"] if revision else []
    words = any_of("", contains, besides=" AND ".join(terms))
    return " AND ".join([*terms, words] if words else terms)


async def read_logs(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Give the newest lines of a deployment, all of its revisions and instances together."""
    service = await get_service(site, name)
    words = (contains,) if contains else ()
    asked = log_query(site, name, when(service.create_time), contains=words)
    found, more = await logs.read_page(site, asked, newest=True)
    text = (contains or "").lower()
    texts = [str(line) for line in found if text in line.text.lower()]
    if more:
        note(f"There are more than {len(texts)} such lines: only the newest were read and counted.")
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def log_pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give every line since the service was made, the newest page first."""
    made = when((await get_service(site, name)).create_time)
    asked = log_query(
        site,
        name,
        max(made, query.since or made),
        until=query.until,
        contains=query.contains,
        platform=query.platform,
    )
    async with aclosing(logs.all_entries(site, asked)) as found:
        async for entries in found:
            lines = [line for entry in entries for line in logs.lines_of(entry)]
            for page in logs.pages_of(lines, query):
                yield page
