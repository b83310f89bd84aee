"""A VM with chips: what its startup script does, its containers, address and firewall."""

import contextlib
import errno
import ipaddress
import re
import shlex
import shutil
import socket
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import httpx2
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskGroup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from simulators.common import certificates
from simulators.common.doors import (
    UNVERIFIED_TLS,
    TurnedAway,
    WebServer,
    loopback,
    pass_on,
)
from simulators.common.programs import (
    CannotStart,
    EngineProcess,
    Guard,
    Program,
    environment,
    flag,
    guard_of,
    served,
)
from simulators.google import secrets, storage
from simulators.google.images import exists
from simulators.google.serving import Refused
from simulators.google.state import Project, World

_SCRIPT: Final = "startup-script"
_DECIDED: Final = re.compile(r"^readonly ([A-Z_]+)=\(?(.*?)\)?$", re.MULTILINE)
"""How the script that is deployed here begins: with all that was decided, a line each."""
_USUAL_PORT: Final = "8000"
_KERNEL: Final = "6.8.0-1015-gcp"
_BOOT_SECONDS: Final = 20.0
"""Simulated, from the first line of the kernel to the startup script."""
_APT_SECONDS: Final = 40.0
_PULL_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 5.0
_SHORTEST_SECONDS: Final = 0.03
"""In real time, from one look of the script at its engine to the next."""
_DOOR_RHYTHM_SECONDS: Final = 0.05
_AUTH: Final = "https://www.googleapis.com/auth/"
_LOG_SCOPES: Final = frozenset(
    f"{_AUTH}{name}" for name in ("cloud-platform", "logging.write", "logging.admin")
)


class VmSpec(NamedTuple):
    """One VM that is to be."""

    plane: str
    """queued or compute."""
    zone: str
    id: str
    """Of the node or the instance."""
    chips: int
    """Of TPU v6e."""
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


class Listener(NamedTuple):
    """Who listens on a port of the VM."""

    port: int
    """On this machine."""
    loopback: bool = False
    """Whether nobody outside of the VM reaches it."""


