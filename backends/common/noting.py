"""Looks that only add to the picture: where one fails, its reason is noted."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio

from core.cloud_errors import CloudError
from core.reply import note

T = TypeVar("T")


async def or_note(look: Callable[[], Awaitable[T]], otherwise: T) -> T:
    """Give what was seen, else the other; why it could not be seen is noted."""
    try:
        return await look()
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return otherwise


async def all_or_note(looks: Mapping[str, Callable[[], Awaitable[Any]]]) -> dict[str, Any]:
    """Look at several things side by side; None stands for what could not be seen."""
    found: dict[str, Any] = dict.fromkeys(looks)

    async def look(what: str) -> None:
        found[what] = await or_note(looks[what], None)

    async with anyio.create_task_group() as group:
        for what in looks:
            group.start_soon(look, what)
    return found
