"""Waits that have an end, a rhythm and a reason."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from core.errors import WaitedTooLong

T = TypeVar("T")
_scale = {"pauses": 1.0, "limits": 1.0}
"""Of this process, which has one server."""


def scale_waits(*, pauses: float, limits: float) -> None:
    """Let this process's own pauses, and its patience, last so many times as long."""
    _scale.update(pauses=pauses, limits=limits)


def pause(seconds: float) -> float:
    """Return how long a pause between two looks lasts here, as PAUSE_SCALE says."""
    return seconds * _scale["pauses"]


def limit(seconds: float) -> float:
    """Return how long is waited here at most, as PATIENCE_SCALE says."""
    return seconds * _scale["limits"]


async def wait_until(
    look: Callable[[], Awaitable[T]],
    done: Callable[[T], bool],
    *,
    waiting_for: str,
    every: float,
    timeout: float,
) -> T:
    """Look every so many seconds until it is done; give what was seen then.

    Raises:
        WaitedTooLong: `timeout` seconds went by; the message names what was last seen.
    """
    deadline = anyio.current_time() + timeout
    while not done(seen := await look()):
        if anyio.current_time() + every > deadline:
            raise WaitedTooLong(
                f"Waited {timeout:.0f} s for {waiting_for}; last seen: {seen}.",
                fix="It may yet come: look again with status_vllm.",
            )
        await anyio.sleep(every)
    return seen
