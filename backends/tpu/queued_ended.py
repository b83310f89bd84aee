"""What a zone has for queued resources, and what became of one."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from backends.common.concurrency import side_by_side
from backends.google.errors import reading, translated
from backends.tpu.chip import Chip, Ended
from backends.tpu.clients import Clients
from backends.tpu.planes import Offer
from backends.tpu.refusals import meaning
from core.errors import OpsError


def ended(chip: Chip | None, now: datetime) -> Ended | None:
    """Say why a request has no VM any more; None while it has one or may get one.

    A request that was not deleted stays in the queue, so one that is gone was deleted.
    """
    if chip is None:
        return Ended("DELETED_ELSEWHERE", None, "The queued resource is there no more.")
    words = f"{chip.said}. {chip.why}".strip()
    if not (chip.state.leftover or chip.taken_by):
        return None
    if chip.taken_by == "user":
        return Ended("DELETED_ELSEWHERE", None, words)
    if chip.taken_by != "service":
        return Ended("NOT_KNOWN", None, words)
    if chip.provisioning == "flex-start":  # it is never preempted
        over = chip.ends_at if chip.ends_at and chip.ends_at <= now else None
        return Ended("EXPIRED", over, words)
    return Ended("PREEMPTED", None, words)


async def offer(clients: Clients, zone: str, accelerator: str) -> Offer:
    """Say whether a zone has an accelerator, and which images for it.

    Raises:
        OpsError: Google does not tell, for another reason than that the zone has no TPUs.
    """
    try:
        types, versions = await side_by_side(
            [partial(_types, clients, zone), partial(_versions, clients, zone)]
        )
    except OpsError as exc:
        if meaning(exc.cause) != "ZONE_REFUSED":
            raise
        return Offer(hardware=False, detail=exc.cause)
    if accelerator not in types:
        return Offer(hardware=False, detail=f"The zone has no {accelerator}.")
    generation = accelerator.partition("-")[0]
    images = [one for one in versions if generation in one]
    return Offer(hardware=True, detail=f"{accelerator}; images: {', '.join(images) or 'not said'}")


async def _types(clients: Clients, zone: str) -> Sequence[str]:
    from google.api_core.exceptions import NotFound

    client, found = await clients.tpu(), []
    parent = f"projects/{clients.project}/locations/{zone}"
    try:
        with translated(f"see which accelerators {zone} has"):
            pager = await client.list_accelerator_types(parent=parent, **reading())
            async for page in pager.pages:
                found += [str(one.type_) for one in page.accelerator_types]
    except NotFound:
        return ()
    return found


async def _versions(clients: Clients, zone: str) -> Sequence[str]:
    from google.api_core.exceptions import NotFound

    client, found = await clients.tpu(), []
    parent = f"projects/{clients.project}/locations/{zone}"
    try:
        with translated(f"see which images {zone} has"):
            pager = await client.list_runtime_versions(parent=parent, **reading())
            async for page in pager.pages:
                found += [str(one.version) for one in page.runtime_versions]
    except NotFound:
        return ()
    return found
