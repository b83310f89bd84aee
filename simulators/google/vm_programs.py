"""The programs of a simulated VM: curl reaches Google, docker runs an engine and a proxy."""

import base64
import itertools
import json
import re
import ssl
import zlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from simulators.common.doors import Answer, TurnedAway, WebServer, loopback, pass_on
from simulators.common.programs import (
    CannotStart,
    EngineProcess,
    Guard,
    environment,
    flag,
    guard_of,
    program,
)
from simulators.google import iam, secrets
from simulators.google.instances import exists
from simulators.google.serving import Refused
from simulators.google.state import Project, World
from simulators.google.tpu_zones import chips_of

KERNEL: Final = "6.8.0-1015-gcp"


class VmSpec(NamedTuple):
    """One VM that is to be."""

    plane: str
    """queued or compute."""
    zone: str
    id: str
    """Of the node or the instance."""
    accelerator: str
    """Such as v6e-4."""
    metadata: dict[str, str]
    """With the startup-script."""
    tags: tuple[str, ...]
    network: str
    """Its name."""
    service_account: str
    scopes: tuple[str, ...]
    external: bool
    """Whether it gets an address of its own."""
    disk_gb: int
    has_docker: bool
    """The image brings it along."""

    @property
    def key(self) -> str:
        """Where it is found in `World.live`, below its project."""
        return f"{self.plane}/{self.zone}/{self.id}"


class Machine:
    """One VM, as its programs see it."""

    def __init__(self, world: World, project: Project, spec: VmSpec) -> None:
        self.world, self.project, self.spec = world, project, spec
        number = zlib.crc32(f"{project.id}/{spec.key}".encode())
        self.number: Final = f"{number:019d}"
        self.folder: Final = world.folder / "vms" / f"{number:08x}"
        self.internal_ip: Final = (
            f"10.{128 + number % 64}.{number // 64 % 256}.{number // 16384 % 253 + 2}"
        )
        own = spec.plane == "compute"
        self.host: Final = spec.id if own else f"t1v-n-{zlib.crc32(spec.key.encode()):08x}-w-0"
        """Its name: that of a node's VM is none of ours."""
        self.external_ip = ""
        """Its own address; empty if it has none."""
        self.containers: dict[str, Container] = {}
        """By name."""
        self.listens: dict[int, Listener] = {}
        """By port of the VM."""
        self.tasks: TaskGroup | None = None
        """Where its containers run; none before it boots."""
        self.changed = anyio.Event()
        """Something happened to a container since."""
        self.runs_script = False
        self.is_resting = False
        """The script sleeps just now."""
        self.is_healthy = False
        """A program has found the engine well, and nothing has happened to a container since."""

    async def takes(self, seconds: float) -> None:
        """Let simulated seconds pass."""
        await anyio.sleep(seconds / self.project.knobs.tpu_clock)

    def install(self, name: str) -> None:
        """Let it have a simulated program."""
        (self.folder / "bin" / name).unlink(missing_ok=True)
        (self.folder / "bin" / name).symlink_to("program")

    def change(self) -> None:
        """Wake whatever looks at its containers."""
        self.is_healthy = False
        self.changed.set()
        self.changed = anyio.Event()

    def outside(self, path: str) -> Path:
        """Return where a file of the VM lies on this machine; some paths say so themselves."""
        inside = path.removeprefix(str(self.folder))
        return self.folder / inside.lstrip("/")

    def may_log(self, project: str) -> bool:
        """Say whether its account may write log entries to a project, by its scopes."""
        here, spec = self.project, self.spec
        return (
            project in {here.id, here.number}
            and here.knobs.vm_trouble != "no-logs"
            and "logging.googleapis.com" in here.apis
            and bool(_LOG_SCOPES.intersection(spec.scopes))
            and iam.granted(here.policy, spec.service_account, "logging.logEntries.create")
        )


