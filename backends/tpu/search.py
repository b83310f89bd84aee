"""A search for a chip: one place after the other, one request at a time, in any server's hands.

Its states, in order: what serves every place is made (`ground`), what ran under the name before is
deleted, a place is asked and looked at, what it gave that is no chip is given back, the next place.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio

from backends.common.concurrency import side_by_side
from backends.google.clients import EXPIRES_LABEL
from backends.lifecycle import Pending, PendingStore, Resource, Status, advance, remove
from backends.tpu import chips, zones
from backends.tpu.planes import (
    Blueprint,
    Chip,
    ChipState,
    Place,
    Request,
    early_refusal,
    meaning,
    refusal_error,
)
from backends.tpu.site import Site, vm_id
from backends.tpu.vm import startup_script
from backends.tpu.zones import GIVEN, TIMED_OUT
from core.errors import (
    ApiDisabled,
    CloudRefused,
    NoCapacity,
    NotAuthenticated,
    NotConfigured,
    NotOurs,
    OpsError,
    PermissionDenied,
)
from core.records import Failure, Record
from core.reply import note

SEARCHING: Final = "waiting for a chip"
RETURNING: Final = "giving a request back"
REPLACING: Final = "deleting the former"
DELETING: Final = "deleting"
WAITS_IN: Final = frozenset({SEARCHING, RETURNING, REPLACING, DELETING})
"""In these nothing goes on by itself: a call takes the next step."""


class Attempt(Record):
    """One request for a chip at one place."""

    place: Place
    since: datetime
    asked: datetime | None = None
    """When it was asked for, as long as no answer has come: it may come into being late."""
    taken: bool = False
    """Google has taken it, or it was seen to be there."""
    operation: str = ""
    """Its name at Google."""
    outcome: str = ""
    """How it ended: an error's code, `TIMED_OUT`, or `GIVEN`; empty while it goes on."""
    detail: str = ""
    """Google's words on it."""
    fix: str = ""
    """What could be done about it, where something can."""
    returned: bool = True
    """Seen to be given back: nothing of it is left in the zone."""


class Search(Pending):
    """One deployment, also once it has its chip: only here is known what a VM that is gone was."""

    blueprint: Blueprint
    again: bool = False
    """There was a VM of that name, whose key its callers know: it outlives a search for another."""
    grounded: bool = False
    """What every place needs is there."""
    attempts: tuple[Attempt, ...] = ()
    """Oldest first; the last one may be under way."""
    placed: Place | None = None
    """Where it was given a chip."""
    replacing: tuple[Place, ...] = ()
    """Where what ran under this name before is still being deleted."""
    late: datetime | None = None
    """When something of that was asked for without an answer: it may come into being late."""

    @property
    def current(self) -> Attempt | None:
        """The request that is under way."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and not last.outcome else None

    @property
    def left(self) -> Mapping[Place, datetime | None]:
        """Where something of it may still be, with when it was asked for without an answer."""
        open_ones = {one.place: one.asked for one in self.attempts if not one.returned}
        placed = (self.placed,) if self.placed else ()
        return {**dict.fromkeys(placed), **dict.fromkeys(self.replacing, self.late), **open_ones}

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing left to be done, whatever came of it."""
        if self.failure:
            return True
        busy = self.replacing or any(not one.outcome or not one.returned for one in self.attempts)
        return self.grounded and not busy and (self.placed is not None or _next(self) is None)


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
_HAVE: Final = frozenset({ChipState.RUNNING, ChipState.STOPPED})
"""In these it has, or had, its chips."""
_HAD: Final = frozenset({ChipState.STOPPING, ChipState.SUSPENDED})
"""In these it had, if it was ever given them."""
_NEVER_AGAIN: Final = frozenset({ApiDisabled.code, NotConfigured.code, PermissionDenied.code})
"""What stands against every place of a control plane."""
_NOT_OF_THE_PLACE: Final = frozenset({VANISHED, NotOurs.code, *_NEVER_AGAIN})
"""What tells nothing of whether there are chips."""


