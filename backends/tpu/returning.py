"""A request, or the VM that came of it, given back: deleted, and seen to be gone."""

from datetime import datetime, timedelta
from typing import Final

from backends.tpu import standing
from backends.tpu.chip import ChipState, Place
from backends.tpu.names import vm_id
from backends.tpu.site import Site
from core.cloud_errors import CloudRefused
from core.reply import note

_LATE: Final = timedelta(seconds=30)
"""So long after a call without an answer, what it asked for may still come into being."""


async def gone(
    site: Site, name: str, place: Place, *, now: datetime, asked: datetime | None = None
) -> bool:
    """Ask to delete what a deployment has at a place, unless it is being deleted already.

    Whether it is seen that there is nothing; `asked` is when it was asked for, where no answer
    came. Google may take ten minutes for a deletion: look again. What is not ours stays.

    Raises:
        CloudError: Google refused, or did not answer.
    """
    plane = site.planes[place.plane]
    chip = await plane.get(place.zone, vm_id(name))
    if chip is None:
        return asked is None or now - asked >= _LATE
    if not standing.ours(site, name, chip):
        return True
    if chip.state is not ChipState.DELETING:
        site.inventory.forget()
        try:
            await plane.delete(place.zone, chip.id)
        except CloudRefused as exc:  # as for one that is being made: the next look asks again
            note(f"{chip.id} in {place} could not be deleted yet: {exc.cause or exc.summary}")
    return False
