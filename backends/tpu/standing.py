"""What stands in the cloud under a deployment's name, whichever machine made it."""

from collections.abc import Collection, Sequence

from backends.google.clients import SPEC_LABEL
from backends.tpu import kept as memory
from backends.tpu import looking
from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Chip, ChipState, Place
from backends.tpu.names import vm_id
from backends.tpu.site import Site
from core.cloud_errors import NotOurs
from core.reply import note

_LIVES = (ChipState.WAITING, ChipState.PROVISIONING, ChipState.RUNNING, ChipState.STOPPED)


async def named(site: Site, name: str, places: Collection[Place] = ()) -> Sequence[Chip]:
    """Give every TPU with a deployment's label or id, looked for now, whoever made it.

    At `places` it is looked for by its id, should a list not have it.

    Raises:
        CloudError: The control planes cannot be asked.
    """
    site.inventory.forget()
    chips = await looking.everything(site)
    found = [one for one in chips if one.deployment == name or one.id == vm_id(name)]
    seen = {one.place for one in found}
    return [*found, *await at(site, name, [place for place in places if place not in seen])]


async def at(site: Site, name: str, places: Collection[Place]) -> Sequence[Chip]:
    """Look for a deployment's id at some places. Raises as `named` does."""
    looked = [await site.planes[place.plane].get(place.zone, vm_id(name)) for place in places]
    return [chip for chip in looked if chip is not None]


def ours(site: Site, name: str, chip: Chip) -> bool:
    """Whether a chip is a deployment of this target."""
    return chip.deployment == name and chip.target == site.target.name


def wanted(site: Site, made: Blueprint, chip: Chip) -> bool:
    """Whether a chip was asked for by just this blueprint's spec, here or on another machine."""
    same = chip.labels.get(SPEC_LABEL) == made.labels[SPEC_LABEL]
    return same and ours(site, made.spec.name, chip)


def lives(chip: Chip) -> bool:
    """Whether it has its chips, or may still get them."""
    return chip.state in _LIVES


def refuse_others(site: Site, name: str, chips: Sequence[Chip]) -> None:
    """Refuse a name under which something stands, or is remembered, that is not this target's.

    Raises:
        NotOurs: So it is; it is left alone.
    """
    foreign = next((one for one in chips if not one.ours), None)
    if foreign is not None:
        raise not_ours(foreign, fix="Deploy under another name.")
    other = next((one.target for one in chips if one.target != site.target.name), "")
    other = other or memory.elsewhere(site, name)
    if other:
        raise NotOurs(
            f"{name} belongs to the target {other}.",
            fix=f"Deploy under another name, or to {other}.",
        )


def not_ours(chip: Chip, *, fix: str) -> NotOurs:
    """Say that something of a deployment's id was not made here."""
    return NotOurs(
        f"{chip.id} in {chip.place} was not made here; it is left alone.",
        cause=f"It is {chip.said}.",
        fix=fix,
    )


def note_others(chips: Sequence[Chip]) -> None:
    """Tell of what has a deployment's id and is left alone."""
    for chip in chips:
        if not chip.ours:
            note(f"{chip.id} in {chip.place} was not made here; it is left alone.")
