"""A search for a chip: one place after the other, one request at a time."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from backends.google.clients import EXPIRES_LABEL
from backends.tpu import chips, planes, store
from backends.tpu.site import Chip, ChipState, Place, Request, Site, vm_id
from backends.tpu.store import GIVEN, TIMED_OUT, Attempt, SearchRecord
from backends.tpu.vm import startup_script
from core.errors import (
    ApiDisabled,
    CloudError,
    CloudRefused,
    NoCapacity,
    NotAuthenticated,
    NotConfigured,
    NotOurs,
    OpsError,
    PermissionDenied,
)
from core.records import Failure
from core.reply import note

_OWN: Final = frozenset({"API_DISABLED", "CLOUD_ERROR", "CLOUD_REFUSED", "PERMISSION_DENIED"})
"""What is not for lack of chips, and is the same elsewhere if nothing else stood against it."""
_WORDS: Final = 300
"""Of Google's, of one place."""
_OTHERS: Final = 8


def describe_search(kept: SearchRecord, now: datetime) -> str:
    """Say which of several places is asked, until when, and what came of those before.

    Of a deployment that is given up or replaced: where it is being deleted.
    """
    if kept.removing or kept.replacing:
        places = ", ".join(str(place) for place in kept.left)
        return f"{places}: Google may take ten minutes" if places else ""
    if not kept.attempts or kept.placed:
        return ""
    last = kept.attempts[-1]
    number = f"{last.place}, place {len(kept.attempts)} of {len(kept.blueprint.places)}"
    before = "; ".join((*(f"{one.place}: {one.outcome}" for one in _over(kept)),))
    said = f"{number}, {_how_long(kept, last, now)}" if not last.outcome else number
    return f"{said}. So far: {before}" if before else said


def history(kept: SearchRecord) -> tuple[str, ...]:
    """Say of every place that gave no chip, in order, what stood against it and in whose words."""
    return tuple(_line(one) for one in _over(kept))


def search_failure(kept: SearchRecord, others: Sequence[str] = ()) -> Failure:
    """Say why a search that has come to its end has no chip, with a line for each place.

    `others` are zones that have such chips and were not asked.
    """
    codes = {one.outcome for one in kept.attempts}
    code = kept.attempts[-1].outcome if codes <= _OWN else NoCapacity.code
    lines = "\n".join(history(kept))
    return Failure(
        code=code,
        cause=f"No chip in {_places(len(kept.attempts))}.\n{lines}",
        fix=" ".join(dict.fromkeys(_fixes(kept, code, others))),
    )


def span(seconds: float) -> str:
    """Say how long.

    >>> span(5400), span(45)
    ('90 min', '45 s')
    """
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _places(number: int) -> str:
    return "one place" if number == 1 else f"{number} places"


def _fixes(kept: SearchRecord, code: str, others: Sequence[str]) -> Iterator[str]:
    if code == NoCapacity.code:
        more = "give more zones (get_zones_with_available_quota)"
        if others:
            more = f"give zones={list(others[:_OTHERS])}, where Google lists such chips too,"
        yield (
            f"Deploy again to search anew: capacity changes by the minute; or {more} or"
            " a longer zone_wait_minutes, or take a -spot or -flex target."
        )
    yield from (one.fix for one in kept.attempts if one.fix and one.outcome != NoCapacity.code)


def _over(kept: SearchRecord) -> list[Attempt]:
    return [one for one in kept.attempts if one.outcome and one.outcome != GIVEN]


def _how_long(kept: SearchRecord, attempt: Attempt, now: datetime) -> str:
    until = attempt.since + timedelta(seconds=kept.blueprint.wait_seconds)
    return f"until {until:%H:%M} UTC" if until > now else "its time is over"


def _line(attempt: Attempt) -> str:
    words = attempt.detail if len(attempt.detail) <= _WORDS else f"{attempt.detail[:_WORDS]} […]"
    left = "" if attempt.returned else " It is not seen to be given back."
    return f"{attempt.place}: {attempt.outcome}. {words}{left}".rstrip()


