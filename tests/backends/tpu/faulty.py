"""One call to Google that goes wrong, of whichever of its APIs: lost, unanswered, or the last."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import pytest
from google.api_core.exceptions import ServiceUnavailable

from backends.google import clients
from backends.google import errors as google_errors
from backends.tpu import compute, search
from core.errors import CloudUnavailable, OpsError
from tests.backends.cloud_run.faulty import impatient
from tests.backends.tpu.fake_planes import Killed
from tests.google_plane import Controls

T = TypeVar("T")

Way = Literal["lost", "answered", "killed"]
WAYS: Final[tuple[Way, ...]] = ("lost", "answered", "killed")
"""The request is lost, its answer is, or the server dies before it gets it."""
KINDS: Final = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources")
"""What a deployment has in a project."""


class Wire:
    """Between our clients and Google: counts every call, and can cut one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self._cut: tuple[int, Way] | None = None

    def cut(self, number: int, way: Way) -> None:
        """Break the call of that number, counted from now."""
        self.calls, self._cut = 0, (number, way)

    def mend(self) -> bool:
        """Break nothing any more; whether something was broken."""
        done, self._cut = self._cut is None, None
        return done

    async def passed(self, lost: Exception, call: Callable[[], Awaitable[T]]) -> T:
        """Pass one call on, or not."""
        self.calls += 1
        if self._cut is None or self._cut[0] != self.calls:
            return await call()
        way, self._cut = self._cut[1], None
        if way != "lost":
            await call()
        if way == "killed":
            raise Killed
        raise lost


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to all clients that are opened from now on, and let nothing be waited for long."""
    wire, prepare, threads = Wire(), clients._let_timeouts_end, compute.call

    def tap(client: Any) -> None:
        prepare(client)
        methods = client.transport._wrapped_methods
        for bare, method in tuple(methods.items()):
            methods[bare] = _tapped(wire, method)

    async def called(*place: Any, **arguments: Any) -> Any:
        gone = CloudUnavailable("Rehearsed: the connection is gone.", fix="Call again.")
        return await wire.passed(gone, lambda: threads(*place, **arguments))

    monkeypatch.setattr(clients, "_let_timeouts_end", tap)
    monkeypatch.setattr(compute, "call", called)
    monkeypatch.setattr(google_errors, "patient", impatient)
    monkeypatch.setattr("backends.tpu.search.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("backends.tpu.compute._EVERY_SECONDS", 0.02)
    monkeypatch.setattr(search, "_LATE", search._LATE * 0)
    return wire


def _tapped(wire: Wire, method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        gone = ServiceUnavailable("Rehearsed: the connection is gone.")
        return await wire.passed(gone, lambda: method(*args, **kwargs))

    return call


async def ends(work: Awaitable[object]) -> str | None:
    """Do it: None where the server was killed, else the code of what it was told."""
    try:
        await work
    except Killed:
        return None
    except BaseExceptionGroup as group:
        if group.split(Killed)[1] is not None:
            raise
        return None
    except OpsError as exc:
        return exc.code if exc.fix else f"{exc.code} without a fix"
    return ""


def left(controls: Controls, project: str, name: str) -> dict[str, list[str]]:
    """Name what is there of a deployment in its project."""
    seen = controls.get(project)
    found = {kind: [one for one in map(str, seen[kind]) if name in one] for kind in KINDS}
    return {kind: names for kind, names in found.items() if names}
