"""Several questions at the same time, an end for each, and one writer at a time."""

import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import anyio

from core.errors import Busy, CloudError, CloudTimeout, DiskFull, HostError, OpsError, WaitedTooLong
from core.reply import note
from core.waiting import wait_until

K = TypeVar("K")
T = TypeVar("T")


async def ask_each(
    those: Mapping[K, Callable[[], Awaitable[T]]],
) -> tuple[dict[K, T], dict[K, OpsError]]:
    """Ask several side by side; return what each said, and why the others did not."""
    said: dict[K, T] = {}
    failed: dict[K, OpsError] = {}

    async def ask(name: K) -> None:
        try:
            said[name] = await those[name]()
        except OpsError as exc:
            failed[name] = exc

    async with anyio.create_task_group() as group:
        for name in those:
            group.start_soon(ask, name)
    return said, failed


async def side_by_side(works: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Give what each work gave, in their order.

    Raises:
        OpsError: That of the first work, in their order, which failed; the others were awaited.
    """
    found, failed = await ask_each(dict(enumerate(works)))
    if failed:
        raise failed[min(failed)]
    return [found[number] for number in range(len(works))]


@contextmanager
def in_time(who: str, what: str, seconds: float, *, fix: str) -> Iterator[None]:
    """Stop waiting after so many seconds.

    Raises:
        CloudTimeout: Then.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as exc:
        raise CloudTimeout(
            f"{who} did not answer within {seconds:.0f} s: {what}.", fix=fix
        ) from exc


async def or_note(look: Callable[[], Awaitable[T]], otherwise: T) -> T:
    """Give what was seen, else the other; why it could not be seen is noted."""
    try:
        return await look()
    except CloudError as exc:
        note(f"{exc.summary} {exc.cause}".strip())
        return otherwise


def write_whole(path: Path, text: str) -> None:
    """Write a file of which nobody ever reads a half; its folder must be there.

    Raises:
        HostError: It cannot be written; what was there before is still there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with on_disk(path.parent):
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Turn what the system says while `folder` is written to into an error of ours."""
    try:
        yield
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(
                f"The disk of {folder} is full.",
                fix="Make room there, or set VLLM_DEVOPS_STATE_DIR to another disk.",
                cause=str(exc),
            ) from exc
        raise HostError(
            f"{folder} cannot be written.",
            fix="Give this user the right to write there, or set VLLM_DEVOPS_STATE_DIR.",
            cause=str(exc),
        ) from exc


LOCK_SECONDS: Final = 25.0
"""Ending a stubborn engine takes up to 17 s; a tool may take 45."""
_LOOK_SECONDS: Final = 0.05


@asynccontextmanager
async def locked(lock: Path, what: str, *, seconds: float | None = None) -> AsyncIterator[int]:
    """Keep other calls and other servers from changing `what` meanwhile; give the lock's handle.

    Raises:
        Busy: Another one has been at it for so many seconds, or else for `LOCK_SECONDS`.
        HostError: The lock's file cannot be made.
    """

    async def take() -> int:
        return _take(lock)

    longest = LOCK_SECONDS if seconds is None else seconds
    try:
        handle = await wait_until(
            take, bool, waiting_for="the lock", every=_LOOK_SECONDS, timeout=longest
        )
    except WaitedTooLong as exc:
        raise Busy(
            f"Another call is changing {what}.", fix="Look with status_vllm, then try again."
        ) from exc
    try:
        yield handle
    finally:
        _let_go(lock, handle)


def _take(lock: Path) -> int:
    """Give the handle of the lock, 0 while another one has it."""
    with on_disk(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return 0
    if os.fstat(handle).st_nlink == 0:  # its last holder has just removed it
        os.close(handle)
        return 0
    return handle


def _let_go(lock: Path, handle: int) -> None:
    """Remove the lock's file too, unless a watcher or the next call holds it already."""
    again = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    os.close(handle)
    try:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.unlink(missing_ok=True)
    except BlockingIOError:
        return
    finally:
        os.close(again)
