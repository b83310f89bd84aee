"""One call to Azure that goes wrong: how each of them may end, and where a server may die."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest
from azure.core.exceptions import ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import AioHttpTransport

from backends.aca import secrets
from backends.aca.site import key_secret
from core.errors import OpsError
from core.reply import collecting_notes
from core.settings import AzurePlane
from tests.backends.aca.deployed import impatient
from tests.planes import NO_TLS

HANG_SECONDS: Final = 0.2


class Answer(NamedTuple):
    """How Azure answers wrongly, and what we call it."""

    status: int
    when: str
    code: str
    said: str = ""
    """Azure's own code."""


KINDS: Final = {
    "refused": (
        Answer(403, "before", "PERMISSION_DENIED", "AuthorizationFailed"),
        Answer(409, "before", "CONCURRENT_CHANGE", "ContainerAppOperationInProgress"),
        Answer(429, "before", "CLOUD_UNAVAILABLE"),
    ),
    "down": (
        Answer(503, "before", "CLOUD_UNAVAILABLE"),
        Answer(503, "after", "CLOUD_UNAVAILABLE"),
    ),
    "silent": (
        Answer(503, "hang", "CLOUD_TIMEOUT"),
        Answer(503, "hang-after", "CLOUD_TIMEOUT"),
    ),
}
"""Every kind of wrong answer."""
WAYS: Final = ("lost", "answered", "killed")
"""The request is lost, its answer is, or the server dies before it gets it."""


class Killed(BaseException):
    """The server is dead from here on: nothing of ours cleans up."""


class Told(NamedTuple):
    """How a work ended."""

    code: str | None
    notes: tuple[str, ...]


class Wire:
    """Between our clients and Azure: knows every call, and can cut one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.impatient = ""
        """A method whose next call is waited for `HANG_SECONDS` only."""
        self._cut: tuple[int, str] | None = None

    def cut(self, number: int, way: str) -> None:
        """Break the call of that number, counted from now: lost, answered-and-lost or killed."""
        self.calls, self._cut = 0, (number, way)

    @property
    def whole(self) -> bool:
        """Whether nothing was cut (any more)."""
        return self._cut is None

    async def send(self, send: Any, request: Any, config: dict[str, Any]) -> Any:
        """Pass one call on, or not."""
        self.calls += 1
        if self.impatient and label_of(request.method, request.url) == self.impatient:
            self.impatient, config["read_timeout"] = "", HANG_SECONDS
        if self._cut is None or self._cut[0] != self.calls:
            return await send(request, **config)
        way, self._cut = self._cut[1], None
        if way == "lost":
            raise ServiceRequestError("Rehearsed: the connection is gone.")
        await send(request, **config)
        if way == "killed":
            raise Killed
        raise ServiceResponseError("Rehearsed: the answer is gone.")


def label_of(method: str, url: str) -> str:
    """Name a call as the simulated Azure does, as far as it is hung up in these tests."""
    path = urlsplit(url).path
    if path.startswith("/vaults/"):
        return f"{method} {path.split('/')[3]}"
    namespace, *rest = path.rpartition("/providers/")[2].split("/")
    action = [rest[-1]] if len(rest) % 2 and len(rest) > 1 else []
    return f"{method} {'/'.join((namespace, *rest[: len(rest) // 2 * 2 : 2], *action))}"


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to every call, wait for nothing long, and stand on what is prepared."""
    wire, send = Wire(), AioHttpTransport.send

    async def tapped(self: Any, request: Any, **config: Any) -> Any:
        async def pass_on(request: Any, **config: Any) -> Any:
            return await send(self, request, **config)

        return await wire.send(pass_on, request, config)

    def prepared(_site: object, _share: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(AioHttpTransport, "send", tapped)
    monkeypatch.setattr("backends.aca.plan.base", prepared)
    monkeypatch.setattr("backends.aca.site._TRY_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(secrets, "_LOOK_SECONDS", 0.02)
    impatient(monkeypatch)
    return wire


class Cloud:
    """The controls of one subscription, over one connection."""

    def __init__(self, subscription: str, http: httpx2.AsyncClient, wire: Wire) -> None:
        self.subscription, self._http, self._wire = subscription, http, wire

    async def set(self, **knobs: Any) -> dict[str, Any]:
        """Change knobs; gives what there is."""
        reply = await self._http.put(f"/rehearsal/subscriptions/{self.subscription}", json=knobs)
        assert reply.is_success, reply.text
        seen: dict[str, Any] = reply.json()
        return seen

    async def whole(self, name: str) -> bool:
        """Whether a deployment is there with its key; anything between is an orphan."""
        app, key = await self.parts(name)
        assert app is key, (name, app, key)
        return app

    async def parts(self, name: str) -> tuple[bool, bool]:
        """Whether its app and its key are there; a replica without its app is billed for ever."""
        seen = await self.set()
        app = any(one.endswith(f"/containerapps/{name}") for one in seen["resources"])
        running = [one for one in seen["replicas"] if one["app"].endswith(f"/{name}")]
        assert app or not running
        return app, any(key_secret(name) in vault for vault in seen["secrets"].values())

    async def wrong(self, method: str, answer: Answer, work: Awaitable[Any]) -> Told:
        """Let one call of a method be answered wrongly while something is done."""
        fault = {"method": method, "status": answer.status, "when": answer.when}
        await self.set(faults=[{**fault, "code": answer.said}])
        before = len((await self.set())["calls"])
        if answer.when.startswith("hang"):
            self._wire.impatient = method
        told = await told_of(work)
        seen = await self.set(faults=[])
        assert method in seen["calls"][before:], seen["calls"][before:]
        assert told.code in {None, answer.code}, (told, answer)
        return told


@asynccontextmanager
async def cloud_of(plane: AzurePlane, subscription: str, wire: Wire) -> AsyncIterator[Cloud]:
    """Open the controls of a subscription."""
    async with httpx2.AsyncClient(
        base_url=plane.http, trust_env=False, verify=NO_TLS, timeout=30
    ) as http:
        yield Cloud(subscription, http, wire)


async def told_of(work: Awaitable[Any]) -> Told:
    """Do it; any exception but a coded one with a way out is a bug."""
    code: str | None = None
    with collecting_notes() as notes:
        try:
            await work
        except OpsError as exc:
            code = exc.code if exc.fix else f"{exc.code} without a fix"
    return Told(code, tuple(notes))
