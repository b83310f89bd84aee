"""A deployment's chip: looked for in one place after the other, found again, told from others'.

A search goes on in any server's hands. Its states, in order: what serves every place is made
(`ground`), what ran under the name before is deleted, a place is asked and looked at, what it gave
that is no chip is given back, the next place.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio
from pydantic import ValidationError

from backends.base import QueuedResource
from backends.common.concurrency import or_note, side_by_side
from backends.google.clients import SPEC_LABEL
from backends.lease import EXPIRES, KEEPER
from backends.lifecycle import UNSURE, PendingStore, Resource, Status, advance, not_found, remove
from backends.tpu import lease, zones
from backends.tpu import site as tpu
from backends.tpu.vm import startup_script
from core import errors
from core.records import NAME_PATTERN, DeploymentSpec, Failure
from core.reply import note
from core.waiting import wait_until

_LIVES: Final = frozenset(
    {
        tpu.ChipState.RUNNING,
        tpu.ChipState.PROVISIONING,
        tpu.ChipState.STOPPING,
        tpu.ChipState.STOPPED,
    }
)


async def chip_of(site: tpu.Site, name: str) -> tpu.Chip | None:
    """Return a deployment's VM, or its request; None while nothing in the cloud stands for it.

    Raises:
        DeploymentNotFound: There is no such deployment.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    kept, found = site.records.get(name), None
    if kept and kept.stands:
        zone, plane = kept.stands
        found = await site.planes[plane].get(zone, tpu.vm_id(name))
        found = found if found and found.deployment == name else None
    if kept and (not _is_over(kept) or (found and found.state.alive)):
        return found
    if kept:  # a list may be seconds old: where it stood was looked at just now
        every: Sequence[tpu.Chip] = await or_note(site.chips, ())
        ours = [chip for chip in every if is_ours(site, name, chip)]
        if any(
            chip.place == kept.stands and (not found or chip.state != found.state) for chip in ours
        ):
            site.inventory.forget()  # whoever lists after this look must not hear less than it
        others = [chip for chip in ours if chip.place != kept.stands]
        return best_chip([*others, *([found] if found else [])], kept) or found
    elsewhere = ""
    if re.fullmatch(NAME_PATTERN, name):
        chips = await site.chips()
        named = [chip for chip in chips if chip.deployment == name]
        best = best_chip([chip for chip in named if chip.target == site.target.name], None)
        if best:
            return best
        if named:
            elsewhere = f": it is on {named[0].target or 'another target'}"
        foreign = next(
            (chip for chip in chips if chip.id == tpu.vm_id(name) and not chip.ours), None
        )
        if foreign and not named:
            raise not_ours_error(foreign, fix="Take another name.")
    raise not_found(name, site.target, elsewhere)


def best_chip(chips: Sequence[tpu.Chip], kept: tpu.Search | None) -> tpu.Chip | None:
    """Return that where it was placed, else the one that lives, else the newest.

    Of what is remembered and has none that lives, another machine may have one by now.
    """
    best = max(chips, key=lambda chip: (chip.state in _LIVES, chip.created_at), default=None)
    placed = next((chip for chip in chips if kept and chip.place == kept.stands), None)
    lives = placed is not None and placed.state.alive
    if kept is None or (best and best.state.alive and _is_over(kept) and not lives):
        return best
    return placed


def record_of(site: tpu.Site, name: str, chip: tpu.Chip | None) -> tpu.Search | None:
    """Return what is remembered here of it; None where another machine has deployed it anew."""
    kept = site.records.get(name)
    if kept is None or chip is None or not chip.state.alive or not _is_over(kept):
        return kept
    asked = (kept.stands, kept.blueprint.labels[SPEC_LABEL])
    return kept if asked == (chip.place, chip.labels.get(SPEC_LABEL)) else None


def _is_over(kept: tpu.Search) -> bool:
    return kept.at_rest and not kept.deleting


async def spec_of(site: tpu.Site, name: str) -> DeploymentSpec | None:
    """Return what was asked for, None where nothing says it any more."""
    chip = await chip_of(site, name)
    kept = record_of(site, name, chip)
    return kept.spec if kept else spec_in(chip) if chip else None


