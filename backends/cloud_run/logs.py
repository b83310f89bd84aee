"""A deployment's log: what its containers write, and the platform's own lines."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from backends.base import LogLines, LogQuery
from backends.cloud_run import looking
from backends.cloud_run.entries import wanted
from backends.cloud_run.site import Site
from backends.google import log_entries
from backends.google.moments import when
from core.reply import note
from logs.lines import Line


async def read(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Give the newest lines of a deployment, all of its revisions and instances together.

    Raises:
        DeploymentNotFound: There is no such service.
        CloudError: Cloud Logging cannot be asked.
    """
    service = await looking.service_named(site, name)
    words = (contains,) if contains else ()
    asked = wanted(site, name, when(service.create_time), contains=words)
    found, more = await log_entries.read(site, asked, newest=True)
    text = (contains or "").lower()
    texts = [str(line) for line in found if text in line.text.lower()]
    if more:
        note(f"There are more than {len(texts)} such lines: only the newest were read and counted.")
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give every line since the service was made, the newest page first.

    Raises:
        DeploymentNotFound: There is no such service.
        CloudError: Cloud Logging cannot be asked.
    """
    made = when((await looking.service_named(site, name)).create_time)
    asked = wanted(
        site,
        name,
        max(made, query.since or made),
        until=query.until,
        contains=query.contains,
        platform=query.platform,
    )
    async with aclosing(log_entries.all_entries(site, asked)) as found:
        async for entries in found:
            lines = [line for entry in entries for line in log_entries.lines_of(entry)]
            for page in log_entries.pages_of(lines, query):
                yield page
