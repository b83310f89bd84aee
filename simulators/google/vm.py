"""A VM with chips: its real startup script under bash, its address, the firewall before it."""

import contextlib
import errno
import ipaddress
import os
import re
import shutil
import signal
import socket
import sys
import time
import uuid
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream, ByteStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from simulators.common.doors import loopback
from simulators.common.programs import EngineProcess
from simulators.google.state import Project, World
from simulators.google.vm_programs import KERNEL, Asked, Machine, VmSpec, answer

_SCRIPT: Final = "startup-script"
_ROOT: Final = "VLLM_DEVOPS_ROOT"
"""What makes the files of a script lie in a folder of the VM: any other script is not run here."""
_PORT: Final = re.compile(r"^readonly PORT='?(\d{1,5})'?$", re.MULTILINE)
_USUAL_PORT: Final = "8000"
_BOOT_SECONDS: Final = 20.0
"""Simulated, from the first line of the kernel to the startup script."""
_FAKE: Final = ("curl", "apt-get", "systemctl", "sleep", "uname")
_REAL: Final = ("bash", "base64", "cat", "cut", "mkdir", "openssl", "rm", "sed", "tail")
_AS_WELL: Final = ("timeout",)
"""If this machine has it: macOS has not."""
_PROGRAM: Final = Path(__file__).with_name("vm_program.sh")
_MOST_BYTES: Final = 1 << 20
"""Of one word that a program is called with."""
_MOST_LINES: Final = 5000
"""Of the serial port, whose buffer Google keeps to 1 MB."""


class Vm(Machine):
    """One VM, from its first second to its last."""

    def __init__(self, world: World, project: Project, spec: VmSpec) -> None:
        super().__init__(world, project, spec)
        self._serial: Final = deque[str](maxlen=_MOST_LINES)
        self.ended: Final = anyio.Event()
        self._life = anyio.CancelScope()
        self._told = anyio.Event()
        self._began = time.monotonic()
        self._wrong = ""
        self._listener = self._listen() if spec.external else None

    @property
    def serial_text(self) -> str:
        """What serial port 1 has shown, as far as that is kept."""
        return "".join(f"{line}\n" for line in self._serial)

    def end(self, *, at_once: bool = False) -> None:
        """Tell it to be gone, its containers first unless at once; `ended` says when it is."""
        self._told.set()
        if at_once:
            self._life.cancel()

    def stop_engine(self) -> bool:
        """Let its engine crash, when the script has come to rest; whether one ran."""
        engines = [one for one in self.containers.values() if one.process.url]
        running = [one for one in engines if one.state == "running"]
        for one in running:
            self.world.tasks.start_soon(self._crash, one.process)
        return bool(running)

    async def _crash(self, process: EngineProcess) -> None:
        while True:
            if self.is_resting or not self.runs_script:
                break
            await anyio.sleep(_DOOR_RHYTHM_SECONDS)
        process.end(at_once=True)

    async def live(self) -> None:
        """Boot, run the script to its end, and be gone when told to."""
        try:
            with self._life:
                async with anyio.create_task_group() as tasks:
                    self.tasks = tasks
                    if self._listener:
                        tasks.start_soon(_Door(self, self._listener).serve)
                    async with anyio.create_task_group() as system:
                        system.start_soon(self._boot)
                        await self._told.wait()
                        system.cancel_scope.cancel()
                    for one in self.containers.values():
                        one.is_removed = True
                        one.process.end()
                    for one in self.containers.values():
                        await one.over.wait()
                    tasks.cancel_scope.cancel()
        finally:
            self._bury()

    async def _boot(self) -> None:
        self._kernel(f"Linux version {KERNEL} (buildd@lcy02) #16~22.04.1-Ubuntu SMP")
        await self.takes(_BOOT_SECONDS)
        self._kernel(f"{self.spec.id} login: ")
        script = self.spec.metadata.get(_SCRIPT, "")
        missing = [name for name in _REAL if not shutil.which(name)]
        if self._wrong or missing:
            why = self._wrong or f"this machine has no {', '.join(missing)}"
            self._say(f"the machine does not come up: {why}")
        elif not script.strip():
            self._say("No startup scripts to run.")
        elif _ROOT not in script:
            self._say(f"a script that keeps its files below ${_ROOT} is the only one run here.")
        else:
            await self._run(script)
        self.world.keep(self.project)

    async def _run(self, script: str) -> None:
        """Run the startup script; its containers go on when it has ended."""
        path, programs = self.folder / _SCRIPT, self.folder / "bin"
        shutil.rmtree(self.folder, ignore_errors=True)
        programs.mkdir(parents=True, mode=0o700)
        path.write_text(script, encoding="utf-8")
        shutil.copyfile(_PROGRAM, programs / "program")
        (programs / "program").chmod(0o700)
        for name in (*_FAKE, *(("docker",) if self.spec.has_docker else ())):
            self.install(name)
        for name in (*_REAL, *_AS_WELL):
            if found := shutil.which(name):
                (programs / name).symlink_to(found)
        (programs / "python3").symlink_to(sys.executable)
        password = uuid.uuid4().hex
        listener = loopback()
        listener.listen(32)
        env = {
            "PATH": str(programs),
            _ROOT: str(self.folder),
            "VM_PORT": str(listener.getsockname()[1]),
            "VM_PASSWORD": password,
        }
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve_programs, listener, password)
            self.runs_script = True
            process = await anyio.open_process(
                [str(programs / "bash"), str(path)], stdin=None, env=env, start_new_session=True
            )
            try:
                async with anyio.create_task_group() as ears:
                    ears.start_soon(self._show, process.stdout)
                    ears.start_soon(self._show, process.stderr)
                await process.wait()
            finally:
                self.runs_script = False
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with anyio.CancelScope(shield=True):
                    await process.aclose()
            tasks.cancel_scope.cancel()

    async def _show(self, stream: ByteReceiveStream | None) -> None:
        """Show what the script prints on the serial port."""
        assert stream
        rest = b""
        async for piece in stream:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._say(line.decode(errors="replace"))

    async def _serve_programs(self, listener: socket.socket, password: str) -> None:
        """Answer what `vm_program.sh` asks; each word ends with a zero byte."""

        async def handle(stream: SocketStream) -> None:
            async with stream:
                words = BufferedByteReceiveStream(stream)

                async def word() -> str:
                    read = await words.receive_until(b"\0", _MOST_BYTES)
                    return read.decode(errors="replace")

                try:
                    if await word() != password:
                        return
                    name, key, token, given = [await word() for _ in range(4)]
                    arguments = tuple([await word() for _ in range(int(await word()))])
                    secrets = {"VLLM_API_KEY": key, "HF_TOKEN": token}
                    said = await answer(self, Asked(name, arguments, given, secrets))
                    await stream.send(f"{said.status}\0{said.out}\0{said.error}\0".encode())
                except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                    return

        async with await SocketListener.from_socket(listener) as server:
            await server.serve(handle)

    def _kernel(self, text: str) -> None:
        self._serial.append(f"[{time.monotonic() - self._began:12.6f}] {text}")

    def _say(self, line: str) -> None:
        """Show what a script prints, as the guest agent does."""
        now = datetime.now(UTC).strftime("%b %d %H:%M:%S")
        runner = "google_metadata_script_runner[1187]: startup-script:"
        self._serial.append(f"{now} {self.host} {runner} {line}")

    def _listen(self) -> socket.socket | None:
        found = _PORT.search(self.spec.metadata.get(_SCRIPT, ""))
        port = int(found[1] if found else _USUAL_PORT)
        try:
            listener = claim(f"{self.project.id}/{self.spec.key}", port)
        except NoAddress as exc:
            self._wrong = str(exc)
            return None
        self.external_ip = listener.getsockname()[0]
        return listener

    def _bury(self) -> None:
        if self._listener:
            self._listener.close()
        key = f"{self.project.id}/{self.spec.key}"
        if self.world.live.get(key) is self:
            self.world.live.pop(key)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.world.keep(self.project)
        self.ended.set()


