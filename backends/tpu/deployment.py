"""A deployment made, stopped, started, gone on with and taken away."""

import re
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio

from backends.base import Leaving
from backends.google import images, secrets
from backends.google.clients import HF_SECRET, SPEC_LABEL
from backends.tpu import firewall, search, store, zones
from backends.tpu.chips import (
    chip_of,
    find_at,
    find_named,
    is_alive,
    is_ours,
    is_wanted,
    not_ours_error,
    note_others,
    refuse_foreign,
)
from backends.tpu.site import SAID, Blueprint, Chip, ChipState, Place, Site, vm_id
from backends.tpu.store import SearchRecord
from backends.tpu.vm import blueprint
from core import errors
from core.errors import (
    Busy,
    CloudError,
    DeploymentNotFound,
    HostError,
    NextStep,
    NoCapacity,
    NotAuthenticated,
    OpsError,
    QuotaExceeded,
    Unsupported,
    WaitedTooLong,
    ZoneRefused,
)
from core.records import NAME_PATTERN, Deleted, DeploymentSpec, Failure, Plan, Remainder
from core.reply import note
from core.waiting import wait_until

_DEPLOY_GO_SECONDS: Final = 6.0
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
    async with store.locked(site, spec.name):
        before = store.record_of(site, spec.name)
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
    before = store.record_of(site, name)
    chips = await find_named(site, name, before.left if before else ())
    refuse_foreign(site, name, chips)
    return chips


async def _stands(
    site: Site, plan: Plan, made: Blueprint, before: SearchRecord | None, chips: Sequence[Chip]
) -> bool:
    """Whether what is wanted is there, or under way; what another machine made is gone on with."""
    same = before is not None and _same(before, made)
    if before is not None and before.removing:
        return False
    if before is not None and same and before.failure is None and not search.is_over(before):
        return True
    living = [one for one in chips if is_alive(one)]
    if len(living) != 1 or not is_wanted(site, made, living[0]):
        return False
    chip = living[0]
    if chip.state is ChipState.STOPPED:
        await ensure_started(site, chip)
    if before is None or not same or before.placed != chip.place:
        store.keep_record(site, _adopted(plan, made, chip))
    for leftover in (one for one in chips if one is not chip):
        note(
            f"{leftover.id} in {leftover.place} is {leftover.said}; it holds quota until it is"
            " deleted."
        )
    return True


def _same(before: SearchRecord, made: Blueprint) -> bool:
    return before.blueprint.labels[SPEC_LABEL] == made.labels[SPEC_LABEL]


def _adopted(plan: Plan, made: Blueprint, chip: Chip) -> SearchRecord:
    """Remember what another machine made, as if it had been made here."""
    had = chip.state not in {ChipState.WAITING, ChipState.PROVISIONING}
    begun = search.new_attempt(chip.place, chip.created_at)
    if had:
        last = begun.model_copy(update={"outcome": store.GIVEN, "returned": True})
    else:
        last = begun.model_copy(update={"taken": True})
    return SearchRecord(
        blueprint=made,
        model=plan.model,
        since=chip.created_at,
        attempts=(last,),
        placed=chip.place if had else None,
    )


async def _begin(
    site: Site, plan: Plan, made: Blueprint, before: SearchRecord | None, chips: Sequence[Chip]
) -> None:
    """Make key and firewall rule, delete what stood there, and ask at the first place."""
    name = made.spec.name
    keyed = site.key_secret(name) in made.container.secrets.values()
    key_made = keyed and await secrets.keep_key(site, name)
    known = before.left if before else {}
    kept = SearchRecord(
        blueprint=made,
        model=plan.model,
        since=datetime.now(UTC),
        replacing=tuple(dict.fromkeys((*known, *(one.place for one in chips)))),
        late=max((at for at in known.values() if at), default=None),
        key_made=key_made,
    )
    try:
        await firewall.open(site, made)
        store.keep_record(site, kept)
    except OpsError:
        if key_made:
            await secrets.take_back(site, site.key_secret(name))
        raise
    await proceed(site, kept, seconds=_DEPLOY_GO_SECONDS)
    _tell_refusal(site, name)


def _tell_refusal(site: Site, name: str) -> None:
    """Raise what stands against it everywhere; that no place has a chip is a state to be told."""
    kept = store.record_of(site, name)
    failure = kept.failure if kept else None
    if kept is None or failure is None or kept.left or failure.code == NoCapacity.code:
        return
    store.forget_record(site, name)
    raise _error(failure)


