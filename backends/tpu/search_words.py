"""A search in words: where it is, what stood against it so far, and why it ended without a chip."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from backends.tpu.kept import Attempt, Kept
from backends.tpu.outcomes import GIVEN
from core.cloud_errors import NoCapacity
from core.records import Failure

_OWN: Final = frozenset({"API_DISABLED", "CLOUD_ERROR", "CLOUD_REFUSED", "PERMISSION_DENIED"})
"""What is not for lack of chips, and is the same elsewhere if nothing else stood against it."""
_WORDS: Final = 300
"""Of Google's, of one place."""
_OTHERS: Final = 8


def told(kept: Kept, now: datetime) -> str:
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


def history(kept: Kept) -> tuple[str, ...]:
    """Say of every place that gave no chip, in order, what stood against it and in whose words."""
    return tuple(_line(one) for one in _over(kept))


def failure(kept: Kept, others: Sequence[str] = ()) -> Failure:
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


def _fixes(kept: Kept, code: str, others: Sequence[str]) -> Iterator[str]:
    if code == NoCapacity.code:
        more = "give more zones (get_zones_with_available_quota)"
        if others:
            more = f"give zones={list(others[:_OTHERS])}, where Google lists such chips too,"
        yield (
            f"Deploy again to search anew: capacity changes by the minute; or {more} or"
            " a longer zone_wait_minutes, or take a -spot or -flex target."
        )
    yield from (one.fix for one in kept.attempts if one.fix and one.outcome != NoCapacity.code)


def _over(kept: Kept) -> list[Attempt]:
    return [one for one in kept.attempts if one.outcome and one.outcome != GIVEN]


def _how_long(kept: Kept, attempt: Attempt, now: datetime) -> str:
    until = attempt.since + timedelta(seconds=kept.blueprint.wait_seconds)
    return f"until {until:%H:%M} UTC" if until > now else "its time is over"


def _line(attempt: Attempt) -> str:
    words = attempt.detail if len(attempt.detail) <= _WORDS else f"{attempt.detail[:_WORDS]} […]"
    left = "" if attempt.returned else " It is not seen to be given back."
    return f"{attempt.place}: {attempt.outcome}. {words}{left}".rstrip()
