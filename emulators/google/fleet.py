"""The instances of one service: as many as its scaling asks for and its requests need."""

import time
from typing import Final

import anyio
from google.cloud.run_v2.types import Revision, Service

from emulators.google.engines import Engine
from emulators.google.run_shapes import MAX_DEFAULT, is_manual, least_instances, most_instances
from emulators.google.state import Project, World

_RHYTHM_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 0.5
"""Between two starts after an instance that did not come up."""


class Fleet:
    """All instances of one service, of every revision."""

    def __init__(self, world: World, project: Project, service: Service) -> None:
        self._world = world
        self._project = project
        self.service: Final = service
        """As it is now: whoever changes it changes this one."""
        self._engines: list[Engine] = []
        self._rolling: set[str] = set()
        """Revisions that are not serving yet: nobody ends their instances here."""
        self._rest_until = 0.0
        self.failed_starts = 0
        """How many instances ended before they were healthy."""
        self.closed = False

    @property
    def revision(self) -> Revision | None:
        """The one that serves."""
        found: Revision | None = self._project.revisions.get(self.service.latest_ready_revision)
        return found

    def start(self, revision: Revision, reason: str) -> Engine:
        """Start one more instance."""
        engine = Engine(self._world, self._project, revision)
        self._engines.append(engine)
        self._world.tasks.start_soon(engine.live, reason)
        return engine

    def roll(self, revision: Revision) -> Engine:
        """Start the first instance of a revision that is to serve; see `rolled`."""
        self._rolling.add(revision.name)
        return self.start(revision, "DEPLOYMENT_ROLLOUT")

    def rolled(self, revision: Revision) -> None:
        """The revision serves, or never will."""
        self._rolling.discard(revision.name)

    def free(self) -> Engine | None:
        """Give the instance of the serving revision that has most room for a request."""
        revision = self.revision
        if revision is None:
            return None
        room = [
            one
            for one in self._of(revision)
            if one.is_ready and one.requests < revision.max_instance_request_concurrency
        ]
        return min(room, key=lambda one: one.requests, default=None)

    def wake(self) -> bool:
        """A request waits: start an instance if that is allowed; tells whether one is coming."""
        revision = self.revision
        if revision is None:
            return False
        mine = self._of(revision)
        if any(not one.ready.is_set() for one in mine):
            return True
        full = len(mine) >= (most_instances(self.service) or MAX_DEFAULT)
        if full or is_manual(self.service) or time.monotonic() < self._rest_until:
            return False
        self.start(revision, "AUTOSCALING")
        return True

    async def keep(self) -> None:
        """Go on until the service is gone."""
        while not self.closed:
            self._bury()
            self._settle()
            await anyio.sleep(_RHYTHM_SECONDS)

    async def close(self, *, at_once: bool = False) -> None:
        """End every instance."""
        self.closed = True
        for engine in self._engines:
            engine.stop(at_once=at_once)
        for engine in self._engines:
            await engine.ended.wait()

    def _of(self, revision: Revision) -> list[Engine]:
        short = revision.name.rpartition("/")[2]
        return [one for one in self._engines if one.revision == short and not one.ended.is_set()]

    def _bury(self) -> None:
        ended = [one for one in self._engines if one.ended.is_set()]
        failed = sum(not one.ready.is_set() for one in ended)
        self.failed_starts += failed
        if failed:
            self._rest_until = time.monotonic() + _PATIENCE_SECONDS
        self._engines = [one for one in self._engines if one not in ended]

    def _settle(self) -> None:
        revision = self.revision
        for engine in self._engines:
            if not self._belongs(engine, revision) and not engine.requests:
                engine.stop()
        if revision is None or time.monotonic() < self._rest_until:
            return
        mine, least = self._of(revision), least_instances(self.service)
        if len(mine) < least:
            self.start(revision, "MANUAL_OR_CUSTOMER_MIN_INSTANCE")
        elif len(mine) > least:
            self._end_one(mine)

    def _belongs(self, engine: Engine, serving: Revision | None) -> bool:
        names = {name.rpartition("/")[2] for name in self._rolling}
        return engine.revision in names or (
            serving is not None and engine.revision == serving.name.rpartition("/")[2]
        )

    def _end_one(self, mine: list[Engine]) -> None:
        idle = [one for one in mine if one.is_ready and not one.requests]
        oldest = min(idle, key=lambda one: one.idle_since, default=None)
        allowed = 0.0 if is_manual(self.service) else self._project.knobs.idle_seconds
        if oldest and time.monotonic() - oldest.idle_since >= allowed:
            oldest.stop()
        elif is_manual(self.service) and not idle:
            mine[0].stop()
