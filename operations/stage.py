"""The stage: which targets there are, and whether they are the real world or a rehearsal."""

import sys
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Final

import platformdirs

from backends.base import Backend, Closes, World
from backends.endpoint import NAME as ENDPOINT
from backends.registry import BACKENDS
from core import PRODUCT
from core.environment import ROOT
from core.errors import NextStep, TargetNotFound, did_you_mean
from core.journal import Journal
from core.records import Target
from core.settings import Settings, use
from operations.rehearsal import Rehearsal

_TARGETS: Final = ROOT / "backends" / "targets.toml"
_SIMULATED_ENGINE: Final = (sys.executable, "-m", "simulators.engine")


class Stage:
    """Opens each target once; keeps everything it must remember below one folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        state = settings.vllm_devops_state_dir or platformdirs.user_state_path(PRODUCT)
        use(state)
        self.folder: Final[Path] = state / ("rehearsal" if settings.rehearsal else "real")
        self._rehearsal = Rehearsal(self.folder, read_only=settings.read_only)
        self.journal: Final = Journal(self.folder / "journal.db", read_only=settings.read_only)
        self._open: dict[str, Backend] = {}

    @cached_property
    def targets(self) -> dict[str, Target]:
        """Every target by its name; an endpoint of the owner's own comes first."""
        rows = tomllib.loads(_TARGETS.read_text(encoding="utf-8"))
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
                f"There is no target '{target}'. {near}".rstrip(),
                fix=near or f"Targets: {', '.join(self.targets)}.",
                next_steps=(NextStep("list_targets"),),
            )
        if target not in self._open:
            row = self.targets[target]
            world = World(
                self.settings,
                self.folder,
                _SIMULATED_ENGINE,
                simulated_memory_gib=self._simulated_memory_gib(),
            )
            if self.settings.rehearsal:
                clouds = self._rehearsal
                world = world._replace(google=clouds.google, azure=clouds.azure)
            self._open[target] = BACKENDS[row.backend]()(row, world)
        return self._open[target]

    def _simulated_memory_gib(self) -> tuple[float, float] | None:
        """Return what the simulated engine's machine has, in a rehearsal or where its knobs say."""
        from simulators.engine.flags import Knobs

        knobs = Knobs()
        is_asked = not knobs.model_fields_set.isdisjoint({"device_memory_gib", "device_free_gib"})
        if knobs.accelerator or not (self.settings.rehearsal or is_asked):
            return None
        return knobs.device_memory_gib, knobs.free_gib

    def forget_rehearsal(self) -> bool:
        """End the simulated clouds and everything in them; whether there were any."""
        return self._rehearsal.clean()

    async def aclose(self) -> None:
        """Close what backends hold open."""
        for backend in self._open.values():
            if isinstance(backend, Closes):
                await backend.aclose()