class Listener(NamedTuple):
    """Who listens on a port of the VM."""

    port: int
    """On this machine."""
    loopback: bool = False
    """Whether nobody outside of the VM reaches it."""


class Asked(NamedTuple):
    """A program was called."""

    name: str
    arguments: tuple[str, ...]
    given: str
    """On standard input, where it was to be read."""
    environment: Mapping[str, str]
    """As far as docker hands it on."""


class Answered(NamedTuple):
    """How it ended."""

    out: str = ""
    error: str = ""
    status: int = 0


async def answer(vm: Machine, asked: Asked) -> Answered:
    """Do what a program does."""
    return await _PROGRAMS[asked.name](vm, asked)


_POLLS_SECONDS: Final = (0.03, 1.0)
"""In real time: the shortest sleep, and that of a script that has seen an engine that is well."""
_APT_SECONDS: Final = 40.0


async def _sleep(vm: Machine, asked: Asked) -> Answered:
    """Let time pass, or until something happens to an engine that was well."""
    shortest, longest = _POLLS_SECONDS
    seconds = max(float(asked.arguments[0]) / vm.project.knobs.tpu_clock, shortest)
    vm.is_resting = True
    if vm.is_healthy:
        with anyio.move_on_after(max(seconds, longest)):
            await vm.changed.wait()
    else:
        await anyio.sleep(seconds)
    vm.is_resting = False
    return Answered()


async def _apt_get(vm: Machine, asked: Asked) -> Answered:
    """Install docker, from a mirror that only a VM with an address of its own reaches."""
    if "install" not in asked.arguments:
        return Answered()
    await vm.takes(_APT_SECONDS)
    if vm.project.knobs.vm_trouble == "no-docker" or not vm.external_ip:
        return Answered(error="E: Package 'docker.io' has no installation candidate\n", status=100)
    vm.install("docker")
    return Answered()


async def _systemctl(_vm: Machine, _asked: Asked) -> Answered:
    return Answered()


async def _uname(_vm: Machine, _asked: Asked) -> Answered:
    return Answered(f"{KERNEL}\n")


_AUTH: Final = "https://www.googleapis.com/auth/"
_LOG_SCOPES: Final = frozenset(
    f"{_AUTH}{name}" for name in ("cloud-platform", "logging.write", "logging.admin")
)
_VALUED: Final = ("--header", "--config", "--output", "--data-binary", "--cacert", "--max-time")
_SWITCHES: Final = ("--silent", "--show-error", "--fail")
_SECRET: Final = re.compile(r"/v1/projects/([^/]+)/secrets/([^/]+)/versions/([^/:]+):access")


