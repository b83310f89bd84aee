"""A plan made true: key, firewall rule and the first request for a chip, after what stood there."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from backends.google import images, secrets
from backends.google.clients import HF_SECRET, SPEC_LABEL
from backends.tpu import changing, firewall, going_on, outcomes, searching, standing
from backends.tpu import kept as memory
from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Chip, ChipState, Place
from backends.tpu.drawing import blueprint
from backends.tpu.kept import Kept
from backends.tpu.site import Site
from core import cloud_errors
from core.cloud_errors import CloudError, NoCapacity, QuotaExceeded, ZoneRefused
from core.errors import OpsError
from core.plans import Plan
from core.records import DeploymentSpec, Failure
from core.reply import note

_GO_SECONDS: Final = 6.0
"""For the first steps of a search; the next ones are taken by whoever looks."""
_LATELY: Final = timedelta(days=1)
_LAST: Final = frozenset({QuotaExceeded.code, ZoneRefused.code})
"""What does not change by the minute, as capacity does."""


async def apply(site: Site, plan: Plan) -> None:
    """Make it so, as far as can be done at once; neither a chip nor a boot is waited for.

    What stands already is left as it is, what is under way goes on, what failed is tried anew.
    What stands with another spec is deleted first, and seen to be gone.

    Raises:
        NotOurs: Something else has that name; it is left alone.
        Busy: Another server on this machine is at it.
        CloudError: Google refused; what this call made is removed again.
    """
    spec = plan.spec
    async with memory.locked(site, spec.name):
        before = memory.of(site, spec.name)
        chips = await refuse_others(site, spec.name)
        made = blueprint(site, spec, plan.model, hf_token=await _hub_token(site, spec))
        if await _stands(site, plan, made, before, chips):
            return
        await _begin(site, plan, await _pinned(site, made), before, chips)


async def refuse_others(site: Site, name: str) -> Sequence[Chip]:
    """Return what stands under a name.

    Raises:
        NotOurs: It was not made here, or is another target's; it is left alone.
        CloudError: A control plane cannot be asked.
    """
    before = memory.of(site, name)
    chips = await standing.named(site, name, before.left if before else ())
    standing.refuse_others(site, name, chips)
    return chips


async def _stands(
    site: Site, plan: Plan, made: Blueprint, before: Kept | None, chips: Sequence[Chip]
) -> bool:
    """Whether what is wanted is there, or under way; what another machine made is gone on with."""
    same = before is not None and _same(before, made)
    if before is not None and before.removing:
        return False
    if before is not None and same and before.failure is None and not searching.over(before):
        return True
    living = [one for one in chips if standing.lives(one)]
    if len(living) != 1 or not standing.wanted(site, made, living[0]):
        return False
    chip = living[0]
    if chip.state is ChipState.STOPPED:
        await changing.started(site, chip)
    if before is None or not same or before.placed != chip.place:
        memory.keep(site, _adopted(plan, made, chip))
    for leftover in (one for one in chips if one is not chip):
        note(
            f"{leftover.id} in {leftover.place} is {leftover.said}; it holds quota until it is"
            " deleted."
        )
    return True


def _same(before: Kept, made: Blueprint) -> bool:
    return before.blueprint.labels[SPEC_LABEL] == made.labels[SPEC_LABEL]


def _adopted(plan: Plan, made: Blueprint, chip: Chip) -> Kept:
    """Remember what another machine made, as if it had been made here."""
    had = chip.state not in {ChipState.WAITING, ChipState.PROVISIONING}
    begun = searching.begun(chip.place, chip.created_at)
    if had:
        last = begun.model_copy(update={"outcome": outcomes.GIVEN, "returned": True})
    else:
        last = begun.model_copy(update={"taken": True})
    return Kept(
        blueprint=made,
        model=plan.model,
        since=chip.created_at,
        attempts=(last,),
        placed=chip.place if had else None,
    )


async def _begin(
    site: Site, plan: Plan, made: Blueprint, before: Kept | None, chips: Sequence[Chip]
) -> None:
    """Make key and firewall rule, delete what stood there, and ask at the first place."""
    name = made.spec.name
    keyed = site.key_secret(name) in made.container.secrets.values()
    key_made = keyed and await secrets.keep_key(site, name)
    known = before.left if before else {}
    kept = Kept(
        blueprint=made,
        model=plan.model,
        since=datetime.now(UTC),
        replacing=tuple(dict.fromkeys((*known, *(one.place for one in chips)))),
        late=max((at for at in known.values() if at), default=None),
        key_made=key_made,
    )
    try:
        await firewall.open(site, made)
        memory.keep(site, kept)
    except OpsError:
        if key_made:
            await secrets.take_back(site, site.key_secret(name))
        raise
    await going_on.proceed(site, kept, seconds=_GO_SECONDS)
    _tell_refusal(site, name)


def _tell_refusal(site: Site, name: str) -> None:
    """Raise what stands against it everywhere; that no place has a chip is a state to be told."""
    kept = memory.of(site, name)
    failure = kept.failure if kept else None
    if kept is None or failure is None or kept.left or failure.code == NoCapacity.code:
        return
    memory.forget(site, name)
    raise _error(failure)


def _error(failure: Failure) -> OpsError:
    kinds = (kind for kind in vars(cloud_errors).values() if isinstance(kind, type))
    coded = (kind for kind in kinds if issubclass(kind, CloudError) and kind.code == failure.code)
    kind = next(coded, CloudError)
    return kind("Google refused to give a chip.", cause=failure.cause, fix=failure.fix)


async def _pinned(site: Site, made: Blueprint) -> Blueprint:
    """Name the image by its digest, and ask last where it was lately said to be of no use."""
    image = await images.pinned(site, made.container.image)
    if image is None:
        note(f"{made.container.image} is not pinned: its registry cannot be asked.")
    container = made.container.model_copy(update={"image": image or made.container.image})
    return made.model_copy(update={"container": container, "places": _ordered(site, made)})


def _ordered(site: Site, made: Blueprint) -> tuple[Place, ...]:
    now, late = datetime.now(UTC), dict[Place, str]()
    for place in made.places:
        newest = next(iter(outcomes.of(site, place)), None)
        if newest and newest.outcome in _LAST and now - newest.at < _LATELY:
            late[place] = f"{newest.outcome} {newest.minutes_ago(now)} min ago"
    if late and len(late) < len(made.places):
        said = ", ".join(f"{place} ({why})" for place, why in late.items())
        note(f"Asked last, for it was refused there within a day: {said}.")
    return tuple(sorted(made.places, key=lambda place: place in late))


async def _hub_token(site: Site, spec: DeploymentSpec) -> bool:
    """Whether the Hub's token is kept; one of the settings is kept now."""
    if (spec.weights or "hub") != "hub":
        return False
    if await secrets.exists(site, HF_SECRET):
        return True
    if site.settings.hf_token is None:
        return False
    await secrets.keep(site, HF_SECRET, site.settings.hf_token)
    return True
