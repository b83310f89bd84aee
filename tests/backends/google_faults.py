"""One call to Google that goes wrong, of whichever of its APIs: cut, unanswered, or the last."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple, TypeVar

import pytest
from google.api_core.exceptions import RetryError, ServiceUnavailable
from google.api_core.retry import AsyncRetry, if_exception_type

from backends import lifecycle
from backends.cloud_run import service
from backends.google import clients
from backends.google import errors as google_errors
from backends.tpu import compute, search
from core.errors import OpsError
from tests.google_plane import Controls
from tests.soon import HANGS

T = TypeVar("T")
HANG_SECONDS: Final = 0.15
Way = Literal["lost", "answered", "killed"]
WAYS: Final[tuple[Way, ...]] = ("lost", "answered", "killed")
"""The request is lost, its answer is, or the server dies before it gets it."""


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


def only_looks(method: str) -> bool:
    return method.rpartition("/")[2].startswith(("Get", "List", "Access"))


def answers_to(method: str) -> tuple[Answer, ...]:
    """Give the wrong answers to a method; one that only looks has no effect to be lost."""
    return tuple(one for one in ANSWERS if not (only_looks(method) and "after" in one.when))


class Killed(BaseException):
    """The server is dead from here on: nothing of ours cleans up."""


class Wire:
    """Between our clients and Google: counts every call, and can cut one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.impatient = ""
        """A method whose next call waits for `HANG_SECONDS` only."""
        self._cut: tuple[int, Way] | None = None

    def cut(self, number: int, way: Way) -> None:
        """Break the call of that number, counted from now."""
        self.calls, self._cut = 0, (number, way)

    def mend(self) -> bool:
        """Break nothing any more; whether something was broken."""
        done, self._cut = self._cut is None, None
        return done

    async def passed(self, call: Callable[[], Awaitable[T]]) -> T:
        """Pass one call on, or not."""
        self.calls += 1
        if self._cut is None or self._cut[0] != self.calls:
            return await call()
        way, self._cut = self._cut[1], None
        if way != "lost":
            await call()
        if way == "killed":
            raise Killed
        raise ServiceUnavailable("Rehearsed: the connection is gone.")

    def tapped(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Listen to the calls of one method."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name and name == self.impatient:
                self.impatient, kwargs["timeout"] = "", HANG_SECONDS
            return await self.passed(lambda: method(*args, **kwargs))

        return call


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to all clients that are opened from now on, and let nothing be waited for long."""
    wire, prepare, ask = Wire(), clients._let_timeouts_end, clients.GoogleClients.ask

    def tap(client: Any) -> None:
        prepare(client)
        methods = client.transport._wrapped_methods
        for bare, method in tuple(methods.items()):
            name = bare._method.decode().strip("/") if hasattr(bare, "_method") else ""
            methods[bare] = wire.tapped(name.rpartition(".")[2], method)

    monkeypatch.setattr(clients, "_let_timeouts_end", tap)
    monkeypatch.setattr(clients.GoogleClients, "ask", wire.tapped("", ask))
    monkeypatch.setattr(google_errors, "patient", impatient)
    monkeypatch.setattr(service, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(lifecycle, "_FIRST_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(search, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(search, "_LATE", search._LATE * 0)
    monkeypatch.setattr(compute, "_EVERY_SECONDS", 0.02)
    return wire


def impatient() -> AsyncRetry:
    """Look again as the product does, but five times, however long a look takes."""
    is_unavailable, looks = if_exception_type(ServiceUnavailable), iter(range(5))

    def again(exc: Exception) -> bool:
        if not is_unavailable(exc):
            return False
        if next(looks, None) is None:
            raise RetryError("It was looked for five times.", exc)
        return True

    return AsyncRetry(again, initial=0.01, maximum=0.03, timeout=HANGS)


async def ends(work: Awaitable[object]) -> str | None:
    """Do it: None where the server was killed, else the code of what it was told, or nothing.

    Any exception but a coded one with a way out is a bug.
    """
    try:
        await work
    except Killed:
        return None
    except BaseExceptionGroup as group:  # of a look beside others
        if group.split(Killed)[1] is not None:
            raise
        return None
    except OpsError as exc:
        return exc.code if exc.fix else f"{exc.code} without a fix"
    return ""


async def wrong(
    wire: Wire, controls: Controls, project: str, method: str, answer: Answer, work: Awaitable[Any]
) -> str:
    """Let one method answer wrongly while something is done; a look is refused for good."""
    for_good = only_looks(method) and answer.when != "hang"
    fault = {"method": f"*{method}", "status": answer.status, "when": answer.when}
    controls.set(project, faults=[{**fault, "times": -1 if for_good else 1}])
    hangs = answer.when.startswith("hang")
    if hangs:
        wire.impatient = method
    told = await ends(work)
    calls = controls.set(project, faults=[])["calls"]
    assert not wire.impatient if hangs else any(call.endswith(method) for call in calls)
    assert told in {"", answer.code}, (told, answer)
    return told
