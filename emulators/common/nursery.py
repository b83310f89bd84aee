"""Where processes of instances come from: forked, so that they are there in a moment."""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import anyio
from anyio.abc import Process

from core.settings import ROOT, inherited_environment

_PIECE: Final = 65536


class Child:
    """One process; it ends at the latest with this one."""

    def __init__(self, pid: int, *, leash: int, stdout: int, stderr: int, status: int) -> None:
        self._pid: Final = pid
        self._leash: Final = leash
        self._stdout: Final = stdout
        self._stderr: Final = stderr
        self._status: Final = status
        self.returncode: int | None = None

    def stdout(self) -> AsyncIterator[bytes]:
        """Give what it prints, to its end."""
        return _pieces(self._stdout)

    def stderr(self) -> AsyncIterator[bytes]:
        """Give what it complains about, to its end."""
        return _pieces(self._stderr)

    async def wait(self) -> int:
        """Wait for its end; gives its status, -9 if it was ended by a signal."""
        told = b"".join([piece async for piece in _pieces(self._status)])
        self.returncode = int(told) if told else -int(signal.SIGKILL)
        return self.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def close(self) -> None:
        """Let go of its files; what still lives then dies."""
        for file in (self._leash, self._stdout, self._stderr, self._status):
            os.close(file)


class Nursery:
    """Forks from a process that is started with the first child."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._socket: socket.socket | None = None
        self._turn = anyio.Lock()

    async def born(self, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a simulated engine with `python -m emulators.engine`'s arguments."""
        async with self._turn:
            asked = await self._open()
            theirs, ours = zip(*(_pipe(ours_writes=n == 0) for n in range(4)), strict=True)
            message = json.dumps({"argv": list(argv), "env": dict(env)}).encode() + b"\n"
            socket.send_fds(asked, [message], theirs)
            for file in theirs:
                os.close(file)
            with anyio.CancelScope(shield=True):  # or the next one would be told of this child
                pid = await _pid(asked)
        leash, stdout, stderr, status = ours
        return Child(pid, leash=leash, stdout=stdout, stderr=stderr, status=status)

    async def _open(self) -> socket.socket:
        if self._socket and self._process and self._process.returncode is None:
            return self._socket
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = await anyio.open_process(
                [sys.executable, "-m", "emulators.common.forking"],
                stdin=theirs.fileno(),
                stdout=None,
                stderr=None,
                cwd=ROOT,
                env=inherited_environment(),
                start_new_session=True,
            )
        return self._socket


def _pipe(*, ours_writes: bool) -> tuple[int, int]:
    """Give their end and ours."""
    reads, writes = os.pipe()
    return (reads, writes) if ours_writes else (writes, reads)


async def _pid(asked: socket.socket) -> int:
    told = b""
    while not told.endswith(b"\n"):
        await anyio.wait_readable(asked)
        told += asked.recv(64)
    return int(told)


async def _pieces(file: int) -> AsyncIterator[bytes]:
    while True:
        await anyio.wait_readable(file)
        piece = os.read(file, _PIECE)
        if not piece:
            return
        yield piece