_LATE: Final = timedelta(seconds=30)
"""So long after a call without an answer, what it asked for may still come into being."""


async def give_back(
    site: Site, name: str, place: Place, *, now: datetime, asked: datetime | None = None
) -> bool:
    """Ask to delete what a deployment has at a place, unless it is being deleted already.

    Whether it is seen that there is nothing; `asked` is when it was asked for, where no answer
    came. Google may take ten minutes for a deletion: look again. What is not ours stays.

    Raises:
        CloudError: Google refused, or did not answer.
    """
    plane = site.planes[place.plane]
    chip = await plane.get(place.zone, vm_id(name))
    if chip is None:
        return asked is None or now - asked >= _LATE
    if not chips.is_ours(site, name, chip):
        return True
    if chip.state is not ChipState.DELETING:
        site.inventory.forget()
        try:
            await plane.delete(place.zone, chip.id)
        except CloudRefused as exc:  # as for one that is being made: the next look asks again
            note(f"{chip.id} in {place} could not be deleted yet: {exc.cause or exc.summary}")
    return False


_EXPIRED: Final = re.compile(r"\bvalid.?until\b", re.IGNORECASE)
"""A request of the queue that has waited as long as it was to; source: discovery document tpu.v2,
QueuedResourceState FAILED (revision of 2026-10)."""
VANISHED: Final = "VANISHED"
_GRACE: Final = timedelta(minutes=2)
"""The cloud itself ends a wait; this is for one that does not."""
_MAKING: Final = timedelta(minutes=30)
"""A chip that is given becomes a VM; field reports of 2026: it took up to 23 minutes."""
_SEEN: Final = timedelta(seconds=20)
"""Within these a request that was taken may not be seen yet."""
_SEEN_AFTER_AN_ANSWER: Final = timedelta(seconds=60)
"""Of one whose operation is known, and did not fail: asked elsewhere, there would be two."""
_HAVE: Final = frozenset({ChipState.RUNNING, ChipState.STOPPED})
"""In these it has, or had, its chips."""
_HAD: Final = frozenset({ChipState.STOPPING, ChipState.SUSPENDED})
"""In these it had, if it was ever given them."""
_NEVER_AGAIN: Final = frozenset({ApiDisabled.code, NotConfigured.code, PermissionDenied.code})
"""What stands against every place of a control plane."""
_NOT_OF_THE_PLACE: Final = frozenset({VANISHED, NotOurs.code, *_NEVER_AGAIN})
"""What tells nothing of whether there are chips."""


async def search_step(site: Site, kept: SearchRecord, now: datetime) -> SearchRecord:
    """Take one step; what comes back is written down, and the same if there is only to wait.

    Raises:
        NotAuthenticated: Nobody is logged in.
        CloudError: What was to be looked at or given back could not be; it is to be tried again,
            where the error says so.
    """
    if kept.replacing:
        return await _clear(site, kept, now)
    last = kept.attempts[-1] if kept.attempts else None
    if kept.placed or kept.failure:
        return kept
    if last is not None and not last.outcome:
        return await _look(site, kept, last, now)
    if last is not None and not last.returned:
        done = await give_back(site, kept.name, last.place, now=now, asked=last.asked)
        return _noted(site, kept, returned=True, asked=None) if done else kept
    place = _next(kept)
    if place is None:
        return kept
    return _kept(site, kept, attempts=(*kept.attempts, new_attempt(place, now)))


def new_attempt(place: Place, now: datetime) -> Attempt:
    """Give a request that is about to be made."""
    return Attempt(place=place, since=now, returned=False)


def is_over(kept: SearchRecord) -> bool:
    """Whether there is nothing left to be done, whatever came of it."""
    if kept.failure:
        return True
    busy = kept.replacing or any(not one.outcome or not one.returned for one in kept.attempts)
    return not busy and (kept.placed is not None or _next(kept) is None)


