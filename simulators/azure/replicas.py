"""Replicas of a revision: where each runs, its container, its probes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from core.errors import InvalidArgument
from planner.boot import file_bytes
from planner.model import catalog_shape
from simulators.azure import storage
from simulators.azure.arm import moment
from simulators.azure.ground import CONSUMPTION, PROFILES, environment_of, most_gpus, profile_types
from simulators.azure.state import Body, Replica, Subscription, World, id_of
from simulators.azure.vaults import SecretLost, read_secret
from simulators.common.carrying import Missing, Store
from simulators.common.cron import due_next
from simulators.common.programs import (
    CannotStart,
    EngineProcess,
    Program,
    environment,
    guard_of,
    served,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas a revision has."""

    least: int
    most: int
    cooldown_seconds: float
    concurrent: int
    """Requests at once for which one replica is enough."""
    times: tuple[Body, ...]
    """Metadata of KEDA's cron rules."""

    def timed(self, now: float) -> int:
        """Return how many replicas the times of the moment ask for."""
        return max((asked_by_time(one, now) for one in self.times), default=0)


def asked_by_time(metadata: Body, now: float) -> int:
    """Return how many replicas a cron rule asks for at a moment.

    Between a start and its end the next end comes before the next start. Source:
    keda.sh/docs/latest/scalers/cron (2026-11) and KEDA's own cron scaler.

    Raises:
        ValueError: It cannot be read, or lacks something.
    """
    for name in ("timezone", "start", "end", "desiredReplicas"):
        if not metadata.get(name):
            raise ValueError(f"no {name} is specified in the metadata of a cron rule")
    if metadata["start"] == metadata["end"]:
        raise ValueError("start and end of a cron rule are the same")
    replicas = int(metadata["desiredReplicas"])
    start, end = (
        due_next(metadata[edge], now, metadata["timezone"]) or math.inf for edge in ("start", "end")
    )
    return replicas if end < start else 0


def times_of(scale: Body) -> tuple[Body, ...]:
    """Return the metadata of its cron rules."""
    custom = [one["custom"] for one in scale.get("rules") or [] if one.get("custom")]
    return tuple(one.get("metadata") or {} for one in custom if one.get("type") == "cron")


def container_of(body: Body) -> Body:
    """Return the container that has the GPU: the first."""
    found: Body = body["properties"]["template"]["containers"][0]
    return found


def scale_of(body: Body) -> Scale:
    """Return how an app or a revision scales."""
    told = body["properties"]["template"]["scale"]
    rules = [one["http"] for one in told.get("rules") or [] if one.get("http")]
    metadata = (rules[0].get("metadata") or {}) if rules else {}
    return Scale(
        least=told.get("minReplicas") or 0,
        most=told["maxReplicas"],
        cooldown_seconds=told["cooldownPeriod"],
        concurrent=int(metadata.get("concurrentRequests", 10)),
        times=times_of(told),
    )


def ingress_of(app: Body) -> Body | None:
    """Return an app's ingress; None where nobody can ask it."""
    found: Body | None = app["properties"]["configuration"].get("ingress")
    return found


def is_stopped(app: Body) -> bool:
    """Return whether nothing may run of it."""
    return bool(app["properties"].get("runningStatus") == "Stopped")


def revisions_of(sub: Subscription, app_id: str) -> list[Body]:
    """Return every revision that is kept of an app, oldest first."""
    return sub.under(f"{app_id}/revisions")


class Unreadable(CannotStart):
    """An app's secret stands for nothing that its identity may read."""


