"""One call at a time, among all servers on this machine."""

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from backends.common.disk import on_disk
from core.errors import Busy, WaitedTooLong
from core.waiting import wait_until

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
