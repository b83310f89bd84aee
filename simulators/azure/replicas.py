"""Replicas of a revision: where each runs, its container, its probes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio

from core.errors import InvalidArgument
from planner.boot import file_bytes
from planner.model import catalog_shape
from simulators.azure.catalog import A100, CONSUMPTION, READ_SECRET, T4, TYPES
from simulators.azure.roles import may
from simulators.azure.state import Replica, Subscription, World, id_of
from simulators.azure.storage import account_named, opens, share_folder
from simulators.azure.vaults import vault_named
from simulators.common.programs import (
    CannotStart,
    EngineProcess,
    Guard,
    Program,
    environment,
    guard_of,
    program,
    served,
)

Body = dict[str, Any]
_MOST: Final = 10
_COOLDOWN_SECONDS: Final = 300.0
_POLLING_SECONDS: Final = 30.0
_CONCURRENT: Final = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas a revision has; Azure's defaults where nothing is said."""

    least: int
    most: int
    cooldown_seconds: float
    polling_seconds: float
    concurrent: int
    """Requests at once for which one replica is enough."""


def short(body: Body) -> str:
    """Give a resource's name."""
    return str(body["name"])


def app_id_of(revision: Body) -> str:
    """Give the id of a revision's app, in lower case."""
    return str(revision["id"]).lower().partition("/revisions/")[0]


def template_of(body: Body) -> Body:
    """Give the template of an app or a revision."""
    return body["properties"].get("template") or {}


def container_of(body: Body) -> Body:
    """Give the container that has the GPU: the first."""
    found: Body = (template_of(body).get("containers") or [{}])[0]
    return found


def probe_of(body: Body, kind: str) -> Body | None:
    """Give the container's probe of a kind such as Startup."""
    probes = container_of(body).get("probes") or []
    return next((one for one in probes if one.get("type") == kind), None)


def scale_of(body: Body) -> Scale:
    """Give how it scales."""
    told = template_of(body).get("scale") or {}
    rules = [one["http"] for one in told.get("rules") or [] if one.get("http")]
    metadata = (rules[0].get("metadata") or {}) if rules else {}
    return Scale(
        least=told.get("minReplicas") or 0,
        most=told.get("maxReplicas") or _MOST,
        cooldown_seconds=told.get("cooldownPeriod") or _COOLDOWN_SECONDS,
        polling_seconds=told.get("pollingInterval") or _POLLING_SECONDS,
        concurrent=int(metadata.get("concurrentRequests", _CONCURRENT)),
    )


def ingress_of(app: Body) -> Body | None:
    """Give an app's ingress; None where nobody can ask it."""
    found: Body | None = app["properties"].get("configuration", {}).get("ingress")
    return found


def port_of(app: Body) -> int:
    """Give the port that the ingress asks the container on."""
    return int((ingress_of(app) or {}).get("targetPort") or 80)


def is_stopped(app: Body) -> bool:
    """Whether nothing may run of it."""
    return bool(app["properties"].get("runningStatus") == "Stopped")


def environment_of(app: Body) -> str:
    """Give the id of an app's environment, in lower case."""
    told = app["properties"]
    return str(told.get("environmentId") or told.get("managedEnvironmentId") or "").lower()


def profile_of(app: Body) -> str:
    """Give the name of the profile that an app runs on."""
    return str(app["properties"].get("workloadProfileName") or CONSUMPTION)


def profile_type_of(sub: Subscription, app: Body) -> str:
    """Give the type of the profile that an app runs on."""
    environment = sub.get(environment_of(app)) or {"properties": {}}
    for profile in environment["properties"].get("workloadProfiles") or []:
        if profile["name"] == profile_of(app):
            return str(profile["workloadProfileType"])
    return CONSUMPTION


def revisions_of(sub: Subscription, app_id: str) -> list[Body]:
    """Give every revision that is kept of an app, oldest first."""
    return sub.under(f"{app_id}/revisions")