async def _clear(site: Site, kept: SearchRecord, now: datetime) -> SearchRecord:
    """Delete what ran under this name before."""
    gone = [
        place
        for place in kept.replacing
        if await give_back(site, kept.name, place, now=now, asked=kept.late)
    ]
    left = tuple(place for place in kept.replacing if place not in gone)
    return _kept(site, kept, replacing=left) if gone else kept


def _next(kept: SearchRecord) -> Place | None:
    """Give the place to ask next; a control plane that refuses altogether is not asked again."""
    asked = {one.place for one in kept.attempts}
    barred = {one.place.plane for one in kept.attempts if one.outcome in _NEVER_AGAIN}
    left = (one for one in kept.blueprint.places if one not in asked and one.plane not in barred)
    return next(left, None)


async def _look(site: Site, kept: SearchRecord, attempt: Attempt, now: datetime) -> SearchRecord:
    """See what has become of the request that is under way."""
    place = attempt.place
    try:
        chip = await site.planes[place.plane].get(place.zone, vm_id(kept.name))
    except (ApiDisabled, PermissionDenied) as exc:
        if attempt.taken or attempt.asked:
            raise
        return await _refused(site, kept, now, exc)
    if chip is None:
        missing = _gone if attempt.taken else _ask
        return await missing(site, kept, attempt, now)
    if not chips.is_wanted(site, kept.blueprint, chip):
        words = f"{chip.id} is there already and was not made by this search."
        return await _refused(site, kept, now, NotOurs(words, fix="Deploy under another name."))
    if not attempt.taken:
        kept = _noted(site, kept, taken=True, asked=None)
    return await _judged(site, kept, chip, now)


async def _judged(site: Site, kept: SearchRecord, chip: Chip, now: datetime) -> SearchRecord:
    """Stop at a chip, leave a leftover or what has waited for too long, else wait."""
    attempt = kept.attempts[-1]
    if chip.state in _HAVE or (chip.state in _HAD and chip.given_at):
        return await _given(site, kept, now, GIVEN)
    if chip.state.leftover:
        return await _failed(site, kept, attempt, chip, now)
    if now >= _deadline(kept, attempt, chip):
        return await _ended(site, kept, now, TIMED_OUT, _waited(kept))
    return kept


def _deadline(kept: SearchRecord, attempt: Attempt, chip: Chip | None) -> datetime:
    until = attempt.since + timedelta(seconds=kept.blueprint.wait_seconds) + _GRACE
    making = chip is not None and chip.state is ChipState.PROVISIONING
    return until + _MAKING if making else until


async def _ask(site: Site, kept: SearchRecord, attempt: Attempt, now: datetime) -> SearchRecord:
    """Ask for it; it is not there, and nobody has heard that it was taken."""
    if now >= _deadline(kept, attempt, None):
        return await _ended(site, kept, now, TIMED_OUT, _waited(kept))
    kept = _noted(site, kept, asked=now)
    plane, request = site.planes[attempt.place.plane], _request(kept, attempt.place, now)
    try:
        operation = await plane.create(request)
    except NotAuthenticated:
        _noted(site, kept, asked=None)
        raise
    except CloudError as exc:
        if _is_unsure(exc):
            raise
        return await _refused(site, kept, now, exc)
    finally:
        site.inventory.forget()
    return _noted(site, kept, taken=True, asked=None, operation=operation)


def _is_unsure(exc: CloudError) -> bool:
    """Whether it may have happened, or may happen if it is asked for again."""
    return exc.retryable and exc.code != NoCapacity.code


def _request(kept: SearchRecord, place: Place, now: datetime) -> Request:
    """Give what is asked for; the label is for servers that know no better."""
    made, labels = kept.blueprint, dict(kept.blueprint.labels)
    if made.run_seconds:
        latest = now + timedelta(seconds=made.wait_seconds + made.run_seconds)
        labels[EXPIRES_LABEL] = str(int(latest.timestamp()))
    script = startup_script(made, image=made.container.image)
    return Request(made=made, zone=place.zone, script=script, labels=labels)