class _Status(Exception):
    """An answer of HTTP that is none of success."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


async def _curl(vm: Machine, asked: Asked) -> Answered:
    """Ask whom a VM can ask: its metadata, Secret Manager, Cloud Logging, and itself."""
    given: dict[str, list[str]] = defaultdict(list)
    words, url = deque(asked.arguments), ""
    while words:
        word = words.popleft()
        if word in _VALUED:
            given[word].append(words.popleft())
        elif word.startswith("-") and word not in _SWITCHES:
            return Answered(error=f"curl: option {word}: is unknown\n", status=2)
        elif not word.startswith("-"):
            url = word
    try:
        if urlsplit(url).hostname == "127.0.0.1":
            return await _itself(vm, url, given["--cacert"])
        said = _google(vm, url, given, asked.given)
    except _Status as exc:
        told = "--silent" not in asked.arguments or "--show-error" in asked.arguments
        why = f"curl: (22) The requested URL returned error: {exc.status}\n"
        return Answered(error=why if told else "", status=22)
    return Answered("" if given["--output"] == ["/dev/null"] else said)


def _google(vm: Machine, url: str, given: Mapping[str, Sequence[str]], sent: str) -> str:
    """Return what Google answers."""
    place = urlsplit(url)
    if place.hostname == "metadata.google.internal":
        return _metadata(vm, place.path, given["--header"])
    if f'header = "Authorization: Bearer {_token(vm)}"\n' not in given["--config"]:
        raise _Status(401)
    if place.hostname == "secretmanager.googleapis.com":
        return _secret(vm, place.path)
    if (place.hostname, place.path) == ("logging.googleapis.com", "/v2/entries:write"):
        return _write(vm, sent)
    raise _Status(404)


async def _itself(vm: Machine, url: str, authorities: Sequence[str]) -> Answered:
    """Ask who listens in the VM, by what it trusts."""
    place = urlsplit(url)
    listener = vm.listens.get(place.port or 0)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for file in authorities:
        trust.load_verify_locations(vm.outside(file))
    if listener is None:
        return Answered(status=7)
    here = f"{place.scheme}://127.0.0.1:{listener.port}{place.path}"
    try:
        async with httpx2.AsyncClient(trust_env=False, verify=trust, timeout=10) as client:
            reply = await client.get(here)
    except httpx2.HTTPError:
        return Answered(status=35)
    vm.is_healthy = reply.is_success
    return Answered(status=0 if reply.is_success else 22)


def _token(vm: Machine) -> str:
    return f"ya29.of-vm-{vm.number}"


def _metadata(vm: Machine, path: str, headers: Sequence[str]) -> str:
    if "Metadata-Flavor: Google" not in headers:
        raise _Status(403)
    card = "/computeMetadata/v1/instance/network-interfaces/0"
    found = {
        "/computeMetadata/v1/instance/service-accounts/default/token": json.dumps(
            {"access_token": _token(vm), "expires_in": 3000, "token_type": "Bearer"}
        ),
        f"{card}/access-configs/0/external-ip": vm.external_ip,
        f"{card}/ip": vm.internal_ip,
    }.get(path)
    if not found:
        raise _Status(404)
    return found


def _secret(vm: Machine, path: str) -> str:
    found, project = _SECRET.fullmatch(path), vm.project
    if found is None:
        raise _Status(404)
    allowed = f"{_AUTH}cloud-platform" in vm.spec.scopes
    here = found[1] in {project.id, project.number}
    if not (allowed and here and "secretmanager.googleapis.com" in project.apis):
        raise _Status(403)
    try:
        value = secrets.value_for(project, found[2], found[3], vm.spec.service_account)
    except Refused as exc:
        raise _Status(403 if exc.status == "PERMISSION_DENIED" else 404) from exc
    return json.dumps({"payload": {"data": base64.b64encode(value.encode()).decode()}})


def _write(vm: Machine, given: str) -> str:
    """Write entries as `entries.write` takes them."""
    sent: dict[str, Any] = json.loads(given)
    _projects, project, _logs, log = sent["logName"].split("/")
    if not vm.may_log(project):
        raise _Status(403)
    for entry in sent["entries"]:
        vm.project.append(
            entry["severity"],
            entry["jsonPayload"]["message"],
            {},
            log,
            resource=sent["resource"]["type"],
            own_labels=entry["labels"],
            payload=entry["jsonPayload"],
        )
    vm.world.keep(vm.project)
    return "{}"


_RUN_SWITCHES: Final = frozenset({"--privileged", "--read-only", "--detach"})
_LONG: Final = {"-v": "--volume", "-e": "--env", "--net": "--network"}
_DRIVER_FAILED: Final = (
    "Error response from daemon: failed to create task for container: failed to initialize logging"
    " driver: "
)
_HELP: Final = "\n\nRun 'docker run --help' for more information"
_PULL_SECONDS: Final = 120.0
_SMALLEST_DISK_GB: Final = 20
"""The image alone needs as much."""
_GOOGLES: Final = ("mirror.gcr.io/", "-docker.pkg.dev/")
"""Registries that are reached without an external address: Private Google Access is taken to be on,
as Cloud TPU asks for it where nodes have internal addresses alone."""
_DOWNLOAD: Final = "artifactregistry.repositories.downloadArtifacts"


class DockerRefused(ValueError):
    """Docker does not do it; the text is what it says."""


@dataclass(slots=True, kw_only=True)
class Container:
    """One container, and what has become of it."""

    name: str
    image: str
    command: tuple[str, ...]
    options: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    restart: str
    state: str = "running"
    status: int = 0
    """With which it ended last; 0 while it runs."""
    restarts: int = 0
    is_removed: bool = False
    process: EngineProcess = field(default_factory=EngineProcess)
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def on_host(self) -> bool:
        """Whether it is in the VM's own network."""
        return self.options.get("--network") == ["host"]

    def log_options(self) -> dict[str, str]:
        """Return the options of its log driver."""
        return _pairs(self.options.get("--log-opt", ()))