def _error(failure: Failure) -> OpsError:
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
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
        newest = next(iter(store.outcomes_of(site, place)), None)
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


_STOPPED = (ChipState.STOPPED, ChipState.STOPPING)


async def stop(site: Site, name: str) -> None:
    """Ask to stop its VM, so that its chips bill no more; one that is stopped stays so.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        Unsupported: It could not be started again.
        CloudError: Google refused.
    """
    async with store.locked(site, name):
        chip = await _there_change(site, name)
        _refuse(site, name, chip)
        if chip.state not in _STOPPED:
            await site.planes[chip.place.plane].stop(chip.place.zone, chip.id)
            site.inventory.forget()


async def start(site: Site, name: str) -> None:
    """Ask to start its VM again, which needs its chips to be free. Raises as `stop` does.

    Raises:
        NoCapacity: They are not.
    """
    async with store.locked(site, name):
        await ensure_started(site, await get_startable(site, name))


def one_vm(name: str, minimum: int, maximum: int) -> Unsupported:
    """Say that a deployment on TPUs has no replicas."""
    return Unsupported(
        f"{name} cannot have {minimum} to {maximum} replicas: a deployment on TPUs is one VM.",
        fix="Deploy a second one under another name, or on a target with more chips.",
        next_steps=(NextStep("list_targets"),),
    )


async def get_startable(site: Site, name: str) -> Chip:
    """Return its VM, if that can be started. Raises as `stop` does."""
    chip = await _there_change(site, name)
    _refuse(site, name, chip)
    return chip


async def ensure_started(site: Site, chip: Chip) -> None:
    """Start a VM that is stopped; any other is left as it is. Raises as `start` does."""
    if chip.state in _STOPPED:
        await site.planes[chip.place.plane].start(chip.place.zone, chip.id)
        site.inventory.forget()