def spec_in(chip: tpu.Chip) -> DeploymentSpec | None:
    try:
        return DeploymentSpec.model_validate_json(chip.spec_json)
    except ValidationError:
        return None


async def find_named(
    site: tpu.Site, name: str, places: Collection[tpu.Place] = (), *, or_there: bool = False
) -> Sequence[tpu.Chip]:
    """Return every TPU with a deployment's label or id, looked for now, whoever made it.

    At `places` it is looked for by its id, should a list not have it; `or_there`: where the lists
    fail, there alone.
    """
    site.inventory.forget()
    found: list[tpu.Chip] = []
    try:
        every = await site.chips()
        found = [one for one in every if one.deployment == name or one.id == tpu.vm_id(name)]
    except errors.CloudError as exc:
        if not (or_there and places):
            raise
        note(f"Whether there is more of {name} elsewhere is not known: {exc.summary}")
    seen = {one.place for one in found}
    for place in (one for one in places if one not in seen):
        chip = await site.planes[place.plane].get(place.zone, tpu.vm_id(name))
        found += [chip] if chip else []
    return found


def is_ours(site: tpu.Site, name: str, chip: tpu.Chip) -> bool:
    return chip.deployment == name and chip.target == site.target.name


def is_wanted(site: tpu.Site, made: tpu.Blueprint, chip: tpu.Chip) -> bool:
    """Whether a chip was asked for by just this blueprint's spec, here or on another machine."""
    same = chip.labels.get(SPEC_LABEL) == made.labels[SPEC_LABEL]
    return same and is_ours(site, made.spec.name, chip)


def not_ours_error(chip: tpu.Chip, *, fix: str) -> errors.NotOurs:
    """Say that something of a deployment's id was not made here."""
    return errors.NotOurs(
        f"{chip.id} in {chip.place} was not made here: it is left alone.",
        cause=f"It is {chip.said}.",
        fix=fix,
    )


def refuse_foreign(site: tpu.Site, name: str, there: Sequence[tpu.Chip]) -> None:
    """Refuse a name under which something stands, or is remembered, that is not this target's.

    Raises:
        NotOurs: So it is; it is left alone.
    """
    foreign = next((one for one in there if not one.ours), None)
    if foreign is not None:
        raise not_ours_error(foreign, fix="Deploy under another name.")
    other = next((one.target for one in there if one.target != site.target.name), "")
    other = other or other_target_of(site, name)
    if other:
        raise errors.NotOurs(
            f"{name} belongs to the target {other}.",
            fix=f"Deploy under another name, or to {other}.",
        )


def other_target_of(site: tpu.Site, name: str) -> str:
    """Name another target of which something under this name is remembered; empty if none is."""
    for folder in sorted(path.parent for path in site.shared.glob(f"*/{name}.json")):
        kept = PendingStore(tpu.Search, folder, site.records.where).get(name)
        if folder != site.folder and kept is not None and (kept.left or kept.failure is None):
            return folder.name
    return ""


async def list_queue(site: tpu.Site) -> Sequence[QueuedResource]:
    """Return every one of both planes, ours and others'; leftovers of ours first, then ours."""
    chips = sorted(await site.chips(), key=lambda one: (not one.ours, not one.state.leftover))
    same = ("id", "path", "health", "accelerator", "external_ip", "ours", "why")
    return tuple(
        QueuedResource(
            zone=chip.place.zone,
            control_plane=tpu.SAID[chip.place.plane],
            state=chip.said,
            node=f"{chip.node} {chip.node_said}".strip(),
            created_at=f"{chip.created_at:%F %H:%M}",
            deployment=chip.deployment,
            target=chip.target,
            leftover=chip.state.leftover,
            provisioning=chip.provisioning or "not known",
            **{name: getattr(chip, name) for name in same},
        )
        for chip in chips
    )


