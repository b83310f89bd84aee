"""The processes of one deployment: found by their session, signalled only if they are ours."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from backends.local.folder import Folder, Process
from backends.local.identity import Seen, everyone, look, runs_in, words
from core.errors import HostError, WaitedTooLong
from core.processes import reap
from core.waiting import wait_until

GRACE_SECONDS: Final = 12.0
"""vLLM closes its listeners and workers in two or three; after this it is killed."""
KILL_SECONDS: Final = 5.0
WATCHER: Final = "backends.local.watch"
"""The program that starts an engine, as its command line names it."""
MARK: Final = "DEPLOYMENT_AGENT_FOLDER"
"""In the environment of all that a watcher starts: the folder of its deployment.
vLLM warns of names it does not know that begin with its own."""


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


def members(folder: Folder) -> tuple[Seen, ...]:
    """Give everything that lives and is proven to be the deployment's, its watcher included.

    Of the session that was written down; and, should that be damaged, of the sessions of what
    works in the deployment's folder and was started for it, as its command or environment says.
    """
    alive = tuple(everyone())
    found = {*_written_down(folder, alive), *_marked(folder, alive)}
    return tuple(seen for seen in alive if seen in found)


def unnamed(folder: Folder) -> tuple[Seen, ...]:
    """Give what is proven to be the deployment's and its `process.json` does not say."""
    alive, process = tuple(everyone()), folder.process_if_readable()
    named = set(_written_down(folder, alive))
    lost = {one for one in _marked(folder, alive) if one not in named}
    if process and process.engine and engine(process) is None:  # its watcher runs another one
        lost |= {seen for seen in named if seen.parent == process.session}
    return tuple(seen for seen in alive if seen in lost)


def others(folder: Folder) -> tuple[Seen, ...]:
    """Give what works in the deployment's folder and is not proven to be its own."""
    own = members(folder)
    return tuple(one for one in everyone() if one not in own and runs_in(one.pid, folder.path))


def _written_down(folder: Folder, alive: Sequence[Seen]) -> Iterator[Seen]:
    """Give the session of the watcher that was written down.

    Its number is not given away again while any member lives. With watcher and engine both gone
    that alone proves nothing: then only what works in the deployment's folder is ours.
    """
    process = folder.process_if_readable()
    if process is None or not process.started:
        return
    leader, living = look(process.session), engine(process)
    if leader and (leader.started != process.started or not runs_in(leader.pid, folder.path)):
        return
    known = leader or (living and living.session == process.session)
    boot = process.started.partition(":")[0]
    for seen in alive:
        if seen.session == process.session and (
            known or (seen.started.startswith(boot) and runs_in(seen.pid, folder.path))
        ):
            yield seen


def _marked(folder: Folder, alive: Sequence[Seen]) -> Iterator[Seen]:
    """Give what works in the folder and was started for the deployment, in a watcher's session.

    Below a living watcher that is all of its session. Where the leader of a session is anybody
    else, nothing of it is ours, whatever it says.
    """
    here = {seen for seen in alive if runs_in(seen.pid, folder.path)}
    own = {seen for seen in here if _is_marked(seen.pid, folder.name)}
    leaders = {seen.pid for seen in alive if seen.pid == seen.session}
    led = {seen.pid for seen in own if seen.pid == seen.session and _is_watcher(seen.pid)}
    orphaned = {seen.session for seen in own} - leaders - {0}  # 0: of another container
    for seen in alive:
        if seen.session in led or (seen.session in orphaned and seen in here):
            yield seen


def _is_marked(pid: int, name: str) -> bool:
    """Whether a process is a watcher, or was started by that of the deployment of this name."""
    values = (word.partition("=")[2] for word in words(pid)[1] if word.startswith(f"{MARK}="))
    return _is_watcher(pid) or any(Path(value).name == name for value in values)


def _is_watcher(pid: int) -> bool:
    """Whether a process is the program that starts an engine."""
    return WATCHER in words(pid)[0]


def starting(folder: Folder) -> bool:
    """Whether the watcher lives but has not started the engine yet."""
    process = folder.process()
    return process is not None and process.engine is None and bool(members(folder))


async def end(folder: Folder, *, politely: bool = True) -> tuple[Seen, ...]:
    """End all of a deployment: politely, then not; return what was ended.

    Raises:
        HostError: Something of it does not end.
    """
    process = folder.process_if_readable()
    there = members(folder)
    if politely and there:
        engines = (engine(process),) if engine(process) else ()
        leaders = tuple(seen for seen in there if seen.pid == seen.session)
        for seen in engines or leaders or there:  # a watcher passes it on to its engine
            if seen:
                _signal(seen, signal.SIGTERM)
        await _gone(folder, GRACE_SECONDS, number=0)
    gone = await _gone(folder, KILL_SECONDS, number=signal.SIGKILL)
    reap()
    if not gone:
        numbers = " ".join(str(seen.pid) for seen in members(folder))
        raise HostError(
            f"The processes of {folder.name} do not end.",
            fix="They may be stuck in the kernel (a driver, a network disk): look at them with"
            f" `ps {numbers}`.",
        )
    return there


def _signal(seen: Seen, number: int) -> None:
    """Signal a process that still is who it was; its number may have been given away again."""
    try:
        handle = os.pidfd_open(seen.pid) if hasattr(os, "pidfd_open") else None
        try:
            now = look(seen.pid)
            if now is None or now.started != seen.started:
                return
            if handle is None:
                os.kill(seen.pid, number)
            else:  # whoever has the number now, this is the one that was looked at
                sys.audit("os.kill", seen.pid, number)  # as the other way says it
                signal.pidfd_send_signal(handle, number)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return


async def _gone(folder: Folder, seconds: float, *, number: int) -> bool:
    async def look() -> int:
        living = members(folder)
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