async def _there_change(site: Site, name: str) -> Chip:
    chip = await chip_of(site, name)
    if chip is None:
        raise DeploymentNotFound(
            f"{name} on {site.target.name} has no VM.",
            fix="Look with status_vllm why; deploy it again for a new one.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    return chip


def _refuse(site: Site, name: str, chip: Chip) -> None:
    """Refuse to stop what could not be started again."""
    why = _why_not(site, chip)
    if why:
        here = {"target": site.target.name, "name": name}
        raise Unsupported(
            f"{name} cannot be stopped and started: {why}",
            fix=f"Call destroy_vllm, and deploy it again when it is needed. {_meanwhile(chip)}",
            next_steps=(NextStep("destroy_vllm", here),),
        )


def _why_not(site: Site, chip: Chip) -> str:
    if chip.provisioning != "on-demand":
        return f"Google starts no {chip.provisioning} TPU again."
    if not site.planes[chip.place.plane].stops:
        return f"{SAID[chip.place.plane]} starts no TPU again."
    if chip.state in {ChipState.WAITING, ChipState.PROVISIONING}:
        return "it has no VM yet."
    return "it lost its chips for good." if chip.state.leftover else ""


def _meanwhile(chip: Chip) -> str:
    """Say what bills until then."""
    if chip.state.leftover and chip.place.plane == "compute":
        return "Until then its disk bills."
    if chip.state is ChipState.WAITING or chip.state.leftover:
        return "Until then nothing of it bills."
    return "Until then its VM bills on, whether or not anybody asks."


_GONE_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.5
_LOCK_SECONDS: Final = 15.0
"""A step of a search takes at most about so long."""


async def delete(site: Site, name: str) -> Deleted:
    """End a search, delete chips by force wherever they are, then key and firewall rule.

    Already gone is no error. A chip that is not seen to be gone within seconds goes on being
    deleted: `go_on`, or the next call, takes the rest.

    Raises:
        NotOurs: What has the deployment's id was not made here; nothing is touched.
        Busy: Another server on this machine is at it.
        CloudError: Google refused; what is gone by then is said in `fix`.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        return _nothing(site, name)
    async with store.locked(site, name, seconds=_LOCK_SECONDS):
        kept = store.record_of(site, name)
        chips = await _there_delete(site, name, kept)
        mine = [one for one in chips if is_ours(site, name, one)]
        if kept is None and not mine and _is_others(site, name, chips):
            return _nothing(site, name)
        note_others(chips)
        removed = _parts(kept, mine)
        kept = _marked(site, kept, mine)
        left = {**dict.fromkeys(one.place for one in mine), **(kept.left if kept else {})}
        gone = await _watched(site, name, left, kept)
        if gone or kept is None:
            removed += [what async for what in _leavings(site, name, gone=gone)]
        if gone:
            store.forget_record(site, name)
    return await _deleted(site, name, removed if gone else (), gone=gone)


def leaving(site: Site, name: str) -> Leaving:
    """Name what `delete` takes and what stays; nobody is asked."""
    return Leaving(
        deletes=(
            f"its chip: the queued resource {vm_id(name)} with its node, or that instance",
            f"its firewall rule {vm_id(name)}",
            f"its key (secret {site.key_secret(name)})",
        ),
        stays=(f"the secret {HF_SECRET}",),
    )


async def _deleted(site: Site, name: str, removed: Sequence[str], *, gone: bool) -> Deleted:
    return Deleted(
        name=name,
        target=site.target.name,
        gone=gone,
        removed=tuple(removed),
        stays=await _token(site) if removed else (),
    )


async def finish(site: Site, kept: SearchRecord) -> None:
    """Take the rest away of what is being deleted, once its chip is gone; for who holds the lock.

    Raises:
        CloudError: Google refused, or did not answer.
    """
    if await _all_gone(site, kept.name, kept.left, kept):
        async for _what in _leavings(site, kept.name, gone=True):
            pass
        store.forget_record(site, kept.name)


async def end_overdue(site: Site, name: str) -> str:
    """Delete what is overdue; says what was seen. Raises as `delete` does."""
    deleted = await delete(site, name)
    if not deleted.gone:
        return "it is being deleted, which Google may take ten minutes for."
    return "it was deleted: nothing of it bills any more." if deleted.removed else "it is gone."


async def _there_delete(site: Site, name: str, kept: SearchRecord | None) -> Sequence[Chip]:
    """Look for its chips; where the lists fail, at the places that this machine remembers."""
    places = kept.left if kept else ()
    try:
        return await find_named(site, name, places)
    except CloudError as exc:
        if not places:
            raise
        note(f"Whether there is more of {name} elsewhere is not known: {exc.summary}")
        return await find_at(site, name, places)


def _is_others(site: Site, name: str, chips: Sequence[Chip]) -> bool:
    """Whether the name is another target's.

    Raises:
        NotOurs: It is nobody's of ours.
    """
    if any(one.ours for one in chips) or store.other_target_of(site, name):
        return True
    if chips:
        raise not_ours_error(chips[0], fix="Delete it where it was made.")
    return False


def _nothing(site: Site, name: str) -> Deleted:
    return Deleted(name=name, target=site.target.name, gone=True)


def _parts(kept: SearchRecord | None, mine: Sequence[Chip]) -> list[str]:
    """Name what is there of it."""
    words = [_part(one) for one in mine]
    return words or (["its search for a chip"] if kept and not kept.placed else [])


def _part(chip: Chip) -> str:
    if chip.state is ChipState.WAITING:
        return f"its request for a chip in {chip.place}"
    leftover = ", which had no chip any more" if chip.state.leftover else ""
    what = "queued resource with its node" if chip.place.plane == "queued" else "instance"
    where = f"{chip.place.zone} ({SAID['compute']})" if what == "instance" else chip.place.zone
    return f"its {what} in {where}{leftover}"


def _marked(site: Site, kept: SearchRecord | None, mine: Sequence[Chip]) -> SearchRecord | None:
    """Write down that it is being deleted, and where: nothing of it is asked for any more."""
    if kept is None:
        return None
    asked = [at for at in kept.left.values() if at is not None]
    known = dict.fromkeys((*kept.left, *(one.place for one in mine)))
    said = {"removing": True, "replacing": tuple(known), "failure": None}
    kept = kept.model_copy(update={**said, "late": max(asked, default=None)})
    store.keep_record(site, kept)
    return kept


async def _watched(
    site: Site, name: str, places: Collection[Place], kept: SearchRecord | None
) -> bool:
    """Delete, and watch it go; whether all of it is gone."""
    try:
        await wait_until(
            lambda: _all_gone(site, name, places, kept),
            bool,
            waiting_for=f"{name} to be gone",
            every=_LOOK_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong:
        return False
    return True


async def _all_gone(
    site: Site, name: str, places: Collection[Place], kept: SearchRecord | None
) -> bool:
    """Look at every place, so that each is asked for: one that stays must not save another.

    What the lists said a moment ago is not true any more once all of it is gone.
    """
    now, asked = datetime.now(UTC), kept.left if kept else {}
    seen = [
        await search.give_back(site, name, place, now=now, asked=asked.get(place))
        for place in places
    ]
    if all(seen):
        site.inventory.forget()
    return all(seen)


async def _leavings(site: Site, name: str, *, gone: bool) -> AsyncIterator[str]:
    """Remove what served this deployment alone, and name it."""
    secret = site.key_secret(name)
    try:
        if await firewall.close(site, name):
            yield "its firewall rule"
        if await secrets.remove(site, secret):
            yield f"its key (secret {secret})"
    except OpsError as exc:
        chip = "gone" if gone else "being deleted"
        exc.fix = f"Its chip is {chip}; call destroy_vllm again for the rest. {exc.fix}"
        raise


async def _token(site: Site) -> tuple[Remainder, ...]:
    try:
        if not await secrets.exists(site, HF_SECRET):
            return ()
    except OpsError as exc:
        note(f"Whether the secret {HF_SECRET} is left is not known: {exc.summary}")
        return ()
    remainder = Remainder(
        what=f"the secret {HF_SECRET}, which other deployments may read",
        usd_per_month=secrets.SECRET_USD,
        how_to_remove=f"gcloud secrets delete {HF_SECRET} --project={site.clients.project}",
    )
    return (remainder,)


_TURN_SECONDS: Final = 1.0
"""For another server that is at it; then it is that one's work."""
_GOING_ON_GO_SECONDS: Final = 6.0
"""After these a turn is over, even if more could be done at once."""


async def go_on(site: Site, name: str) -> None:
    """Take every step whose time has come; else, and for one that needs none, do nothing.

    Why it goes on no more is written down, so that a look tells it; what may work later is only
    noted.

    Raises:
        NotAuthenticated: Nobody is logged in.
        HostError: It cannot be written down.
    """
    if site.settings.read_only or store.record_of(site, name) is None:
        return
    try:
        async with store.locked(site, name, seconds=_TURN_SECONDS):
            kept = store.record_of(site, name)
            if kept is not None:
                await proceed(site, kept, seconds=_GOING_ON_GO_SECONDS)
    except Busy:
        return


async def proceed(site: Site, kept: SearchRecord, *, seconds: float) -> None:
    """Go on for so long, for whoever holds the lock. Raises as `go_on` does."""
    if kept.failure is not None:
        return
    try:
        if kept.removing:
            await finish(site, kept)
        else:
            await _search(site, kept, seconds)
    except (NotAuthenticated, HostError):
        raise
    except OpsError as exc:
        if exc.retryable:
            note(f"{kept.name} goes on later. {exc.summary} {exc.cause}".strip())
            return
        _give_up(site, store.record_of(site, kept.name) or kept, exc)


async def _search(site: Site, kept: SearchRecord, seconds: float) -> None:
    deadline = anyio.current_time() + seconds
    while not search.is_over(kept):
        after = await search.search_step(site, kept, datetime.now(UTC))
        _tell(kept, after)
        if after is kept or anyio.current_time() > deadline:
            return
        kept = after
    if kept.placed is None:
        await _end(site, kept)


def _tell(before: SearchRecord, after: SearchRecord) -> None:
    """Note what became of a place that gave no chip."""
    for line in search.history(after)[len(search.history(before)) :]:
        note(line)


async def _end(site: Site, kept: SearchRecord) -> None:
    """Say why no place gave a chip, once what was made for it is taken away."""
    await firewall.close(site, kept.name)
    if kept.key_made:
        await secrets.remove(site, site.key_secret(kept.name))
    asked = {place.zone for place in kept.blueprint.places}
    failure = search.search_failure(kept, await zones.zones_not_asked(site, asked))
    store.keep_record(site, kept.model_copy(update={"failure": failure}))


def _give_up(site: Site, kept: SearchRecord, exc: OpsError) -> None:
    """Write down what stands against going on, and what may still be there."""
    left = ", ".join(map(str, kept.left))
    there = f" What it has in {left} may be there still, and bill." if left else ""
    failure = Failure(
        code=exc.code,
        cause=f"{exc.summary} {exc.cause}".strip() + there,
        fix=f"{exc.fix} Then call destroy_vllm, or deploy again.",
    )
    store.keep_record(site, kept.model_copy(update={"failure": failure}))
