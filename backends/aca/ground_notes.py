"""Which change of the environment was begun here: Azure tells a failure, not of which try."""

import time
from pathlib import Path
from typing import Final, Literal

from backends.aca.site import Site
from backends.common.concurrency import on_disk, write_whole

Change = Literal["made", "widened"]

_COUNTS_SECONDS: Final = 3600.0
"""Nothing that is seen later came of it."""


def begun(site: Site, change: Change) -> None:
    """Write down that it was begun.

    Raises:
        HostError: The disk does not take it.
    """
    folder = _note(site).parent
    with on_disk(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_note(site), change)


def age(site: Site, change: Change) -> float | None:
    """Give how many seconds ago it was begun; None if it was not, or so long ago that it ended."""
    try:
        noted = _note(site).read_text(encoding="utf-8") == change
        seconds = time.time() - _note(site).stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, seconds) if noted and seconds < _COUNTS_SECONDS else None


def forget(site: Site) -> None:
    """Forget that anything was begun."""
    with on_disk(_note(site).parent):
        _note(site).unlink(missing_ok=True)


def _note(site: Site) -> Path:
    ground = site.ground
    return site.folder / "ground" / f"{ground.subscription}-{ground.environment}"