_LATE: Final = timedelta(seconds=30)
"""So long after a call without an answer, what it asked for may still come into being."""
_GROUND_SECONDS: Final = 15.0
VANISHED: Final = "VANISHED"
_GRACE: Final = timedelta(minutes=2)
"""The cloud itself ends a wait; this is for one that does not."""
_MAKING: Final = timedelta(minutes=30)
"""A chip that is given becomes a VM; field reports of 2026: it took up to 23 minutes."""
_SEEN: Final = timedelta(seconds=60)
"""Within these a request that was taken may not be seen yet: asked elsewhere, there were two."""
_HAVE: Final = frozenset({tpu.ChipState.RUNNING, tpu.ChipState.STOPPED})
"""In these it has, or had, its chips."""
_HAD: Final = frozenset({tpu.ChipState.STOPPING, tpu.ChipState.SUSPENDED})
"""In these it had, if it was ever given them."""
_NOT_OF_THE_PLACE: Final = frozenset({VANISHED, errors.NotOurs.code, *tpu.NEVER_AGAIN})
"""What tells nothing of whether there are chips."""


def chips_at(
    site: tpu.Site, name: str, places: Mapping[tpu.Place, datetime | None], title: str = "its chip"
) -> Resource:
    """Return what a deployment has at some places, all of it together: one that stays saves none.

    `places` says of each when something was asked for there without an answer: it may come into
    being late. What is not this deployment's is not seen.
    """
    seen: list[tpu.Chip] = []

    async def get() -> Sequence[tpu.Chip] | None:
        found = [await site.planes[one.plane].get(one.zone, tpu.vm_id(name)) for one in places]
        seen[:] = [chip for chip in found if chip and is_ours(site, name, chip)]
        asked = [at for chip, at in zip(found, places.values(), strict=True) if chip is None and at]
        if not seen and all(site.now() - at >= _LATE for at in asked):
            site.inventory.forget()  # what the lists said a moment ago is not true any more
            return None
        return tuple(seen)

    async def delete_one(chip: tpu.Chip) -> None:
        try:
            await site.planes[chip.place.plane].delete(chip.place.zone, chip.id)
        except (
            errors.CloudRefused
        ) as exc:  # as for one that is being made: the next look asks again
            note(f"{chip.id} in {chip.place} could not be deleted: {exc.cause or exc.summary}")

    async def delete() -> None:
        site.inventory.forget()
        going = [chip for chip in seen if chip.state is not tpu.ChipState.DELETING]
        await side_by_side([partial(delete_one, chip) for chip in going])

    return Resource(name="chip", title=title, get=get, delete=delete, status=_status_of)


def _status_of(found: Sequence[tpu.Chip]) -> Status:
    gone = all(chip.state is tpu.ChipState.DELETING for chip in found)
    return Status.DELETING if gone else Status.READY


LOOK_SECONDS: Final = 1.5
"""What Google refuses at once is known by then; whoever waits for a chip asks again later."""
_LOOK_AGAIN_SECONDS: Final = 0.3


async def _early_refusal(
    plane: tpu.ControlPlane, zone: str, operation: str
) -> errors.OpsError | None:
    """Return what an operation failed with, if that is known in a moment."""
    with suppress(errors.WaitedTooLong, *UNSURE):
        seen = await wait_until(
            lambda: plane.outcome(zone, operation),
            lambda seen: seen.done,
            waiting_for="the request to be taken",
            every=_LOOK_AGAIN_SECONDS,
            timeout=LOOK_SECONDS,
        )
        return seen.error
    return None


async def carry_on(
    site: tpu.Site, kept: tpu.Search, ground: Sequence[Resource], *, seconds: float
) -> tpu.Search:
    """Take every step whose time has come, one at least; what comes back is written down.

    It is the same if there is only to wait. What became of a place that gave no chip is noted.
    """
    until = anyio.current_time() + seconds
    while not kept.at_rest:
        before, kept = kept, await _Step(site, kept, ground).take()
        for line in history(kept)[len(history(before)) :]:
            note(line)
        if kept is before or anyio.current_time() >= until:
            break
    return kept


