"""Every zone that may have the target's chips, and what can be seen of each."""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio

from backends.base import Zone, ZoneOutcome, ZoneQuota
from backends.google.errors import strictly, why_unread
from backends.tpu import outcomes, prospects, quotas, rules
from backends.tpu.chip import SAID, Place
from backends.tpu.compute_calls import looking
from backends.tpu.pools import NO_LIMIT
from backends.tpu.prospects import Prospect
from backends.tpu.site import Site
from core.cloud_errors import CloudError
from core.reply import note

_SECONDS: Final = 18.0
"""For the answers of all zones together."""
_LISTING_SECONDS: Final = 6.0
_MOST: Final = 30
_MOST_OUTCOMES: Final = 3
_BY_ASKING: Final = "whether a chip is free shows only when one is asked for"


async def look(site: Site) -> Sequence[Zone]:
    """Give every zone that is known or that Google lists, the most promising first.

    Nothing is asked for and nothing changed. What cannot be read is not known and says why.

    Raises:
        NotConfigured: No project is named.
        NotAuthenticated: Nobody is logged in.
    """
    _named = site.clients.project
    _caller = await site.clients.credentials()
    names = await _names(site)
    places = [Place(zone, kind) for zone in names for kind in site.planes]
    counting = await quotas.counted(site)
    found = await prospects.of(site, places, counting, _SECONDS)
    rows = [_zone([one for one in found if one.place.zone == zone]) for zone in names]
    order = {row.zone: number for number, row in enumerate(rows)}
    return sorted(rows, key=lambda row: (_rank(row), order[row.zone]))


async def not_asked(site: Site, asked: Collection[str]) -> Sequence[str]:
    """Name the other zones in which Google lists the machine; none where it does not say."""
    return tuple(zone for zone in await _listed(site) if zone not in asked)


async def _names(site: Site) -> Sequence[str]:
    """Give what is documented, reported, set or remembered, then what Google lists besides."""
    wanted = site.provisioning
    reported = (
        zone
        for row in prospects.reports()
        for zone in row.zones
        if row.provisioning == wanted and row.accepts
    )
    asked = (one.place.zone for one in outcomes.of(site))
    known = dict.fromkeys((site.clients.region, *site.offered.regions, *reported, *asked))
    return tuple(dict.fromkeys((*known, *await _listed(site))))[:_MOST]


async def _listed(site: Site) -> Sequence[str]:
    """Ask Compute Engine which zones have the machine; none where it does not say."""
    machine = rules.generation_of(site.offered).machine_type.format(count=site.offered.count)
    found: list[str] = []
    with anyio.move_on_after(_LISTING_SECONDS):
        try:
            found = await _zones_with(site, machine)
        except CloudError as exc:
            note(f"Which zones there are besides those known here is not known: {why_unread(exc)}")
    return found


async def _zones_with(site: Site, machine: str) -> list[str]:
    client = await site.clients.machine_types()
    request = {
        "project": site.clients.project,
        "filter": f'name = "{machine}"',
    }
    what = f"list the zones that have {machine}"

    def zones(**limits: Any) -> list[str]:
        pager = client.aggregated_list(request=request, **limits)
        return sorted(
            scope.removeprefix("zones/")
            for scope, row in pager
            if any(one.name == machine for one in row.machine_types)
        )

    with strictly(what):
        return await looking(what, zones)


def _zone(seen: Sequence[Prospect]) -> Zone:
    return Zone(
        zone=seen[0].place.zone,
        hardware=_either([one.offer.hardware for one in seen]),
        quotas=tuple(row for one in seen for row in _quotas(one)),
        accepts=_either([one.accepted.yes for one in seen]),
        outcomes=_outcomes(seen),
        verdict=_verdict(seen),
        usable=_either([one.good for one in seen]),
    )


def _either(seen: Sequence[bool | None]) -> bool | None:
    """Say whether it is so by one control plane at least."""
    if True in seen:
        return True
    return None if None in seen else False


def _quotas(seen: Prospect) -> Iterator[ZoneQuota]:
    for row in seen.room.rows:
        used = "" if row.used is None else f"{row.used} in use in {row.limit.where}."
        limit = row.limit.limit
        yield ZoneQuota(
            pool=row.limit.pool.id,
            control_plane=SAID[seen.place.plane],
            limit=None if limit == NO_LIMIT else limit,
            detail=f"{row.limit.detail} {used}".strip(),
        )


def _outcomes(seen: Sequence[Prospect]) -> tuple[ZoneOutcome, ...]:
    now = datetime.now(UTC)
    rows = sorted((row for one in seen for row in one.outcomes), key=lambda row: row.at)
    return tuple(
        ZoneOutcome(
            control_plane=SAID[row.place.plane],
            provisioning=row.provisioning,
            outcome=row.outcome,
            minutes_ago=row.minutes_ago(now),
            detail=row.detail[:300],
        )
        for row in reversed(rows[-_MOST_OUTCOMES:])
    )


def _verdict(seen: Sequence[Prospect]) -> str:
    """Say by which control plane nothing stands against it, and what does by the others."""
    open_by = [SAID[one.place.plane] for one in seen if one.good]
    said = [f"nothing that can be seen stands against {' or '.join(open_by)}"] if open_by else []
    for one in seen:
        if not one.good:
            why = "; ".join(one.against or one.unknown)
            word = "no" if one.against else "not known"
            said.append(f"{SAID[one.place.plane]}: {word}, {why}")
    said += [_BY_ASKING] if open_by else []
    sentence = ". ".join(f"{part[0].upper()}{part[1:].rstrip('.')}" for part in said)
    return f"{sentence}."


def _rank(row: Zone) -> tuple[int, int]:
    """Sort what is usable first; among equals, where a chip was given last."""
    order = {True: 0, None: 1, False: 2}
    given = any(one.outcome == outcomes.GIVEN for one in row.outcomes[:1])
    return (order[row.usable], 0 if given else 1)
