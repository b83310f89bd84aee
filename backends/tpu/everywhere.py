"""What is looked for in every zone: in one question, or zone by zone where that is refused."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from backends.common.concurrency import side_by_side
from core.cloud_errors import CloudRefused, PermissionDenied
from core.errors import OpsError
from core.reply import note

T = TypeVar("T")

Look = Callable[[str], Awaitable[Sequence[T]]]
"""Gives what there is in a zone; `-` is every zone."""


async def everywhere(look: Look[T], zones: Sequence[str], what: str) -> Sequence[T]:
    """Give what there is; a zone that cannot be asked is noted.

    Raises:
        OpsError: None of them can.
    """
    try:
        return await look("-")
    except (CloudRefused, PermissionDenied):
        if not zones:
            raise
    answers = await side_by_side([partial(_tried, look, zone) for zone in zones])
    failed = [answer for answer in answers if isinstance(answer, OpsError)]
    if len(failed) == len(answers):
        raise failed[0]
    for zone, answer in zip(zones, answers, strict=True):
        if isinstance(answer, OpsError):
            note(f"{what} in {zone} could not be looked at: {answer.cause or answer.summary}")
    return [one for answer in answers if not isinstance(answer, OpsError) for one in answer]


def unreachable(places: Iterable[str], what: str) -> None:
    """Note zones that Google itself could not ask."""
    for place in places:
        note(
            f"{what} in {place.rpartition('/')[2]} could not be looked at: Google cannot reach it."
        )


async def _tried(look: Look[T], zone: str) -> Sequence[T] | OpsError:
    try:
        return await look(zone)
    except OpsError as exc:
        return exc
