"""The VMs of both control planes: which there are, and which is a deployment's."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from backends.common.concurrency import side_by_side
from backends.tpu import kept as memory
from backends.tpu.chip import Chip, ChipState, Place
from backends.tpu.kept import Kept
from backends.tpu.looks import spec_in
from backends.tpu.names import vm_id
from backends.tpu.planes import ControlPlane
from backends.tpu.site import Site
from core.cloud_errors import ApiDisabled, CloudError, NotOurs, PermissionDenied
from core.errors import DeploymentNotFound, NextStep
from core.records import NAME_PATTERN, DeploymentSpec
from core.reply import note
from planner.places import places

_ALIVE: Final = frozenset(
    {ChipState.RUNNING, ChipState.PROVISIONING, ChipState.STOPPING, ChipState.STOPPED}
)


async def everything(site: Site) -> Sequence[Chip]:
    """Give every TPU of the project, of both control planes, ours and others'.

    A control plane that is off, or that the caller may not ask, is noted.

    Raises:
        CloudError: A control plane cannot be asked now, or neither may be.
    """
    return await site.inventory.read(lambda: _looked(site))


async def chips_of(site: Site, name: str) -> Sequence[Chip]:
    """Give those that carry a deployment's label and this target's, wherever they are, by place.

    Raises:
        CloudError: A control plane cannot be asked.
    """
    found = [
        chip
        for chip in await everything(site)
        if chip.deployment == name and chip.target == site.target.name
    ]
    return sorted(found, key=lambda chip: chip.place)


async def chip_of(site: Site, name: str) -> Chip | None:
    """Give a deployment's VM, or its request; None while nothing in the cloud stands for it.

    Raises:
        DeploymentNotFound: There is no such deployment.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    return await _chip(site, name, memory.of(site, name))


async def spec_of(site: Site, name: str) -> DeploymentSpec | None:
    """Give what was asked for, None where nothing says it any more.

    Raises:
        DeploymentNotFound: There is no such deployment.
    """
    kept = memory.of(site, name)
    if kept:
        return kept.blueprint.spec
    chip = await _chip(site, name, None)
    return spec_in(chip) if chip else None


def known_zones(site: Site) -> Sequence[str]:
    """Give every zone that this machine has heard of, for a plane that cannot list them all."""
    data = {zone for row in places().values() if row.deployable_by == "tpu" for zone in row.regions}
    asked = {place.zone for one in memory.all_of(site) for place in one.blueprint.places}
    return tuple(sorted({site.clients.region, *data, *asked}))


async def _chip(site: Site, name: str, kept: Kept | None) -> Chip | None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise _not_found(site, name)
    where = _where(kept)
    if where:
        found = await site.planes[where.plane].get(where.zone, vm_id(name))
        return found if found and found.deployment == name else None
    if kept:
        return None
    return await _unremembered(site, name)


def _where(kept: Kept | None) -> Place | None:
    """Give where its chip is, or the request that may become one."""
    if kept is None:
        return None
    return kept.placed or (kept.current.place if kept.current else None)


async def _unremembered(site: Site, name: str) -> Chip:
    """Find one that another machine made."""
    chips = await everything(site)
    named = [chip for chip in chips if chip.deployment == name]
    found = best([chip for chip in named if chip.target == site.target.name], None)
    if found:
        return found
    if named:
        raise _not_found(site, name, f": it is on {named[0].target or 'another target'}")
    foreign = next((chip for chip in chips if chip.id == vm_id(name) and not chip.ours), None)
    if foreign:
        raise NotOurs(
            f"{foreign.id} in {foreign.place} was not made here: it is left alone.",
            fix="Take another name.",
        )
    raise _not_found(site, name)


def best(chips: Sequence[Chip], kept: Kept | None) -> Chip | None:
    """Give where it was placed, else the one that lives, else the newest."""
    where = _where(kept)
    if kept:
        return next((chip for chip in chips if chip.place == where), None)
    ranked = sorted(chips, key=lambda chip: (chip.state in _ALIVE, chip.created_at))
    return ranked[-1] if ranked else None


async def _looked(site: Site) -> Sequence[Chip]:
    zones, refused = known_zones(site), list[CloudError]()

    def asked(plane: ControlPlane) -> Callable[[], Awaitable[Sequence[Chip]]]:
        async def ask() -> Sequence[Chip]:
            try:
                return await plane.list(zones)
            except (ApiDisabled, PermissionDenied) as exc:
                refused.append(exc)
                return ()

        return ask

    found = await side_by_side([asked(plane) for plane in site.planes.values()])
    if len(refused) == len(site.planes):
        raise refused[0]
    for exc in refused:
        note(f"{exc.summary} {exc.cause}".strip())
    return tuple(chip for row in found for chip in row)


def _not_found(site: Site, name: str, where: str = "") -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )
