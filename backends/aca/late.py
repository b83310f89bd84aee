"""A boot that outlasts Azure's own patience: it calls revision or app failed, and both go on."""

from typing import TYPE_CHECKING

from backends.aca import conditions, operations
from backends.aca.replicas import Held
from backends.aca.site import Site

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp


def goes_on(newest: Held) -> bool:
    """Whether a replica may still become ready."""
    replica = newest.newest
    if replica is None:
        return not newest.broken
    words = (newest.error, newest.details, replica.details)
    if replica.restarts or conditions.is_certain(words):
        return False
    return replica.started or not newest.broken or conditions.is_late(words)


async def only_late(site: Site, app: "ContainerApp", newest: Held | None) -> bool:
    """Whether nothing is known against an app that Azure calls failed but that its boot took long.

    A creation is given up after some twenty minutes ("Operation expired"), and its replica boots
    on, is billed, and answers when it is ready. Source: hashicorp/terraform-provider-azurerm issue
    22432; public records of apps that ran all the same, 2026.
    """
    if newest is None:
        return False
    kept = await operations.failure_of(site, str(app.name))
    if kept and not conditions.is_late((kept.cause,)):
        return False
    was_ready = newest.name == app.latest_ready_revision_name
    return was_ready or newest.ready or (bool(newest.number) and goes_on(newest))
