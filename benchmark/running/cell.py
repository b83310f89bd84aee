"""One cell, measured from its first look to its verdicts."""

import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from pydantic import SecretStr

from benchmark.client.fleet import Fleet
from benchmark.client.jobs import Job
from benchmark.figures import convergence, parquet, results
from benchmark.folder import RunFolder
from benchmark.judging import validity
from benchmark.measured import Measured, Slice
from benchmark.records import Arrivals, CellResult, CellSpec, Load
from benchmark.running import host
from benchmark.runs import Manifest
from benchmark.server.looks import read_look
from benchmark.server.server_view import Watch
from benchmark.server.subject import Seen
from core.endpoint import Endpoint
from core.errors import EndpointError, WaitedTooLong
from core.records import Access
from core.waiting import wait_until

CONNECTIONS_PER_WORKER: Final = 512
REQUESTS_PER_SECOND_OF_A_WORKER: Final = 5_000
"""An eighth of what one core can begin: open loops are judged by how late they send."""
_IDLE_SECONDS: Final = 15.0
_IDLE_LOOK_SECONDS: Final = 0.1
_AT_WORK: Final = ("running", "waiting")
_RAMP_SHARE: Final = 0.1
_LONGEST_RAMP_SECONDS: Final = 1.0
_PATHS: Final = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}

Tell = Callable[[str, Sequence[Slice]], None]
Stop = Callable[[], bool]


class Measures(Protocol):
    """What puts the load on: `benchmark.client.fleet.Fleet`."""

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Tell,
        stop: Stop,
    ) -> Measured:
        """Measure one cell until it is enough or the stop is wanted."""


Crew = Callable[[int, Path], AbstractAsyncContextManager[Measures]]
"""Workers by their number and the file that they log to."""


class Said(NamedTuple):
    """How a cell under way speaks to its sweep."""

    tell: Tell
    stop: Stop