_AZURE_FILE: Final = "AzureFile"
_SHARES: Final = "/fileServices/default/shares"


def local_weights(
    world: World, sub: Subscription, app: Body, revision: Body
) -> Callable[[str], str]:
    """Give what says where the container's path to the weights is on this machine.

    Raises:
        CannotStart: A share cannot be mounted.
    """
    folders = _folders(world, sub, app, revision)

    def here(path: str) -> str:
        for root, folder in folders.items():
            if f"{path}/".startswith(f"{root}/"):
                kept = folder / path[len(root) :].strip("/")
                return str(kept) if kept.is_dir() else path
        return path

    return here


def _folders(world: World, sub: Subscription, app: Body, revision: Body) -> dict[str, Path]:
    """Give the folder of each path where a share is mounted."""
    volumes = {one["name"]: one for one in template_of(revision).get("volumes") or []}
    found: dict[str, Path] = {}
    for mount in container_of(revision).get("volumeMounts") or []:
        volume = volumes.get(mount["volumeName"])
        if volume is None:
            raise CannotStart(f"Volume '{mount['volumeName']}' is not found in template.volumes.")
        if volume.get("storageType") == _AZURE_FILE:
            folder = _mounted(world, sub, environment_of(app), str(volume["storageName"]))
            root = str(mount["mountPath"]).rstrip("/")
            found[root] = folder / str(mount.get("subPath") or "").strip("/")
    return found


def _mounted(world: World, sub: Subscription, environment: str, link_name: str) -> Path:
    link = sub.get(f"{environment}/storages/{link_name}")
    if link is None:
        raise CannotStart(f"Error mounting volume: the storage '{link_name}' is not found.")
    file = link["properties"]["azureFile"]
    account, share = str(file["accountName"]), str(file["shareName"])
    server = f"//{account}.file.core.windows.net/{share}"
    found = account_named(world, account)
    if found is None or not found[0].get(f"{found[1]['id']}{_SHARES}/{share}"):
        raise CannotStart(
            f"Error mounting volume: mount error(2): No such file or directory: {server}"
        )
    if not opens(world, found[0], account, str(file.get("accountKey", ""))):
        raise CannotStart(f"Error mounting volume: mount error(13): Permission denied: {server}")
    return share_folder(world, found[0], account, share)


ACCELERATORS: Final = {A100: "a100-80", T4: "t4"}
"""The GPU of each profile type, by the name that it has here."""


_DOCKER_HUB: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")


class Unreadable(CannotStart):
    """An app's secret stands for nothing that its identity may read."""


def program_of(world: World, sub: Subscription, app: Body, revision: Body) -> Program:
    """Say what is to be run; every call takes a port of its own.

    Raises:
        CannotStart: The image has no such program, or a share cannot be mounted.
        Unreadable: One of its secrets.
    """
    container, guard = container_of(revision), None
    if others := template_of(revision)["containers"][1:]:
        (other,) = others
        started = [*(other.get("command") or ()), *(other.get("args") or ())]
        guard = guard_of(started, {one["name"]: one.get("value") or "" for one in other["env"]})
    words = served(container.get("command") or (), container.get("args") or ())
    return program(
        words,
        {**_environment(world, sub, app, revision), **_full_disk(sub, container, words)},
        port=port_of(app),
        here=local_weights(world, sub, app, revision),
        guard=guard,
    )


def check_secrets(world: World, sub: Subscription, app: Body) -> None:
    """See whether every secret of an app can be read, used or not.

    Raises:
        Unreadable: One cannot.
    """
    for secret in _secrets(app):
        secret_value(world, sub, app, str(secret["name"]))


