"""Instances of a service: their processes, how many there are, and the URL before them."""

import html
import re
import time
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import jwt
from google.cloud.run_v2.types import Condition, Container, Revision, SecretKeySelector, Service
from google.iam.v1.policy_pb2 import Policy
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

from simulators.common import programs
from simulators.common.doors import Host, TurnedAway, open_door
from simulators.google import run_rules
from simulators.google.images import exists
from simulators.google.logging import of_revision
from simulators.google.secrets import value_for
from simulators.google.serving import Refused
from simulators.google.state import GCLOUD_CLIENT, Instance, Project, World
from simulators.google.storage import carried

_PULLED: Final = re.compile(r"ollama pull ([\w./:-]+)(?: && ollama cp [\w./:-]+ ([\w./:-]+))?")


def _ollama(project: Project, container: Container) -> list[str] | None:
    """Return what the simulated engine serves in the place of Ollama; None of another image.

    The names of the model are those that the image's build pulled.
    """
    reference = container.image.partition("@")[0].partition(":")[0]
    names: tuple[str, ...] | None = ("ollama",) if reference.endswith("ollama/ollama") else None
    for build in project.builds.values():
        done = build.status == type(build).Status.SUCCESS
        if done and any(image.partition(":")[0] == reference for image in build.images):
            found = _PULLED.search(str(build))
            names = tuple(filter(None, found.groups())) if found else names
    if names is None:
        return None
    host = next((one.value for one in container.env if one.name == "OLLAMA_HOST"), "")
    port = host.rpartition(":")[2] or "8080"
    return [names[0].replace(":", "-"), "--served-model-name", *names, "--port", port]


def _program_of(world: World, project: Project, revision: Revision) -> programs.Program:
    """Say what is to be run; every call takes a port of its own."""
    container, ingress = run_rules.engine_of(revision), run_rules.ingress_of(revision)
    guard = None
    if ingress != container:
        env = {variable.name: variable.value for variable in ingress.env}
        guard = programs.guard_of((*ingress.command, *ingress.args), env)
    words = _ollama(project, container)
    ollama = words is not None
    return programs.Program(
        words or programs.served(list(container.command), list(container.args)),
        _environment(project, revision, rehearsed=not ollama),
        port=run_rules.port_of(ingress),
        here=lambda path: _local_weights(world.folder, revision, path),
        carry=lambda at: carried(world, at, revision.service_account),
        ollama=ollama,
        guard=guard,
    )


def _environment(project: Project, revision: Revision, *, rehearsed: bool) -> dict[str, str]:
    knobs = project.knobs
    gpu = run_rules.GPUS.get(revision.node_selector.accelerator)
    env = programs.environment(knobs, gpu.short if gpu and rehearsed else "", {})
    for variable in run_rules.engine_of(revision).env:
        reference, env[variable.name] = variable.value_source.secret_key_ref, variable.value
        if reference.secret:
            try:
                env[variable.name] = read_secret(project, reference, revision.service_account)
            except Refused as refused:
                raise programs.CannotStart(refused.message) from refused
    return env


def read_secret(project: Project, reference: SecretKeySelector, account: str) -> str:
    """Return what a reference of an environment variable stands for.

    Raises:
        Refused: It is not there, or the account may not read it.
    """
    named = reference.secret.rpartition("/")[2]
    return value_for(project, named, reference.version or "latest", account)


def _local_weights(folder: Path, revision: Revision, path: str) -> str:
    """Let a mounted bucket's folder be where the simulated bucket keeps it."""
    buckets = folder / "storage" / ".cloudstorage"
    volumes = {volume.name: volume.gcs.bucket for volume in revision.volumes if volume.gcs}
    for mount in run_rules.engine_of(revision).volume_mounts:
        bucket = volumes.get(mount.name)
        if bucket and not (buckets / bucket).is_dir():
            raise programs.CannotStart(
                f"Application failed to start: mounting bucket {bucket} failed: it does not exist"
            )
        root = mount.mount_path.rstrip("/")
        if bucket and f"{path}/".startswith(f"{root}/"):
            inside = "/".join(part for part in (mount.sub_path, path[len(root) :]) if part)
            kept = buckets / bucket / inside.strip("/")
            return str(kept) if kept.is_dir() else path
    return path