class Bench:
    """Measures cell after cell with the same workers, as long as their number suits."""

    def __init__(self, folder: RunFolder, manifest: Manifest, *, crew: Crew = Fleet) -> None:
        self._folder = folder
        self._manifest = manifest
        self._crew = crew
        self._hired = AsyncExitStack()
        self._workers = 0
        self._fleet: Measures

    async def __aenter__(self) -> Self:
        """Forget what workers of an earlier process have left.

        Raises:
            DiskFull: The run's folder cannot be written.
        """
        self._folder.renew_parts()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Let the workers go; an error of the block goes its way as it is, in no group."""
        try:
            await self._hired.aclose()
        finally:
            shutil.rmtree(self._folder.parts, ignore_errors=True)

    async def measure(
        self, spec: CellSpec, *, seen: Seen, said: Said, before: Sequence[CellResult]
    ) -> CellResult | None:
        """Measure a cell and keep its samples; None where the stop came before it was enough.

        Raises:
            DiskFull: Its samples cannot be kept.
            OpsError: The workers cannot measure.
        """
        plan = self._manifest.plan
        fleet = await self._suited(workers_for(spec.load, plan.workers, cores=host.cores()))
        measured, watch = await self._watched(fleet, self._job(spec, seen), said)
        begin, end = measured.window_begin, measured.window_end
        cell = results.compute(
            spec,
            measured,
            server=watch.view(begin=begin, end=end, sent=len(measured.samples)),
            plan=plan,
            usd_per_hour=self._manifest.provenance.usd_per_hour,
        )
        if said.stop() and not self._suffices(cell):
            return None
        parquet.write(self._folder.samples_file(spec.id), measured.samples, cell=spec.id)
        subject = self._manifest.subject
        return validity.judged(cell, measured=measured, plan=plan, subject=subject, before=before)

    async def _watched(self, fleet: Measures, job: Job, said: Said) -> tuple[Measured, Watch]:
        if job.load.arrivals is Arrivals.ONCE:
            # One burst is over before it could settle: one request goes before it, in no figure.
            alone = job.load.model_copy(update={"concurrency": 1})
            await _measured(fleet, job.model_copy(update={"load": alone}), said)
        async with (
            opened(self._folder, self._manifest.base_url) as endpoint,
            Watch(await _idle(endpoint)) as watch,
        ):
            return await _measured(fleet, job, said), watch

    async def _suited(self, workers: int) -> Measures:
        if workers != self._workers:
            await self._hired.aclose()
            self._workers = 0
            crew = self._crew(workers, self._folder.log_file)
            self._fleet = await self._hired.enter_async_context(crew)
            self._workers = workers
        return self._fleet

    def _job(self, spec: CellSpec, seen: Seen) -> Job:
        plan = self._manifest.plan
        key, certificate = self._folder.credential_file, self._folder.certificate_file
        return Job(
            cell=spec.id,
            base_url=self._manifest.base_url,
            path=_PATHS[plan.workload.api],
            credential_file=key if key.exists() else None,
            ca_file=certificate if certificate.exists() else None,
            load=spec.load,
            context=spec.context,
            workload=plan.workload,
            model=seen.subject.model,
            token_ids=seen.token_ids,
            words=seen.words,
            template_tokens=seen.template_tokens,
            stop=plan.stop,
            ramp_seconds=ramp_seconds(spec.load, plan.stop.max_seconds),
            # By the clock, in microseconds: no request of an earlier cell, of an attempt that was
            # killed or of another run has the number, so none of their prompts comes again.
            first_request=time.time_ns() // 1000,
            samples_file=self._folder.parts,
        )

    def _suffices(self, cell: CellResult) -> bool:
        """Whether a cell that was broken off was long enough all the same."""
        rule = self._manifest.plan.stop
        return (
            cell.window_seconds is not None
            and cell.counts is not None
            and cell.window_seconds >= rule.min_seconds
            and cell.counts.succeeded >= rule.min_requests
        )


async def _measured(fleet: Measures, job: Job, said: Said) -> Measured:
    return await fleet.measure(
        job, enough=convergence.enough(job.stop), tell=said.tell, stop=said.stop
    )


@asynccontextmanager
async def opened(folder: RunFolder, base_url: str) -> AsyncIterator[Endpoint]:
    """Open what a run measures, with its credential as it is now."""
    key, identity = folder.credential(), folder.identity()
    access = Access(
        base_url=base_url,
        api_key=SecretStr(key) if key else None,
        identity_token=SecretStr(identity) if identity else None,
        certificate=folder.certificate(),
        protection="as its owner set it",
    )
    endpoint = Endpoint(access)
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


async def _idle(endpoint: Endpoint) -> Endpoint:
    """Wait until what an earlier cell has cut has left the engine; who stays there is another."""

    async def at_work() -> float:
        try:
            look = read_look(await endpoint.metrics_text(), at=0.0)
        except EndpointError:
            return 0
        return sum(look.gauges.get(name, 0) for name in _AT_WORK) if look else 0

    with suppress(WaitedTooLong):
        await wait_until(
            at_work,
            lambda requests: requests == 0,
            waiting_for="the engine to have nothing to do",
            every=_IDLE_LOOK_SECONDS,
            timeout=_IDLE_SECONDS,
        )
    return endpoint


def workers_for(load: Load, wanted: int | None, *, cores: int) -> int:
    """Say how many processes put a load on.

    >>> [workers_for(Load(concurrency=c), None, cores=2) for c in (1, 512, 513, 2048)]
    [1, 1, 2, 2]
    """
    if wanted is not None:
        return wanted
    users = math.ceil((load.concurrency or 1) / CONNECTIONS_PER_WORKER)
    rate = math.ceil((load.requests_per_second or 1) / REQUESTS_PER_SECOND_OF_A_WORKER)
    return max(1, min(cores, max(users, rate)))


def ramp_seconds(load: Load, window_seconds: float) -> float:
    """Say over how long the first requests of a closed loop are spread."""
    if load.arrivals is not Arrivals.CLOSED:
        return 0.0
    return min(_LONGEST_RAMP_SECONDS, _RAMP_SHARE * window_seconds)
