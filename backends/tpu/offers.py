"""Which places have the hardware: asked side by side, and once for all targets with such chips."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from backends.google.errors import why_unread
from backends.tpu.chip import Place
from backends.tpu.planes import Offer
from backends.tpu.site import Site
from core.cloud_errors import CloudError

_FRESH_SECONDS: Final = 20.0
"""Hardware comes and goes in months; nine targets that are asked together ask once."""


async def offers_of(site: Site, places: Sequence[Place], seconds: float) -> Mapping[Place, Offer]:
    """Give what every place has, within so many seconds; what does not answer is not known."""
    return await _shared(site.shared, site.clients.project).of(site, places, seconds)


class _Known(NamedTuple):
    offer: Offer
    at: float


class _Last:
    """What was seen last."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._known: dict[tuple[str, Place], _Known] = {}

    async def of(
        self, site: Site, places: Sequence[Place], seconds: float
    ) -> Mapping[Place, Offer]:
        async with self._locks[site.accelerator]:
            now = anyio.current_time()
            found = {
                place: known.offer
                for place in places
                if (known := self._known.get((site.accelerator, place)))
                and now - known.at <= _FRESH_SECONDS
            }
            missing = [place for place in places if place not in found]
            found |= await _asked(site, missing, seconds)
            self._keep(site.accelerator, {place: found[place] for place in missing})
            return found

    def _keep(self, accelerator: str, found: Mapping[Place, Offer]) -> None:
        now = anyio.current_time()
        for place, offer in found.items():
            if offer.hardware is not None:
                self._known[accelerator, place] = _Known(offer, now)


@cache
def _shared(_folder: Path, _project: str) -> _Last:
    return _Last()


async def _asked(site: Site, places: Sequence[Place], seconds: float) -> dict[Place, Offer]:
    found = dict.fromkeys(places, Offer(None, f"no answer within {seconds:.0f} s"))

    async def ask(place: Place) -> None:
        plane = site.planes[place.plane]
        try:
            found[place] = await plane.offer(place.zone, site.accelerator)
        except CloudError as exc:
            found[place] = Offer(None, why_unread(exc))

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for place in places:
                group.start_soon(ask, place)
    return found
