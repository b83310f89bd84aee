"""Waking a service that has no instance: Cloud Run starts one for the first request."""

from datetime import UTC, datetime
from typing import Final

from backends.cloud_run import access, looking
from backends.cloud_run.site import Site
from backends.common.answering import ask

_LONGEST_REQUEST_SECONDS: Final = 1800.0
"""Cloud Run holds a request while an instance starts; source: its startup limit with a GPU."""


async def wake(site: Site, name: str) -> None:
    """Ask for the list of models until it comes; an instance stays about 15 minutes after it.

    Raises:
        EndpointError: The model did not answer.
        DeploymentNotFound: There is no such service.
    """
    service = await looking.service_named(site, name)
    await ask(await access.access(site, name), timeout=_LONGEST_REQUEST_SECONDS)
    site.answered.add(service.latest_ready_revision)
    site.woken[name] = datetime.now(UTC)
