"""Several questions asked at the same time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from core.errors import OpsError

T = TypeVar("T")


async def side_by_side(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Give what each work gave, in their order.

    Raises:
        OpsError: That of the first work, in their order, which failed; the others were awaited.
    """
    found: dict[int, T] = {}
    failed: dict[int, OpsError] = {}

    async def do(number: int, work: Callable[[], Awaitable[T]]) -> None:
        try:
            found[number] = await work()
        except OpsError as exc:
            failed[number] = exc

    async with anyio.create_task_group() as group:
        for number, work in enumerate(works):
            group.start_soon(do, number, work)
    if failed:
        raise failed[min(failed)]
    return [found[number] for number in range(len(works))]
