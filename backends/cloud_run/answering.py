"""Whether the model answers: asked once for each revision, and only while an instance is there."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from backends.cloud_run import access
from backends.cloud_run.site import Site
from backends.common.answering import silence
from core.records import Failure

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

IDLE: Final = timedelta(minutes=15)
"""An instance without requests is kept no longer; source: Cloud Run, about instance autoscaling."""


async def unanswered(site: Site, name: str, service: "Service") -> Failure | None:
    """Ask the model, unless it has answered before; None once it has, else why it has not."""
    revision = service.latest_ready_revision
    if revision in site.answered:
        return None
    failure = await silence(lambda: access.access(site, name), "Its revision")
    if failure is None:
        site.answered.add(revision)
        site.woken[name] = datetime.now(UTC)
    return failure
