"""All targets and endpoints looked at side by side; what hangs is told, and hangs nobody else."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio

from backends.base import Backend, HasHost, HostState, Usage
from core.errors import OpsError
from core.metrics import MetricsPage
from core.records import State
from operations.lives.deploying import usual
from operations.lives.inventory import Leftover, leftovers
from operations.resolve import EACH_SECONDS, Found, look
from operations.runtime import Runtime
from operations.watching.dashboard_rows import Figures

ENDPOINT_SECONDS: Final = 5.0
"""For an engine's metrics; a healthy one gives them in milliseconds."""
ALL_SECONDS: Final = 30.0
"""For everything together: a third of a client's patience of 45 s is left for the answer."""
_AT_ONCE: Final = 32
"""Engines that are asked at the same time."""


class View:
    """What was seen so far; it can be told at any moment."""

    def __init__(self, runtime: Runtime, targets: Sequence[str]) -> None:
        self.targets: Final = tuple(targets)
        self.found: Final[dict[str, tuple[Found, ...]]] = {}
        self.failed: Final[dict[str, OpsError]] = {}
        self.hosts: Final[dict[str, HostState]] = {}
        self.leftovers: Final[list[Leftover]] = []
        """What bills by the month, whether anything is deployed or not."""
        self.in_time: bool = False
        """Whether the end of the looks came before that of the time."""
        self._runtime: Final = runtime
        self._figures: Final[dict[tuple[str, str], Figures]] = {}
        self._limit: Final = anyio.CapacityLimiter(_AT_ONCE)

    async def look(self) -> None:
        """Look at every target and at what is there, until all is seen or the time is over."""
        with anyio.move_on_after(ALL_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(self._look_for_leftovers)
                for target in self.targets:
                    group.start_soon(self._look_at, target)
            self.in_time = True

    async def look_closer(self, found: Found) -> None:
        """Look at one deployment that was found already, and at its host."""
        with anyio.move_on_after(ALL_SECONDS):
            await self._see(found.deployment.target, (found,))
            self.in_time = True

    @property
    def deployments(self) -> tuple[Found, ...]:
        """Every deployment that was seen, in the order of the targets."""
        return tuple(one for target in self.targets for one in self.found.get(target, ()))

    @property
    def late(self) -> tuple[str, ...]:
        """Name the targets that neither answered nor failed before the time was over."""
        return tuple(
            f"{one} was not looked at within {ALL_SECONDS:.0f} s."
            for one in self.targets
            if one not in self.found and one not in self.failed
        )

    def figures(self, found: Found) -> Figures:
        """Give what was seen of one beyond what its platform says."""
        nothing = Figures(missing=f"It was not looked at closer within {ALL_SECONDS:.0f} s.")
        return self._figures.get(_key(found), nothing)

    async def _look_for_leftovers(self) -> None:
        self.leftovers.extend(await leftovers(self._runtime.stage, self.targets))

    async def _look_at(self, target: str) -> None:
        stage = self._runtime.stage
        try:
            there = await look(stage, target, EACH_SECONDS)
        except OpsError as exc:
            self.failed[target] = exc
            return
        backend = stage.backend(target)
        await self._see(target, tuple(Found(backend, usual(self._runtime, one)) for one in there))

    async def _see(self, target: str, there: tuple[Found, ...]) -> None:
        self.found[target] = there
        async with anyio.create_task_group() as group:
            group.start_soon(self._see_host, target, self._runtime.stage.backend(target))
            for one in there:
                group.start_soon(self._see_one, one)

    async def _see_host(self, target: str, backend: Backend) -> None:
        if isinstance(backend, HasHost):
            with anyio.move_on_after(ENDPOINT_SECONDS), suppress(OpsError):
                self.hosts[target] = await backend.host()

    async def _see_one(self, found: Found) -> None:
        async with self._limit:
            self._figures[_key(found)] = await figures_of(self._runtime, found)


async def figures_of(runtime: Runtime, found: Found) -> Figures:
    """Give what is seen of one from outside, and its engine's load if it is ready.

    One that is not ready is never asked: it may be asleep, and a question would wake it.
    """
    usage = await _usage(found)
    if found.deployment.state is not State.READY:
        return Figures(usage=usage)
    with anyio.move_on_after(ENDPOINT_SECONDS):
        try:
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                page = MetricsPage(await endpoint.metrics_text())
        except OpsError as exc:
            return Figures(usage=usage, missing=f"Its metrics could not be read: {exc.summary}")
        return Figures(load=page.engine(), usage=usage)
    missing = f"Its metrics did not come within {ENDPOINT_SECONDS:.0f} s."
    return Figures(usage=usage, missing=missing)


async def _usage(found: Found) -> Usage | None:
    if isinstance(found.backend, HasHost):
        # One that is being deleted may be gone by now.
        with anyio.move_on_after(ENDPOINT_SECONDS), suppress(OpsError):
            return await found.backend.usage(found.name)
    return None


def _key(found: Found) -> tuple[str, str]:
    return found.deployment.target, found.name