class _Step:
    """The next step of a search; whatever is learned is written down at once."""

    def __init__(self, site: tpu.Site, kept: tpu.Search, ground: Sequence[Resource]) -> None:
        self.site, self.kept, self.ground, self.now = site, kept, ground, site.now()

    async def take(self) -> tpu.Search:
        """Take it, and return what is known then: the same where there is only to wait."""
        site, kept, name = self.site, self.kept, self.kept.spec.name
        last = kept.attempts[-1] if kept.attempts else None
        if not kept.grounded:
            waits = self.ground and await advance(self.ground, seconds=_GROUND_SECONDS)
            if not waits:
                self._keep(grounded=True)
        elif kept.replacing:
            former = chips_at(site, name, dict.fromkeys(kept.replacing, kept.late))
            if (await remove([former], seconds=0)).gone:
                self._keep(replacing=(), late=None)
        elif last is None or (last.outcome and last.returned):
            place = kept.next_place
            assert place is not None
            attempt = tpu.Attempt(place=place, since=self.now, returned=False)
            self._keep(attempts=(*kept.attempts, attempt))
        elif last.outcome:
            own = chips_at(site, name, {last.place: last.asked})
            if (await remove([own], seconds=0)).gone:
                self._note(returned=True, asked=None)
        elif await self._is_to_be_asked_for(last):
            await self._ask(last.place)
        return self.kept

    async def _is_to_be_asked_for(self, attempt: tpu.Attempt) -> bool:
        """See what has become of the request that is under way; whether there is none yet."""
        site, kept, place = self.site, self.kept, attempt.place
        try:
            chip = await site.planes[place.plane].get(place.zone, kept.blueprint.id)
        except (errors.ApiDisabled, errors.PermissionDenied) as exc:
            if attempt.taken or attempt.asked:
                raise
            in_words = tpu.meaning(exc.cause) == errors.ZoneRefused.code
            why = tpu.refusal_error(exc.cause, place.zone) if in_words else exc
            await self._ended(why.code, exc.cause or exc.summary, fix=why.fix, returned=True)
            return False
        if chip is None and attempt.taken:
            await self._gone(attempt)
        elif chip is None:
            if self.now < self._deadline(attempt, None):
                return True
            await self._timed_out()
        else:
            await self._found(attempt, chip)
        return False

    async def _found(self, attempt: tpu.Attempt, chip: tpu.Chip) -> None:
        if not is_wanted(self.site, self.kept.blueprint, chip):
            words = f"{chip.id} is there already and was not made by this search."
            return await self._refused(errors.NotOurs(words, fix="Deploy under another name."))
        if not attempt.taken:
            self._note(taken=True, asked=None)
        if chip.state in _HAVE or (chip.state in _HAD and chip.given_at):
            await self._renew(attempt.place, chip.given_at)
            return await self._placed(tpu.GIVEN)
        if chip.state.leftover:
            return await self._failed(attempt, chip)
        if self.now >= self._deadline(attempt, chip):
            return await self._timed_out()
        return await self._renew(attempt.place)

    async def _lease(self, place: tpu.Place) -> None:
        """Let Google end what a place may give, before it is asked for that.

        Until it is given a chip its end is renewed: whoever dies leaves none that runs for longer
        than it may.
        """
        kept, name = self.kept, self.kept.spec.name
        seconds = kept.blueprint.run_seconds
        if seconds and kept.keeper == "cloud" and lease.is_kept(self.site, place):
            end = self.now + timedelta(seconds=seconds)
            self._keep(lease_ends=await lease.make(self.site, name, place.zone, end))
        elif kept.lease_ends or (kept.keeper == "server" and place.plane == "queued"):
            # That of an earlier one would end what nothing is to end.
            await remove([lease.owned(self.site, name)], seconds=_GROUND_SECONDS)
            self._keep(lease_ends=None)

    async def _renew(self, place: tpu.Place, given_at: datetime | None = None) -> None:
        """Let it end its time after it was given a chip, or from now on; an end that stays is less.

        What refuses that is noted.
        """
        kept, seconds = self.kept, self.kept.blueprint.run_seconds
        ends = kept.lease_ends
        if not (ends and seconds and lease.is_kept(self.site, place)):
            return
        if given_at is None and not lease.is_to_be_renewed(ends, seconds, self.now):
            return
        end = (given_at or self.now) + timedelta(seconds=seconds)
        try:
            made = await lease.make(self.site, kept.spec.name, place.zone, end)
        except errors.CloudError as exc:
            note(f"{kept.spec.name} may end before its time. {exc.summary} {exc.cause}".strip())
        else:
            self._keep(lease_ends=made)

    def _deadline(self, attempt: tpu.Attempt, chip: tpu.Chip | None) -> datetime:
        until = attempt.since + timedelta(seconds=self.kept.blueprint.wait_seconds) + _GRACE
        making = chip is not None and chip.state is tpu.ChipState.PROVISIONING
        return until + _MAKING if making else until

    async def _ask(self, place: tpu.Place) -> None:
        """Ask for a chip; that it is asked for is written down before, what is answered after.

        A label says when it ends, for servers that know no better.
        """
        await self._lease(place)
        self._note(asked=self.now)
        made, plane = self.kept.blueprint, self.site.planes[place.plane]
        labels = dict(made.labels)
        if self.kept.lease_ends:
            labels[KEEPER] = "cloud"
        if made.run_seconds:
            latest = self.now + timedelta(seconds=made.wait_seconds + made.run_seconds)
            labels[EXPIRES] = str(int(latest.timestamp()))
        script = startup_script(made, image=made.container.image)
        try:
            operation = await plane.create(tpu.Request(made, place.zone, script, labels))
        except errors.OpsError as exc:
            if isinstance(exc, errors.NotAuthenticated):
                self._note(asked=None)
            if isinstance(exc, errors.NotAuthenticated) or (
                exc.retryable and exc.code != errors.NoCapacity.code
            ):  # what may have happened, or may if it is asked again, is looked for
                raise
            return await self._refused(exc)
        finally:
            self.site.inventory.forget()
        self._note(taken=True, asked=None, operation=operation)
        refusal = await _early_refusal(plane, place.zone, operation)
        return await self._refused(refusal) if refusal else None

    async def _refusal(self, attempt: tpu.Attempt) -> errors.OpsError | None:
        if not attempt.operation:
            return None
        zone, plane = attempt.place
        return (await self.site.planes[plane].outcome(zone, attempt.operation)).error

    async def _gone(self, attempt: tpu.Attempt) -> None:
        """Say why a request is not there that Google had taken."""
        zone, plane = attempt.place
        refusal = await self._refusal(attempt)
        if refusal is not None:
            return await self._refused(refusal)
        if self.now - attempt.since < _SEEN:
            return None
        made = self.kept.blueprint
        how = await self.site.planes[plane].ended(zone, made.id, since=attempt.since)
        if how is None or how.code == "NOT_KNOWN":
            words = how.words if how else "It is there no more, and nothing says why."
            return await self._ended(VANISHED, words)
        elsewhere = how.code == "DELETED_ELSEWHERE"
        return await self._placed(how.code if elsewhere else tpu.GIVEN, how.words)

    async def _failed(self, attempt: tpu.Attempt, chip: tpu.Chip) -> None:
        """Read why a request has become a leftover before it had a chip."""
        if chip.taken_by == "user":
            return await self._placed("DELETED_ELSEWHERE", chip.why)
        refusal = await self._refusal(attempt)
        if refusal is None and tpu.meaning(chip.why):
            refusal = tpu.refusal_error(chip.why, attempt.place.zone)
        if refusal is not None:
            return await self._refused(refusal)
        code = "PREEMPTED" if chip.state is tpu.ChipState.SUSPENDED else "FAILED"
        return await self._ended(code, chip.why or f"It is {chip.said}.")

    async def _refused(self, exc: errors.OpsError) -> None:
        """Write down who refused; where nothing can have been made, nothing is given back."""
        words = exc.cause or exc.summary
        nothing = exc.code in {errors.NotOurs.code, *tpu.NEVER_AGAIN}
        await self._ended(exc.code, words, fix=exc.fix, returned=nothing)

    async def _timed_out(self) -> None:
        minutes = self.kept.blueprint.wait_seconds // 60
        await self._ended(tpu.TIMED_OUT, f"No chip within {minutes} min.")

    async def _ended(
        self, outcome: str, detail: str, *, fix: str = "", returned: bool = False
    ) -> None:
        """Write down how a request ended; whatever is there of it is given back next."""
        answered = {} if outcome in {tpu.TIMED_OUT, VANISHED} else {"asked": None}
        self._note(outcome=outcome, detail=detail, fix=fix, returned=returned, **answered)
        if outcome not in _NOT_OF_THE_PLACE:
            place = self.kept.attempts[-1].place
            await zones.remember_outcome(self.site, place, outcome, detail)

    async def _placed(self, outcome: str, detail: str = "") -> None:
        """Stop at a chip, or where a person has ended the wait; what is left is told by it."""
        place = self.kept.attempts[-1].place
        self._note(place, outcome=outcome, detail=detail, returned=True, asked=None)
        await zones.remember_outcome(self.site, place, outcome, detail)

    def _note(self, placed: tpu.Place | None = None, **said: Any) -> None:
        """Write something down of the newest request, at once with where it was given a chip."""
        *before, last = self.kept.attempts
        attempts = (*before, last.model_copy(update=said))
        self._keep(attempts=attempts, placed=placed or self.kept.placed)

    def _keep(self, **said: Any) -> None:
        self.kept = self.kept.model_copy(update=said)
        self.site.records.keep(self.kept)


