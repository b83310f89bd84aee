"""Every TPU of the project as a row of one list, and the leftovers among them taken away."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from backends.base import QueuedResource
from backends.tpu import finding
from backends.tpu.chip import SAID, Chip, Place
from backends.tpu.kept import locked
from backends.tpu.site import Site
from core.cloud_errors import NotOurs
from core.errors import InvalidArgument, NextStep, NotFound, WaitedTooLong
from core.waiting import wait_until

_GONE_SECONDS: Final = 20.0
_EVERY_SECONDS: Final = 1.0
_LIST: Final = (NextStep("list_queued_resources"),)


async def everything(site: Site) -> Sequence[QueuedResource]:
    """Give every one of both control planes, ours and others'; leftovers of ours first, then ours.

    Raises:
        CloudError: Google cannot be asked.
    """
    chips = sorted(
        await finding.everything(site), key=lambda one: (not one.ours, not one.state.leftover)
    )
    return tuple(_row(chip) for chip in chips)


async def delete_leftover(site: Site, zone: str, resource: str) -> bool:
    """Delete a request of ours that has no chip any more; whether it was seen to be gone.

    Raises:
        NotFound: There is none of that id in the zone.
        NotOurs: It was not made here.
        InvalidArgument: It is no leftover: a deployment stands on it, or waits for it.
        CloudError: Google refuses, or does not answer.
    """
    site.inventory.forget()
    chip = await _leftover(site, zone, resource)
    home = replace(site, folder=site.shared / (chip.target or site.target.name))
    async with locked(home, chip.deployment or chip.id):
        plane = site.planes[chip.place.plane]
        now = await plane.get(zone, resource)
        if now is None:
            return True
        _require_leftover(now)
        await plane.delete(zone, resource)
        site.inventory.forget()
        return await _gone(site, chip.place, resource)


async def _leftover(site: Site, zone: str, resource: str) -> Chip:
    named = [
        one
        for one in await finding.everything(site)
        if (one.place.zone, one.id) == (zone, resource)
    ]
    if not named:
        raise NotFound(
            f"Nothing named {resource[:80]} is in {zone[:40]}.",
            fix="Call list_queued_resources for what there is.",
            next_steps=_LIST,
        )
    chip = next((one for one in named if one.ours and one.state.leftover), named[0])
    _require_leftover(chip)
    return chip


def _require_leftover(chip: Chip) -> None:
    if not chip.ours:
        raise NotOurs(
            f"{chip.id} in {chip.place} was not made here: it is left alone.",
            fix="Delete it where it was made.",
            next_steps=_LIST,
        )
    if not chip.state.leftover:
        here = {"target": chip.target, "name": chip.deployment}
        raise InvalidArgument(
            f"{chip.id} in {chip.place} is {chip.said}: no leftover.",
            fix=f"Remove its deployment: destroy_vllm(target={chip.target!r},"
            f" name={chip.deployment!r}).",
            next_steps=(NextStep("destroy_vllm", here),) if chip.deployment else _LIST,
        )


async def _gone(site: Site, place: Place, resource: str) -> bool:
    """Look until it is there no more; False where that takes longer."""
    try:
        await wait_until(
            lambda: site.planes[place.plane].get(place.zone, resource),
            lambda chip: chip is None,
            waiting_for=f"{resource} to be gone",
            every=_EVERY_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    return True


def _row(chip: Chip) -> QueuedResource:
    return QueuedResource(
        id=chip.id,
        zone=chip.place.zone,
        control_plane=SAID[chip.place.plane],
        state=chip.said,
        node=f"{chip.node} {chip.node_said}".strip(),
        health=chip.health,
        accelerator=chip.accelerator,
        provisioning=chip.provisioning,
        external_ip=chip.external_ip,
        created_at=f"{chip.created_at:%F %H:%M}",
        ours=chip.ours,
        deployment=chip.deployment,
        target=chip.target,
        leftover=chip.state.leftover,
        why=chip.why,
    )
