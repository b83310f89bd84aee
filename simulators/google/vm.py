"""A VM with chips: what its startup script does, its containers, address and firewall."""

import contextlib
import ipaddress
import itertools
import re
import shlex
import shutil
import socket
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream, TaskGroup
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from simulators.common import certificates, programs
from simulators.common.doors import UNVERIFIED_TLS, TurnedAway, loopback, pass_on, start_web
from simulators.google import logging, secrets, storage
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
_NOWHERE: Final = "http://127.0.0.1:9"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_GOOGLES: Final = ("mirror.gcr.io/", "-docker.pkg.dev/")
"""Registries that are reached without an external address: Private Google Access is taken to be on,
as Cloud TPU asks for it where nodes have internal addresses alone."""
_DOWNLOAD: Final = "artifactregistry.repositories.downloadArtifacts"


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

    @property
    def key(self) -> str:
        """Where it is found in `World.live`, below its project."""
        return f"{self.plane}/{self.zone}/{self.id}"


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
        self._folder: Final = world.folder / "vms" / f"{number:08x}"
        self.internal_ip: Final = (
            f"10.{128 + number % 64}.{number // 64 % 256}.{number // 16384 % 253 + 2}"
        )
        self.external_ip = ""
        """Its own address; empty if it has none."""
        self.proxy_url = ""
        """Where nginx listens; empty while it does not."""
        self._tasks: TaskGroup
        self._engine: Final = programs.EngineProcess()
        self.ended: Final = anyio.Event()
        found = _DECIDED.findall(spec.metadata.get(_SCRIPT, ""))
        self._decided: Final = {name: shlex.split(words) for name, words in found}
        self._life = anyio.CancelScope()
        self._wrong = ""
        self._listener = self._listen() if spec.external else None

    async def takes(self, seconds: float) -> None:
        """Let simulated seconds pass."""
        await anyio.sleep(seconds / self.project.knobs.tpu_clock)

    @property
    def _logs(self) -> bool:
        """Whether its account may write log entries."""
        here, spec = self.project, self.spec
        return (
            "logging.googleapis.com" in here.apis
            and _SCOPE in spec.scopes
            and here.grants(spec.service_account, "logging.logEntries.create", here.policy)
        )

    def end(self) -> None:
        """Tell it to be gone; `ended` says when it is."""
        self._life.cancel()

    async def live(self) -> None:
        """Boot, do what the script says, and be gone when told to."""
        try:
            with self._life:
                async with anyio.create_task_group() as self._tasks:
                    if self._listener:
                        door = await SocketListener.from_socket(self._listener)
                        port = self._listener.getsockname()[1]
                        self._tasks.start_soon(door.serve, partial(_let_through, self, port))
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
            shutil.rmtree(self._folder, ignore_errors=True)
            self.world.keep(self.project)
            self.ended.set()

    async def _script(self) -> None:
        """Do in the script's order what it does, and tell what it tells.

        That the script itself does so is for its own tests, in a shell.
        """
        image, guard = self._one("IMAGE"), self._one("GUARD_IMAGE")
        self._tell("booting", self._wrong or _KERNEL)
        if self.spec.plane == "compute":
            self._tell("installing docker", "The image of this VM has none.")
            await self.takes(_APT_SECONDS)
            if not self.external_ip:  # no mirror is reached
                words = "E: Package 'docker.io' has no installation candidate"
                raise Refusal(f"Docker cannot be installed: {words}")
        if self._tls:
            addresses = (self.external_ip, self.internal_ip, "127.0.0.1")
            made = certificates.make(self._folder, self.spec.id, tuple(filter(None, addresses)))
            self._tell("certificate", made.strip())
        self._tell("pulling image", image)
        for one in (guard, image):
            with _failing(f"{one} cannot be pulled"):
                await self._pull(one)
        names = {"VLLM_API_KEY": self._one("KEY_SECRET"), "HF_TOKEN": self._one("TOKEN_SECRET")}
        self._tell("reading secrets", " ".join(names.values()))
        values = {}
        for variable, name in names.items():
            if name:
                with _failing(f"The secret {name} cannot be read"):
                    values[variable] = self._secret(name)
        self._tell("starting engine", " ".join(self._decided["COMMAND"]))
        with _failing("The container cannot be started"):
            await self._start_proxy()
            if not self._logs:
                raise Refusal(
                    "docker: Error response from daemon: failed to create task for container:"
                    " failed to initialize logging driver: unable to connect or authenticate with"
                    " Google Cloud Logging"
                )
        status = await self._run_engine(_given(self._decided["DOCKER"], values))
        self._tell("ended", f"The engine ended with exit code {status}.")

    async def _pull(self, image: str) -> None:
        """Pull an image, as the VM's account and from where it is."""
        await self.takes(1)
        said, project = "Error response from daemon: ", self.project
        if not (image.startswith(_GOOGLES[0]) or _GOOGLES[1] in image or self.external_ip):
            raise Refusal(
                f'{said}Get "https://registry-1.docker.io/v2/": net/http: request canceled while'
                " waiting for connection (Client.Timeout exceeded while awaiting headers)"
            )
        _region, ours, rest = image.partition(_GOOGLES[1])
        account = self.spec.service_account
        readable = rest.partition("/")[0] == project.id and project.grants(
            account, _DOWNLOAD, project.policy
        )
        if ours and not readable:
            words = f"denied: Permission {_DOWNLOAD!r} denied on resource (or it may not exist)."
            raise Refusal(said + words)
        missing = project.knobs.vm_trouble == "image-missing"
        if missing or not exists(self.world, rest if ours else image):
            raise Refusal(
                f"{said}manifest for {image} not found: manifest unknown: manifest unknown"
            )
        if "nginx" not in image:
            await self.takes(_PULL_SECONDS)

    def _secret(self, name: str) -> str:
        status = 403
        if _SCOPE in self.spec.scopes and "secretmanager.googleapis.com" in self.project.apis:
            try:
                return secrets.value_for(self.project, name, "latest", self.spec.service_account)
            except Refused as exc:
                status = 403 if exc.status == "PERMISSION_DENIED" else 404
        raise Refusal(f"curl: (22) The requested URL returned error: {status}")

    async def _start_proxy(self) -> None:
        """Let nginx listen before the engine, by TLS where callers come from outside."""
        try:
            rules = programs.guard_of(
                self._decided["GUARD_COMMAND"], _given(self._decided["GUARD_DOCKER"], {})
            )
        except programs.CannotStart as exc:
            raise Refusal(str(exc)) from exc

        async def nginx(scope: Scope, receive: Receive, send: Send) -> None:
            request, url = Request(scope, receive), self._engine.url or _NOWHERE
            try:
                body, path = await request.body(), await rules.admit(request, url)
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

        listener = loopback()
        listener.listen(128)
        certificate = self._folder / certificates.BOTH if self._tls else None
        self.proxy_url = await start_web(self._tasks, listener, nginx, certificate=certificate)

    async def _run_engine(self, given: Mapping[str, str]) -> int:
        """Run the engine's container to its end; returns its status, as a shell tells it."""
        image, command = self._one("IMAGE"), self._decided["COMMAND"]
        try:
            words = programs.served(command, ())
        except programs.CannotStart:
            name = " ".join(command[:1])
            return await self._broken(127, f"/entrypoint.sh: line 12: exec: {name}: not found")
        if "vllm-openai" in image:
            return await self._broken(1, "RuntimeError: Failed to infer device type")
        more = {**given, "SIMULATED_ENGINE_COUNT": str(self.spec.chips)}
        started = programs.Program(
            words,
            programs.environment(self.project.knobs, "v6e", more),
            port=0,
            carry=lambda at: storage.carried(self.world, at, self.spec.service_account),
        )
        status = await self._engine.run(started, said=self._log, beside=self._watch)
        return 128 - status if status < 0 else status

    async def _broken(self, status: int, line: str) -> int:
        self._log("", line)
        await self.takes(1)
        return status

    async def _watch(self) -> None:
        """Tell when the engine answers through the proxy, as callers ask."""
        pause = max(_WATCH_SECONDS / self.project.knobs.tpu_clock, _SHORTEST_SECONDS)
        async with httpx2.AsyncClient(trust_env=False, verify=UNVERIFIED_TLS) as client:
            while True:
                with contextlib.suppress(httpx2.HTTPError):
                    if (await client.get(f"{self.proxy_url}/health")).is_success:
                        break
                await anyio.sleep(pause)
        self._tell("ready", " ".join(self._decided["COMMAND"]))

    def _log(self, _stream: str, line: str) -> None:
        """Bring a line of the engine's container where its driver writes to."""
        if line.strip():
            self.project.append("DEFAULT", line, logging.of_vm(self._one("DEPLOYMENT")))

    def _tell(self, phase: str, message: str) -> None:
        """Log what the script tells, where its account may."""
        if self._logs:
            source = logging.of_script(self._one("LOG"), self._one("DEPLOYMENT"), phase)
            severity = "ERROR" if phase in {"failed", "ended"} else "INFO"
            self.project.append(severity, message, source)
            self.world.keep(self.project)

    @property
    def _tls(self) -> bool:
        return self._one("TLS") == "yes"

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