_OWN: Final = frozenset(
    (
        *("API_DISABLED", "CLOUD_ERROR", "CLOUD_REFUSED", "PERMISSION_DENIED"),
        *(errors.QuotaExceeded.code, errors.ZoneRefused.code),
    )
)
"""What is not for lack of chips: the same search again ends so as well."""
_WORDS: Final = 300
"""Of Google's, of one place."""
_SHORT: Final = 40
_ZONE: Final = re.compile(r"[a-z]+-[a-z]+\d+(-[a-z])?")
"""A zone, or a region: what refusals in the same words differ by."""


def describe_search(kept: tpu.Search, now: datetime) -> str:
    """Say which of several places is asked, and until when.

    Of a deployment that is given up or replaced: where it is being deleted.
    """
    if kept.deleting or kept.replacing:
        places = ", ".join(str(place) for place in kept.left)
        return f"{places}: Google may take ten minutes" if places else ""
    if not kept.attempts or kept.placed:
        return ""
    last = kept.attempts[-1]
    said = f"{last.place}, place {len(kept.attempts)} of {len(kept.blueprint.places)}"
    if not last.outcome:
        until = last.since + timedelta(seconds=kept.blueprint.wait_seconds)
        said += f", until {until:%H:%M} UTC" if until > now else ", its time is over"
    return said


