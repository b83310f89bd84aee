"""A container's process, from its birth to its end: what it says, and how it is told to go."""

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import anyio
import httpx2

from emulators.common.guard import Guard
from emulators.common.nursery import Child, Nursery
from emulators.common.programs import Program
from emulators.common.web import UNVERIFIED_TLS

_GRACE_SECONDS: Final = 2.0
"""From SIGTERM to SIGKILL; ten or more in reality."""
_NOT_FOUND: Final = 400

Said = Callable[[str, str], None]
"""Is told the stream, stdout or stderr, and each line of it."""


class EngineProcess:
    """Comes up once and ends once; it may be told to end before it is there."""

    def __init__(self) -> None:
        self.url = ""
        self.guard: Guard | None = None
        """What stands before it."""
        self.status: int | None = None
        """How it ended, as a shell tells it."""
        self.told_to_end: Final = anyio.Event()
        self._farewell = signal.SIGTERM

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.status is not None or self.told_to_end.is_set()

    def end(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `run` then gives its status."""
        self._farewell = signal.SIGKILL if at_once else signal.SIGTERM
        self.told_to_end.set()

    async def run(
        self,
        nursery: Nursery,
        program: Program,
        *,
        said: Said,
        beside: Callable[[], Coroutine[Any, Any, None]],
    ) -> int:
        """Run it to its end, and something beside it; gives its status."""
        self.url = f"http{'s' if program.tls else ''}://127.0.0.1:{program.port}"
        self.guard = program.guard
        child = await nursery.born(program.argv, program.env)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(beside)
                tasks.start_soon(self._end_when_told, child)
                async with anyio.create_task_group() as ears:
                    ears.start_soon(_listen, child.stdout(), "stdout", program, said)
                    ears.start_soon(_listen, child.stderr(), "stderr", program, said)
                self.status = status = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            child.close()
        return status

    async def answers(self, path: str, timeout_seconds: float, *, any_status: bool = False) -> bool:
        """Ask it as a probe does."""
        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(trust_env=False, verify=UNVERIFIED_TLS) as client:
                reply = await client.get(self.url + path, timeout=timeout_seconds)
            return any_status or reply.status_code < _NOT_FOUND
        return False

    async def _end_when_told(self, child: Child) -> None:
        await self.told_to_end.wait()
        child.send(self._farewell)
        await anyio.sleep(_GRACE_SECONDS)
        child.send(signal.SIGKILL)


async def _listen(heard: AsyncIterator[bytes], stream: str, program: Program, said: Said) -> None:
    rest = b""
    async for data in heard:
        *lines, rest = (rest + data).split(b"\n")
        for line in () if program.quiet else lines:
            text = line.decode(errors="replace")
            for here, there in program.shown:
                text = text.replace(here, there)
            said(stream, text)
