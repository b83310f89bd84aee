"""A simulated cloud as a process: it says where it listens, and ends when nobody needs it."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from core.record import Record

FILE: Final = "plane.json"
"""Where the addresses are written when everything listens."""


def announce(folder: Path, plane: Record) -> None:
    """Write the addresses, all at once."""
    part = folder / f".{FILE}.part"
    part.write_text(plane.model_dump_json(), encoding="utf-8")
    part.replace(folder / FILE)


async def until_told_to_end() -> None:
    """Wait for SIGTERM or SIGINT."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _signal in signals:
            return


async def leave_when_idle(
    seen: Callable[[], float], seconds: float | None, everything: anyio.CancelScope
) -> None:
    """End everything when the last call, by the monotonic clock, is so long ago; None is never."""
    if seconds is None:
        return
    while True:
        left = seen() + seconds - time.monotonic()
        if left <= 0:
            everything.cancel()
            return
        await anyio.sleep(left)
