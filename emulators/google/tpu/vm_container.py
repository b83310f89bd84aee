"""The container of a VM: docker starts it, the simulated engine runs in it, and it ends."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from emulators.common.processes import EngineProcess
from emulators.common.programs import CannotStart, Program, environment, flag, program
from emulators.google.tpu import vm_docker
from emulators.google.tpu.vm_guard import VmGuard
from emulators.google.tpu.vm_machine import Machine
from emulators.google.tpu.vm_script import Decided
from emulators.google.tpu.vm_startup import Retries, Startup

_SERVE: Final = ("vllm", "serve")
_NOT_FOUND: Final = 127
_BUS_ERROR: Final = 135
"""128 and SIGBUS."""
_HEALTH_SECONDS: Final = 5.0
"""Simulated, from one look at /health to the next."""
_RHYTHM_SECONDS: Final = (0.05, 0.2)
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
        self, docker: vm_docker.DockerRun, before: VmGuard, secrets: Mapping[str, str]
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

    async def _docker(self) -> tuple[vm_docker.DockerRun, VmGuard]:
        retries = Retries(6, 20, "starting engine", "The container cannot be started")
        await self._startup.again(retries, self._refused)
        return vm_docker.read(self._decided.docker), VmGuard(self._machine, self._decided)

    async def _refused(self) -> str:
        """Say why docker does not start it now; empty if it does."""
        try:
            docker = vm_docker.read(self._decided.docker)
            VmGuard(self._machine, self._decided)
        except (vm_docker.DockerRefused, CannotStart) as exc:
            return str(exc)
        if self._machine.log.can_output(docker):
            return ""
        return (
            "docker: Error response from daemon: failed to create task for container: failed to"
            " initialize logging driver: unable to connect or authenticate with Google Cloud"
            " Logging\n\nRun 'docker run --help' for more information"
        )

    def _starts_again(self, docker: vm_docker.DockerRun, status: int, times: int) -> bool:
        """Say whether docker starts it again: once it was ready the script asks for that."""
        restart = _RESTART if self._was_ready else docker.restart
        if restart in {"always", "unless-stopped"}:
            return True
        match = re.fullmatch(r"on-failure(?::(\d+))?", restart)
        return bool(match and status and (match[1] is None or times < int(match[1])))

    async def _once(
        self, docker: vm_docker.DockerRun, before: VmGuard, secrets: Mapping[str, str]
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
        fastest, slowest = _RHYTHM_SECONDS
        pause = _HEALTH_SECONDS / self._machine.project.knobs.tpu_clock
        while True:
            if await process.answers("/health", 5):
                self._was_ready = True
                self._startup.tell("ready", self._words_said)
                return
            await anyio.sleep(min(slowest, max(fastest, pause)))

    def _refusal(self, docker: vm_docker.DockerRun) -> tuple[int, tuple[str, ...]]:
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
        self, docker: vm_docker.DockerRun, before: VmGuard, secrets: Mapping[str, str]
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
        self, docker: vm_docker.DockerRun, secrets: Mapping[str, str]
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