async def _docker(vm: Machine, asked: Asked) -> Answered:
    verb, words = asked.arguments[0], asked.arguments[1:]
    try:
        if verb == "pull":
            return await _pull(vm, words[-1])
        if verb == "run":
            return _run(vm, asked)
    except DockerRefused as exc:
        return Answered(error=f"{exc}\n", status=125 if verb == "run" else 1)
    if verb == "rm":
        for gone in [vm.containers.pop(name) for name in words if name in vm.containers]:
            gone.is_removed = True
            gone.process.end(at_once=True)
            await gone.over.wait()
    if verb not in {"inspect", "update"}:  # version, login
        return Answered()
    found = vm.containers.get(words[-1])
    if found is None:
        why = f"Error response from daemon: No such container: {words[-1]}\n"
        return Answered(error=why, status=1)
    if verb == "update":
        found.restart = words[words.index("--restart") + 1]
    return Answered(f"{found.state} {found.status} {found.restarts}\n")


async def _pull(vm: Machine, image: str) -> Answered:
    await vm.takes(1)
    googles = image.startswith(_GOOGLES[0]) or _GOOGLES[1] in image
    if not (googles or vm.external_ip):
        raise DockerRefused(
            'Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: request'
            " canceled while waiting for connection (Client.Timeout exceeded while awaiting"
            " headers)"
        )
    _region, ours, rest = image.partition(_GOOGLES[1])
    readable = rest.partition("/")[0] == vm.project.id and iam.granted(
        vm.project.policy, vm.spec.service_account, _DOWNLOAD
    )
    if ours and not readable:
        raise DockerRefused(
            f"Error response from daemon: denied: Permission {_DOWNLOAD!r} denied on resource (or"
            " it may not exist)."
        )
    missing = vm.project.knobs.vm_trouble == "image-missing"
    if missing or not exists(vm.world, rest if ours else image):
        raise DockerRefused(
            f"Error response from daemon: manifest for {image} not found: manifest unknown:"
            " manifest unknown"
        )
    if "nginx" in image:
        return Answered()
    await vm.takes(_PULL_SECONDS)
    if vm.spec.disk_gb < _SMALLEST_DISK_GB:
        raise DockerRefused(
            "failed to register layer: write /usr/local/lib/libtpu.so: no space left on device"
        )
    return Answered()