def start(world: World, project: Project, spec: VmSpec) -> Vm:
    """Start a VM in the background; found again by `vm_of`."""
    vm = Vm(world, project, spec)
    world.live[f"{project.id}/{spec.key}"] = vm
    world.tasks.start_soon(vm.live)
    return vm


def vm_of(world: World, project: Project, plane: str, zone: str, vm_id: str) -> Vm | None:
    """Return a VM that there is."""
    found: Vm | None = world.live.get(f"{project.id}/{plane}/{zone}/{vm_id}")
    return found


_EVERYWHERE: Final = ("0.0.0.0/0",)
_TCP: Final = frozenset({"tcp", "6", "all"})


def lets_in(project: Project, spec: VmSpec, *, caller: str, port: int) -> bool:
    """Say whether a rule lets it connect; where none speaks of it, it may not."""
    return any(
        _concerns(rule, spec) and _from(rule, caller) and _to(rule.get("allowed", ()), port)
        for rule in project.firewalls.values()
    )


def _concerns(rule: Mapping[str, Any], spec: VmSpec) -> bool:
    network = str(rule.get("network", "default")).rpartition("/")[2]
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    tags = {*rule.get("targetTags", ())}
    return network == spec.network and (not tags or bool(tags & {*spec.tags}))


def _from(rule: Mapping[str, Any], caller: str) -> bool:
    address = ipaddress.ip_address(caller)
    ranges = rule.get("sourceRanges") or _EVERYWHERE
    return any(address in ipaddress.ip_network(one, strict=False) for one in ranges)


def _to(ports: Iterable[Mapping[str, Any]], port: int) -> bool:
    for one in ports:
        for said in one.get("ports") or ("0-65535",):
            low, _, high = said.partition("-")
            tcp = str(one.get("IPProtocol", "")).lower() in _TCP
            if tcp and int(low) <= port <= int(high or low):
                return True
    return False


_TRIES: Final = 512
_DOOR_RHYTHM_SECONDS: Final = 0.05


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
        """Take connections until cancelled."""
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