class Refusal(Exception):
    """A program on the VM does not do it; the text is the last line that it says."""


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Say before a refusal what the script cannot do; its further tries are not simulated."""
    try:
        yield
    except Refusal as exc:
        raise Refusal(f"{what}: {exc}") from exc


class Vm:
    """One VM, from its first second to its last."""

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
        self.tasks: TaskGroup
        """Where its containers run."""
        self.ended: Final = anyio.Event()
        found = _DECIDED.findall(spec.metadata.get(_SCRIPT, ""))
        self._decided: Final = {name: shlex.split(words) for name, words in found}
        self._life = anyio.CancelScope()
        self._wrong = ""
        self._listener = self._listen() if spec.external else None

    async def takes(self, seconds: float) -> None:
        """Let simulated seconds pass."""
        await anyio.sleep(seconds / self.project.knobs.tpu_clock)

    def may_log(self, project: str) -> bool:
        """Say whether its account may write log entries to a project, by its scopes."""
        here, spec = self.project, self.spec
        return (
            project in {here.id, here.number}
            and "logging.googleapis.com" in here.apis
            and bool(_LOG_SCOPES.intersection(spec.scopes))
            and here.grants(spec.service_account, "logging.logEntries.create", here.policy)
        )

    def end(self) -> None:
        """Tell it to be gone; `ended` says when it is."""
        self._life.cancel()

    async def live(self) -> None:
        """Boot, do what the script says, and be gone when told to."""
        try:
            with self._life:
                async with anyio.create_task_group() as self.tasks:
                    if self._listener:
                        self.tasks.start_soon(_Door(self, self._listener).serve)
                    await self.takes(_BOOT_SECONDS)
                    if self._decided:
                        try:
                            await self._script()
                        except Refusal as exc:
                            self._tell("failed", str(exc))
                    await anyio.sleep_forever()
        finally:
            if self._listener:
                self._listener.close()
            key = f"{self.project.id}/{self.spec.key}"
            if self.world.live.get(key) is self:
                self.world.live.pop(key)
            shutil.rmtree(self.folder, ignore_errors=True)
            self.world.keep(self.project)
            self.ended.set()

    async def _script(self) -> None:
        """Do in the script's order what it does, and tell what it tells.

        That the script itself does so is for its own tests, in a shell.
        """
        image, guard = self._one("IMAGE"), self._one("GUARD_IMAGE")
        self._tell("booting", self._wrong or _KERNEL)
        if not self.spec.has_docker:
            self._tell("installing docker", "The image of this VM has none.")
            await self.takes(_APT_SECONDS)
            if not self.external_ip:  # no mirror is reached
                words = "E: Package 'docker.io' has no installation candidate"
                raise Refusal(f"Docker cannot be installed: {words}")
        if self._one("TLS") == "yes":
            addresses = (self.external_ip, self.internal_ip, "127.0.0.1")
            made = certificates.make(self.folder, self.spec.id, tuple(filter(None, addresses)))
            self._tell("certificate", made.strip())
        self._tell("pulling image", image)
        for one in (guard, image):
            with _failing(f"{one} cannot be pulled"):
                await _pull(self, one)
        names = {"VLLM_API_KEY": self._one("KEY_SECRET"), "HF_TOKEN": self._one("TOKEN_SECRET")}
        self._tell("reading secrets", " ".join(names.values()))
        values = {}
        for variable, name in names.items():
            if name:
                with _failing(f"The secret {name} cannot be read"):
                    values[variable] = self._secret(name)
        command = " ".join(self._decided["COMMAND"])
        self._tell("starting engine", command)
        with _failing("The container cannot be started"):
            for before in ("GUARD_", ""):
                how, rest = (self._decided[f"{before}{one}"] for one in ("DOCKER", "COMMAND"))
                _run(self, how, self._one(f"{before}IMAGE"), rest, values)
        engine = self.containers[self.spec.id]
        while not engine.over.is_set():
            if await self._is_healthy():
                self._tell("ready", command)
                await engine.over.wait()
            else:
                pause = _WATCH_SECONDS / self.project.knobs.tpu_clock
                await anyio.sleep(max(pause, _SHORTEST_SECONDS))
        self._tell("ended", f"The engine ended with exit code {engine.status}.")

    async def _is_healthy(self) -> bool:
        """Ask through the proxy, as callers do."""
        listener = self.listens.get(int(self._one("PORT")))
        scheme = "https" if self._one("TLS") == "yes" else "http"
        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(trust_env=False, verify=UNVERIFIED_TLS) as client:
                port = listener.port if listener else 9
                return (await client.get(f"{scheme}://127.0.0.1:{port}/health")).is_success
        return False

    def _secret(self, name: str) -> str:
        allowed = f"{_AUTH}cloud-platform" in self.spec.scopes
        if not allowed or "secretmanager.googleapis.com" not in self.project.apis:
            raise Refusal("curl: (22) The requested URL returned error: 403")
        try:
            return secrets.value_for(self.project, name, "latest", self.spec.service_account)
        except Refused as exc:
            status = 403 if exc.status == "PERMISSION_DENIED" else 404
            raise Refusal(f"curl: (22) The requested URL returned error: {status}") from exc

    def _tell(self, phase: str, message: str) -> None:
        """Log what the script tells, where its account may."""
        if self.may_log(self._one("PROJECT")):
            self.project.append(
                "ERROR" if phase in {"failed", "ended"} else "INFO",
                message,
                {},
                self._one("LOG"),
                resource="global",
                own_labels={"deployment": self._one("DEPLOYMENT"), "phase": phase},
                payload={"phase": phase, "message": message},
            )
            self.world.keep(self.project)

    def _one(self, name: str) -> str:
        return self._decided[name][0]

    def _listen(self) -> socket.socket | None:
        port = int(next(iter(self._decided.get("PORT", ())), _USUAL_PORT))
        try:
            listener = claim(f"{self.project.id}/{self.spec.key}", port)
        except NoAddress as exc:
            self._wrong = str(exc)
            return None
        self.external_ip = listener.getsockname()[0]
        return listener


_RUN_SWITCHES: Final = frozenset({"--privileged", "--read-only", "--detach"})
_LONG: Final = {"-v": "--volume", "-e": "--env", "--net": "--network"}
_SMALLEST_DISK_GB: Final = 20
"""The image alone needs as much."""
_GOOGLES: Final = ("mirror.gcr.io/", "-docker.pkg.dev/")
"""Registries that are reached without an external address: Private Google Access is taken to be on,
as Cloud TPU asks for it where nodes have internal addresses alone."""
_DOWNLOAD: Final = "artifactregistry.repositories.downloadArtifacts"
_OUTPUT: Final = "gcplogs-docker-driver"
"""Where docker's driver writes to. source: moby, daemon/logger/gcplogs, read 2026-11."""
_BUS_ERROR: Final = 135
"""128 and SIGBUS."""


