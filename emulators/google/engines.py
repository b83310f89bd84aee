"""One instance of a service: its process, its log, its startup probe, the time it is billed."""

import time
from functools import partial
from typing import Final

import anyio
from google.cloud.run_v2.types import Probe, Revision

from emulators.common.guard import Guard
from emulators.common.processes import EngineProcess
from emulators.common.programs import CannotStart, Program
from emulators.google.containers import program_of
from emulators.google.run_shapes import engine_of, port_of
from emulators.google.state import Instance, Project, World

SYSTEM_LOG: Final = "run.googleapis.com/varlog/system"
_REASONS: Final = {
    "DEPLOYMENT_ROLLOUT": "Instance started due to traffic shifting between revisions due to"
    " deployment, traffic split adjustment, or deployment health check.",
    "AUTOSCALING": "Instance started due to configured scaling factors (e.g. CPU utilization,"
    " request throughput, etc.) or no existing capacity for current traffic.",
    "MANUAL_OR_CUSTOMER_MIN_INSTANCE": "Instance started because of customer-configured"
    " min-instances or manual scaling.",
}


class Engine:
    """Comes up, answers, and ends; never twice."""

    def __init__(self, world: World, project: Project, revision: Revision) -> None:
        self._world = world
        self._project = project
        self._revision = revision
        self._container = engine_of(revision)
        parts = revision.name.split("/")
        self.revision: Final = parts[-1]
        self._labels: Final = {
            "service_name": revision.service,
            "revision_name": self.revision,
            "configuration_name": revision.service,
            "location": parts[3],
        }
        self._row = Instance(
            service=revision.service,
            revision=self.revision,
            location=parts[3],
            started=time.time(),
        )
        self._process: Final = EngineProcess()
        self.requests = 0
        """How many it answers now."""
        self.idle_since = time.monotonic()
        self.ready = anyio.Event()
        self.ended = anyio.Event()

    @property
    def url(self) -> str:
        """Where its process listens."""
        return self._process.url

    @property
    def guard(self) -> Guard | None:
        """What stands before it."""
        return self._process.guard

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent to it."""
        return self.ready.is_set() and not self.ended.is_set() and not self._process.is_over

    def stop(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `ended` says when it has."""
        self._process.end(at_once=at_once)

    def took(self) -> None:
        """Count a request that is sent to it."""
        self.requests += 1
        if self.requests == 1:
            self._row.busy.append((time.time(), None))

    def gave(self) -> None:
        """Count a request that is answered."""
        self.requests -= 1
        self.idle_since = time.monotonic()
        if not self.requests:
            begin, _ = self._row.busy[-1]
            self._row.busy[-1] = (begin, time.time())

    async def live(self, reason: str) -> None:
        """Run the process from its start to its end."""
        self._project.instances.append(self._row)
        self._say("INFO", f"Starting new instance. Reason: {reason} - {_REASONS[reason]}")
        self._world.keep(self._project)
        try:
            await self._run(program_of(self._project, self._world.folder, self._revision))
        except CannotStart as exc:
            self._say("ERROR", str(exc))
        finally:
            self._row.ended = time.time()
            self.ended.set()
            self._world.keep(self._project)

    async def _run(self, program: Program) -> None:
        status = await self._process.run(
            self._world.nursery, program, said=self._hear, beside=partial(self._probe, program)
        )
        if not self._process.told_to_end.is_set():
            how = f"called exit({status})" if status >= 0 else f"terminated on signal {-status}"
            self._say("WARNING", f"Container {how}.")

    def _hear(self, stream: str, line: str) -> None:
        self._project.append("DEFAULT", line, self._labels, f"run.googleapis.com/{stream}")

    async def _probe(self, program: Program) -> None:
        knobs, probe = self._project.knobs, self._container.startup_probe
        asked = probe.http_get.port or probe.tcp_socket.port or port_of(self._container)
        reachable = program.reachable and program.is_asked(asked, probe.http_get.path)
        scale = knobs.probe_scale
        await anyio.sleep(probe.initial_delay_seconds * scale)
        if knobs.rollout == "never":
            return
        if knobs.rollout == "probe-fails":
            reachable = False
            await anyio.sleep(knobs.boot_seconds)
        for attempt in range(1, (probe.failure_threshold or 3) + 1):
            if reachable and await self._healthy(probe, program.home):
                times = "attempt" if attempt == 1 else "attempts"
                self._say(
                    "INFO", f"{_kind(probe)} probe succeeded after {attempt} {times} {self._where}."
                )
                self.idle_since = time.monotonic()
                self.ready.set()
                return
            await anyio.sleep((probe.period_seconds or 10) * scale)
            if self._process.is_over:
                return
        times = f"{attempt} time{'s' * (attempt > 1)}"
        self._say(
            "ERROR",
            f"{_kind(probe)} probe failed {times} consecutively {self._where}."
            " The instance was not started.",
        )
        self.stop()

    async def _healthy(self, probe: Probe, home: str) -> bool:
        """Ask as the probe does; a connection is enough where it asks for no path."""
        return await self._process.answers(
            probe.http_get.path.rstrip("/") or home,
            probe.timeout_seconds or 1,
            any_status=not probe.http_get,
        )

    @property
    def _where(self) -> str:
        name = self._container.name or f"{self._revision.service}-1"
        path = self._container.startup_probe.http_get.path
        told = f' path "{path}"' if path else ""
        asked = self._container.startup_probe.http_get.port or port_of(self._container)
        return f'for container "{name}" on port {asked}{told}'

    def _say(self, severity: str, text: str) -> None:
        self._project.append(severity, text, self._labels, SYSTEM_LOG)


def _kind(probe: Probe) -> str:
    return "STARTUP HTTP" if probe.http_get else "Default STARTUP TCP"
