"""Work that goes on between calls and ends with the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

_log: Final = logging.getLogger(__name__)


class Background:
    """A set of named tasks.

    Plain asyncio tasks: FastMCP enters and leaves a server's lifespan under different cancel
    scopes, in which no task group of anyio can be kept open (fastmcp 4.1.2).
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, work: str, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something, unless the same work is under way already."""
        if work in self._tasks:
            return
        task = asyncio.create_task(do(), name=work)
        self._tasks[work] = task
        task.add_done_callback(lambda done: self._ended(work, done))

    def does(self, kind: str) -> bool:
        """Whether any work is under way whose name begins so."""
        return any(work.startswith(kind) for work in self._tasks)

    async def cancel(self, work: str) -> None:
        """End one piece of work, if it is under way, and wait until it has let go."""
        task = self._tasks.get(work)
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end(self) -> None:
        """Cancel what is under way and wait until it has let go."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, work: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(work, None)
        if not task.cancelled() and (exc := task.exception()):
            _log.error("%s failed", work, exc_info=exc)


async def outcomes(work: Iterable[Awaitable[None]]) -> list[BaseException | None]:
    """Return what each piece of work failed with, done side by side: no fault ends another."""
    return await asyncio.gather(*work, return_exceptions=True)