@dataclass(slots=True, kw_only=True)
class Container:
    """One container, and what has become of it."""

    name: str
    image: str
    command: tuple[str, ...]
    options: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    status: int = 0
    """With which it ended."""
    process: EngineProcess = field(default_factory=EngineProcess)
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def on_host(self) -> bool:
        """Whether it is in the VM's own network."""
        return self.options.get("--network") == ["host"]

    @property
    def logs(self) -> bool:
        """Whether what it says goes to Cloud Logging."""
        return self.options.get("--log-driver") == ["gcplogs"]

    def log_options(self) -> dict[str, str]:
        """Return the options of its log driver."""
        return _pairs(self.options.get("--log-opt", ()))


async def _pull(vm: Vm, image: str) -> None:
    """Pull an image, as the VM's account and from where it is.

    Raises:
        Refusal: It cannot be had, or there is no room for it.
    """
    await vm.takes(1)
    said = "Error response from daemon: "
    if not (image.startswith(_GOOGLES[0]) or _GOOGLES[1] in image or vm.external_ip):
        raise Refusal(
            f'{said}Get "https://registry-1.docker.io/v2/": net/http: request canceled while'
            " waiting for connection (Client.Timeout exceeded while awaiting headers)"
        )
    _region, ours, rest = image.partition(_GOOGLES[1])
    readable = rest.partition("/")[0] == vm.project.id and vm.project.grants(
        vm.spec.service_account, _DOWNLOAD, vm.project.policy
    )
    if ours and not readable:
        words = f"denied: Permission {_DOWNLOAD!r} denied on resource (or it may not exist)."
        raise Refusal(said + words)
    missing = vm.project.knobs.vm_trouble == "image-missing"
    if missing or not exists(vm.world, rest if ours else image):
        raise Refusal(f"{said}manifest for {image} not found: manifest unknown: manifest unknown")
    if "nginx" in image:
        return
    await vm.takes(_PULL_SECONDS)
    if vm.spec.disk_gb < _SMALLEST_DISK_GB:
        raise Refusal(
            "failed to register layer: write /usr/local/lib/libtpu.so: no space left on device"
        )


