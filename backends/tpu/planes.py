"""What both control planes share: asking for a chip, refusals, looking in every zone."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, get_args

from backends.common.concurrency import side_by_side
from backends.google.errors import UNSURE, strictly
from backends.tpu.site import Chip, ChipState, Request
from core.errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    NoCapacity,
    NotOurs,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
    WaitedTooLong,
    ZoneRefused,
)
from core.reply import note
from core.waiting import wait_until
from logs.failures import meaning as wording_for

T = TypeVar("T")

Look = Callable[[str], Awaitable[Sequence[T]]]
"""Gives what there is in a zone; `-` is every zone."""


async def in_every_zone(look: Look[T], zones: Sequence[str], what: str) -> Sequence[T]:
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


Means = Literal[
    "ZONE_REFUSED",
    "NO_CAPACITY",
    "QUOTA_EXCEEDED",
    "NOT_OURS",
    "CLOUD_UNAVAILABLE",
    "CONCURRENT_CHANGE",
]


_ERRORS: Final[dict[Means, tuple[type[CloudError], str, str]]] = {
    "ZONE_REFUSED": (
        ZoneRefused,
        "{zone} does not give this accelerator in this way.",
        "Another zone may: call get_zones_with_available_quota.",
    ),
    "NO_CAPACITY": (
        NoCapacity,
        "{zone} has no chip free.",
        "Ask in another zone or again later; flex-start waits in a queue of its own.",
    ),
    "QUOTA_EXCEEDED": (
        QuotaExceeded,
        "The project's quota does not allow so many chips in {zone}.",
        "Call check_gpu_quotas and list_queued_resources: failed requests hold quota as well.",
    ),
    "NOT_OURS": (
        NotOurs,
        "{zone} has a TPU of that name which was not made here; it is left alone.",
        "Choose another name.",
    ),
    "CLOUD_UNAVAILABLE": (
        CloudUnavailable,
        "Google takes no more calls of the project just now.",
        "Call the same tool again in a minute.",
    ),
    "CONCURRENT_CHANGE": (
        ConcurrentChange,
        "What was there of that name in {zone} is not through yet.",
        "Call the same tool again in a minute.",
    ),
}


def meaning(words: str) -> Means | None:
    """Say what words of Google's mean; None where no wording fits.

    >>> meaning('There is no more capacity in the zone "us-east5-b"; you can try in another zone')
    'NO_CAPACITY'
    """
    wording = wording_for("tpu", words)
    return next((means for means in get_args(Means) if wording and wording.code == means), None)


def is_contradiction(words: str) -> bool:
    """Whether the request is said to name two ways of giving a chip.

    >>> is_contradiction("STANDARD provisioning model is incompatible with spot requests")
    True
    """
    wording = wording_for("tpu", words)
    return wording is not None and wording.code == "PROVISIONING_MODEL_CONFLICT"


def refusal_error(words: str, zone: str) -> OpsError:
    """Make an error of Google's words on a request that it had taken."""
    means = meaning(words)
    if means is None:
        return CloudRefused(
            f"The request for a chip in {zone} failed.",
            cause=words,
            fix="Change what the cause names.",
        )
    kind, summary, fix = _ERRORS[means]
    return kind(summary.format(zone=zone), cause=words, fix=fix)


@contextmanager
def translated_refusal(what: str, zone: str) -> Iterator[None]:
    """Translate what Google raises while a zone is asked for something.

    Raises:
        ZoneRefused, NoCapacity, QuotaExceeded: The zone does not give it.
        CloudError: Google refused for another reason, or did not answer.
    """
    try:
        with strictly(what):
            yield
    except CloudError as exc:
        if meaning(exc.cause) is None:
            raise
        raise refusal_error(exc.cause, zone) from exc


LOOK_SECONDS: Final = 1.5
"""What Google refuses at once is known by then; whoever waits for a chip asks `refusal` later."""
_EVERY_SECONDS: Final = 0.3
_GOING: Final = frozenset({ChipState.DELETING, ChipState.STOPPING})


class Outcome(NamedTuple):
    """How far an operation is."""

    done: bool
    error: OpsError | None = None


class Asks(Protocol):
    """A control plane, as far as this module needs it."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at one; None if there is none."""

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is."""


async def ask(plane: Asks, request: Request, ask: Callable[[], Awaitable[str]]) -> str:
    """Ask, and give the operation's name; empty where one of that id, and ours, is there already.

    Raises:
        NotOurs: Something else has that id.
        ConcurrentChange: One of that id is still being deleted.
        OpsError: Google refused, or did not answer and there is none.
    """
    try:
        operation = await ask()
    except (ConcurrentChange, *UNSURE) as exc:
        chip = await plane.get(request.zone, request.made.id)
        if chip is None:
            raise
        if not (chip.ours and chip.deployment == request.made.spec.name):
            raise _not_ours(request) from exc
        if chip.state in _GOING:
            raise _going(request) from exc
        return ""
    await raise_early_refusal(plane, request.zone, operation)
    return operation


async def raise_early_refusal(plane: Asks, zone: str, operation: str) -> None:
    """Raise what an operation failed with, if that is known in a moment."""
    with contextlib.suppress(WaitedTooLong, *UNSURE):
        seen = await wait_until(
            lambda: plane.outcome(zone, operation),
            lambda outcome: outcome.done,
            waiting_for="the request to be taken",
            every=_EVERY_SECONDS,
            timeout=LOOK_SECONDS,
        )
        if seen.error:
            raise seen.error


def _not_ours(request: Request) -> NotOurs:
    return NotOurs(
        f"{request.zone} has a TPU called {request.made.id} that was not made here;"
        " it is left alone.",
        fix="Choose another name, or another zone.",
    )


def _going(request: Request) -> ConcurrentChange:
    return ConcurrentChange(
        f"{request.made.id} in {request.zone} is still being deleted.",
        fix="Call the same tool again in a minute.",
    )
