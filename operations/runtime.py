"""What lives as long as the server: the stage, real or rehearsed, and its background work."""

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio
import platformdirs
from pydantic import SecretStr, ValidationError

from backends.base import Backend, Closes, World
from backends.common.concurrency import on_disk
from backends.endpoint import NAME as ENDPOINT
from backends.registry import BACKENDS
from core import PRODUCT
from core.endpoint import LOOK_SECONDS, Endpoint
from core.environment import ROOT, inherited_environment, read_toml
from core.errors import NextStep, ReadOnly, TargetNotFound, WaitedTooLong, did_you_mean
from core.journal import HeldTokens, Journal
from core.processes import detach
from core.records import Access, Record, Target
from core.settings import AzurePlane, GooglePlane, Settings, use
from core.waiting import scale_waits

MAX_LOG_LINES: Final = 500
"""About 40 kB: what an agent can read in one go."""
MAX_RUN_WAIT_SECONDS: Final = 40
"""A call that waits for a benchmark ends before a client cuts it."""
TTFT_SECONDS: Final = 2.0
"""Above it a person who waits for a chat's first word notices; a batch job does not care."""
MOST_TTFT_SECONDS: Final = 2560.0
"""The last finite bucket of vLLM's histogram (0.32): no quantile is ever above it."""


class Command(Record):
    """One thing to do, as it is typed; each works by itself."""

    what: str
    command: str


def command(what: str, *words: str) -> Command:
    """Write words so that any of them reaches the program as it is."""
    return Command(what=what, command=shlex.join(words))


_log: Final = logging.getLogger(__name__)


class Background:
    """A set of named tasks.

    Plain asyncio tasks: FastMCP enters and leaves a server's lifespan under different cancel
    scopes, in which no task group of anyio can be kept open (fastmcp 4.1.2).
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, work: str, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something, unless the same work is under way already."""
        if work in self._tasks:
            return
        task = asyncio.create_task(do(), name=work)
        self._tasks[work] = task
        task.add_done_callback(lambda done: self._ended(work, done))

    def does(self, kind: str) -> bool:
        """Whether any work is under way whose name begins so."""
        return any(work.startswith(kind) for work in self._tasks)

    async def wait(self, work: str, seconds: float) -> None:
        """Wait until a piece of work has ended, at most so long; it goes on after that."""
        if task := self._tasks.get(work):
            await asyncio.wait([task], timeout=max(0.0, seconds))

    async def cancel(self, work: str) -> None:
        """End one piece of work, if it is under way, and wait until it has let go."""
        task = self._tasks.get(work)
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def end(self) -> None:
        """Cancel what is under way and wait until it has let go."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, work: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(work, None)
        if not task.cancelled() and (exc := task.exception()):
            _log.error("%s failed", work, exc_info=exc)


_TARGETS: Final = ROOT / "backends" / "targets.toml"
_SIMULATED_ENGINE: Final = (sys.executable, "-m", "simulators.engine")


class Stage:
    """Opens each target once; keeps everything it must remember below one folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        state = settings.vllm_devops_state_dir or platformdirs.user_state_path(PRODUCT)
        use(state)
        scale_waits(pauses=settings.pause_scale, limits=settings.patience_scale)
        self.folder: Final[Path] = state / ("rehearsal" if settings.rehearsal else "real")
        read_only = settings.read_only
        self._google = _Cloud(
            "google", "Google Cloud", GooglePlane, self.folder, read_only=read_only
        )
        self._azure = _Cloud("azure", "Azure", AzurePlane, self.folder, read_only=read_only)
        self.journal: Final = Journal(self.folder / "journal.db", read_only=settings.read_only)
        self._open: dict[str, Backend] = {}

    @cached_property
    def targets(self) -> dict[str, Target]:
        """Every target by its name; an endpoint of the owner's own comes first."""
        rows = read_toml(_TARGETS)
        if self.settings.vllm_base_url:
            about = f"your own endpoint at {self.settings.vllm_base_url}"
            rows = {ENDPOINT: {"backend": ENDPOINT, "description": about}, **rows}
        quick = {"look_seconds": 0.0} if self.settings.rehearsal else {}
        return {
            name: Target.model_validate({"name": name, **row, **quick})
            for name, row in rows.items()
        }

    @cached_property
    def usable(self) -> tuple[str, ...]:
        """The targets whose settings are there; what a call means that names none."""
        settings = self.settings
        return tuple(
            name
            for name, target in self.targets.items()
            if not target.needs or settings.rehearsal or getattr(settings, target.needs)
        )

    def backend(self, target: str) -> Backend:
        """Open a target.

        Raises:
            TargetNotFound: There is none of that name.
        """
        if target not in self.targets:
            near = did_you_mean(target, self.targets)
            raise TargetNotFound(
                f"There is no target '{target}'.",
                fix=near.rstrip() or f"Targets: {', '.join(self.targets)}.",
                next_steps=(NextStep("list_targets"),),
            )
        if target not in self._open:
            row = self.targets[target]
            world = World(
                self.settings,
                self.folder,
                _SIMULATED_ENGINE,
                simulated_memory_gib=self._simulated_memory_gib,
            )
            if self.settings.rehearsal:
                auto = self.settings.engine == "auto"  # nothing is downloaded that nobody asked for
                settings = self.settings.model_copy(update={"engine": "simulated"} if auto else {})
                world = world._replace(google=self.google, azure=self.azure, settings=settings)
            self._open[target] = BACKENDS[row.backend]()(row, world)
        return self._open[target]

    @cached_property
    def _simulated_memory_gib(self) -> tuple[float, float] | None:
        """Return what the simulated engine's machine has, in a rehearsal or where its knobs say."""
        from simulators.engine.flags import Knobs

        knobs = Knobs()
        is_asked = not knobs.model_fields_set.isdisjoint({"device_memory_gib", "device_free_gib"})
        if knobs.accelerator or not (self.settings.rehearsal or is_asked):
            return None
        return knobs.device_memory_gib, knobs.free_gib

    async def google(self) -> GooglePlane:
        """Give the simulated Google Cloud; start it if it does not run.

        Raises:
            ReadOnly: It does not run, and this server may not start anything.
            WaitedTooLong: It did not say that it is ready.
        """
        return await self._google.plane()

    async def azure(self) -> AzurePlane:
        """Give the simulated Azure. Raises as `google` does."""
        return await self._azure.plane()

    def forget_rehearsal(self) -> bool:
        """End the simulated clouds and everything in them; whether there were any."""
        return any([self._google.clean(), self._azure.clean()])

    async def aclose(self) -> None:
        """Close what backends hold open."""
        for backend in self._open.values():
            if isinstance(backend, Closes):
                await backend.aclose()


