"""One call to Google that goes wrong: which calls there are, and how each of them may end."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx2
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.api_core.retry import AsyncRetry, if_exception_type

from backends import lifecycle
from backends.cloud_run import service
from backends.google import clients
from backends.google import errors as google_errors
from backends.google.clients import key_secret
from core.errors import OpsError
from core.reply import collecting_notes
from core.settings import GooglePlane

HANG_SECONDS: Final = 0.15
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the authorities' certificates, which nobody asks here, takes 70 ms each time."""


class Answer(NamedTuple):
    """How Google answers wrongly, and what we call it."""

    status: str
    when: str
    code: str


ANSWERS: Final = (
    Answer("UNAVAILABLE", "before", "CLOUD_UNAVAILABLE"),
    Answer("UNAVAILABLE", "after", "CLOUD_UNAVAILABLE"),
    Answer("RESOURCE_EXHAUSTED", "before", "QUOTA_EXCEEDED"),
    Answer("PERMISSION_DENIED", "before", "PERMISSION_DENIED"),
    Answer("DEADLINE_EXCEEDED", "hang", "CLOUD_TIMEOUT"),
    Answer("DEADLINE_EXCEEDED", "hang-after", "CLOUD_TIMEOUT"),
)


def answers_to(method: str) -> tuple[Answer, ...]:
    """Give the wrong answers to a method; one that only looks has no effect to be lost."""
    return tuple(one for one in ANSWERS if not (_only_looks(method) and "after" in one.when))


def _only_looks(method: str) -> bool:
    return method.rpartition("/")[2].startswith(("Get", "List", "Access"))


class Killed(BaseException):
    """The server is dead from here on: nothing of ours cleans up."""


class Told(NamedTuple):
    """How a work ended."""

    code: str | None
    notes: tuple[str, ...]


class Wire:
    """Between our clients and Google: knows every call, and can cut one of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.impatient = ""
        """A method whose next call waits for `HANG_SECONDS` only."""
        self._cut: tuple[int, str] | None = None

    def cut(self, number: int, way: str) -> None:
        """Break the call of that number, counted from now: lost, answered-and-lost or killed."""
        self.calls.clear()
        self._cut = (number, way)

    @property
    def whole(self) -> bool:
        """Whether nothing was cut (any more)."""
        return self._cut is None

    def tapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Listen to the calls of one method."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name == self.impatient:
                self.impatient, kwargs["timeout"] = "", HANG_SECONDS
            if self._cut is None or self._cut[0] != len(self.calls):
                return await method(*args, **kwargs)
            way, self._cut = self._cut[1], None
            if way != "lost":
                await method(*args, **kwargs)
            if way == "killed":
                raise Killed
            raise ServiceUnavailable("Rehearsed: the connection is gone.")

        return call


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to all clients that are opened from now on, and let nothing be waited for long."""
    wire, prepare = Wire(), clients._let_timeouts_end

    def tap(client: Any) -> None:
        prepare(client)
        methods = client.transport._wrapped_methods
        for bare, method in tuple(methods.items()):
            name = bare._method.decode().strip("/") if hasattr(bare, "_method") else ""
            methods[bare] = wire.tapped(name.rpartition(".")[2], method)

    monkeypatch.setattr(clients, "_let_timeouts_end", tap)
    monkeypatch.setattr(google_errors, "patient", impatient)
    monkeypatch.setattr(service, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(lifecycle, "_FIRST_LOOK_SECONDS", 0.02)
    return wire


def impatient() -> AsyncRetry:
    """Look again as the product does, for a tenth of a second."""
    again = if_exception_type(ServiceUnavailable)
    return AsyncRetry(again, initial=0.01, maximum=0.03, timeout=0.1)


class Cloud:
    """The controls of one project, over one connection."""

    def __init__(self, project: str, http: httpx2.AsyncClient, wire: Wire) -> None:
        self.project, self._http, self._wire = project, http, wire

    async def set(self, **knobs: Any) -> Mapping[str, Any]:
        """Change knobs; gives what there is."""
        reply = await self._http.put(f"/rehearsal/projects/{self.project}", json=knobs)
        assert reply.is_success, reply.text
        seen: dict[str, Any] = reply.json()
        return seen

    async def whole(self, name: str) -> bool:
        """Whether a deployment is there with its key; anything between is an orphan."""
        seen = await self.set()
        there = name in seen["services"]
        assert (key_secret(name) in seen["secrets"]) is there, seen["secrets"]
        assert not there or seen["secrets"][key_secret(name)]["versions"] == 1
        return there

    async def wrong(self, method: str, answer: Answer, work: Awaitable[Any]) -> Told:
        """Let one method answer wrongly while something is done; a look is refused for good."""
        for_good = _only_looks(method) and answer.when != "hang"
        fault = {"method": f"*{method}", "status": answer.status, "when": answer.when}
        await self.set(faults=[{**fault, "times": -1 if for_good else 1}])
        if answer.when.startswith("hang"):
            self._wire.impatient = method
        told = await told_of(work)
        seen = await self.set(faults=[])
        assert any(call.endswith(method) for call in seen["calls"])
        assert told.code in {None, answer.code}, (told, answer)
        return told


@asynccontextmanager
async def cloud_of(plane: GooglePlane, project: str, wire: Wire) -> AsyncIterator[Cloud]:
    """Open the controls of a project."""
    async with httpx2.AsyncClient(
        base_url=plane.http, trust_env=False, verify=_NO_TLS, timeout=30
    ) as http:
        yield Cloud(project, http, wire)


async def told_of(work: Awaitable[Any]) -> Told:
    """Do it; any exception but a coded one with a way out is a bug."""
    code: str | None = None
    with collecting_notes() as notes:
        try:
            await work
        except OpsError as exc:
            code = exc.code if exc.fix else f"{exc.code} without a fix"
        except BaseExceptionGroup as exc:  # of a look beside others
            raise Killed from exc
    return Told(code, tuple(notes))
