"""Progress told to the client while a tool works."""

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from fastmcp.server.context import Context

from core.records import Deployment
from core.redaction import one_line

_EVERY_SECONDS: Final = 5.0


class _Beat:
    """Passes one message on every few seconds, or at once when it changes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._last, self._said, self._count = -math.inf, "", 0

    async def tell(self, message: str) -> None:
        now = anyio.current_time()
        if message == self._said and now - self._last < _EVERY_SECONDS:
            return
        self._last, self._said, self._count = now, message, self._count + 1
        await self._ctx.report_progress(self._count, None, one_line(message, 200))


def heartbeat(ctx: Context) -> Callable[[Deployment], Awaitable[None]]:
    """Tell a deployment's summary."""
    beat = _Beat(ctx)

    async def tell(deployment: Deployment) -> None:
        await beat.tell(deployment.summary())

    return tell


def saying(ctx: Context) -> Callable[[str], Awaitable[None]]:
    """Tell how far something is."""
    return _Beat(ctx).tell


def counting(ctx: Context) -> Callable[[int], Awaitable[None]]:
    """Tell every few seconds how much of an answer has come."""
    beat, began = _Beat(ctx), anyio.current_time()

    async def tell(_pieces: int) -> None:
        seconds = anyio.current_time() - began
        if seconds > _EVERY_SECONDS:
            every = int(seconds // _EVERY_SECONDS * _EVERY_SECONDS)
            await beat.tell(f"The model has been answering for {every} s.")

    return tell
