"""A VM with chips: its containers, its address behind the firewall, its boot."""

import errno
import ipaddress
import itertools
import re
import shutil
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketListener, SocketStream
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from simulators.common.doors import Answer, TurnedAway, WebServer, loopback, pass_on
from simulators.common.programs import (
    CannotStart,
    EngineProcess,
    Guard,
    Program,
    environment,
    flag,
    guard_of,
    program,
)
from simulators.google import vm_script
from simulators.google.state import Project, World
from simulators.google.vm_script import (
    KERNEL,
    BadScript,
    Decided,
    Machine,
    Retries,
    ScriptFailed,
    Startup,
    VmLog,
    VmSpec,
)

_USUAL_PRIORITY: Final = 1000
_EVERYWHERE: Final = ("0.0.0.0/0",)
_TCP: Final = frozenset({"tcp", "6", "all"})


def lets_in(project: Project, spec: VmSpec, *, caller: str, port: int) -> bool:
    """Say whether it may connect; where no rule speaks of it, it may not.

    Of several rules the most important one counts, and among equals one that denies.
    """
    verdicts = [
        (rule.get("priority", _USUAL_PRIORITY), allows)
        for rule in project.firewalls.values()
        if _concerns(rule, spec) and _from(rule, caller)
        for allows, ports in ((False, rule.get("denied", ())), (True, rule.get("allowed", ())))
        if _to(ports, port)
    ]
    return min(verdicts)[1] if verdicts else False


def _concerns(rule: Mapping[str, Any], spec: VmSpec) -> bool:
    network = str(rule.get("network", "default")).rpartition("/")[2]
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    tags, accounts = rule.get("targetTags", ()), rule.get("targetServiceAccounts", ())
    everybody = not tags and not accounts
    chosen = everybody or bool({*tags} & {*spec.tags}) or spec.service_account in accounts
    return network == spec.network and chosen


def _from(rule: Mapping[str, Any], caller: str) -> bool:
    """Say whether its sources hold the caller, who has no tag and no account."""
    narrowed = rule.get("sourceTags") or rule.get("sourceServiceAccounts")
    ranges = rule.get("sourceRanges") or (() if narrowed else _EVERYWHERE)
    address = ipaddress.ip_address(caller)
    return any(address in ipaddress.ip_network(one, strict=False) for one in ranges)


def _to(ports: Iterable[Mapping[str, Any]], port: int) -> bool:
    for one in ports:
        said = one.get("ports") or ("0-65535",)
        if str(one.get("IPProtocol", "")).lower() in _TCP and any(
            _holds(each, port) for each in said
        ):
            return True
    return False


def _holds(said: str, port: int) -> bool:
    low, _, high = said.partition("-")
    return int(low) <= port <= int(high or low)


_NOBODY: Final = "http://127.0.0.1:9"
"""Nobody listens there."""
_FILE: Final = re.compile(r"ssl_certificate(?:_key)? ([^\s;]+);")


class VmGuard:
    """What it lets through, and how it is reached."""

    def __init__(self, machine: Machine, decided: Decided) -> None:
        docker = vm_script.docker_read(decided.guard_docker)
        given = {name: value for name, value in docker.environment.items() if value is not None}
        self.rules: Final[Guard] = guard_of(decided.guard_command, given)
        files = [file for value in given.values() for file in _FILE.findall(value)]
        folders = {(docker.outside(file) or "").rpartition("/")[0] for file in files}
        if not folders <= {vm_script.HOST_FOLDER}:
            raise vm_script.DockerRefused(f"nginx: [emerg] cannot load certificate {files[0]!r}")
        self.tls: Final = bool(files)
        self.reachable: Final = docker.host_network
        self._machine = machine

    @asynccontextmanager
    async def opened(self, engine: Callable[[], str]) -> AsyncIterator[None]:
        """Listen meanwhile; `engine` gives where the engine is now, empty where none runs."""
        machine, listener = self._machine, loopback()
        listener.listen(128)
        server = WebServer(
            _Host(self.rules, engine), machine.folder / vm_script.BOTH if self.tls else None
        )
        machine.world.tasks.start_soon(server.serve, [listener])
        await server.listening.wait()
        if self.reachable:
            machine.listens[self.rules.port] = listener.getsockname()[1]
        try:
            yield
        finally:
            machine.listens.pop(self.rules.port, None)
            server.should_exit = True


class _Host:
    def __init__(self, rules: Guard, engine: Callable[[], str]) -> None:
        self._rules, self._engine = rules, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, answer = Request(scope, receive), Answer(send)
        try:
            body, url = await request.body(), self._engine() or _NOBODY
            path = await self._rules.admit(request, url)
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
            return
        except ClientDisconnect:
            return
        try:
            await pass_on(request, body, url, answer, path=path)
        except TurnedAway:
            page = HTMLResponse("<html><h1>502 Bad Gateway</h1>nginx</html>", status_code=502)
            await page(scope, receive, send)