def run_words(words: Sequence[str]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Split what follows `docker run` into its options, and the image with its command."""
    found: dict[str, list[str]] = defaultdict(list)
    left = deque(words)
    while left[0].startswith("-"):
        said, equals, value = left.popleft().partition("=")
        name = _LONG.get(said, said)
        if name in _RUN_SWITCHES:
            value = "true"
        elif not equals:
            value = left.popleft()
        found[name].append(value)
    return found, tuple(left)


def _run(vm: Machine, asked: Asked) -> Answered:
    options, (image, *command) = run_words(asked.arguments[1:])
    given = (word.partition("=") for word in options["--env"])
    made = Container(
        name=options["--name"][0],
        image=image,
        command=tuple(command),
        options=options,
        environment={
            name: value if equals else asked.environment.get(name, "")
            for name, equals, value in given
        },
        restart=next(iter(options["--restart"]), "no"),
    )
    # A node's VM is in a project of Google's. That its metadata server tells that one has not been
    # verified.
    usual = vm.project.id if vm.spec.plane == "compute" else "google-tenant-project"
    if options["--log-driver"] == ["gcplogs"] and not vm.may_log(
        made.log_options().get("gcp-project", usual)
    ):
        raise DockerRefused(
            f"docker: {_DRIVER_FAILED}unable to connect or authenticate with Google Cloud"
            f" Logging{_HELP}"
        )
    assert vm.tasks
    vm.containers[made.name] = made
    vm.tasks.start_soon(_proxy if "nginx" in image else _engine, vm, made)
    return Answered(f"{zlib.crc32(made.name.encode()):064x}\n")


_FILE: Final = re.compile(r"ssl_certificate(?:_key)? ([^\s;]+);")
_NOBODY: Final = "http://127.0.0.1:9"
"""Nobody listens there."""


async def _proxy(vm: Machine, made: Container) -> None:
    """Be nginx before the engine, by TLS where its configuration names a certificate."""
    listener = loopback()
    try:
        guard = guard_of(made.command, made.environment)
        certificate = _certificate(vm, made)
    except (CannotStart, OSError):
        made.state, made.status = "exited", 1
        made.over.set()
        return
    listener.listen(128)

    def engine() -> str:
        inside = [vm.listens[port] for port in guard.engine_ports if port in vm.listens]
        return f"http://127.0.0.1:{inside[0].port}" if inside and made.on_host else _NOBODY

    server = WebServer(_Nginx(guard, engine), certificate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listener])
        await server.listening.wait()
        if made.on_host:
            vm.listens[guard.port] = Listener(listener.getsockname()[1])
        try:
            await made.process.told_to_end.wait()
        finally:
            vm.listens.pop(guard.port, None)
            server.should_exit = True
    made.over.set()


def _certificate(vm: Machine, made: Container) -> Path | None:
    """Return one file with the key and the certificate that a proxy reads through its mounts."""
    found = []
    for path in _FILE.findall("".join(made.environment.values())):
        mounts = [mount.split(":")[:2] for mount in made.options.get("--volume", ())]
        found += [
            vm.outside(outside + path.removeprefix(inside))
            for outside, inside in mounts
            if path.startswith(f"{inside}/")
        ] or [Path(path)]
    if not found:
        return None
    both = vm.folder / "both.pem"
    both.touch(mode=0o600)
    both.write_bytes(b"".join(file.read_bytes() for file in found))
    return both


class _Nginx:
    def __init__(self, rules: Guard, engine: Callable[[], str]) -> None:
        self._rules, self._engine = rules, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, reply, url = Request(scope, receive), Answer(send), self._engine()
        try:
            body = await request.body()
            path = await self._rules.admit(request, url)
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
            return
        except ClientDisconnect:
            return
        try:
            await pass_on(request, body, url, reply, path=path)
        except TurnedAway:
            page = HTMLResponse("<html><h1>502 Bad Gateway</h1>nginx</html>", status_code=502)
            await page(scope, receive, send)


_OUTPUT: Final = "gcplogs-docker-driver"
"""Where docker's driver writes to. source: moby, daemon/logger/gcplogs, read 2026-11."""
_BACKOFF_SECONDS: Final = 0.1
"""Simulated, before docker starts a container again; twice as long each time, a minute at most."""
_BUS_ERROR: Final = 135
"""128 and SIGBUS."""


async def _engine(vm: Machine, made: Container) -> None:
    """Run a container's program until docker starts it no more."""
    for times in itertools.count():
        made.restarts, made.state, made.status = times, "running", 0
        vm.change()
        made.status = await _once(vm, made)
        if not _starts_again(made, times):
            break
        made.state = "restarting"
        vm.change()
        await vm.takes(min(60.0, _BACKOFF_SECONDS * 2**times))
        if made.is_removed:
            break
        made.process = EngineProcess()
    made.state = "exited"
    made.over.set()
    vm.change()


def _starts_again(made: Container, times: int) -> bool:
    if made.is_removed:
        return False
    if made.restart in {"always", "unless-stopped"}:
        return True
    policy = re.fullmatch(r"on-failure(?::(\d+))?", made.restart)
    return bool(policy and made.status and (policy[1] is None or times < int(policy[1])))


async def _once(vm: Machine, made: Container) -> int:
    said = partial(_log, vm, made)
    words = tuple(_hyphened(word) for word in made.command[2:])
    status, lines = _refusal(made, words)
    for line in lines.splitlines():
        said("", line)
    if status:
        await vm.takes(1)
        return status
    knobs = vm.project.knobs
    run = program(
        words,
        environment(
            boot_seconds=knobs.boot_seconds,
            phases=knobs.engine_seconds,
            more={
                **made.environment,
                "SIMULATED_ENGINE_COUNT": str(chips_of(vm.spec.accelerator)),
                **knobs.engine_environment,
            },
            accelerator=vm.spec.accelerator.rpartition("-")[0],
        ),
        port=0,
        here=lambda path: path,
    )
    if made.on_host:
        vm.listens.setdefault(run.listens, Listener(run.port, run.loopback))
    try:
        status = await made.process.run(
            vm.world.nursery, run, said=said, beside=anyio.sleep_forever
        )
    finally:
        if vm.listens.get(run.listens) == (run.port, run.loopback):
            del vm.listens[run.listens]
    return 128 - status if status < 0 else status


def _refusal(made: Container, words: tuple[str, ...]) -> tuple[int, str]:
    """Return the status and the lines of a container that ends before there is an engine."""
    if made.command[:2] != ("vllm", "serve"):
        return 127, f"/entrypoint.sh: line 12: exec: {' '.join(made.command[:1])}: not found"
    if "vllm-openai" in made.image:
        return 1, "RuntimeError: Failed to infer device type"
    if "--privileged" not in made.options:
        why = "TPU initialization failed: open(/dev/vfio/0): Operation not permitted"
        return 1, f"RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: {why}"
    ways = flag(words, "--tensor-parallel-size") or flag(words, "-tp") or "1"
    if ways != "1" and not made.options.get("--shm-size"):
        why = "Please try to raise your shared memory limit: workers are out of shared memory."
        return _BUS_ERROR, f"Fatal Python error: Bus error\n{why}"
    return 0, ""


def _log(vm: Machine, made: Container, _stream: str, line: str) -> None:
    """Bring a line of a container where its driver writes to."""
    if made.options.get("--log-driver") != ["gcplogs"] or not line.strip():
        return
    labels = _pairs(made.options.get("--label", ()))
    told = made.log_options().get("labels", "").split(",")
    vm.project.append(
        "DEFAULT",
        line,
        {"zone": vm.spec.zone, "instance_id": vm.number},
        _OUTPUT,
        resource="gce_instance",
        payload={
            "instance": {"zone": vm.spec.zone, "name": vm.host, "id": vm.number},
            "container": {
                "name": f"/{made.name}",
                "imageName": made.image,
                "command": " ".join(made.command),
                "metadata": {name: value for name, value in labels.items() if name in told},
            },
            "message": line,
        },
    )


def _hyphened(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


_PROGRAMS: Final[Mapping[str, Callable[[Machine, Asked], Awaitable[Answered]]]] = {
    "apt-get": _apt_get,
    "curl": _curl,
    "docker": _docker,
    "sleep": _sleep,
    "systemctl": _systemctl,
    "uname": _uname,
}
