"""A simulated cloud's process, from its start until it is ended politely, and its controls."""

import os
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import anyio
import anyio.abc
import anyio.from_thread
import httpx2

from core.environment import ROOT, inherited_environment
from core.settings import AzurePlane, GooglePlane
from tests.soon import HANGS

P = TypeVar("P", AzurePlane, GooglePlane)

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
    with anyio.fail_after(HANGS):
        while not announced.exists():
            assert process.returncode is None, "The simulated cloud did not start."
            await anyio.sleep(0.01)
    return process


async def _end(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.terminate()
    with anyio.fail_after(HANGS):
        await process.aclose()


def _argv(*module: str, folder: Path, idle_exit_seconds: float) -> Sequence[str]:
    more = ("--folder", str(folder), "--idle-exit", str(idle_exit_seconds))
    return (sys.executable, "-m", *module, *more)


@contextmanager
def plane(
    kind: type[P],
    cloud: str,
    folder: Path,
    *,
    idle_exit_seconds: float = 4 * 3600,
    record: Path | None = None,
) -> Iterator[P]:
    """Run a plane that keeps its state in `folder`; it is ended politely.

    It outlasts a whole run of the tests, in which a worker may not need it for long. Every call is
    appended to `record`: see `tests.recorded`.
    """
    module = ("tests.recorded", cloud, str(record)) if record else (f"simulators.{cloud}",)
    with process_of(_argv(*module, folder=folder, idle_exit_seconds=idle_exit_seconds), folder):
        yield kind.model_validate_json((folder / "plane.json").read_bytes())


class Controls(Generic[P]):
    """What a test may set and see of the accounts of one plane."""

    accounts: ClassVar[str]
    """What its cloud calls them."""

    def __init__(self, plane: P) -> None:
        self.plane: P = plane

    def set(self, account: str, **knobs: Any) -> dict[str, Any]:
        """Change some knobs of an account; see `Knobs` in the simulator's `state`."""
        return self.ask("PUT", account, json=knobs)

    def get(self, account: str) -> dict[str, Any]:
        """Tell what is in an account."""
        return self.ask("GET", account)

    def drop(self, account: str) -> None:
        """End what runs for an account, and forget it."""
        self.ask("DELETE", account)

    def ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """Ask its door for tests."""
        url = f"{self.plane.http}/rehearsal/{self.accounts}/{path}"
        reply = httpx2.request(method, url, timeout=HANGS, trust_env=False, verify=NO_TLS, **more)
        assert reply.is_success, reply.text
        answer: dict[str, Any] = reply.json()
        return answer
