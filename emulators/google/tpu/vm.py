"""A VM with chips, of either control plane: it boots by its startup script's decisions."""

import shutil
import socket
import zlib
from typing import Final

import anyio

from emulators.google.state import Project, World
from emulators.google.tpu import vm_script
from emulators.google.tpu.vm_container import Container
from emulators.google.tpu.vm_door import NoAddress, VmDoor, claim
from emulators.google.tpu.vm_log import VmLog
from emulators.google.tpu.vm_machine import Machine
from emulators.google.tpu.vm_script import BadScript, Decided
from emulators.google.tpu.vm_spec import VmSpec as VmSpec  # noqa: PLC0414  said here too
from emulators.google.tpu.vm_startup import KERNEL, ScriptFailed, Startup

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
