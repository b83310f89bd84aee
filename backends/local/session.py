"""The processes of one deployment: found by their session, signalled only if they are ours."""

import os
import signal
from collections.abc import Sequence
from typing import Final

from backends.local.folder import Process
from backends.local.identity import Seen, look, runs_in, session
from core.errors import WaitedTooLong
from core.processes import reap
from core.waiting import wait_until

GRACE_SECONDS: Final = 12.0
"""vLLM closes its listeners and workers in two or three; after this it is killed."""
KILL_SECONDS: Final = 5.0


def engine(process: Process | None) -> Seen | None:
    """Give the engine's own process if it lives and is the one that was started."""
    if process is None or process.engine is None:
        return None
    seen = look(process.engine)
    return seen if seen and seen.started == process.engine_started else None


def watcher(process: Process | None) -> Seen | None:
    """Give the engine's watcher if it lives."""
    seen = look(process.session) if process else None
    return seen if process and seen and seen.started == process.started else None


def members(process: Process | None) -> Sequence[Seen]:
    """Give everything that lives in the deployment's session, its watcher included.

    A session's number is not given away again while any member lives. With watcher and engine
    both gone that alone proves nothing: then only what works in the deployment's folder is ours.
    """
    if process is None:
        return ()
    leader = look(process.session)
    if leader and leader.started != process.started:
        return ()
    found = tuple(session(process.session))
    if leader or engine(process):
        return found
    boot = process.started.partition(":")[0]
    return tuple(
        seen for seen in found if seen.started.startswith(boot) and runs_in(seen.pid, process.home)
    )


def starting(process: Process | None) -> bool:
    """Whether the watcher lives but has not started the engine yet."""
    return process is not None and process.engine is None and bool(members(process))


async def end(process: Process | None) -> bool:
    """End a session: politely, then not; whether nothing of it is left."""
    living = engine(process)
    if living:
        _signal(living, signal.SIGTERM)
        await _gone(process, GRACE_SECONDS, number=0)
    gone = await _gone(process, KILL_SECONDS, number=signal.SIGKILL)
    reap()
    return gone


def _signal(seen: Seen, number: int) -> None:
    now = look(seen.pid)
    if now and now.started == seen.started:
        try:
            os.kill(seen.pid, number)
        except ProcessLookupError:
            return


async def _gone(process: Process | None, seconds: float, *, number: int) -> bool:
    async def look() -> int:
        living = members(process)
        for seen in living:
            _signal(seen, number)  # each time: a dying one may have started another
        return len(living)

    try:
        await wait_until(
            look, lambda n: n == 0, waiting_for="processes to end", every=0.05, timeout=seconds
        )
    except WaitedTooLong:
        return False
    return True
