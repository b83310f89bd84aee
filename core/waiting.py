"""Waits that have an end, a rhythm and a reason."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from core.errors import WaitedTooLong

T = TypeVar("T")


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