def _given(words: Sequence[str], caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container by docker's options.

    A pair is given as it is; a name alone has the value that `caller` has of it.
    """
    options = itertools.pairwise(words)
    pairs = [word.partition("=") for option, word in options if option == "-e"]
    return {name: value if equals else caller.get(name, "") for name, equals, value in pairs}


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


def lets_in(project: Project, spec: VmSpec, *, caller: str, port: int) -> bool:
    """Say whether a rule lets it connect; where none speaks of it, it may not."""
    address, tags = ipaddress.ip_address(caller), {*spec.tags}
    return any(
        rule["direction"] == "INGRESS"
        and not rule["disabled"]
        and rule["network"].rpartition("/")[2] == spec.network
        and (tags & {*rule["targetTags"]} if rule.get("targetTags") else True)
        and any(address in ipaddress.ip_network(one) for one in rule["sourceRanges"])
        and any(
            one.get("IPProtocol", "").lower() in {"tcp", "6", "all"}
            and str(port) in one.get("ports", (str(port),))
            for one in rule["allowed"]
        )
        for rule in project.firewalls.values()
    )


_TRIES: Final = 512


class NoAddress(Exception):
    """This machine has no loopback alias for it."""


def claim(key: str, port: int) -> socket.socket:
    """Return a listening socket at an address of 127.77.0.0/16 that nobody else has.

    The same VM is given the same address again where that is free.

    Raises:
        NoAddress: None can be had; macOS has no such address without `ifconfig lo0 alias`.
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
            why = exc.strerror
        else:
            return listener
    raise NoAddress(
        f"Nothing can listen at {address}, port {port} ({why}). Linux has all of 127.0.0.0/8 unless"
        " something listens on 0.0.0.0; macOS needs `sudo ifconfig lo0 alias` for each."
    )


async def _let_through(vm: Vm, port: int, stream: SocketStream) -> None:
    """Pass a connection from outside on to the proxy, once a firewall rule lets the caller in."""
    caller: str = stream.extra_attributes[SocketAttribute.remote_address]()[0]
    early = b""
    async with stream:
        try:
            while not lets_in(vm.project, vm.spec, caller=caller, port=port):
                with anyio.move_on_after(_DOOR_RHYTHM_SECONDS):
                    early += await stream.receive()
            vm.world.touch()
            # Where nobody listens, whoever called sees it closed.
            inside = await anyio.connect_tcp("127.0.0.1", urlsplit(vm.proxy_url).port or 9)
        except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
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