_SERVE: Final = ("vllm", "serve")
_NOT_FOUND: Final = 127
_BUS_ERROR: Final = 135
"""128 and SIGBUS."""
_HEALTH_SECONDS: Final = 5.0
"""Simulated, from one look at /health to the next."""
_VM_CONTAINER_RHYTHM_SECONDS: Final = (0.05, 0.2)
"""At the fastest and at the slowest, whatever the simulated clock says."""
_BACKOFF_SECONDS: Final = 0.1
"""Simulated, before docker starts it again; twice as long each time, a minute at most."""
_RESTART: Final = "on-failure:3"
"""What the script sets once the engine has served."""
_NO_TPU: Final = (
    "RuntimeError: Failed to infer device type, please set the environment variable"
    " `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue."
)
_NO_DEVICE: Final = (
    "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed:"
    " open(/dev/vfio/0): Operation not permitted"
)
_BUS: Final = (
    "Fatal Python error: Bus error",
    "Please try to raise your shared memory limit: workers are out of shared memory.",
)


class Container:
    """Runs until docker starts it no more."""

    def __init__(self, machine: Machine, decided: Decided, startup: Startup) -> None:
        self._machine = machine
        self._decided = decided
        self._startup = startup
        self._process: EngineProcess | None = None
        self._leaving = False
        self._was_ready = False

    def end(self) -> bool:
        """Tell it to end politely, and to be started no more; whether anything runs."""
        self._leaving = True
        if self._process is None:
            return False
        self._process.end()
        return True

    def kill(self) -> bool:
        """Let the engine crash; whether anything ran."""
        if self._process is None:
            return False
        self._process.end(at_once=True)
        return True

    async def run(self, secrets: Mapping[str, str]) -> None:
        """Start it, again and again as docker is told to.

        Raises:
            ScriptFailed: Docker does not start it.
        """
        self._startup.tell("starting engine", self._words_said)
        docker, before = await self._docker()
        async with before.opened(lambda: self._process.url if self._process else ""):
            await self._again_and_again(docker, before, secrets)

    async def _again_and_again(
        self, docker: vm_script.DockerRun, before: VmGuard, secrets: Mapping[str, str]
    ) -> None:
        for times in itertools.count():
            status = await self._once(docker, before, secrets)
            if self._leaving:
                return
            if not self._starts_again(docker, status, times):
                self._startup.tell("ended", f"The engine ended with exit code {status}.")
                return
            self._startup.tell(
                "starting engine",
                f"The engine ended with exit code {status} and is started again.",
            )
            await self._machine.takes(min(60.0, _BACKOFF_SECONDS * 2**times))

    async def _docker(self) -> tuple[vm_script.DockerRun, VmGuard]:
        retries = Retries(6, 20, "starting engine", "The container cannot be started")
        await self._startup.again(retries, self._refused)
        return vm_script.docker_read(self._decided.docker), VmGuard(self._machine, self._decided)

    async def _refused(self) -> str:
        """Say why docker does not start it now; empty if it does."""
        try:
            docker = vm_script.docker_read(self._decided.docker)
            VmGuard(self._machine, self._decided)
        except (vm_script.DockerRefused, CannotStart) as exc:
            return str(exc)
        if self._machine.log.can_output(docker):
            return ""
        return (
            "docker: Error response from daemon: failed to create task for container: failed to"
            " initialize logging driver: unable to connect or authenticate with Google Cloud"
            " Logging\n\nRun 'docker run --help' for more information"
        )

    def _starts_again(self, docker: vm_script.DockerRun, status: int, times: int) -> bool:
        """Say whether docker starts it again: once it was ready the script asks for that."""
        restart = _RESTART if self._was_ready else docker.restart
        if restart in {"always", "unless-stopped"}:
            return True
        match = re.fullmatch(r"on-failure(?::(\d+))?", restart)
        return bool(match and status and (match[1] is None or times < int(match[1])))

    async def _once(
        self, docker: vm_script.DockerRun, before: VmGuard, secrets: Mapping[str, str]
    ) -> int:
        said = partial(self._machine.log.output, self._decided, docker)
        status, lines = self._refusal(docker)
        for line in lines:
            said(line)
        if status:
            await self._machine.takes(1)
            return status
        program = self._program(docker, before, secrets)
        process = self._process = EngineProcess()
        if docker.host_network and not program.loopback:
            self._machine.listens.setdefault(program.listens, program.port)
        try:
            status = await process.run(
                self._machine.world.nursery,
                program,
                said=lambda _stream, line: said(line),
                beside=partial(self._until_healthy, process, program),
            )
        finally:
            self._process = None
            if self._machine.listens.get(program.listens) == program.port:
                self._machine.listens.pop(program.listens)
        return 128 - status if status < 0 else status

    async def _until_healthy(self, process: EngineProcess, program: Program) -> None:
        """Ask as the script does, from the VM itself."""
        if not program.reachable:
            return
        fastest, slowest = _VM_CONTAINER_RHYTHM_SECONDS
        pause = _HEALTH_SECONDS / self._machine.project.knobs.tpu_clock
        while True:
            if await process.answers("/health", 5):
                self._was_ready = True
                self._startup.tell("ready", self._words_said)
                return
            await anyio.sleep(min(slowest, max(fastest, pause)))

    def _refusal(self, docker: vm_script.DockerRun) -> tuple[int, tuple[str, ...]]:
        """Give the status and the lines of a container that ends before there is an engine."""
        command, decided = self._decided.command, self._decided
        if tuple(command[:2]) != _SERVE:
            first = command[0] if command else ""
            return _NOT_FOUND, (f"/entrypoint.sh: line 12: exec: {first}: not found",)
        if "vllm-openai" in decided.image:
            return 1, (_NO_TPU,)
        if not docker.privileged:
            return 1, (_NO_DEVICE,)
        ways = flag(self._words, "--tensor-parallel-size") or flag(self._words, "-tp") or "1"
        if ways != "1" and not docker.shm_size:
            return _BUS_ERROR, _BUS
        return 0, ()

    @property
    def _words_said(self) -> str:
        return " ".join(self._decided.command)

    @property
    def _words(self) -> tuple[str, ...]:
        """What follows `vllm serve`, each flag with hyphens."""
        return tuple(_hyphened(word) for word in self._decided.command[2:])

    def _program(
        self, docker: vm_script.DockerRun, before: VmGuard, secrets: Mapping[str, str]
    ) -> Program:
        made = program(
            self._words,
            self._environment(docker, secrets),
            port=self._decided.port,
            here=lambda path: path,
            guard=before.rules,
        )
        joined = docker.host_network and before.reachable and before.tls == self._decided.tls
        return replace(made, reachable=made.reachable and joined)

    def _environment(
        self, docker: vm_script.DockerRun, secrets: Mapping[str, str]
    ) -> dict[str, str]:
        machine, knobs = self._machine, self._machine.project.knobs
        given = {
            name: secrets.get(name) if value is None else value
            for name, value in docker.environment.items()
        }
        return environment(
            boot_seconds=knobs.boot_seconds,
            phases=knobs.engine_seconds,
            more={
                **{name: value for name, value in given.items() if value is not None},
                "SIMULATED_ENGINE_COUNT": str(machine.chips),
                **knobs.engine_environment,
            },
            accelerator=machine.spec.accelerator.rpartition("-")[0],
        )