def secret_value(world: World, sub: Subscription, app: Body, name: str) -> str:
    """Return what an app's secret stands for.

    Raises:
        Unreadable: Nothing, or its identity may not read it.
    """
    rows = app["properties"]["configuration"].get("secrets") or []
    found = next((one for one in rows if one["name"] == name), None)
    if found is None:
        raise Unreadable(f"SecretRef '{name}' defined for container is not found.")
    if not found.get("keyVaultUrl"):
        return str(found.get("value") or "")
    identity = str(found.get("identity") or "system")
    given = app["identity"].get("userAssignedIdentities") or {}
    body = sub.get(identity) if identity.lower() in {one.lower() for one in given} else None
    principal = body["properties"]["principalId"] if body else ""
    try:
        return read_secret(world, found["keyVaultUrl"], principal)
    except SecretLost as exc:
        raise Unreadable(
            f"Unable to get value using Managed identity {identity} for secret {name}. Error:"
            f" unable to fetch secret '{name}' using Managed identity '{identity}': {exc}"
        ) from exc


def _has_image(world: World, sub: Subscription, app: Body, image: str) -> bool:
    """Return whether an image is to be had: from Docker Hub, when too many ask, with an account."""
    hub = ("docker.io", "index.docker.io", "registry-1.docker.io")
    first, slash, _ = image.partition("/")
    elsewhere = slash and ("." in first or ":" in first) and first not in hub
    if elsewhere or not sub.knobs.docker_hub_limited:
        return True
    registries = app["properties"]["configuration"].get("registries") or []
    account = next((one for one in registries if one.get("server") in hub), None)
    try:
        return bool(account and secret_value(world, sub, app, account["passwordSecretRef"]))
    except Unreadable:
        return False


def _folders(world: World, sub: Subscription, app: Body, revision: Body) -> dict[str, Path]:
    """Return the folder of each path where a share is mounted."""
    volumes = {one["name"]: one for one in revision["properties"]["template"].get("volumes") or []}
    found: dict[str, Path] = {}
    for mount in container_of(revision).get("volumeMounts") or []:
        volume = volumes[mount["volumeName"]]
        if volume.get("storageType") == "AzureFile":
            folder = _mounted(world, sub, environment_of(app), volume["storageName"])
            inside = str(mount.get("subPath") or "").strip("/")
            found[str(mount["mountPath"]).rstrip("/")] = folder / inside
    return found


def _within(folders: Mapping[str, Path], path: str) -> Path | None:
    """Return where a path of a container is here; None where no share is mounted at it."""
    for root, folder in folders.items():
        if f"{path}/".startswith(f"{root}/"):
            return folder / path[len(root) :].strip("/")
    return None