def pulls(world: World, sub: Subscription, app: Body, image: str) -> bool:
    """Whether an image is to be had: from Docker Hub, when too many ask, with an account alone."""
    first, slash, _ = image.partition("/")
    elsewhere = slash and ("." in first or ":" in first) and first not in _DOCKER_HUB
    if elsewhere or not sub.knobs.docker_hub_limited:
        return True
    registries = (app["properties"].get("configuration") or {}).get("registries") or []
    account = next((one for one in registries if one.get("server") in _DOCKER_HUB), None)
    try:
        return bool(account and secret_value(world, sub, app, account["passwordSecretRef"]))
    except Unreadable:
        return False


def secret_value(world: World, sub: Subscription, app: Body, name: str) -> str:
    """Give what an app's secret stands for.

    Raises:
        Unreadable: Nothing, or its identity may not read it.
    """
    found = next((one for one in _secrets(app) if one["name"] == name), None)
    if found is None:
        raise Unreadable(f"SecretRef '{name}' defined for container is not found.")
    if not found.get("keyVaultUrl"):
        return str(found.get("value") or "")
    try:
        return _kept(world, sub, app, found)
    except _Lost as exc:
        raise Unreadable(
            f"Unable to get value using Managed identity {found.get('identity') or 'system'} for"
            f" secret {name}. Error: unable to fetch secret '{name}' using Managed identity"
            f" '{found.get('identity') or 'system'}': {exc}"
        ) from exc


class _Lost(Exception):
    """The vault does not give it."""


def _secrets(app: Body) -> list[Body]:
    return (app["properties"].get("configuration") or {}).get("secrets") or []


def _kept(world: World, sub: Subscription, app: Body, secret: Body) -> str:
    """Read a vault's secret as the app's identity does."""
    vault_name, name, version = _named(str(secret["keyVaultUrl"]))
    found = vault_named(world, vault_name)
    if found is None:
        raise _Lost(f"lookup {vault_name}.vault.azure.net: no such host")
    owner, vault = found
    principal = _principal(sub, app, str(secret.get("identity") or ""))
    if not may(owner, principal, READ_SECRET, f"{vault['id']}/secrets/{name}"):
        raise _Lost(
            "RESPONSE 403: 403 Forbidden. ERROR CODE: Forbidden. Caller is not authorized to"
            f" perform action on resource {vault['id']}/secrets/{name}. ForbiddenByRbac"
        )
    held = owner.vaults[vault_name].secrets.get(name) if vault_name in owner.vaults else None
    there = held.versions if held and held.deleted is None else []
    chosen = [one for one in there if not version or one["id"].endswith(f"/{version}")]
    if not chosen:
        raise _Lost(f"RESPONSE 404: 404 Not Found. ERROR CODE: SecretNotFound: {name}")
    return str(chosen[-1]["value"])


def _named(url: str) -> tuple[str, str, str]:
    """Give vault, secret and version that a URL names, in lower case; here or in the real world."""
    where = urlsplit(url.lower())
    parts = [part for part in where.path.split("/") if part]
    if parts[:1] == ["vaults"]:
        parts = parts[1:]
    else:
        parts = [(where.hostname or "").partition(".")[0], *parts]
    vault, _, name, version, *_ = [*parts, "", "", "", ""]
    return vault, name, version


def _principal(sub: Subscription, app: Body, identity: str) -> str:
    """Give the object id of an identity that the app has."""
    given = {name.lower() for name in (app.get("identity") or {}).get("userAssignedIdentities", {})}
    body = sub.get(identity) if identity.lower() in given else None
    if body is None:
        raise _Lost("the app does not have that identity")
    return str(body["properties"]["principalId"])


