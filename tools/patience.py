"""The last end of every call: before it, a client would cut it and never hear what became of it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import anyio

LONGEST_SECONDS: Final = 44.0
"""Of one call, but for the time in which a human thinks: some clients cut it at 45 s."""

_ENDS: Final[ContextVar[anyio.CancelScope | None]] = ContextVar("ends", default=None)


def patience_seconds() -> float:
    """Give how long one call may take."""
    return LONGEST_SECONDS


@contextmanager
def patience() -> Iterator[anyio.CancelScope]:
    """Break off what is done within, when the longest time is over; `cancelled_caught` says so.

    Whoever waits within asks `anyio.current_effective_deadline()` how long it still may.
    """
    with anyio.move_on_after(LONGEST_SECONDS) as scope:
        before = _ENDS.set(scope)
        try:
            yield scope
        finally:
            _ENDS.reset(before)


@contextmanager
def a_humans_time() -> Iterator[None]:
    """Let the clock stand still while a human is asked; after that a call begins anew."""
    scope = _ENDS.get()
    if scope is None:
        yield
        return
    scope.deadline = math.inf
    try:
        yield
    finally:
        scope.deadline = anyio.current_time() + LONGEST_SECONDS
