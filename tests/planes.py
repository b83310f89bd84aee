"""A simulated cloud's process, from its start until it is ended politely."""

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import anyio.from_thread

from core.environment import ROOT, inherited_environment

_LONGEST_START_SECONDS: Final = 60.0
_LEAST_BYTES: Final = 2 * 2**30
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""To load the authorities' certificates, which nobody asks here, takes 70 ms each time."""


def folder_in_memory() -> str | None:
    """Give where temporary files take no disk; None where there is no room, or nothing may run."""
    place = Path("/dev/shm")  # noqa: S108  its folders are pytest's, of this user alone
    if not place.is_dir() or not os.access(place, os.W_OK):
        return None
    room = os.statvfs(place)
    can_run = not room.f_flag & os.ST_NOEXEC
    return str(place) if can_run and room.f_bavail * room.f_frsize > _LEAST_BYTES else None


@contextmanager
def process_of(argv: Sequence[str], folder: Path) -> Iterator[int]:
    """Run it until the end of the block; gives its id once `folder/plane.json` is there."""
    with anyio.from_thread.start_blocking_portal() as portal:
        process = portal.call(_start, argv, folder)
        try:
            yield process.pid
        finally:
            portal.call(_end, process)


async def _start(argv: Sequence[str], folder: Path) -> anyio.abc.Process:
    announced = folder / "plane.json"
    announced.unlink(missing_ok=True)
    process = await anyio.open_process(
        list(argv), stdin=-3, stdout=None, stderr=None, cwd=ROOT, env=inherited_environment()
    )
    with anyio.fail_after(_LONGEST_START_SECONDS):
        while not announced.exists():
            assert process.returncode is None, "The simulated cloud did not start."
            await anyio.sleep(0.01)
    return process


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.terminate()
    with anyio.fail_after(_LONGEST_START_SECONDS):
        await process.aclose()