def _run_options(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    left = deque(words)
    while left:
        said, equals, value = left.popleft().partition("=")
        name = _LONG.get(said, said)
        if name in _RUN_SWITCHES:
            value = "true"
        elif not equals:
            value = left.popleft()
        found[name].append(value)
    return found


def _run(
    vm: Vm, words: Sequence[str], image: str, command: Sequence[str], given: Mapping[str, str]
) -> None:
    """Start a container; `given` is what the environment of docker holds.

    Raises:
        Refusal: Its log driver cannot write.
    """
    options = _run_options(words)
    env = (word.partition("=") for word in options["--env"])
    made = Container(
        name=options["--name"][0],
        image=image,
        command=tuple(command),
        options=options,
        environment={name: value if equals else given.get(name, "") for name, equals, value in env},
    )
    # A node's VM is in a project of Google's. That its metadata server tells that one has not been
    # verified.
    usual = vm.project.id if vm.spec.plane == "compute" else "google-tenant-project"
    if made.logs and not vm.may_log(made.log_options().get("gcp-project", usual)):
        raise Refusal(
            "docker: Error response from daemon: failed to create task for container: failed to"
            " initialize logging driver: unable to connect or authenticate with Google Cloud"
            " Logging"
        )
    vm.containers[made.name] = made
    vm.tasks.start_soon(_proxy if "nginx" in image else _engine, vm, made)


async def _proxy(vm: Vm, made: Container) -> None:
    """Be nginx before the engine, by TLS where its configuration names a certificate."""
    try:
        guard = guard_of(made.command, made.environment)
    except CannotStart:
        made.status = 1
        made.over.set()
        return
    listener = loopback()
    listener.listen(128)
    tls = "ssl_certificate" in "".join(made.environment.values())
    certificate: Path | None = vm.folder / certificates.BOTH if tls else None

    def engine() -> str:
        inside = [vm.listens[port] for port in guard.engine_ports if port in vm.listens]
        return f"http://127.0.0.1:{inside[0].port if inside and made.on_host else 9}"

    server = WebServer(_Nginx(guard, engine), listener, certificate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.live)
        await server.listening.wait()
        if made.on_host:
            vm.listens[guard.port] = Listener(server.port)
        try:
            await made.process.told_to_end.wait()
        finally:
            vm.listens.pop(guard.port, None)
            server.close()
    made.over.set()


class _Nginx:
    def __init__(self, rules: Guard, engine: Callable[[], str]) -> None:
        self._rules, self._engine = rules, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, url = Request(scope, receive), self._engine()
        try:
            body = await request.body()
            path = await self._rules.admit(request, url)
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
            return
        except ClientDisconnect:
            return
        try:
            await pass_on(request, body, url, send, path=path)
        except TurnedAway:
            page = HTMLResponse("<html><h1>502 Bad Gateway</h1>nginx</html>", status_code=502)
            await page(scope, receive, send)


async def _engine(vm: Vm, made: Container) -> None:
    """Run a container's program to its end."""
    said = partial(_log, vm, made)
    words: tuple[str, ...] = ()
    lines: Sequence[str] = ()
    try:
        words = tuple(served(made.command, ()))
        made.status, lines = _refusal(made, words)
    except CannotStart:
        made.status = 127
        lines = [f"/entrypoint.sh: line 12: exec: {' '.join(made.command[:1])}: not found"]
    for line in lines:
        said("", line)
    if made.status:
        await vm.takes(1)
    else:
        made.status = await _ran(vm, made, words, said)
    made.over.set()


async def _ran(
    vm: Vm, made: Container, words: Sequence[str], said: Callable[[str, str], None]
) -> int:
    knobs = vm.project.knobs
    given = {**made.environment, "SIMULATED_ENGINE_COUNT": str(vm.spec.chips)}
    started = Program(
        words,
        environment(knobs, "v6e", given),
        port=0,
        carry=lambda at: storage.carried(vm.world, at, vm.spec.service_account),
    )
    if made.on_host:
        vm.listens.setdefault(started.listens, Listener(started.port, started.loopback))
    try:
        status = await made.process.run(started, said=said, beside=anyio.sleep_forever)
    finally:
        if vm.listens.get(started.listens) == (started.port, started.loopback):
            del vm.listens[started.listens]
    return 128 - status if status < 0 else status


def _refusal(made: Container, words: tuple[str, ...]) -> tuple[int, Sequence[str]]:
    """Return the status and the lines of a container that ends before there is an engine."""
    if "vllm-openai" in made.image:
        return 1, ["RuntimeError: Failed to infer device type"]
    if "--privileged" not in made.options:
        why = "TPU initialization failed: open(/dev/vfio/0): Operation not permitted"
        return 1, [f"RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: {why}"]
    ways = flag(words, "--tensor-parallel-size") or flag(words, "-tp") or "1"
    if ways != "1" and not made.options.get("--shm-size"):
        why = "Please try to raise your shared memory limit: workers are out of shared memory."
        return _BUS_ERROR, ["Fatal Python error: Bus error", why]
    return 0, []


def _log(vm: Vm, made: Container, _stream: str, line: str) -> None:
    """Bring a line of a container where its driver writes to."""
    if not made.logs or not line.strip():
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


def _pairs(words: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def start(world: World, project: Project, spec: VmSpec) -> None:
    """Start a VM in the background; found again by `vm_of`."""
    vm = world.live[f"{project.id}/{spec.key}"] = Vm(world, project, spec)
    world.tasks.start_soon(vm.live)


def vm_of(world: World, project: Project, plane: str, zone: str, vm_id: str) -> Vm | None:
    """Return a VM that there is."""
    found: Vm | None = world.live.get(f"{project.id}/{plane}/{zone}/{vm_id}")
    return found


async def forget(world: World, project: Project) -> None:
    """End the VMs of a project that is known no more."""
    mine = [one for one in world.live.values() if isinstance(one, Vm) and one.project is project]
    for one in mine:
        one.end()
    for one in mine:
        await one.ended.wait()


_TCP: Final = frozenset({"tcp", "6", "all"})


def lets_in(project: Project, spec: VmSpec, *, caller: str, port: int) -> bool:
    """Say whether a rule lets it connect; where none speaks of it, it may not."""
    return any(_lets_in(rule, spec, caller, str(port)) for rule in project.firewalls.values())


def _lets_in(rule: Mapping[str, Any], spec: VmSpec, caller: str, port: str) -> bool:
    tags, address = {*rule.get("targetTags", ())}, ipaddress.ip_address(caller)
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    if rule["network"].rpartition("/")[2] != spec.network or (tags and not tags & {*spec.tags}):
        return False
    if not any(address in ipaddress.ip_network(one) for one in rule["sourceRanges"]):
        return False
    tcp = [one for one in rule["allowed"] if str(one.get("IPProtocol", "")).lower() in _TCP]
    return any(port in one.get("ports", (port,)) for one in tcp)


_TRIES: Final = 512


class NoAddress(Exception):
    """This machine has no loopback alias for it."""


def claim(key: str, port: int) -> socket.socket:
    """Return a listening socket at an address of 127.77.0.0/16 that nobody else has.

    The same VM is given the same address again where that is free.

    Raises:
        NoAddress: This system has none, such as macOS, where each needs `ifconfig lo0 alias`.
    """
    first = zlib.crc32(key.encode())
    for number in range(first, first + _TRIES):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address = f"127.77.{number // 254 % 256}.{number % 254 + 1}"
        try:
            listener.bind((address, port))
            listener.listen(128)
        except OSError as exc:
            listener.close()
            if exc.errno != errno.EADDRINUSE:
                raise NoAddress(
                    f"{address} is no address of this machine ({exc.strerror}). Linux has all of"
                    f" 127.0.0.0/8; macOS needs `sudo ifconfig lo0 alias {address}` for each."
                ) from exc
        else:
            return listener
    raise NoAddress(
        f"Nothing is free on port {port} of 127.77.0.0/16: something listens there on every address"
        " of this machine (0.0.0.0). End it first."
    )


class _Door:
    """Lets connections through to whatever listens in the VM."""

    def __init__(self, vm: Vm, listener: socket.socket) -> None:
        self._vm, self._listener = vm, listener
        self._port: int = listener.getsockname()[1]

    async def serve(self) -> None:
        async with await SocketListener.from_socket(self._listener) as listener:
            await listener.serve(self._answer)

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            try:
                early = await self._until_let_in(stream)
                self._vm.world.touch()
                await self._pass_on(stream, early)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _until_let_in(self, stream: SocketStream) -> bytes:
        """Answer nothing while no rule lets the caller in; return what it has said meanwhile."""
        caller: str = stream.extra_attributes[SocketAttribute.remote_address]()[0]
        vm, early = self._vm, b""
        while not lets_in(vm.project, vm.spec, caller=caller, port=self._port):
            with anyio.move_on_after(_DOOR_RHYTHM_SECONDS):
                early += await stream.receive()
        return early

    async def _pass_on(self, stream: SocketStream, early: bytes) -> None:
        listener = self._vm.listens.get(self._port)
        if listener is None or listener.loopback:
            return  # whoever called sees it closed: nobody listens
        try:
            inside = await anyio.connect_tcp("127.0.0.1", listener.port)
        except OSError:
            return
        async with inside, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, stream, inside, early)
            await _copy(inside, stream)
            tasks.cancel_scope.cancel()


async def _copy(one: ByteStream, other: ByteStream, early: bytes = b"") -> None:
    """Bring what one says to the other, to its end; a broken connection is an end as well."""
    try:
        if early:
            await other.send(early)
        async for piece in one:
            await other.send(piece)
        await other.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return
