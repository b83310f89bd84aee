"""One replica of a revision: its host, its container with all restarts, its startup probe."""

import time
from functools import partial
from typing import Final

import anyio

from emulators.azure import fleet_shapes as shapes
from emulators.azure.containers import program_of, pulls
from emulators.azure.fleet_shapes import Body
from emulators.azure.replicas_hosts import assigned
from emulators.azure.state import Replica, Subscription, World, id_of
from emulators.common.guard import Guard
from emulators.common.processes import EngineProcess
from emulators.common.programs import CannotStart, Program

_DEFAULT_PROBE: Final[Body] = {"tcpSocket": {}, "periodSeconds": 1, "failureThreshold": 240}
"""Where a container has no startup probe. Source: Microsoft's page on health probes."""
_BACK_OFF_SECONDS: Final = 10.0
_LONGEST_BACK_OFF_SECONDS: Final = 300.0
_KILLED: Final = 137


class Running:
    """Comes up, answers, and ends; its container may be started again and again."""

    def __init__(self, world: World, sub: Subscription, app: Body, revision: Body) -> None:
        self._world = world
        self._sub = sub
        self._app = app
        self._body = revision
        self._container = shapes.container_of(revision)
        self.revision: Final = shapes.short(revision)
        self.row: Final = _row(sub, app, revision)
        self._process = EngineProcess()
        self._why = ""
        self.requests = 0
        """How many it answers now."""
        self.active_since = time.monotonic()
        """When it was scheduled, or last had a request: the cooldown's clock."""
        self.ended = anyio.Event()
        self._told_to_end = anyio.Event()

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
        return self.row.ready and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.ended.is_set() or self._told_to_end.is_set()

    def stop(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `ended` says when it has."""
        self._told_to_end.set()
        self._process.end(at_once=at_once)

    def took(self) -> None:
        """Count a request that is sent to it."""
        self.requests += 1
        self.active_since = time.monotonic()

    def gave(self) -> None:
        """Count a request that is answered."""
        self.requests -= 1
        self.active_since = time.monotonic()

    async def live(self) -> None:
        """Run from its scheduling to its end."""
        self._sub.replicas.append(self.row)
        self.say(
            "AssigningReplica", f"Replica '{self.row.name}' has been scheduled to run on a node."
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_told, tasks.cancel_scope)
            await assigned(self._sub, self._app, self.row, self.say)
            await self._containers()
            tasks.cancel_scope.cancel()
        self._end()  # not where the whole cloud ends: it is there again with the next

    async def _end_when_told(self, everything: anyio.CancelScope) -> None:
        """End what has no process yet; a process is told by itself."""
        await self._told_to_end.wait()
        if not self._process.url or self._process.status is not None:
            everything.cancel()

    def _end(self) -> None:
        row = self.row
        row.ended, row.ready, row.state = time.time(), False, "NotRunning"
        self.ended.set()
        self._world.keep(self._sub)

    async def _containers(self) -> None:
        """Start the container again whenever it has ended."""
        image = self._container["image"]
        self.say("PullingImage", f"Pulling image '{image}'")
        while not pulls(self._world, self._sub, self._app, str(image)):
            await self._not_pulled(str(image))
            if self._told_to_end.is_set():
                return
        self.say("PulledImage", f"Successfully pulled image '{image}' in 812ms.")
        while True:
            await self._once()
            if self._told_to_end.is_set():
                return
            self.row.restarts += 1
            self.row.state, self.row.details = "NotRunning", "CrashLoopBackOff"
            self.say("ContainerBackOff", "Persistent Failure to start container")
            await anyio.sleep(self._back_off() * self._sub.knobs.probe_scale)
            self._process = EngineProcess()

    async def _not_pulled(self, image: str) -> None:
        """Say so as Azure does, which shows its own mirror and not the registry's answer."""
        self.say(
            "ContainerTerminated",
            f"Container '{self._container['name']}' was terminated with exit code '' and reason"
            f" 'ImagePullFailure'. Pull image: {image} failed with exit code: 1, error: failed to"
            f" resolve reference: unexpected status from HEAD request to"
            f" http://localhost:8578/v2/: 503 Service Unavailable",
        )
        self.row.restarts += 1
        self.row.state, self.row.details = "NotRunning", "ImagePullBackOff"
        await anyio.sleep(self._back_off() * self._sub.knobs.probe_scale)

    def _back_off(self) -> float:
        doubled: float = _BACK_OFF_SECONDS * 2 ** (self.row.restarts - 1)
        return min(doubled, _LONGEST_BACK_OFF_SECONDS)

    async def _once(self) -> None:
        """Run the container to its end."""
        name = self._container["name"]
        self.row.details = "ContainerCreating"
        try:
            program = program_of(self._world, self._sub, self._app, self._body)
        except CannotStart as exc:
            self.say("ContainerCreateFailed", str(exc))
            return
        self._why = "Error"
        self.say("ContainerCreated", f"Created container '{name}'")
        self.say("ContainerStarted", f"Started container '{name}'")
        self.row.state, self.row.details = "Running", ""
        self._world.keep(self._sub)
        status = await self._process.run(
            self._world.nursery, program, said=self._hear, beside=partial(self._probe, program)
        )
        self.row.ready = self.row.started = False
        if self._told_to_end.is_set():
            self._why = "ManuallyStopped"
        code = {"ProbeFailure": "", "Error": str(status if status >= 0 else _KILLED)}
        told = code.get(self._why, "0")
        self.say(
            "ContainerTerminated",
            f"Container '{name}' was terminated with exit code '{told}' and reason '{self._why}'",
        )

    async def _probe(self, program: Program) -> None:
        """Make the startup probe, until it succeeds or has failed too often."""
        knobs, probe = self._sub.knobs, shapes.probe_of(self._body, "Startup") or _DEFAULT_PROBE
        scale, most = knobs.probe_scale, probe.get("failureThreshold") or 3
        if knobs.rollout == "never":
            return
        asked = probe.get("httpGet") or probe["tcpSocket"]
        port, path = asked.get("port") or program.listens, asked.get("path") or "/"
        reachable = program.reachable and program.is_asked(port, path)
        reachable = reachable and knobs.rollout != "probe-fails"
        await anyio.sleep((probe.get("initialDelaySeconds") or 0) * scale)
        for attempt in range(1, most + 1):
            if reachable and await self._healthy(probe):
                self._ready()
                return
            if not attempt & (attempt - 1):  # the log has 1, 2, 4, 8 …: events are counted together
                self.say("ProbeFailed", "Probe of StartUp failed with status code: 1")
            await anyio.sleep((probe.get("periodSeconds") or 10) * scale)
            if self._process.is_over:
                return
        self._why = "ProbeFailure"
        name = self._container["name"]
        self.say("ProbeFailed", f"Container {name} failed startup probe, will be restarted")
        self._process.end()

    async def _healthy(self, probe: Body) -> bool:
        """Ask as the probe does; a connection is enough where it asks for no path."""
        asked = probe.get("httpGet") or {}
        return await self._process.answers(
            asked.get("path") or "/", probe.get("timeoutSeconds") or 1, any_status=not asked
        )

    def _ready(self) -> None:
        self.row.started = self.row.ready = True
        self._world.keep(self._sub)

    def _hear(self, stream: str, line: str) -> None:
        self._write("console", line, stream=stream)

    def say(self, reason: str, words: str) -> None:
        """Write an event of the system about it."""
        self._write("system", words, reason=reason)

    def _write(self, table: str, text: str, *, reason: str = "", stream: str = "") -> None:
        row = self.row
        self._sub.append(
            table,
            shapes.short(self._app),
            row.revision,
            row.name,
            text,
            reason,
            stream,
            environment=row.environment,
        )


def _row(sub: Subscription, app: Body, revision: Body) -> Replica:
    name = shapes.short(revision)
    number = id_of(name, str(len(sub.replicas)), str(time.time())).replace("-", "")
    return Replica(
        name=f"{name}-{number[:10]}-{number[10:15]}",
        app=str(app["id"]).lower(),
        revision=name,
        profile_type=shapes.profile_type_of(sub, app),
        environment=shapes.environment_of(app),
        region=str(app.get("location", "")).lower().replace(" ", ""),
        created=time.time(),
        details="AssigningReplica",
    )