async def _gone(site: Site, kept: SearchRecord, attempt: Attempt, now: datetime) -> SearchRecord:
    """Say why a request is not there that Google had taken."""
    plane, zone = site.planes[attempt.place.plane], attempt.place.zone
    refusal = await plane.refusal(zone, attempt.operation) if attempt.operation else None
    if refusal is not None:
        return await _refused(site, kept, now, refusal)
    if now - attempt.since < (_SEEN_AFTER_AN_ANSWER if attempt.operation else _SEEN):
        return kept
    how = await plane.ended(zone, vm_id(kept.name), since=attempt.since)
    if how is None or how.code == "NOT_KNOWN":
        words = how.words if how else "It is there no more, and nothing says why."
        return await _ended(site, kept, now, VANISHED, words)
    elsewhere = how.code == "DELETED_ELSEWHERE"
    return await _given(site, kept, now, how.code if elsewhere else GIVEN, how.words)


async def _failed(
    site: Site, kept: SearchRecord, attempt: Attempt, chip: Chip, now: datetime
) -> SearchRecord:
    """Read why a request has become a leftover before it had a chip."""
    if chip.taken_by == "user":
        return await _given(site, kept, now, "DELETED_ELSEWHERE", chip.why)
    if _EXPIRED.search(chip.why):
        return await _ended(site, kept, now, TIMED_OUT, chip.why)
    plane, zone = site.planes[attempt.place.plane], attempt.place.zone
    refusal = await plane.refusal(zone, attempt.operation) if attempt.operation else None
    if refusal is None and planes.meaning(chip.why):
        refusal = planes.refusal_error(chip.why, zone)
    if refusal is not None:
        return await _refused(site, kept, now, refusal)
    code = "PREEMPTED" if chip.state is ChipState.SUSPENDED else "FAILED"
    return await _ended(site, kept, now, code, chip.why or f"It is {chip.said}.")


async def _refused(site: Site, kept: SearchRecord, now: datetime, exc: OpsError) -> SearchRecord:
    """Write down who refused; where nothing can have been made, nothing is given back."""
    words, nothing = exc.cause or exc.summary, exc.code in {NotOurs.code, *_NEVER_AGAIN}
    return await _ended(site, kept, now, exc.code, words, fix=exc.fix, returned=nothing)


async def _ended(
    site: Site,
    kept: SearchRecord,
    now: datetime,
    outcome: str,
    detail: str,
    *,
    fix: str = "",
    returned: bool = False,
) -> SearchRecord:
    """Write down how a request ended; whatever is there of it is given back next."""
    said: dict[str, Any] = {"outcome": outcome, "detail": detail, "fix": fix, "returned": returned}
    if outcome not in {TIMED_OUT, VANISHED}:
        said["asked"] = None  # Google has answered
    kept = _noted(site, kept, **said)
    if outcome not in _NOT_OF_THE_PLACE:
        await store.remember_outcome(site, kept.attempts[-1].place, outcome, detail, now=now)
    return kept


async def _given(
    site: Site, kept: SearchRecord, now: datetime, outcome: str, detail: str = ""
) -> SearchRecord:
    """Stop at a chip, or where a person has ended the wait for it; what is left is told by it."""
    place = kept.attempts[-1].place
    last = {"outcome": outcome, "detail": detail, "returned": True, "asked": None}
    kept = _noted(site, kept, placed=place, **last)
    await store.remember_outcome(site, place, outcome, detail, now=now)
    return kept


def _noted(
    site: Site, kept: SearchRecord, *, placed: Place | None = None, **said: Any
) -> SearchRecord:
    """Write something down of the newest request."""
    *before, last = kept.attempts
    attempts = (*before, last.model_copy(update=said))
    return _kept(site, kept, attempts=attempts, placed=placed or kept.placed)


def _kept(site: Site, kept: SearchRecord, **said: Any) -> SearchRecord:
    kept = kept.model_copy(update=said)
    store.keep_record(site, kept)
    return kept


def _waited(kept: SearchRecord) -> str:
    return f"No chip within {span(kept.blueprint.wait_seconds)}."