def held(
    site: Site, name: str, places: Mapping[Place, datetime | None], title: str = "its chip"
) -> Resource:
    """Return what a deployment has at some places, all of it together: one that stays saves none.

    `places` says of each when something was asked for there without an answer: it may come into
    being late. What is not this deployment's is not seen.
    """
    seen: list[Chip] = []

    async def get() -> Sequence[Chip] | None:
        looks = [partial(site.planes[one.plane].get, one.zone, vm_id(name)) for one in places]
        found = [await look() for look in looks]
        seen[:] = [chip for chip in found if chip and chips.is_ours(site, name, chip)]
        asked = [at for chip, at in zip(found, places.values(), strict=True) if chip is None and at]
        if not seen and all(site.now() - at >= _LATE for at in asked):
            site.inventory.forget()  # what the lists said a moment ago is not true any more
            return None
        return tuple(seen)

    async def delete_one(chip: Chip) -> None:
        try:
            await site.planes[chip.place.plane].delete(chip.place.zone, chip.id)
        except CloudRefused as exc:  # as for one that is being made: the next look asks again
            note(f"{chip.id} in {chip.place} could not be deleted: {exc.cause or exc.summary}")

    async def delete() -> None:
        site.inventory.forget()
        going = [chip for chip in seen if chip.state is not ChipState.DELETING]
        await side_by_side([partial(delete_one, chip) for chip in going])

    def status(found: Sequence[Chip]) -> Status:
        gone = all(chip.state is ChipState.DELETING for chip in found)
        return Status.DELETING if gone else Status.READY

    return Resource(name="chip", title=title, get=get, delete=delete, status=status)


async def carry_on(
    site: Site, kept: Search, ground: Sequence[Resource], *, seconds: float
) -> Search:
    """Take every step whose time has come, one at least; what comes back is written down.

    It is the same if there is only to wait. What became of a place that gave no chip is noted.
    """
    until = anyio.current_time() + seconds
    while not kept.at_rest:
        before = kept
        kept, request = await _step(site, kept, ground)
        if request is not None:
            try:
                operation = await site.planes[kept.attempts[-1].place.plane].create(request)
            except OpsError as exc:
                kept = await _refused_at_once(site, kept, exc)
            else:
                kept = await _taken(site, kept, operation)
            finally:
                site.inventory.forget()
        for line in history(kept)[len(history(before)) :]:
            note(line)
        if kept is before or anyio.current_time() >= until:
            break
    return kept


def refuse_foreign(site: Site, name: str, there: Sequence[Chip]) -> None:
    """Refuse a name under which something stands, or is remembered, that is not this target's.

    Raises:
        NotOurs: So it is; it is left alone.
    """
    foreign = next((one for one in there if not one.ours), None)
    if foreign is not None:
        raise chips.not_ours_error(foreign, fix="Deploy under another name.")
    other = next((one.target for one in there if one.target != site.target.name), "")
    other = other or other_target_of(site, name)
    if other:
        raise NotOurs(
            f"{name} belongs to the target {other}.",
            fix=f"Deploy under another name, or to {other}.",
        )


def other_target_of(site: Site, name: str) -> str:
    """Name another target of which something under this name is remembered; empty if none is."""
    for folder in sorted(path.parent for path in site.shared.glob(f"*/{name}.json")):
        kept = PendingStore(Search, folder, site.records.where).get(name)
        if folder != site.folder and kept is not None and (kept.left or kept.failure is None):
            return folder.name
    return ""


def new_attempt(place: Place, now: datetime) -> Attempt:
    """Return a request that is about to be made."""
    return Attempt(place=place, since=now, returned=False)


def _next(kept: Search) -> Place | None:
    """Return the place to ask next; a plane that refuses altogether is not asked again."""
    asked = {one.place for one in kept.attempts}
    barred = {one.place.plane for one in kept.attempts if one.outcome in _NEVER_AGAIN}
    left = (one for one in kept.blueprint.places if one not in asked and one.plane not in barred)
    return next(left, None)


async def _step(
    site: Site, kept: Search, ground: Sequence[Resource]
) -> tuple[Search, Request | None]:
    """Take one step but that of asking: what is to be asked for now comes back."""
    name, now, last = kept.spec.name, site.now(), kept.attempts[-1] if kept.attempts else None
    if not kept.grounded:
        waits = await advance(ground, seconds=_GROUND_SECONDS) if ground else None
        return kept if waits else _keep(site, kept, grounded=True), None
    if kept.replacing:
        former = held(site, name, dict.fromkeys(kept.replacing, kept.late))
        gone = (await remove([former], seconds=0)).gone
        return _keep(site, kept, replacing=(), late=None) if gone else kept, None
    if last is not None and not last.outcome:
        return await _look(site, kept, last, now)
    if last is not None and not last.returned:
        gone = (await remove([held(site, name, {last.place: last.asked})], seconds=0)).gone
        return _noted(site, kept, returned=True, asked=None) if gone else kept, None
    place = _next(kept)
    assert place is not None
    return _keep(site, kept, attempts=(*kept.attempts, new_attempt(place, now))), None