def history(kept: tpu.Search) -> tuple[str, ...]:
    """Say of every place that gave no chip, in order, what stood against it and in whose words."""
    lines, said = [], set[tuple[str, str]]()
    for one in kept.attempts:
        if one.outcome not in {"", tpu.GIVEN}:
            words = one.detail if len(one.detail) <= _WORDS else f"{one.detail[:_WORDS]} […]"
            same = (one.outcome, _ZONE.sub("", words))
            if len(words) > _SHORT and same in said:
                words = "In the same words."
            said.add(same)
            left = "" if one.returned else " It is not seen to be given back."
            lines.append(f"{one.place}: {one.outcome}. {words}{left}".rstrip())
    return tuple(lines)


def search_failure(kept: tpu.Search) -> Failure:
    """Say why a search that has come to its end has no chip, with a line for each place."""
    none, number = errors.NoCapacity.code, len(kept.attempts)
    where = "one place" if number == 1 else f"{number} places"
    codes = {one.outcome for one in kept.attempts}
    code = kept.attempts[-1].outcome if codes <= _OWN else none
    again = (
        "Deploy again to search anew: capacity changes by the minute; or give more zones"
        " (get_zones_with_available_quota) or a longer zone_wait_minutes, or take a -spot or -flex"
        " target."
    )
    fixes = [one.fix for one in kept.attempts if one.fix and one.outcome != none]
    return Failure(
        code=code,
        cause="\n".join((f"No chip in {where}.", *history(kept))),
        fix=" ".join(dict.fromkeys([again, *fixes] if code == none else fixes)),
    )
