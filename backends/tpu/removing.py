"""A deployment taken away, seen to be gone; what it leaves is named with its price."""

import re
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from backends.base import Leaving
from backends.google import secrets
from backends.google.clients import HF_SECRET
from backends.tpu import firewall, returning, standing
from backends.tpu import kept as memory
from backends.tpu.chip import SAID, Chip, ChipState, Place
from backends.tpu.kept import Kept
from backends.tpu.names import vm_id
from backends.tpu.site import Site
from core.cloud_errors import CloudError
from core.errors import OpsError, WaitedTooLong
from core.records import NAME_PATTERN, Deleted, Remainder
from core.reply import note
from core.waiting import wait_until

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
    async with memory.locked(site, name, seconds=_LOCK_SECONDS):
        kept = memory.of(site, name)
        chips = await _there(site, name, kept)
        mine = [one for one in chips if standing.ours(site, name, one)]
        if kept is None and not mine and _is_others(site, name, chips):
            return _nothing(site, name)
        standing.note_others(chips)
        removed = _parts(kept, mine)
        kept = _marked(site, kept, mine)
        left = {**dict.fromkeys(one.place for one in mine), **(kept.left if kept else {})}
        gone = await _watched(site, name, left, kept)
        if gone or kept is None:
            removed += [what async for what in _leavings(site, name, gone=gone)]
        if gone:
            memory.forget(site, name)
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


async def finish(site: Site, kept: Kept) -> None:
    """Take the rest away of what is being deleted, once its chip is gone; for who holds the lock.

    Raises:
        CloudError: Google refused, or did not answer.
    """
    if await _all_gone(site, kept.name, kept.left, kept):
        async for _what in _leavings(site, kept.name, gone=True):
            pass
        memory.forget(site, kept.name)


async def end(site: Site, name: str) -> str:
    """Delete what is overdue; says what was seen. Raises as `delete` does."""
    deleted = await delete(site, name)
    if not deleted.gone:
        return "it is being deleted, which Google may take ten minutes for."
    return "it was deleted: nothing of it bills any more." if deleted.removed else "it is gone."


async def _there(site: Site, name: str, kept: Kept | None) -> Sequence[Chip]:
    """Look for its chips; where the lists fail, at the places that this machine remembers."""
    places = kept.left if kept else ()
    try:
        return await standing.named(site, name, places)
    except CloudError as exc:
        if not places:
            raise
        note(f"Whether there is more of {name} elsewhere is not known: {exc.summary}")
        return await standing.at(site, name, places)


def _is_others(site: Site, name: str, chips: Sequence[Chip]) -> bool:
    """Whether the name is another target's.

    Raises:
        NotOurs: It is nobody's of ours.
    """
    if any(one.ours for one in chips) or memory.elsewhere(site, name):
        return True
    if chips:
        raise standing.not_ours(chips[0], fix="Delete it where it was made.")
    return False


def _nothing(site: Site, name: str) -> Deleted:
    return Deleted(name=name, target=site.target.name, gone=True)


def _parts(kept: Kept | None, mine: Sequence[Chip]) -> list[str]:
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


def _marked(site: Site, kept: Kept | None, mine: Sequence[Chip]) -> Kept | None:
    """Write down that it is being deleted, and where: nothing of it is asked for any more."""
    if kept is None:
        return None
    asked = [at for at in kept.left.values() if at is not None]
    known = dict.fromkeys((*kept.left, *(one.place for one in mine)))
    said = {"removing": True, "replacing": tuple(known), "failure": None}
    kept = kept.model_copy(update={**said, "late": max(asked, default=None)})
    memory.keep(site, kept)
    return kept


async def _watched(site: Site, name: str, places: Collection[Place], kept: Kept | None) -> bool:
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


async def _all_gone(site: Site, name: str, places: Collection[Place], kept: Kept | None) -> bool:
    """Look at every place, so that each is asked for: one that stays must not save another.

    What the lists said a moment ago is not true any more once all of it is gone.
    """
    now, asked = datetime.now(UTC), kept.left if kept else {}
    seen = [
        await returning.gone(site, name, place, now=now, asked=asked.get(place)) for place in places
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
