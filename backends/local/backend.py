"""This machine as a target: one watched process for each deployment."""

import re
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import anyio

from backends.base import (
    DeploymentConfig,
    EngineFacts,
    Hardware,
    HostState,
    Leaving,
    LogQuery,
    Prediction,
    Usage,
    World,
)
from backends.common.engine import facts_of
from backends.lifecycle import not_found
from backends.local import devices, process, status
from backends.local.devices import Devices, read_devices
from backends.local.plan import (
    PROTECTION,
    SOCKET,
    check_port,
    choose_engine,
    computed_cache,
    deployment_config,
    foresee_here,
    leftovers,
    make_plan,
    no_room,
    one_replica,
    serve_argv,
    serve_env,
)
from backends.local.process import (
    Engine,
    Folder,
    Made,
    claim,
    is_running,
    launch,
    with_cache,
)
from backends.local.status import Looker
from core.address import KEY_HEADER, free_port
from core.errors import CommandNotFound, HostError
from core.records import (
    NAME_PATTERN,
    SIMULATED,
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Plan,
    Preflight,
    Target,
)
from logs.boot import read_boot
from logs.read import Line, head_lines
from planner.flags import Flags
from planner.memory import GIB
from planner.model import read_model
from planner.places import Accelerator


class LocalBackend:
    """Each deployment is a folder of the stage: that folder is what exists."""

    def __init__(self, target: Target, world: World) -> None:
        self.target = target
        self._world = world
        self._root = world.folder / target.name
        self._looker = Looker(target)

    @property
    def engine(self) -> Engine | None:
        """What would serve; found anew each time, for `make vllm` may have run since."""
        world = self._world
        has_memory = world.simulated_memory_gib is not None
        return choose_engine(world.settings, world.simulated_engine, has_memory=has_memory)

    def engine_name(self) -> tuple[str, str]:
        """Return the engine and, if it is not the real thing, what to do about it."""
        engine = self.engine
        if engine is None:
            return "none", "There is no vLLM: run `make vllm` or set VLLM_EXECUTABLE."
        return engine.label, SIMULATED if engine.kind == "simulated" else ""

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which process would be started, and whether its memory suffices."""
        return make_plan(self.target, self._engine(), self._devices(spec.name), spec, model)

    def _devices(self, name: str) -> Devices | None:
        """Return what the engine of a deployment would run on; what it holds now it gives back.

        A simulated engine holds no weights: it needs memory only where it simulates a machine's.
        """
        engine, simulated = self.engine, self._world.simulated_memory_gib
        if engine and engine.kind == "simulated" and simulated is None:
            return self._found(None)
        held = devices.resident_bytes(process.session_members(self._folder(name)))
        memory = self._memory()
        return self._found(memory._replace(available=memory.available + held))

    def _found(self, memory: devices.Memory | None) -> Devices | None:
        engine = self.engine
        cpu_only = engine is None or engine.cpu_only or engine.kind == "simulated"
        return read_devices(self._world.settings.accelerator_type, cpu_only=cpu_only, memory=memory)

    def _memory(self) -> devices.Memory:
        engine, simulated = self.engine, self._world.simulated_memory_gib
        if simulated is None or engine is None or engine.kind != "simulated":
            return devices.machine_memory()
        total, free = (int(gib * GIB) for gib in simulated)
        return devices.Memory(total, free, free)

    async def predicted(self, name: str) -> Prediction | None:
        """Give what was to be expected of a deployment's memory."""
        made = self._known(name).made()
        if made is None:
            return None
        here = self._devices(name)
        model = await anyio.to_thread.run_sync(read_model, made.spec.model)
        memory = foresee_here(made.engine, here, made.started, model)
        if memory is None or here is None:
            return None
        flags = Flags.of(made.started, vllm_version=made.engine.number)
        return Prediction(model=model, flags=flags, accelerator=here.accelerator, memory=memory)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        """Give the accelerators that the engine would run on."""
        return self._found(self._memory())

    async def check(self, plan: Plan) -> Preflight:
        """Look at port, disk and memory."""
        needed = plan.model.weight_bytes or 0
        checks = [devices.check_disk(self._root), devices.check_memory(needed)]
        if plan.spec.port:
            checks.append(check_port(plan.spec.port))
        return Preflight(checks=tuple(checks))

    async def apply(self, plan: Plan) -> Deployment:
        """Start the engine; what runs under that name with another spec is ended first."""
        folder = self._folder(plan.spec.name)
        async with folder.locked() as lock:
            folder.check()
            made = folder.made()
            same = made is not None and made.spec.fingerprint == plan.spec.fingerprint
            if not (same and is_running(folder)):
                if plan.spec.port and not (made and made.port == plan.spec.port):
                    claim(plan.spec.port)  # before what runs now is ended for it
                await process.end_session(folder)
                await self._start(folder, plan.spec, lock, plan.model)
        return await self.describe(plan.spec.name)

    async def describe(self, name: str) -> Deployment:
        """Say how its process is."""
        folder = self._known(name)
        seen = await self._looker.look(folder)
        self._known(name)  # it may have been removed while we looked
        return seen

    async def list(self) -> Sequence[Deployment]:
        """Give every folder below the root."""
        names = sorted(path.name for path in self._root.glob("[a-z]*"))
        known = (self._folder(name) for name in names if re.fullmatch(NAME_PATTERN, name))
        there = [folder for folder in known if folder.exists]
        seen = [(folder, await self._looker.look(folder)) for folder in there]
        return [deployment for folder, deployment in seen if folder.exists]

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:  # noqa: ARG002  none is carried
        """End what is proven to be its own, see that nothing of it lives, remove its folder."""
        folder = self._folder(name)
        if not folder.touched:
            return Deleted(name=name, target=self.target.name, gone=True)
        async with folder.locked():
            existed, made = folder.exists, folder.made_if_readable()
            numbers = ""
            if folder.path.is_dir():
                with suppress(HostError):  # what cannot be written down can be done
                    folder.want("deleted")
                ended = await process.end_session(folder)
                numbers = ", ".join(str(seen.pid) for seen in ended)
                folder.remove()
        processes = f"its processes (pid {numbers})" if numbers else "its processes"
        return Deleted(
            name=name,
            target=self.target.name,
            gone=not folder.path.exists(),
            removed=(processes, "its folder with key and log") if existed else (),
            stays=leftovers(made),
        )

    def leaving(self, name: str, *, keep_cache: bool = False) -> Leaving:  # noqa: ARG002  none is carried
        """Name what `delete` takes and leaves."""
        stays = leftovers(self._folder(name).made_if_readable())
        deletes = ("its processes", f"its folder {name} with key and log")
        return Leaving(deletes=deletes, stays=tuple(one.what for one in stays))

    async def access(self, name: str) -> Access:
        """Give address and key."""
        folder, made = self._made(name)
        return Access(
            base_url=made.url,
            api_key=folder.api_key(),
            header_commands={KEY_HEADER: f"cat {shlex.quote(str(folder.path / 'api-key'))}"},
            protection=SOCKET if made.socket else PROTECTION,
        )

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Run one replica or none."""
        if max_replicas > 1 or min_replicas > 1:
            raise one_replica()
        return await (self.start(name) if max_replicas and min_replicas else self.stop(name))

    async def stop(self, name: str) -> Deployment:
        """End the process and keep the folder."""
        folder = self._known(name)
        async with folder.locked():
            folder.want("stopped")
            await process.end_session(folder)
        return await self.describe(name)

    async def start(self, name: str) -> Deployment:
        """Start the process again as it was asked for."""
        folder = self._known(name)
        async with folder.locked() as lock:
            folder.check()
            made = folder.made()
            if made is None:
                raise not_found(name, self.target)
            if not is_running(folder):
                await process.end_session(folder)  # what a dead server or engine left of it
                model = await anyio.to_thread.run_sync(read_model, made.spec.model)
                memory = foresee_here(self._engine(), self._devices(name), made.spec, model)
                if memory and memory.accelerator == "cpu" and not memory.fits:
                    raise no_room(name, memory)
                await self._start(folder, made.spec, lock, model)
        return await self.describe(name)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Read the engine's log from its end."""
        return status.log_pages(self._known(name).log, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        """Give what its folder says was asked for."""
        made = self._known(name).made()
        return made.spec if made else None

    async def engine_facts(self, name: str) -> EngineFacts:
        """Give what the boot log tells."""
        log = self._known(name).log
        return facts_of(read_boot(head_lines(log), now=datetime.now(UTC)))

    async def hardware(self, _name: str, /) -> Hardware:
        """Give what this machine has."""
        return devices.hardware()

    async def host(self) -> HostState:
        """Say how this machine is."""
        return await devices.state(self._root)

    async def usage(self, name: str) -> Usage | None:
        """Say what its processes take."""
        folder = self._known(name)
        return await devices.usage(process.session_members(folder), folder.log)

    async def config(self, name: str) -> DeploymentConfig:
        """Give shell, docker and compose."""
        folder, made = self._made(name)
        key = folder.path / "api-key"
        return deployment_config(made.engine, made.started, made.socket or made.port, key)

    async def _start(
        self, folder: Folder, spec: DeploymentSpec, lock: int, model: ModelShape
    ) -> None:
        engine, here = self._engine(), self._devices(spec.name)
        cache = computed_cache(spec, foresee_here(engine, here, spec, model), here, model)
        made = folder.made()
        created_at = made.created_at if made else datetime.now(UTC)
        folder.fresh()
        internal = spec.access == "internal"
        socket = folder.socket() if internal else ""
        port = 0 if internal else spec.port or free_port()
        folder.make(
            Made(
                spec=spec,
                engine=engine,
                argv=serve_argv(engine, with_cache(spec, cache), socket or port),
                env=serve_env(engine, spec),
                port=port,
                socket=socket,
                created_at=created_at,
                free_gib=here.accelerator.free_gib if here and cache else None,
                kv_cache_memory_bytes=cache,
            )
        )
        folder.want("running")
        token = self._world.settings.hf_token
        await launch(folder, token.get_secret_value() if token else None, lock)

    def _engine(self) -> Engine:
        engine = self.engine
        if engine is None:
            raise CommandNotFound(
                "There is no vLLM on this machine.",
                fix="Run `make vllm`, correct VLLM_EXECUTABLE, or set ENGINE=simulated.",
            )
        return engine

    def _folder(self, name: str) -> Folder:
        if not re.fullmatch(NAME_PATTERN, name):
            raise not_found(name, self.target)
        return Folder(self._root / name)

    def _known(self, name: str) -> Folder:
        folder = self._folder(name)
        if not folder.exists:
            raise not_found(name, self.target)
        return folder

    def _made(self, name: str) -> tuple[Folder, Made]:
        folder = self._folder(name)
        made = folder.made()
        if made is None:
            raise not_found(name, self.target)
        return folder, made