def _hyphened(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


_TRIES: Final = 512
_VM_DOOR_RHYTHM_SECONDS: Final = 0.05


class NoAddress(Exception):
    """This machine has no loopback alias for it."""


def claim(key: str, port: int) -> socket.socket:
    """Give a listening socket at an address of 127.77.0.0/16 that nobody else has.

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


class VmDoor:
    """Lets connections through to whatever listens in the VM."""

    def __init__(self, machine: Machine, listener: socket.socket) -> None:
        self._machine = machine
        self._listener = listener
        self._port: int = listener.getsockname()[1]

    async def serve(self) -> None:
        """Take connections until cancelled."""
        listener = await SocketListener.from_socket(self._listener)
        async with listener:
            await listener.serve(self._answer)

    async def _answer(self, stream: SocketStream) -> None:
        async with stream:
            try:
                early = await self._until_let_in(stream)
                self._machine.world.touch()
                await self._pass_on(stream, early)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return

    async def _until_let_in(self, stream: SocketStream) -> bytes:
        """Answer nothing while no rule lets the caller in; gives what it has said meanwhile."""
        caller: str = stream.extra_attributes[SocketAttribute.remote_address]()[0]
        machine, early = self._machine, b""
        while not lets_in(machine.project, machine.spec, caller=caller, port=self._port):
            with anyio.move_on_after(_VM_DOOR_RHYTHM_SECONDS):
                early += await stream.receive()
        return early

    async def _pass_on(self, stream: SocketStream, early: bytes) -> None:
        inside = self._machine.listens.get(self._port)
        try:
            if inside is None:
                raise ConnectionRefusedError
            engine = await anyio.connect_tcp("127.0.0.1", inside)
        except OSError:
            return  # whoever called sees it closed: nobody listens
        async with engine, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, stream, engine, early)
            await _copy(engine, stream)
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


_SCRIPT: Final = "startup-script"
_BOOT_SECONDS: Final = 20.0
"""Simulated, from the first line of the kernel to the startup script."""
_PORT: Final = 8000


class Vm:
    """One VM, from its first second to its last."""

    def __init__(self, world: World, project: Project, spec: VmSpec) -> None:
        self.spec = spec
        self.ended = anyio.Event()
        self._life = anyio.CancelScope()
        self._told = anyio.Event()
        self._container: Container | None = None
        self._log = VmLog(project, spec)
        number = zlib.crc32(f"{project.id}/{spec.key}".encode())
        self._machine = Machine(
            world=world,
            project=project,
            spec=spec,
            log=self._log,
            folder=world.folder / "vms" / f"{number:08x}",
            internal_ip=f"10.{128 + number % 64}.{number // 64 % 256}.{number // 16384 % 253 + 2}",
        )
        self._decided, self._wrong = self._read()
        self._listener = self._listen() if spec.external else None

    @property
    def external_ip(self) -> str:
        """Its own address; empty if it has none."""
        return self._machine.external_ip

    @property
    def internal_ip(self) -> str:
        """Its address in its network."""
        return self._machine.internal_ip

    @property
    def serial(self) -> str:
        """What its serial port 1 has shown, as far as it is kept."""
        return self._log.serial.text

    @property
    def serial_dropped(self) -> int:
        """How many bytes were shown before that."""
        return self._log.serial.dropped

    def end(self, *, at_once: bool = False) -> None:
        """Tell it to be gone, its engine first unless at once; `ended` says when it is."""
        self._told.set()
        engine = self._container is not None and self._container.end()
        if at_once or not engine:
            self._life.cancel()

    def stop_engine(self) -> bool:
        """Let its engine crash; whether one ran."""
        return self._container is not None and self._container.kill()

    async def live(self) -> None:
        """Boot, run the script's container to its end, and be gone when told to."""
        try:
            with self._life:
                async with anyio.create_task_group() as tasks:
                    if self._listener:
                        tasks.start_soon(VmDoor(self._machine, self._listener).serve)
                    await self._boot()
                    await self._told.wait()
                    tasks.cancel_scope.cancel()
        finally:
            self._bury()

    async def _boot(self) -> None:
        self._log.kernel(f"Linux version {KERNEL} (buildd@lcy02) #16~22.04.1-Ubuntu SMP")
        await self._machine.takes(_BOOT_SECONDS)
        self._log.kernel(f"{self.spec.id} login: ")
        if self._wrong:
            self._log.script(f"the machine does not come up: {self._wrong}")
        elif self._decided:
            await self._act(self._decided)
        else:
            self._log.script("No startup scripts to run.")

    async def _act(self, decided: Decided) -> None:
        startup = Startup(self._machine, decided)
        try:
            secrets = await startup.prepare()
            self._container = Container(self._machine, decided, startup)
            await self._container.run(secrets)
        except ScriptFailed as exc:
            startup.tell("failed", str(exc))
        self._machine.world.keep(self._machine.project)

    def _read(self) -> tuple[Decided | None, str]:
        """Give what its script has decided, and what is wrong with it."""
        script = self.spec.metadata.get(_SCRIPT, "")
        try:
            return vm_script.read(script) if script.strip() else None, ""
        except BadScript as exc:
            return None, str(exc)

    def _listen(self) -> socket.socket | None:
        port = self._decided.port if self._decided else _PORT
        try:
            listener = claim(f"{self._machine.project.id}/{self.spec.key}", port)
        except NoAddress as exc:
            self._wrong = str(exc)
            return None
        self._machine.external_ip = listener.getsockname()[0]
        return listener

    def _bury(self) -> None:
        if self._listener:
            self._listener.close()
        world, key = self._machine.world, f"{self._machine.project.id}/{self.spec.key}"
        if world.live.get(key) is self:
            world.live.pop(key)
        shutil.rmtree(self._machine.folder, ignore_errors=True)
        world.keep(self._machine.project)
        self.ended.set()


def start(world: World, project: Project, spec: VmSpec) -> Vm:
    """Start a VM in the background; found again by `vm_of`."""
    vm = Vm(world, project, spec)
    world.live[f"{project.id}/{spec.key}"] = vm
    world.tasks.start_soon(vm.live)
    return vm


def vm_of(world: World, project: Project, plane: str, zone: str, vm_id: str) -> Vm | None:
    """Give a VM that there is."""
    found: Vm | None = world.live.get(f"{project.id}/{plane}/{zone}/{vm_id}")
    return found
