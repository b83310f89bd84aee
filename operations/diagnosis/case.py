"""One deployment while it is being diagnosed: what is known of it, and the time that is left."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio

from backends.base import RemembersSpec
from core.endpoint import Endpoint
from core.errors import OpsError
from core.metrics import EngineMetrics
from core.records import Deployment, DeploymentSpec, Failure, State, Step
from logs.failures import WRITERS, Writer
from operations.diagnosis.records import MOST_CHARACTERS, Evidence, Layer, Remark, Verdict
from operations.resolve import Found
from operations.runtime import Runtime

FIRST_ANSWER_SECONDS: Final = 120.0
"""For this long a server that is up may be silent: addresses and first requests need time."""
_SILENT: Final = frozenset({"ENDPOINT_UNREACHABLE", "NOT_READY"})
_NOT_YET: Final[Mapping[State, str]] = {
    State.QUEUED: "it has no machine yet",
    State.CREATING: "it is still being made",
    State.LOADING: "its model is still being loaded",
    State.ASLEEP: "it sleeps, and asking would wake it",
    State.STOPPING: "it is being stopped",
    State.STOPPED: "it is stopped",
    State.EXPIRED: "its time is over",
    State.FAILED: "it does not run",
    State.DELETING: "it is being deleted",
}


class Fault(NamedTuple):
    """What the platform, or the log, says is wrong before anything was asked."""

    layer: Layer
    failure: Failure
    evidence: tuple[Evidence, ...] = ()


class Looked(NamedTuple):
    """What one layer came to."""

    verdict: Verdict
    detail: str
    failure: Failure | None = None
    """Of an unhealthy one."""
    evidence: tuple[Evidence, ...] = ()
    remarks: tuple[Remark, ...] = ()
    next: tuple[Step, ...] = ()
    """Of a healthy one, what there is to do all the same."""


class Case:
    """What each layer is given."""

    def __init__(self, runtime: Runtime, found: Found, *, ends: float) -> None:
        """Begin; `ends` is on anyio's clock, in seconds."""
        self.runtime: Final = runtime
        self.backend: Final = found.backend
        self.deployment: Final[Deployment] = found.deployment
        self.found: Final = found
        self.now: Final = datetime.now(UTC)
        self.fault: Fault | None = None
        self.seen: EngineMetrics | None = None
        """The newest look at the metrics."""
        self.stops = False
        """Whether it can be stopped and started; not until that is known."""
        self.unheard: Failure | None = None
        """Of a model that said no token while requests waited."""
        self._ends = ends
        self._spec: list[DeploymentSpec | None] = []

    @property
    def left(self) -> float:
        """Seconds until the diagnosis must be told."""
        return max(0.0, self._ends - anyio.current_time())

    @property
    def writer(self) -> Writer | None:
        """Whose words the platform's lines are; None where only the engine writes."""
        kind = self.backend.target.backend
        return next((one for one in WRITERS if one == kind), None)

    @property
    def silent(self) -> str | None:
        """Why nothing is asked of its server now; None where it must answer."""
        now = self.deployment
        if now.state is State.LOADING and now.failure:
            fresh = self.for_seconds < FIRST_ANSWER_SECONDS
            new = now.failure.code in _SILENT and fresh
            return "its server was started and has not answered yet" if new else None
        if now.state is State.READY and now.url is None:
            return "it has no address that is reached from here"
        return _NOT_YET.get(now.state)

    @property
    def since(self) -> datetime:
        """When its phase began, or its state."""
        phase = self.deployment.phase
        return phase.since if phase else self.deployment.since

    @property
    def for_seconds(self) -> float:
        """How long it has been in its phase, or in its state."""
        return max(0.0, (self.now - self.since).total_seconds())

    async def spec(self) -> DeploymentSpec | None:
        """Give what was asked for, None where nobody knows it."""
        if not self._spec:
            self._spec.append(await self._read_spec())
        return self._spec[0]

    @asynccontextmanager
    async def endpoint(self, *, timeout: float) -> AsyncIterator[Endpoint]:
        """Open its endpoint; `timeout` is of a look, in seconds."""
        access = self.runtime.keep_quiet(await self.backend.access(self.found.name))
        endpoint = Endpoint(access, timeout=timeout)
        try:
            yield endpoint
        finally:
            await endpoint.aclose()

    async def _read_spec(self) -> DeploymentSpec | None:
        if not isinstance(self.backend, RemembersSpec):
            return None
        try:
            return await self.backend.spec(self.found.name)
        except OpsError:
            return None  # its layer has said so, and nothing else needs it


def healthy(detail: str, *, remarks: Sequence[Remark] = (), next: Sequence[Step] = ()) -> Looked:  # noqa: A002  as the record says it
    """Say that a layer is healthy, and what was seen."""
    return Looked("healthy", detail, remarks=tuple(remarks), next=tuple(next))


def skipped(why: str) -> Looked:
    """Say why a layer was not looked at."""
    return Looked("skipped", why)


def failed(failure: Failure, *evidence: Evidence) -> Looked:
    """Say that a layer is at fault."""
    return Looked("failed", failure.cause, failure, evidence)


def condition(text: str, at: datetime | None = None) -> Evidence:
    """Quote what a platform or a server says of itself."""
    return Evidence(kind="condition", text=text[:MOST_CHARACTERS], at=at)


def number(text: str, at: datetime | None = None) -> Evidence:
    """Quote a figure with its name."""
    return Evidence(kind="number", text=text[:MOST_CHARACTERS], at=at)


def lines(texts: Sequence[str], at: datetime | None = None) -> tuple[Evidence, ...]:
    """Quote lines of a log."""
    return tuple(Evidence(kind="line", text=text[:MOST_CHARACTERS], at=at) for text in texts)


def lasting(seconds: float) -> str:
    """Say a time as a person does.

    >>> lasting(50), lasting(250), lasting(9000)
    ('50 s', '4 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def ago(case: Case, **much: float) -> datetime:
    """Give a moment before the diagnosis began, no earlier than the deployment was made."""
    return max(case.deployment.created_at, case.now - timedelta(**much))
