"""A chip asked for once: what is there already is found, and what Google refuses soon is told."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from backends.google.errors import UNSURE
from backends.tpu.chip import Chip, ChipState
from backends.tpu.planes import Request
from core.cloud_errors import ConcurrentChange, NotOurs
from core.errors import OpsError, WaitedTooLong
from core.waiting import wait_until

LOOK_SECONDS: Final = 1.5
"""What Google refuses at once is known by then; whoever waits for a chip asks `refusal` later."""
_EVERY_SECONDS: Final = 0.3
_GOING: Final = frozenset({ChipState.DELETING, ChipState.STOPPING})


class Outcome(NamedTuple):
    """How far an operation is."""

    done: bool
    error: OpsError | None = None


class Asked(Protocol):
    """A control plane, as far as this module needs it."""

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at one; None if there is none."""

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is."""


async def asked(plane: Asked, request: Request, ask: Callable[[], Awaitable[str]]) -> str:
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
    await refused_soon(plane, request.zone, operation)
    return operation


async def refused_soon(plane: Asked, zone: str, operation: str) -> None:
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
