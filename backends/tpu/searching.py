"""A search for a chip: one place after the other, one request at a time, up to the first chip.

Before and after every call that changes something, what is known is written down: whoever goes on
after a server has died at any line finds what was asked for, and asks for nothing twice.
"""

import re
from datetime import datetime, timedelta
from typing import Any, Final

from backends.google.clients import EXPIRES_LABEL
from backends.tpu import kept as memory
from backends.tpu import outcomes, refusals, returning, search_words, standing
from backends.tpu.chip import Chip, ChipState, Place
from backends.tpu.kept import Attempt, Kept
from backends.tpu.names import vm_id
from backends.tpu.outcomes import GIVEN, TIMED_OUT
from backends.tpu.planes import Request
from backends.tpu.script import startup
from backends.tpu.search_words import told as told  # noqa: PLC0414  said here too
from backends.tpu.site import Site
from core.cloud_errors import (
    ApiDisabled,
    CloudError,
    NoCapacity,
    NotAuthenticated,
    NotConfigured,
    NotOurs,
    PermissionDenied,
)
from core.errors import OpsError

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


async def step(site: Site, kept: Kept, now: datetime) -> Kept:
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
        done = await returning.gone(site, kept.name, last.place, now=now, asked=last.asked)
        return _noted(site, kept, returned=True, asked=None) if done else kept
    place = _next(kept)
    if place is None:
        return kept
    return _kept(site, kept, attempts=(*kept.attempts, begun(place, now)))


def begun(place: Place, now: datetime) -> Attempt:
    """Give a request that is about to be made."""
    return Attempt(place=place, since=now, returned=False)


def over(kept: Kept) -> bool:
    """Whether there is nothing left to be done, whatever came of it."""
    if kept.failure:
        return True
    busy = kept.replacing or any(not one.outcome or not one.returned for one in kept.attempts)
    return not busy and (kept.placed is not None or _next(kept) is None)


async def _clear(site: Site, kept: Kept, now: datetime) -> Kept:
    """Delete what ran under this name before."""
    gone = [
        place
        for place in kept.replacing
        if await returning.gone(site, kept.name, place, now=now, asked=kept.late)
    ]
    left = tuple(place for place in kept.replacing if place not in gone)
    return _kept(site, kept, replacing=left) if gone else kept


def _next(kept: Kept) -> Place | None:
    """Give the place to ask next; a control plane that refuses altogether is not asked again."""
    asked = {one.place for one in kept.attempts}
    barred = {one.place.plane for one in kept.attempts if one.outcome in _NEVER_AGAIN}
    left = (one for one in kept.blueprint.places if one not in asked and one.plane not in barred)
    return next(left, None)


async def _look(site: Site, kept: Kept, attempt: Attempt, now: datetime) -> Kept:
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
    if not standing.wanted(site, kept.blueprint, chip):
        words = f"{chip.id} is there already and was not made by this search."
        return await _refused(site, kept, now, NotOurs(words, fix="Deploy under another name."))
    if not attempt.taken:
        kept = _noted(site, kept, taken=True, asked=None)
    return await _judged(site, kept, chip, now)


async def _judged(site: Site, kept: Kept, chip: Chip, now: datetime) -> Kept:
    """Stop at a chip, leave a leftover or what has waited for too long, else wait."""
    attempt = kept.attempts[-1]
    if chip.state in _HAVE or (chip.state in _HAD and chip.given_at):
        return await _given(site, kept, now, GIVEN)
    if chip.state.leftover:
        return await _failed(site, kept, attempt, chip, now)
    if now >= _deadline(kept, attempt, chip):
        return await _ended(site, kept, now, TIMED_OUT, _waited(kept))
    return kept


def _deadline(kept: Kept, attempt: Attempt, chip: Chip | None) -> datetime:
    until = attempt.since + timedelta(seconds=kept.blueprint.wait_seconds) + _GRACE
    making = chip is not None and chip.state is ChipState.PROVISIONING
    return until + _MAKING if making else until


async def _ask(site: Site, kept: Kept, attempt: Attempt, now: datetime) -> Kept:
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


def _request(kept: Kept, place: Place, now: datetime) -> Request:
    """Give what is asked for; the label is for servers that know no better."""
    made, labels = kept.blueprint, dict(kept.blueprint.labels)
    if made.run_seconds:
        latest = now + timedelta(seconds=made.wait_seconds + made.run_seconds)
        labels[EXPIRES_LABEL] = str(int(latest.timestamp()))
    script = startup(made, image=made.container.image)
    return Request(made=made, zone=place.zone, script=script, labels=labels)


async def _gone(site: Site, kept: Kept, attempt: Attempt, now: datetime) -> Kept:
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


async def _failed(site: Site, kept: Kept, attempt: Attempt, chip: Chip, now: datetime) -> Kept:
    """Read why a request has become a leftover before it had a chip."""
    if chip.taken_by == "user":
        return await _given(site, kept, now, "DELETED_ELSEWHERE", chip.why)
    if _EXPIRED.search(chip.why):
        return await _ended(site, kept, now, TIMED_OUT, chip.why)
    plane, zone = site.planes[attempt.place.plane], attempt.place.zone
    refusal = await plane.refusal(zone, attempt.operation) if attempt.operation else None
    if refusal is None and refusals.meaning(chip.why):
        refusal = refusals.told(chip.why, zone)
    if refusal is not None:
        return await _refused(site, kept, now, refusal)
    code = "PREEMPTED" if chip.state is ChipState.SUSPENDED else "FAILED"
    return await _ended(site, kept, now, code, chip.why or f"It is {chip.said}.")


async def _refused(site: Site, kept: Kept, now: datetime, exc: OpsError) -> Kept:
    """Write down who refused; where nothing can have been made, nothing is given back."""
    words, nothing = exc.cause or exc.summary, exc.code in {NotOurs.code, *_NEVER_AGAIN}
    return await _ended(site, kept, now, exc.code, words, fix=exc.fix, returned=nothing)


async def _ended(
    site: Site,
    kept: Kept,
    now: datetime,
    outcome: str,
    detail: str,
    *,
    fix: str = "",
    returned: bool = False,
) -> Kept:
    """Write down how a request ended; whatever is there of it is given back next."""
    said: dict[str, Any] = {"outcome": outcome, "detail": detail, "fix": fix, "returned": returned}
    if outcome not in {TIMED_OUT, VANISHED}:
        said["asked"] = None  # Google has answered
    kept = _noted(site, kept, **said)
    if outcome not in _NOT_OF_THE_PLACE:
        await outcomes.remember(site, kept.attempts[-1].place, outcome, detail, now=now)
    return kept


async def _given(site: Site, kept: Kept, now: datetime, outcome: str, detail: str = "") -> Kept:
    """Stop at a chip, or where a person has ended the wait for it; what is left is told by it."""
    place = kept.attempts[-1].place
    last = {"outcome": outcome, "detail": detail, "returned": True, "asked": None}
    kept = _noted(site, kept, placed=place, **last)
    await outcomes.remember(site, place, outcome, detail, now=now)
    return kept


def _noted(site: Site, kept: Kept, *, placed: Place | None = None, **said: Any) -> Kept:
    """Write something down of the newest request."""
    *before, last = kept.attempts
    attempts = (*before, last.model_copy(update=said))
    return _kept(site, kept, attempts=attempts, placed=placed or kept.placed)


def _kept(site: Site, kept: Kept, **said: Any) -> Kept:
    kept = kept.model_copy(update=said)
    memory.keep(site, kept)
    return kept


def _waited(kept: Kept) -> str:
    return f"No chip within {search_words.span(kept.blueprint.wait_seconds)}."