def check_image(world: World, project: Project, image: str) -> None:
    """Refuse an image that is not there, or that may not be read.

    Raises:
        RolloutFailed: CONTAINER_MISSING or CONTAINER_IMAGE_UNAUTHORIZED.
    """
    _region, ours, rest = image.partition("-docker.pkg.dev/")
    if ours and rest.partition("/")[0] != project.id:
        denied = Condition.CommonReason.CONTAINER_IMAGE_UNAUTHORIZED
        words = {"number": project.number, "image": image}
        raise run_rules.rollout_failed("rollout-image-access", denied, **words)
    if project.knobs.rollout == "image-missing" or not exists(world, rest if ours else image):
        missing = Condition.CommonReason.CONTAINER_MISSING
        raise run_rules.rollout_failed("rollout-image", missing, image=image)


class Engine:
    """Comes up, answers, and ends; never twice."""

    def __init__(self, world: World, project: Project, revision: Revision) -> None:
        self._world = world
        self._project = project
        self._revision = revision
        self._container = run_rules.engine_of(revision)
        parts = revision.name.split("/")
        self.revision: Final = parts[-1]
        self._row = Instance(
            service=revision.service, revision=self.revision, location=parts[3], started=time.time()
        )
        self.process: Final = programs.EngineProcess()
        self.requests = 0
        """How many it answers now."""
        self.idle_since = project.now
        self.ready = anyio.Event()
        self.ended = anyio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether requests may be sent to it."""
        return self.ready.is_set() and not self.ended.is_set() and not self.process.is_over

    def stop(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `ended` says when it has."""
        self.process.end(at_once=at_once)

    def begin_request(self) -> None:
        """Count a request that is sent to it."""
        self.requests += 1
        if self.requests == 1:
            self._row.busy.append((time.time(), None))

    def end_request(self) -> None:
        """Count a request that is answered."""
        self.requests -= 1
        self.idle_since = self._project.now
        if not self.requests:
            begin, _ = self._row.busy[-1]
            self._row.busy[-1] = (begin, time.time())

    async def live(self, reason: str) -> None:
        """Run the process from its start to its end."""
        self._project.instances.append(self._row)
        self._say("INFO", f"Starting new instance. Reason: {reason}")
        self._world.keep(self._project)
        try:
            program = _program_of(self._world, self._project, self._revision)
            beside = partial(self._probe, program)
            status = await self.process.run(program, said=self._hear, beside=beside)
            if not self.process.told_to_end.is_set():
                how = f"called exit({status})" if status >= 0 else f"terminated on signal {-status}"
                self._say("WARNING", f"Container {how}.")
        except programs.CannotStart as exc:
            self._say("ERROR", str(exc))
        finally:
            self._row.ended = time.time()
            self.ended.set()
            self._world.keep(self._project)

    def _hear(self, stream: str, line: str) -> None:
        self._project.append("DEFAULT", line, of_revision(self._revision.name, stream))

    async def _probe(self, program: programs.Program) -> None:
        knobs, probe = self._project.knobs, self._container.startup_probe
        path, port = probe.http_get.path, run_rules.port_of(self._container)
        asked = probe.http_get.port or probe.tcp_socket.port or port
        reachable = program.reachable and program.is_asked(asked, path)
        kind = "STARTUP HTTP" if probe.http_get else "Default STARTUP TCP"
        named = self._container.name or f"{self._revision.service}-1"
        told = f' path "{path}"' if path else ""
        where = f'for container "{named}" on port {probe.http_get.port or port}{told}'
        await anyio.sleep(probe.initial_delay_seconds * knobs.probe_scale)
        if knobs.rollout == "never":
            return
        if knobs.rollout == "probe-fails":  # of an engine that is up, as its log says
            reachable = False
            await self.process.first_answer()
        for attempt in range(1, (probe.failure_threshold or 3) + 1):
            if reachable and await self.process.answers(
                path.rstrip("/") or ("/health" if program.ollama else "/"),
                probe.timeout_seconds or 1,
                any_status=not probe.http_get,  # a connection is enough
            ):
                times = "attempt" if attempt == 1 else "attempts"
                self._say("INFO", f"{kind} probe succeeded after {attempt} {times} {where}.")
                self.idle_since = self._project.now
                self.ready.set()
                return
            await anyio.sleep((probe.period_seconds or 10) * knobs.probe_scale)
            if self.process.is_over:
                return
        times = f"{attempt} time{'s' * (attempt > 1)}"
        words = f"{kind} probe failed {times} consecutively {where}. The instance was not started."
        self._say("ERROR", words)
        self.stop()

    def _say(self, severity: str, text: str) -> None:
        source = of_revision(self._revision.name, "varlog/system")
        self._project.append(severity, text, source)


