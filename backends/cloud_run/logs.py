"""A deployment's log: what its containers write, and the platform's own lines."""

from backends.base import LogLines
from backends.cloud_run import looking
from backends.cloud_run.entries import wanted
from backends.cloud_run.site import Site
from backends.google import log_entries
from backends.google.moments import when
from core.reply import note


async def read(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Give the newest lines of a deployment, all of its revisions and instances together.

    Raises:
        DeploymentNotFound: There is no such service.
        CloudError: Cloud Logging cannot be asked.
    """
    service = await looking.service_named(site, name)
    found, more = await log_entries.read(
        site, wanted(site, name, when(service.create_time), contains=contains), newest=True
    )
    text = (contains or "").lower()
    texts = [str(line) for line in found if text in line.text.lower()]
    if more:
        note(f"There are more than {len(texts)} such lines: only the newest were read and counted.")
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))
