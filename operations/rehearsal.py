"""The simulated clouds of a rehearsal: a process of this machine, started when it is first asked.

It outlives the server, as a cloud does; `make rehearse-clean` ends it and forgets everything.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import anyio
from pydantic import ValidationError

from core.errors import ReadOnly, WaitedTooLong
from core.processes import detach
from core.rehearsal import GooglePlane
from core.settings import ROOT, inherited_environment

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_IDLE_EXIT_SECONDS: Final = 2 * 3600


class Rehearsal:
    """The clouds of one stage, which keep what they must remember below one folder."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self._folder = folder / "google"
        self._read_only = read_only
        self._lock = anyio.Lock()

    async def google(self) -> GooglePlane:
        """Give the simulated Google Cloud; start it if it does not run.

        Raises:
            ReadOnly: It does not run, and this server may not start anything.
            WaitedTooLong: It did not say that it is ready.
        """
        async with self._lock:
            plane = _running(self._folder)
            if plane is None:
                if self._read_only:
                    raise ReadOnly(
                        "The simulated Google Cloud does not run, and a server that may only look"
                        " does not start it.",
                        fix="Run `make rehearse`, or start the server without READ_ONLY.",
                    )
                _start(self._folder)
                plane = await _ready(self._folder)
            return plane

    def clean(self) -> bool:
        """End it and forget what it held; whether there was anything."""
        plane = _running(self._folder)
        if plane:
            os.kill(plane.pid, signal.SIGTERM)
        existed = self._folder.exists()
        shutil.rmtree(self._folder, ignore_errors=True)
        return existed


def _running(folder: Path) -> GooglePlane | None:
    try:
        plane = GooglePlane.model_validate_json((folder / "plane.json").read_bytes())
        os.kill(plane.pid, 0)
    except (OSError, ValidationError):
        return None
    return plane if _is_ours(plane.pid, folder) else None


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether the process is still that one: numbers of processes are given again."""
    import psutil

    try:
        return str(folder) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _start(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    argv = (sys.executable, "-m", "emulators.google", "--folder", str(folder))
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        detach(
            (*argv, "--idle-exit", str(_IDLE_EXIT_SECONDS)),
            env={**inherited_environment(), "PYTHONPATH": str(ROOT)},
            stdin=nothing,
            own_session=True,
        )
    finally:
        os.close(nothing)


async def _ready(folder: Path) -> GooglePlane:
    with anyio.move_on_after(_START_SECONDS):
        while True:
            plane = _running(folder)
            if plane:
                return plane
            await anyio.sleep(_LOOK_SECONDS)
    raise WaitedTooLong(
        f"The simulated Google Cloud was not ready after {_START_SECONDS:.0f} s.",
        fix=f"See why with `python -m emulators.google --folder {folder}`.",
    )
