"""Waits of tests for what will be so: they look often, and one end is for those that hang."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from core.waiting import wait_until

T = TypeVar("T")

HANGS: Final = 120.0
"""Seconds after which it will not come; a machine under load takes a tenth of them."""


async def soon(
    look: Callable[[], Awaitable[T]],
    done: Callable[[T], Any] = bool,
    *,
    waiting_for: str = "that answer",
    every: float = 0.05,
) -> T:
    """Look until it is done; give what was seen then."""
    return await wait_until(look, done, waiting_for=waiting_for, every=every, timeout=HANGS)


async def until(condition: Callable[[], Any], waiting_for: str = "what was begun") -> None:
    """Wait for what can be seen without asking anybody."""

    async def look() -> bool:
        return bool(condition())

    await soon(look, waiting_for=waiting_for)