async def _look(
    site: Site, kept: Search, attempt: Attempt, now: datetime
) -> tuple[Search, Request | None]:
    """See what has become of the request that is under way, or is to be made."""
    place = attempt.place
    try:
        chip = await site.planes[place.plane].get(place.zone, kept.blueprint.id)
    except (ApiDisabled, PermissionDenied) as exc:
        if attempt.taken or attempt.asked:
            raise
        return await _refused(site, kept, exc), None
    if chip is None and attempt.taken:
        return await _gone(site, kept, attempt, now), None
    if chip is None:
        if now >= _deadline(kept, attempt, None):
            return await _timed_out(site, kept), None
        return _noted(site, kept, asked=now), _request(kept, place, now)
    if not chips.is_wanted(site, kept.blueprint, chip):
        words = f"{chip.id} is there already and was not made by this search."
        return await _refused(site, kept, NotOurs(words, fix="Deploy under another name.")), None
    if not attempt.taken:
        kept = _noted(site, kept, taken=True, asked=None)
    return await _judged(site, kept, chip, now), None


async def _judged(site: Site, kept: Search, chip: Chip, now: datetime) -> Search:
    """Stop at a chip, leave a leftover or what has waited for too long, else wait."""
    attempt = kept.attempts[-1]
    if chip.state in _HAVE or (chip.state in _HAD and chip.given_at):
        return await _given(site, kept, GIVEN)
    if chip.state.leftover:
        return await _failed(site, kept, attempt, chip)
    if now >= _deadline(kept, attempt, chip):
        return await _timed_out(site, kept)
    return kept


def _deadline(kept: Search, attempt: Attempt, chip: Chip | None) -> datetime:
    until = attempt.since + timedelta(seconds=kept.blueprint.wait_seconds) + _GRACE
    making = chip is not None and chip.state is ChipState.PROVISIONING
    return until + _MAKING if making else until


def _request(kept: Search, place: Place, now: datetime) -> Request:
    """Return what is asked for; the label is for servers that know no better."""
    made, labels = kept.blueprint, dict(kept.blueprint.labels)
    if made.run_seconds:
        latest = now + timedelta(seconds=made.wait_seconds + made.run_seconds)
        labels[EXPIRES_LABEL] = str(int(latest.timestamp()))
    script = startup_script(made, image=made.container.image)
    return Request(made=made, zone=place.zone, script=script, labels=labels)


async def _refused_at_once(site: Site, kept: Search, exc: OpsError) -> Search:
    """Write down a refusal; what may have happened, or may if it is asked again, is looked for."""
    if isinstance(exc, NotAuthenticated):
        _noted(site, kept, asked=None)
    if isinstance(exc, NotAuthenticated) or (exc.retryable and exc.code != NoCapacity.code):
        raise exc
    return await _refused(site, kept, exc)


async def _taken(site: Site, kept: Search, operation: str) -> Search:
    kept = _noted(site, kept, taken=True, asked=None, operation=operation)
    zone, plane = kept.attempts[-1].place
    refusal = await early_refusal(site.planes[plane].outcome, zone, operation)
    return await _refused(site, kept, refusal) if refusal else kept


async def _refusal(site: Site, attempt: Attempt) -> OpsError | None:
    """Return why a request failed that Google had taken; None if it did not (yet)."""
    if not attempt.operation:
        return None
    plane = site.planes[attempt.place.plane]
    return (await plane.outcome(attempt.place.zone, attempt.operation)).error


async def _gone(site: Site, kept: Search, attempt: Attempt, now: datetime) -> Search:
    """Say why a request is not there that Google had taken."""
    plane, zone = site.planes[attempt.place.plane], attempt.place.zone
    refusal = await _refusal(site, attempt)
    if refusal is not None:
        return await _refused(site, kept, refusal)
    if now - attempt.since < _SEEN:
        return kept
    how = await plane.ended(zone, kept.blueprint.id, since=attempt.since)
    if how is None or how.code == "NOT_KNOWN":
        words = how.words if how else "It is there no more, and nothing says why."
        return await _ended(site, kept, VANISHED, words)
    elsewhere = how.code == "DELETED_ELSEWHERE"
    return await _given(site, kept, how.code if elsewhere else GIVEN, how.words)