def _carried(folders: Mapping[str, Path], path: str) -> Store:
    """Return a folder of a container as what runs in it reads and writes it.

    Raises:
        CannotStart: It is on no share, and would be gone with the container.
    """
    folder = _within(folders, path)
    if folder is None:
        raise CannotStart(f"No share is mounted at {path}.")

    async def read(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError as exc:
            raise Missing from exc

    async def write(name: str, data: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.part").write_bytes(data)
        (folder / f"{name}.part").replace(folder / name)

    return Store(read, write)


def _mounted(world: World, sub: Subscription, environment_id: str, link_name: str) -> Path:
    failed = "Error mounting volume:"
    link = sub.get(f"{environment_id}/storages/{link_name}")
    if link is None:
        raise CannotStart(f"{failed} the storage '{link_name}' is not found.")
    file = link["properties"]["azureFile"]
    account, share = file["accountName"], file["shareName"]
    server = f"//{account}.file.core.windows.net/{share}"
    found = world.named(storage.ACCOUNT, account)
    if not found or not found[0].get(f"{found[1]['id']}/fileServices/default/shares/{share}"):
        raise CannotStart(f"{failed} mount error(2): No such file or directory: {server}")
    if not storage.opens(world, *found, file.get("accountKey", "")):
        raise CannotStart(f"{failed} mount error(13): Permission denied: {server}")
    return storage.account_folder(world, found[0], account, "file", share)


def _program_of(world: World, sub: Subscription, app: Body, revision: Body) -> Program:
    """Return what is to be run; every call takes a port of its own.

    Raises:
        CannotStart: The image has no such program, or a share cannot be mounted.
        Unreadable: One of its secrets.
    """
    container, guard = container_of(revision), None
    if others := revision["properties"]["template"]["containers"][1:]:
        (other,) = others
        started = [*(other.get("command") or ()), *(other.get("args") or ())]
        guard = guard_of(started, {one["name"]: one.get("value") or "" for one in other["env"]})
    words = served(container.get("command") or (), container.get("args") or ())
    folders = _folders(world, sub, app, revision)

    def here(path: str) -> str:
        kept = _within(folders, path)
        return str(kept) if kept and kept.is_dir() else path

    env = environment(sub.knobs, PROFILES[profile_type_of(sub, app)].accelerator, {})
    own = {
        one["name"]: secret_value(world, sub, app, one["secretRef"])
        if one.get("secretRef")
        else str(one.get("value") or "")
        for one in container.get("env") or []
    }
    port = int((ingress_of(app) or {}).get("targetPort") or 80)
    full = {"SIMULATED_ENGINE_FAIL": "disk-full"} if _fills_disk(sub, container, words) else {}
    carry = partial(_carried, folders)
    return Program(words, {**env, **own, **full}, port=port, here=here, carry=carry, guard=guard)


def _fills_disk(sub: Subscription, container: Body, words: Sequence[str]) -> bool:
    """Return whether files of the Hub that lie on no volume are more than the disk holds."""
    env = {one["name"]: one.get("value") or "" for one in container.get("env") or []}
    roots = [one["mountPath"].rstrip("/") for one in container.get("volumeMounts") or []]
    home = f"{env.get('HF_HOME', '')}/"
    kept = env.get("HF_HUB_OFFLINE") == "1" or any(home.startswith(f"{one}/") for one in roots)
    if sub.knobs.disk_gib is None or kept or not words:
        return False
    try:
        return file_bytes(catalog_shape(words[0])) > sub.knobs.disk_gib * 2**30
    except InvalidArgument:
        return False


def profile_type_of(sub: Subscription, app: Body) -> str:
    """Return the type of the profile that an app runs on."""
    types = profile_types(sub.get(environment_of(app)) or {"properties": {}})
    return types.get(app["properties"]["workloadProfileName"], CONSUMPTION)


def _obstacle(sub: Subscription, app: Body, row: Replica) -> str:
    """Return what a replica still waits for; nothing if it may run."""
    profile = PROFILES[row.profile_type]
    if not profile.quota:
        return ""
    running = [one for one in sub.living() if one.assigned and one.profile_type == row.profile_type]
    for whose, attribute, quotas in (
        ("Subscription", "region", sub.knobs.quotas),
        ("ManagedEnvironment", "environment", sub.knobs.environment_quotas),
    ):
        used = sum(getattr(one, attribute) == getattr(row, attribute) for one in running)
        if used >= most_gpus(quotas, profile):
            return (
                f"Maximum Allowed GPUs exceeded: {whose}{profile.counter} is {used} in use in"
                f" {row.region}. Please check"
                " https://learn.microsoft.com/azure/container-apps/quotas for resource limits"
            )
    if sub.knobs.rollout == "no-host":
        name = app["properties"]["workloadProfileName"]
        short = f"insufficient capacity on workload profile '{name}'"
        return f"Waiting for infrastructure to be ready: {short}"
    return ""


_DEFAULT_PROBE: Final[Body] = {"tcpSocket": {}, "periodSeconds": 1, "failureThreshold": 240}
"""Where a container has no startup probe. Source: Microsoft's page on health probes."""
_LONGEST_BACK_OFF_SECONDS: Final = 300.0
_RHYTHM_SECONDS: Final = 0.05


class Running:
    """Comes up, answers, and ends; its container may be started again and again."""

    def __init__(self, world: World, sub: Subscription, app: Body, revision: Body) -> None:
        self._world, self._sub, self._app, self._body = world, sub, app, revision
        self._container = container_of(revision)
        self.revision: Final = str(revision["name"])
        self.row: Final = _row(sub, app, revision)
        self._write: Final = partial(
            sub.write,
            app=app["name"],
            revision=self.revision,
            replica=self.row.name,
            environment=self.row.environment,
        )
        self.process = EngineProcess(sub.knobs.grace_seconds)
        """Of its container; another one each time that is started."""
        self._why = ""
        self.requests = 0
        """How many it answers now."""
        self.active_since = time.monotonic()
        """When it was scheduled, or last had a request: the cooldown's clock."""
        self.ended = anyio.Event()
        self._told_to_end = anyio.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.ended.is_set() or self._told_to_end.is_set()

    def stop(self, *, at_once: bool = False) -> None:
        """Tell it to end, politely unless at once; `ended` says when it has."""
        self._told_to_end.set()
        self.process.end(at_once=at_once)

    def begin_request(self) -> None:
        """Count a request that is sent to it."""
        self.requests += 1
        self.active_since = time.monotonic()

    def end_request(self) -> None:
        """Count a request that is answered."""
        self.requests -= 1
        self.active_since = time.monotonic()

    async def live(self) -> None:
        """Run from its scheduling to its end."""
        self._sub.replicas.append(self.row)
        name = self.row.name
        self._say("AssigningReplica", f"Replica '{name}' has been scheduled to run on a node.")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_told, tasks.cancel_scope)
            await self._assign()
            await self._containers()
            tasks.cancel_scope.cancel()
        # Not reached where the whole cloud ends: it is there again with the next.
        row = self.row
        row.ended, row.ready, row.state = time.time(), False, "NotRunning"
        self.ended.set()
        self._world.keep(self._sub)

    async def _end_when_told(self, everything: anyio.CancelScope) -> None:
        """End what has no process yet; a process is told by itself."""
        await self._told_to_end.wait()
        if not self.process.url or self.process.status is not None:
            everything.cancel()

    async def _assign(self) -> None:
        """Wait until it has a host; from then on it is billed."""
        told = ""
        while why := _obstacle(self._sub, self._app, self.row):
            if why != told:
                self._say("AssigningReplicaFailed", why)
            self.row.details = told = why
            await anyio.sleep(_RHYTHM_SECONDS)
        self.row.assigned = time.time()

    async def _containers(self) -> None:
        """Start the container again whenever it has ended."""
        image = str(self._container["image"])
        self._say("PullingImage", f"Pulling image '{image}'")
        while not _has_image(self._world, self._sub, self._app, image):
            # So says Azure, which shows its own mirror and not the registry's answer.
            self._say(
                "ContainerTerminated",
                f"Container '{self._container['name']}' was terminated with exit code '' and reason"
                f" 'ImagePullFailure'. Pull image: {image} failed with exit code: 1, error: failed"
                " to resolve reference: unexpected status from HEAD request to"
                " http://localhost:8578/v2/: 503 Service Unavailable",
            )
            await self._back_off("ImagePullBackOff")
            if self._told_to_end.is_set():
                return
        self._say("PulledImage", f"Successfully pulled image '{image}' in 812ms.")
        while True:
            await self._once()
            if self._told_to_end.is_set():
                return
            self._say("ContainerBackOff", "Persistent Failure to start container")
            await self._back_off("CrashLoopBackOff")
            self.process = EngineProcess(self._sub.knobs.grace_seconds)

    async def _back_off(self, details: str) -> None:
        self.row.restarts += 1
        self.row.state, self.row.details = "NotRunning", details
        doubled: float = 10.0 * 2 ** (self.row.restarts - 1)
        await anyio.sleep(min(doubled, _LONGEST_BACK_OFF_SECONDS) * self._sub.knobs.probe_scale)

    async def _once(self) -> None:
        """Run the container to its end."""
        name = self._container["name"]
        self.row.details = "ContainerCreating"

        def hear(_stream: str, line: str) -> None:
            self._write("console", line)

        try:
            chosen = _program_of(self._world, self._sub, self._app, self._body)
        except CannotStart as exc:
            self._say("ContainerCreateFailed", str(exc))
            return
        self._why = "Error"
        self._say("ContainerCreated", f"Created container '{name}'")
        self._say("ContainerStarted", f"Started container '{name}'")
        self.row.state, self.row.details = "Running", ""
        self._world.keep(self._sub)
        beside = partial(self._probe, chosen)
        status = await self.process.run(chosen, said=hear, beside=beside)
        self.row.ready = self.row.started = False
        if self._told_to_end.is_set():
            self._why = "ManuallyStopped"
        code = {"ProbeFailure": "", "Error": str(status if status >= 0 else 137)}
        told = code.get(self._why, "0")
        self._say(
            "ContainerTerminated",
            f"Container '{name}' was terminated with exit code '{told}' and reason '{self._why}'",
        )

    async def _probe(self, chosen: Program) -> None:
        """Make the startup probe, until it succeeds or has failed too often."""
        knobs = self._sub.knobs
        kinds = {one.get("type"): one for one in self._container.get("probes") or []}
        probe, scale = kinds.get("Startup", _DEFAULT_PROBE), knobs.probe_scale
        if knobs.rollout == "never":
            return
        http = probe.get("httpGet") or {}
        path = http.get("path") or "/"
        port = (http or probe["tcpSocket"]).get("port") or chosen.listens
        reachable = chosen.reachable and chosen.is_asked(port, path)
        reachable = reachable and knobs.rollout != "probe-fails"
        await anyio.sleep((probe.get("initialDelaySeconds") or 0) * scale)
        for attempt in range(1, (probe.get("failureThreshold") or 3) + 1):
            seconds = probe.get("timeoutSeconds") or 1
            if reachable and await self.process.answers(path, seconds, any_status=not http):
                self.row.started = self.row.ready = True
                self._world.keep(self._sub)
                return
            if not attempt & (attempt - 1):  # the log has 1, 2, 4, 8 …: events are counted together
                self._say("ProbeFailed", "Probe of StartUp failed with status code: 1")
            await anyio.sleep((probe.get("periodSeconds") or 10) * scale)
            if self.process.is_over:
                return
        self._why = "ProbeFailure"
        name = self._container["name"]
        self._say("ProbeFailed", f"Container {name} failed startup probe, will be restarted")
        self.process.end()

    def _say(self, reason: str, words: str) -> None:
        """Write an event of the system about it."""
        self._write("system", words, reason=reason)


def _row(sub: Subscription, app: Body, revision: Body) -> Replica:
    name = revision["name"]
    number = id_of(name, str(len(sub.replicas)), str(time.time())).replace("-", "")
    return Replica(
        name=f"{name}-{number[:10]}-{number[10:15]}",
        app=app["id"].lower(),
        revision=name,
        profile_type=profile_type_of(sub, app),
        environment=environment_of(app),
        region=app["location"].lower().replace(" ", ""),
        created=time.time(),
        details="AssigningReplica",
    )


def replica_body(world: World, revision: Body, row: Replica) -> Body:
    """Return a replica as ARM does."""
    path, running = f"{revision['id']}/replicas/{row.name}", row.state == "Running"
    reason = row.details if row.details == "CrashLoopBackOff" else "ContainerCreating"
    streams = f"{world.urls.http}{path}".replace("/providers/Microsoft.App", "")
    containers = [
        {
            "name": one["name"],
            "containerId": f"containerd://{row.name}" if row.assigned else "",
            "ready": row.ready,
            "started": row.started,
            "restartCount": row.restarts,
            "runningState": "Running" if running else "Waiting",
            "runningStateDetails": "" if running else f"Container is waiting with reason: {reason}",
            "logStreamEndpoint": f"{streams}/containers/{one['name']}/logstream",
        }
        for one in revision["properties"]["template"]["containers"]
    ]
    return {
        "id": path,
        "name": row.name,
        "type": "Microsoft.App/containerApps/revisions/replicas",
        "properties": {
            "createdTime": moment(row.created),
            "runningState": row.state,
            "runningStateDetails": row.details,
            "containers": containers,
        },
    }