def _full_disk(sub: Subscription, container: Body, words: Sequence[str]) -> dict[str, str]:
    """Let files of the Hub that lie on no volume fill the container's disk."""
    env = {one["name"]: one.get("value") or "" for one in container.get("env") or []}
    roots = [f"{one['mountPath']}".rstrip("/") for one in container.get("volumeMounts") or []]
    home = env.get("HF_HOME", "")
    kept = env.get("HF_HUB_OFFLINE") == "1" or any(
        f"{home}/".startswith(f"{root}/") for root in roots
    )
    if sub.knobs.disk_gib is None or kept or not words:
        return {}
    try:
        needed = file_bytes(catalog_shape(words[0]))
    except InvalidArgument:
        return {}
    return {"SIMULATED_ENGINE_FAIL": "disk-full"} if needed > sub.knobs.disk_gib * 2**30 else {}


def _environment(world: World, sub: Subscription, app: Body, revision: Body) -> dict[str, str]:
    knobs = sub.knobs
    env = environment(
        boot_seconds=knobs.boot_seconds,
        phases=knobs.engine_seconds,
        more=knobs.engine_environment,
        accelerator=ACCELERATORS.get(profile_type_of(sub, app), ""),
    )
    for variable in container_of(revision).get("env") or []:
        reference = variable.get("secretRef")
        value = secret_value(world, sub, app, reference) if reference else variable.get("value")
        env[variable["name"]] = str(value or "")
    return env


_RHYTHM_SECONDS: Final = 0.05
_COUNTERS: Final = {A100: "ConsumptionNCA100Gpus", T4: "ConsumptionT4Gpus"}
"""What Azure calls the quota of a type, after whose it is."""

Say = Callable[[str, str], None]


async def assigned(sub: Subscription, app: Body, row: Replica, say: Say) -> None:
    """Wait until the replica has a host; from then on it is billed."""
    told = ""
    while True:
        why = _obstacle(sub, app, row)
        if not why:
            break
        if why != told:
            say("AssigningReplicaFailed", why)
        row.details = told = why
        await anyio.sleep(_RHYTHM_SECONDS)
    row.assigned = row.billed_from = time.time()


def _obstacle(sub: Subscription, app: Body, row: Replica) -> str:
    """Say what a replica still waits for; nothing if it may run."""
    kind = TYPES.get(row.profile_type)
    if kind is None or not kind.quota:
        return ""
    running = [one for one in sub.living() if one.assigned and one.profile_type == row.profile_type]
    in_region = sum(one.region == row.region for one in running)
    in_environment = sum(one.environment == row.environment for one in running)
    if in_region >= sub.knobs.quota(kind.quota):
        return _exceeded("Subscription", row, in_region)
    if in_environment >= sub.knobs.environment_quota(kind.quota):
        return _exceeded("ManagedEnvironment", row, in_environment)
    if sub.knobs.rollout == "no-host" or time.time() < row.created + sub.knobs.host_seconds:
        return (
            "Waiting for infrastructure to be ready: insufficient capacity on workload profile"
            f" '{profile_of(app)}'"
        )
    return ""


def _exceeded(whose: str, row: Replica, used: int) -> str:
    return (
        f"Maximum Allowed GPUs exceeded: {whose}{_COUNTERS[row.profile_type]} is {used} in use in"
        f" {row.region}. Please check https://learn.microsoft.com/azure/container-apps/quotas for"
        " resource limits"
    )


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
        self._container = container_of(revision)
        self.revision: Final = short(revision)
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
        knobs, probe = self._sub.knobs, probe_of(self._body, "Startup") or _DEFAULT_PROBE
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
            short(self._app),
            row.revision,
            row.name,
            text,
            reason,
            stream,
            environment=row.environment,
        )


def _row(sub: Subscription, app: Body, revision: Body) -> Replica:
    name = short(revision)
    number = id_of(name, str(len(sub.replicas)), str(time.time())).replace("-", "")
    return Replica(
        name=f"{name}-{number[:10]}-{number[10:15]}",
        app=str(app["id"]).lower(),
        revision=name,
        profile_type=profile_type_of(sub, app),
        environment=environment_of(app),
        region=str(app.get("location", "")).lower().replace(" ", ""),
        created=time.time(),
        details="AssigningReplica",
    )
