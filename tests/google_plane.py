"""A simulated Google Cloud as a process of its own, and its controls."""

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.from_thread
import httpx2

from core.rehearsal import GooglePlane
from core.settings import ROOT, inherited_environment

_LONGEST_START_SECONDS: Final = 60.0
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""To load the authorities' certificates, which nobody asks here, takes 70 ms each time."""


class Controls:
    """What a test may set and see of the projects of one plane."""

    def __init__(self, plane: GooglePlane) -> None:
        self.plane = plane

    def set(self, project: str, **knobs: Any) -> dict[str, Any]:
        """Change some knobs of a project; see `emulators.google.knobs.Knobs`."""
        return self._ask("PUT", project, json=knobs)

    def get(self, project: str) -> dict[str, Any]:
        """Tell what is in a project."""
        return self._ask("GET", project)

    def drop(self, project: str) -> None:
        """End what runs for a project, and forget it."""
        self._ask("DELETE", project)

    def _ask(self, method: str, project: str, **more: Any) -> dict[str, Any]:
        url = f"{self.plane.http}/rehearsal/projects/{project}"
        reply = httpx2.request(method, url, timeout=30, trust_env=False, verify=_NO_TLS, **more)
        assert reply.is_success, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


@contextmanager
def google_plane(folder: Path, *, idle_exit_seconds: float = 600) -> Iterator[GooglePlane]:
    """Run a plane that keeps its state in `folder`; it is ended politely."""
    argv = [
        sys.executable, "-m", "emulators.google", "--folder", str(folder),
        "--idle-exit", str(idle_exit_seconds),
    ]  # fmt: skip
    with anyio.from_thread.start_blocking_portal() as portal:
        process = portal.call(_start, argv, folder)
        try:
            yield GooglePlane.model_validate_json((folder / "plane.json").read_bytes())
        finally:
            portal.call(_end, process)


async def _start(argv: list[str], folder: Path) -> anyio.abc.Process:
    announced = folder / "plane.json"
    announced.unlink(missing_ok=True)
    process = await anyio.open_process(
        argv, stdin=-3, stdout=None, stderr=None, cwd=ROOT, env=inherited_environment()
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
