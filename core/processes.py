"""The one door to other programs: argument lists only, always a deadline, never a shell."""

import contextlib
import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio

from core.environment import inherited_environment
from core.errors import CommandNotFound, WaitedTooLong
from core.records import Record

_log = logging.getLogger(__name__)
_detached: set[int] = set()


class Output(Record):
    """What a finished command left behind."""

    returncode: int
    stdout: str
    stderr: str


class Run(Protocol):
    """Run one command to its end. Never a shell, never interactive."""

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 120,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Output:
        """Give what the command printed, whatever its exit status.

        `env` is added to the inherited environment; `timeout` is in seconds.

        Raises:
            CommandNotFound: The program is not installed.
            WaitedTooLong: It was still running at the deadline, and was killed.
        """


async def run(
    argv: Sequence[str],
    *,
    timeout: float = 120,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Output:
    """Keep the promise of `Run` with a real process."""
    _log.info("run %s", " ".join(argv))
    environment = {**inherited_environment(), **(env or {})}
    try:
        with anyio.fail_after(timeout):
            done = await anyio.run_process(
                list(argv), stdin=subprocess.DEVNULL, check=False, cwd=cwd, env=environment
            )
    except TimeoutError as exc:
        raise WaitedTooLong(
            f"{argv[0]} was still running after {timeout:.0f} s and was stopped.",
            fix="Try again, or run it by hand to see what it waits for.",
            cause=" ".join(argv),
        ) from exc
    except OSError as exc:
        raise CommandNotFound(
            f"{argv[0]} is not installed, or cannot be run.",
            fix=f"Install {argv[0]}, or give its full path.",
            cause=str(exc),
        ) from exc
    return Output(
        returncode=done.returncode,
        stdout=done.stdout.decode(errors="replace"),
        stderr=done.stderr.decode(errors="replace"),
    )


def detach(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int | None = None,
    own_session: bool = False,
) -> None:
    """Start a program that outlives this one; it prints nowhere.

    `env` is its whole environment, so that no secret of ours gets into it unseen; `stdin` is an
    open file that it holds on to, beside which it gets none of ours: a lock of the shell that
    started us would last as long as it does. None is nothing to read. In a session of its own no
    Ctrl-C of ours reaches it.
    """
    _log.info("detach %s", " ".join(argv))
    reap()
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    files: list[tuple[Any, ...]] = [nothing if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0)]
    files += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (1, 2)]
    for fd in (int(name) for name in os.listdir("/dev/fd")):  # noqa: PTH208  no files of a folder
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            if fd > 2 and os.get_inheritable(fd):
                files.append((os.POSIX_SPAWN_CLOSE, fd))
    _detached.add(
        os.posix_spawn(argv[0], list(argv), dict(env), file_actions=files, setsid=own_session)
    )


def reap() -> None:
    """Let go of detached programs that have ended, so that none stays as a zombie."""
    for pid in tuple(_detached):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _detached.discard(pid)