_RHYTHM_SECONDS: Final = 0.03
_IDLE_SECONDS: Final = 900.0
"""From an instance's last request to its end."""
_PATIENCE_SECONDS: Final = 0.5
"""Between two starts after an instance that did not come up."""
_QUEUE_SECONDS: Final = 60.0
"""How long a request waits for room beside others. source: run/docs/about-instance-autoscaling"""
_GIVEN: Final = "x-serverless-authorization"
_NO_INSTANCE: Final = "The request was aborted because there was no available instance."
_MALFORMED: Final = "The request failed because the instance could not start successfully."
_INVOKE: Final = "run.routes.invoke"


class Fleet(Host):
    """All instances of one service, of every revision, and the URL before them."""

    late, but = "upstream request timeout", frozenset({_GIVEN})

    def __init__(self, world: World, project: Project, service: Service) -> None:
        self._world = world
        self._project = project
        self.service: Final = service
        """As it is now: whoever changes it changes this one."""
        self._engines: list[Engine] = []
        self.rolling: Final[set[str]] = set()
        """Revisions that are not serving yet: nobody ends their instances here."""
        self._rest_until = 0.0
        self.failed_starts = 0
        """How many instances ended before they were healthy."""
        self.closed = False
        port = urlsplit(service.uri).port or 0  # it had before
        self._door = open_door(world.tasks, self, port)
        service.uri = self._door.url
        service.urls = [self._door.url]
        world.tasks.start_soon(self._keep)

    @property
    def revision(self) -> Revision | None:
        """The one that serves."""
        found: Revision | None = self._project.revisions.get(self.service.latest_ready_revision)
        return found

    def start(self, revision: Revision, reason: str) -> Engine:
        """Start one more instance."""
        engine = Engine(self._world, self._project, revision)
        self._engines.append(engine)
        self._world.tasks.start_soon(engine.live, reason)
        return engine

    def _wake(self) -> bool:
        """A request waits: start an instance if that is allowed; tells whether one is coming."""
        revision, mine = self.revision, self._of(self.revision)
        if any(not one.ready.is_set() for one in mine):
            return True
        full = len(mine) >= (run_rules.most_instances(self.service) or run_rules.MAX_DEFAULT)
        resting = time.monotonic() < self._rest_until
        if self.closed or revision is None or full or resting:  # closed: nobody would end it
            return False
        if run_rules.is_manual(self.service):
            return False
        self.start(revision, "AUTOSCALING")
        return True

    async def close(self, *, at_once: bool = False) -> None:
        """End every instance, and the URL."""
        self.closed = True
        for engine in self._engines:
            engine.stop(at_once=at_once)
        for engine in self._engines:
            await engine.ended.wait()
        self._door.close()

    def _of(self, revision: Revision | None) -> list[Engine]:
        short = revision.name.rpartition("/")[2] if revision else ""
        return [one for one in self._engines if one.revision == short and not one.ended.is_set()]

    async def _keep(self) -> None:
        """Go on until the service is gone: forget what ended, start and end what is to be."""
        while not self.closed:
            ended = [one for one in self._engines if one.ended.is_set()]
            failed = sum(not one.ready.is_set() for one in ended)
            self.failed_starts += failed
            if failed:
                self._rest_until = time.monotonic() + _PATIENCE_SECONDS
            self._engines = [one for one in self._engines if one not in ended]
            self._settle()
            await anyio.sleep(_RHYTHM_SECONDS)

    def _settle(self) -> None:
        revision = self.revision
        staying = {*self.rolling, *([revision.name] if revision else ())}
        names = {name.rpartition("/")[2] for name in staying}
        for engine in self._engines:
            if engine.revision not in names and not engine.requests:
                engine.stop()
        if revision is None or time.monotonic() < self._rest_until:
            return
        mine, least = self._of(revision), run_rules.least_instances(self.service)
        if len(mine) < least:
            self.start(revision, "MANUAL_OR_CUSTOMER_MIN_INSTANCE")
        elif len(mine) > least:
            self._end_one(mine)

    def _end_one(self, mine: list[Engine]) -> None:
        idle = [one for one in mine if one.is_ready and not one.requests]
        oldest = min(idle, key=lambda one: one.idle_since, default=None)
        allowed = 0.0 if run_rules.is_manual(self.service) else _IDLE_SECONDS
        if oldest and self._project.now - oldest.idle_since >= allowed:
            oldest.stop()
        elif run_rules.is_manual(self.service) and not idle:
            mine[0].stop()

    def admit(self, request: Request) -> float:
        self._check(request)
        return run_rules.timeout_seconds(self.service.template)

    def _check(self, request: Request) -> None:
        service = self.service
        if self.closed or self.revision is None:
            raise TurnedAway(_page(404, "Not Found", "The requested URL was not found."))
        if run_rules.is_disabled(service):
            # Google publishes no status for a service that is disabled; this is the nearest.
            raise TurnedAway(_page(503, "Service Unavailable", "The service is disabled."))
        if service.invoker_iam_disabled:
            return
        given = request.headers.get(_GIVEN) or request.headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        where = html.escape(request.url.path)
        told = f"Your client does not have permission to get URL <code>{where}</code>"
        email = self._email(service, token) if kind.lower() == "bearer" else None
        if given and email is None:
            page = _page(401, "Unauthorized", f"{told} from this server.")
            page.headers["www-authenticate"] = (
                'Bearer error="invalid_token" error_description="The access token could not be'
                ' verified"'
            )
            raise TurnedAway(page)
        if not self._may_invoke(email):
            raise TurnedAway(_page(403, "Forbidden", f"{told} from this server."))

    def _email(self, service: Service, token: str) -> str | None:
        try:
            claims = self._world.tokens.read(token)
        except jwt.InvalidTokenError:
            return None
        known = {*service.urls, *service.custom_audiences, GCLOUD_CLIENT}
        holds = claims["aud"] in known and claims["exp"] > time.time()
        return str(claims["email"]) if holds else None

    def _may_invoke(self, email: str | None) -> bool:
        project = self._project
        if email == project.caller:  # who owns the project
            return not project.denies(_INVOKE, self.service.name)
        own = project.policies.get(self.service.name, Policy())
        return project.grants(email or "nobody", _INVOKE, project.policy, own)

    async def instance(self) -> Engine:
        """Wait for the instance with most room; wake one if there is none."""
        began, failed = time.monotonic(), self.failed_starts
        while True:
            revision = self.revision
            most = revision.max_instance_request_concurrency if revision else 0
            room = [one for one in self._of(revision) if one.is_ready and one.requests < most]
            if room:
                engine = min(room, key=lambda one: one.requests)
                engine.begin_request()
                return engine
            if self.failed_starts > failed:
                raise TurnedAway(_page(503, "Server Error", _MALFORMED))
            none = self._project.knobs.rollout == "no-capacity"
            late = time.monotonic() - began > _QUEUE_SECONDS
            if none or (not self._wake() and late):
                raise TurnedAway(PlainTextResponse(_NO_INSTANCE, status_code=429))
            await anyio.sleep(_RHYTHM_SECONDS)


def running(world: World, project: Project, service: Service) -> Fleet:
    """Return what runs for a service that is there."""
    if service.name not in world.live:
        world.live[service.name] = Fleet(world, project, service)
    found: Fleet = world.live[service.name]
    return found


def _page(status: int, title: str, told: str) -> HTMLResponse:
    head = f"<head><title>{status} {title}</title></head>"
    body = f"<body><h1>Error: {title}</h1><h2>{told}</h2></body>"
    return HTMLResponse(f"<html>{head}{body}</html>", status_code=status)