async def _failed(site: Site, kept: Search, attempt: Attempt, chip: Chip) -> Search:
    """Read why a request has become a leftover before it had a chip."""
    if chip.taken_by == "user":
        return await _given(site, kept, "DELETED_ELSEWHERE", chip.why)
    refusal = await _refusal(site, attempt)
    if refusal is None and meaning(chip.why):
        refusal = refusal_error(chip.why, attempt.place.zone)
    if refusal is not None:
        return await _refused(site, kept, refusal)
    code = "PREEMPTED" if chip.state is ChipState.SUSPENDED else "FAILED"
    return await _ended(site, kept, code, chip.why or f"It is {chip.said}.")


async def _refused(site: Site, kept: Search, exc: OpsError) -> Search:
    """Write down who refused; where nothing can have been made, nothing is given back."""
    words, nothing = exc.cause or exc.summary, exc.code in {NotOurs.code, *_NEVER_AGAIN}
    return await _ended(site, kept, exc.code, words, fix=exc.fix, returned=nothing)


async def _ended(
    site: Site, kept: Search, outcome: str, detail: str, *, fix: str = "", returned: bool = False
) -> Search:
    """Write down how a request ended; whatever is there of it is given back next."""
    said: dict[str, Any] = {"outcome": outcome, "detail": detail, "fix": fix, "returned": returned}
    if outcome not in {TIMED_OUT, VANISHED}:
        said["asked"] = None  # Google has answered
    kept = _noted(site, kept, **said)
    if outcome not in _NOT_OF_THE_PLACE:
        await zones.remember_outcome(site, kept.attempts[-1].place, outcome, detail)
    return kept


async def _timed_out(site: Site, kept: Search) -> Search:
    minutes = kept.blueprint.wait_seconds // 60
    return await _ended(site, kept, TIMED_OUT, f"No chip within {minutes} min.")


async def _given(site: Site, kept: Search, outcome: str, detail: str = "") -> Search:
    """Stop at a chip, or where a person has ended the wait for it; what is left is told by it."""
    place = kept.attempts[-1].place
    last = {"outcome": outcome, "detail": detail, "returned": True, "asked": None}
    kept = _noted(site, kept, placed=place, **last)
    await zones.remember_outcome(site, place, outcome, detail)
    return kept


def _noted(site: Site, kept: Search, *, placed: Place | None = None, **said: Any) -> Search:
    """Write something down of the newest request."""
    *before, last = kept.attempts
    attempts = (*before, last.model_copy(update=said))
    return _keep(site, kept, attempts=attempts, placed=placed or kept.placed)


def _keep(site: Site, kept: Search, **said: Any) -> Search:
    kept = kept.model_copy(update=said)
    site.records.keep(kept)
    return kept


_OWN: Final = frozenset({"API_DISABLED", "CLOUD_ERROR", "CLOUD_REFUSED", "PERMISSION_DENIED"})
"""What is not for lack of chips, and is the same elsewhere if nothing else stood against it."""
_WORDS: Final = 300
"""Of Google's, of one place."""
_OTHERS: Final = 8


def describe_search(kept: Search, now: datetime) -> str:
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


def history(kept: Search) -> tuple[str, ...]:
    """Say of every place that gave no chip, in order, what stood against it and in whose words."""
    lines = []
    for one in kept.attempts:
        if one.outcome not in {"", GIVEN}:
            words = one.detail if len(one.detail) <= _WORDS else f"{one.detail[:_WORDS]} […]"
            left = "" if one.returned else " It is not seen to be given back."
            lines.append(f"{one.place}: {one.outcome}. {words}{left}".rstrip())
    return tuple(lines)


def search_failure(kept: Search, others: Sequence[str] = ()) -> Failure:
    """Say why a search that has come to its end has no chip, with a line for each place.

    `others` are zones that have such chips and were not asked.
    """
    codes = {one.outcome for one in kept.attempts}
    code = kept.attempts[-1].outcome if codes <= _OWN else NoCapacity.code
    lines, number = "\n".join(history(kept)), len(kept.attempts)
    return Failure(
        code=code,
        cause=f"No chip in {'one place' if number == 1 else f'{number} places'}.\n{lines}",
        fix=" ".join(dict.fromkeys(_fixes(kept, code, others))),
    )


def _fixes(kept: Search, code: str, others: Sequence[str]) -> Iterator[str]:
    if code == NoCapacity.code:
        more = "give more zones (get_zones_with_available_quota)"
        if others:
            more = f"give zones={list(others[:_OTHERS])}, where Google lists such chips too,"
        yield (
            f"Deploy again to search anew: capacity changes by the minute; or {more} or"
            " a longer zone_wait_minutes, or take a -spot or -flex target."
        )
    yield from (one.fix for one in kept.attempts if one.fix and one.outcome != NoCapacity.code)
