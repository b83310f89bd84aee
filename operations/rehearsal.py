"""The simulated clouds of a rehearsal: processes here, started when they are first asked.

They outlive the server, as clouds do; `make rehearse-clean` ends them and forgets everything.
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio
from pydantic import ValidationError

from core.environment import ROOT, inherited_environment
from core.errors import ReadOnly, WaitedTooLong
from core.processes import detach
from core.settings import AzurePlane, GooglePlane

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_IDLE_EXIT_SECONDS: Final = 2 * 3600


P = TypeVar("P", GooglePlane, AzurePlane)


class Rehearsal:
    """The clouds of one stage, which keep what they must remember below one folder."""

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self._google = _Cloud("google", "Google Cloud", GooglePlane, folder, read_only=read_only)
        self._azure = _Cloud("azure", "Azure", AzurePlane, folder, read_only=read_only)

    async def google(self) -> GooglePlane:
        """Give the simulated Google Cloud; start it if it does not run.

        Raises:
            ReadOnly: It does not run, and this server may not start anything.
            WaitedTooLong: It did not say that it is ready.
        """
        return await self._google.plane()

    async def azure(self) -> AzurePlane:
        """Give the simulated Azure. Raises as `google` does."""
        return await self._azure.plane()

    def clean(self) -> bool:
        """End them and forget what they held; whether there was anything."""
        return any([self._google.clean(), self._azure.clean()])


class _Cloud(Generic[P]):
    """One simulated cloud: `python -m simulators.{package}`."""

    def __init__(
        self, package: str, title: str, kind: type[P], folder: Path, *, read_only: bool
    ) -> None:
        self._package: Final = package
        self._title: Final = title
        self._kind: type[P] = kind
        self._folder: Final = folder / package
        self._read_only: Final = read_only
        self._lock = anyio.Lock()

    async def plane(self) -> P:
        async with self._lock:
            plane = self._running()
            if plane is None:
                if self._read_only:
                    raise ReadOnly(
                        f"The simulated {self._title} does not run, and a server that may only"
                        " look does not start it.",
                        fix="Run `make rehearse`, or start the server without READ_ONLY.",
                    )
                self._start()
                plane = await self._ready()
            return plane

    def clean(self) -> bool:
        plane = self._running()
        if plane:
            os.kill(plane.pid, signal.SIGTERM)
        existed = self._folder.exists()
        shutil.rmtree(self._folder, ignore_errors=True)
        return existed

    def _running(self) -> P | None:
        try:
            plane = self._kind.model_validate_json((self._folder / "plane.json").read_bytes())
            os.kill(plane.pid, 0)
        except (OSError, ValidationError):
            return None
        return plane if _is_ours(plane.pid, self._folder) else None

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        argv: tuple[str, ...] = (
            sys.executable,
            "-m",
            f"simulators.{self._package}",
            "--folder",
            str(self._folder),
        )
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

    async def _ready(self) -> P:
        with anyio.move_on_after(_START_SECONDS):
            while True:
                plane = self._running()
                if plane:
                    return plane
                await anyio.sleep(_LOOK_SECONDS)
        raise WaitedTooLong(
            f"The simulated {self._title} was not ready after {_START_SECONDS:.0f} s.",
            fix=f"See why with `python -m simulators.{self._package} --folder {self._folder}`.",
        )


def _is_ours(pid: int, folder: Path) -> bool:
    """Whether the process is still that one: numbers of processes are given again."""
    import psutil

    try:
        return str(folder) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