_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_IDLE_EXIT_SECONDS: Final = 2 * 3600


P = TypeVar("P", GooglePlane, AzurePlane)


class _Cloud(Generic[P]):
    """One simulated cloud: `python -m simulators.{package}`."""

    def __init__(
        self, package: str, title: str, kind: type[P], folder: Path, *, read_only: bool
    ) -> None:
        self._package: Final = package
        self._title: Final = title
        self._kind: type[P] = kind
        self._folder: Final = folder / package
        self._read_only: Final = read_only
        self._lock = anyio.Lock()

    async def plane(self) -> P:
        async with self._lock:
            plane = self._running()
            if plane is None:
                if self._read_only:
                    raise ReadOnly(
                        f"The simulated {self._title} does not run, and a server that may only"
                        " look does not start it.",
                        fix="Run `make rehearse`, or start the server without READ_ONLY.",
                    )
                self._start()
                plane = await self._ready()
            return plane

    def clean(self) -> bool:
        plane = self._running()
        if plane:
            os.kill(plane.pid, signal.SIGTERM)
        existed = self._folder.exists()
        shutil.rmtree(self._folder, ignore_errors=True)
        return existed

    def _running(self) -> P | None:
        """Return it if its process is still that one: numbers of processes are given again."""
        import psutil

        try:
            plane = self._kind.model_validate_json((self._folder / "plane.json").read_bytes())
            is_ours = str(self._folder) in psutil.Process(plane.pid).cmdline()
        except (OSError, ValidationError, psutil.Error):
            return None
        return plane if is_ours else None

    def _start(self) -> None:
        with on_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        argv: tuple[str, ...] = (
            sys.executable,
            "-m",
            f"simulators.{self._package}",
            "--folder",
            str(self._folder),
        )
        env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
        detach((*argv, "--idle-exit", str(_IDLE_EXIT_SECONDS)), env=env, own_session=True)

    async def _ready(self) -> P:
        with anyio.move_on_after(_START_SECONDS):
            while True:
                if plane := self._running():
                    return plane
                await anyio.sleep(_LOOK_SECONDS)
        raise WaitedTooLong(
            f"The simulated {self._title} was not ready after {_START_SECONDS:.0f} s.",
            fix=f"See why with `python -m simulators.{self._package} --folder {self._folder}`.",
        )


class Runtime:
    """Handed to every tool."""

    def __init__(self, settings: Settings, listed: frozenset[str]) -> None:
        self.settings: Final = settings
        self.listed: Final = listed
        self.stage: Final = Stage(settings)
        self.held: Final = HeldTokens()
        """Tokens that a damaged journal cannot keep."""
        self.background: Final = Background()
        self.news: Final[list[str]] = []
        """What happened between calls; the next answer says it."""
        self._secrets: set[str] = set(settings.secrets)

    @property
    def secrets(self) -> frozenset[str]:
        """Every secret this server has had in hand."""
        return frozenset(self._secrets)

    @asynccontextmanager
    async def endpoint(
        self, backend: Backend, name: str, *, timeout: float = LOOK_SECONDS
    ) -> AsyncIterator[Endpoint]:
        """Open a deployment's endpoint with its credential; `timeout` is of a look, in seconds."""
        access = self.remember_credential(await backend.access(name))
        async with aclosing(Endpoint(access, timeout=timeout)) as endpoint:
            yield endpoint

    def tell(self, sentence: str) -> None:
        """Let the next answer say something, once."""
        if sentence not in self.news:
            self.news.append(sentence)

    def remember_secret(self, secret: SecretStr) -> None:
        """Remember a secret, so that no answer ever holds it."""
        self._secrets.add(secret.get_secret_value())

    def remember_credential(self, access: Access) -> Access:
        """Remember a credential, so that no answer ever holds it."""
        held = (access.api_key, access.identity_token)
        self._secrets |= {secret.get_secret_value() for secret in held if secret}
        return access
