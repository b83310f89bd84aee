"""The replicas of one app, of every revision: as many as its scaling and its requests ask for."""

import math
import time
from typing import Final

import anyio

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_shapes import Body
from emulators.azure.fleet_telling import tell
from emulators.azure.replicas import Running
from emulators.azure.state import Subscription, World

_RHYTHM_SECONDS: Final = 0.05
_KEPT: Final = "fleets"


class Fleet:
    """All replicas of one app; what it asks for is looked up whenever it is needed."""

    def __init__(self, world: World, sub: Subscription, app_id: str) -> None:
        self._world = world
        self._sub = sub
        self.app_id: Final = app_id.lower()
        self._replicas: list[Running] = []
        kept = sub.kept.setdefault(_KEPT, {}).setdefault(self.app_id, {})
        self._proven: list[str] = kept.setdefault("proven", [])
        """Revisions that were ready once."""
        self._given_up: list[str] = kept.setdefault("given_up", [])
        """Revisions that were scaled to none before that."""
        self._activated: list[str] = kept.setdefault("activated", [])
        """Revisions that somebody activated, and that no newer one replaces."""
        self.waiting = 0
        """Requests that are held until a replica has room."""
        self.closed = False

    @property
    def app(self) -> Body | None:
        """The app as it is now."""
        return self._sub.get(self.app_id)

    @property
    def serving(self) -> Body | None:
        """The revision that requests are for: the newest that was ready, else the newest."""
        active = [one for one in self._revisions() if _active(one)]
        proven = [one for one in active if shapes.short(one) in self._proven]
        newest = [one for one in proven if shapes.short(one) == self._latest_ready()]
        found = newest or proven or active
        return found[-1] if found else None

    def start(self, revision: Body, number: int = 1) -> None:
        """Start replicas of a revision."""
        if self.app is None or self.closed:
            return
        for _ in range(number):
            replica = Running(self._world, self._sub, self.app, revision)
            self._replicas.append(replica)
            self._world.tasks.start_soon(replica.live)
        self._world.keep(self._sub)

    def begin(self, revision: Body, *, asked_for: bool = False) -> None:
        """Let a revision be active: it boots once, also where no replica need be there."""
        name = shapes.short(revision)
        revision["properties"]["active"] = True
        if name in self._given_up:
            self._given_up.remove(name)
        if asked_for and name not in self._activated:
            self._activated.append(name)
        self.start(revision, max(1, shapes.scale_of(revision).least) - len(self._of(revision)))

    def revive(self, lost: frozenset[str] | set[str] = frozenset()) -> None:
        """Start what ought to be there: what is always there, was lost, or was never ready."""
        app = self.app
        if app is None or shapes.is_stopped(app):
            return
        for revision in self._revisions():
            name, least = shapes.short(revision), shapes.scale_of(revision).least
            coming = name not in self._proven and name not in self._given_up
            if _active(revision):
                self.start(revision, max(least, int(coming or name in lost)))

    async def cease(self, revision: Body) -> None:
        """End a revision's replicas; it has none until it is active again."""
        self._deactivate(revision)
        await self.end(revision)

    async def renew(self, revision: Body) -> None:
        """Put new replicas in place of a revision's."""
        count = len(self._of(revision))
        await self.end(revision)
        self.start(revision, count - len(self._of(revision)))

    def free(self) -> Running | None:
        """Give the replica that has most room for a request."""
        revision = self.serving
        if revision is None:
            return None
        ready = [one for one in self._of(revision) if one.is_ready]
        return min(ready, key=lambda one: one.requests, default=None)

    async def keep(self) -> None:
        """Go on until the app is gone."""
        while not self.closed:
            self._replicas = [one for one in self._replicas if not one.ended.is_set()]
            self._settle()
            await anyio.sleep(_RHYTHM_SECONDS)

    async def end(self, revision: Body | None = None, *, at_once: bool = False) -> None:
        """End the replicas of a revision, or all."""
        chosen = self._replicas if revision is None else self._of(revision)
        for replica in chosen:
            replica.stop(at_once=at_once)
        for replica in list(chosen):
            await replica.ended.wait()
        self._settle()

    async def close(self, *, at_once: bool = False) -> None:
        """End everything for good."""
        self.closed = True
        await self.end(at_once=at_once)
        self._sub.kept[_KEPT].pop(self.app_id, None)

    def _settle(self) -> None:
        app = self.app
        if app is None:
            return
        on = not shapes.is_stopped(app)
        news = False
        for revision in self._revisions():
            if on and _active(revision) and not self.closed:
                self._prove(app, revision)
                self._scale(revision)
            news |= self._tell(revision, on=on and _active(revision))
        if news:
            self._world.keep(self._sub)

    def _tell(self, revision: Body, *, on: bool) -> bool:
        name = shapes.short(revision)
        rows = self._sub.living(self.app_id, name)
        proven, given_up = name in self._proven, name in self._given_up
        return tell(revision, rows, proven=proven, given_up=given_up, on=on)

    def _prove(self, app: Body, revision: Body) -> None:
        """See whether a revision is ready for the first time: it then replaces the one before."""
        name = shapes.short(revision)
        if name in self._proven or not any(one.row.ready for one in self._of(revision)):
            return
        self._proven.append(name)
        self._say(name, "RevisionReady", f"Successfully provisioned revision '{name}'")
        if name != app["properties"].get("latestRevisionName"):
            return
        app["properties"]["latestReadyRevisionName"] = name
        for other in self._revisions():
            replaced = _active(other) and shapes.short(other) not in {name, *self._activated}
            if replaced and _single(app):
                self._deactivate(other)
                _stop(self._of(other))
        self._say("", "ContainerAppReady", "Running state reached for the latest revision")

    def _deactivate(self, revision: Body) -> None:
        revision["properties"]["active"] = False
        if shapes.short(revision) in self._activated:
            self._activated.remove(shapes.short(revision))

    def _scale(self, revision: Body) -> None:
        """Do as KEDA does, whose clock begins when a replica is scheduled, not when it is ready."""
        mine, scale = self._of(revision), shapes.scale_of(revision)
        wanted = self._wanted(revision, mine)
        target = max(scale.least, wanted)
        allowed = scale.cooldown_seconds * self._sub.knobs.cooldown_scale
        idle = [one for one in mine if time.monotonic() - one.active_since >= allowed]
        if len(mine) < target:
            if not mine and wanted:
                self._keda(revision, "Activated", "Scaled", "0 to 1")
            self.start(revision, target - len(mine))
        elif not target and mine and len(idle) == len(mine):
            self._keda(revision, "Deactivated", "Deactivated", f"{len(mine)} to 0")
            if shapes.short(revision) not in self._proven:
                self._given_up.append(shapes.short(revision))
            _stop(mine)
        elif len(mine) > max(target, 1):
            _stop(idle[:1])

    def _wanted(self, revision: Body, mine: list[Running]) -> int:
        """Say how many replicas the requests of this moment need."""
        scale, serving = shapes.scale_of(revision), self.serving
        here = serving is not None and shapes.short(serving) == shapes.short(revision)
        held = self.waiting if here else 0
        for replica in mine if held else ():
            replica.active_since = time.monotonic()
        asked = sum(one.requests for one in mine) + held
        return min(scale.most, math.ceil(asked / scale.concurrent))

    def _keda(self, revision: Body, reason: str, verb: str, change: str) -> None:
        name = shapes.short(revision)
        words = f"{verb} apps/v1.Deployment k8se-apps/{name} from {change}"
        self._say(name, f"KEDAScaleTarget{reason}", words)

    def _say(self, revision: str, reason: str, words: str) -> None:
        app = self.app
        if app is not None:
            environment = shapes.environment_of(app)
            name = shapes.short(app)
            self._sub.append("system", name, revision, "", words, reason, environment=environment)

    def _of(self, revision: Body) -> list[Running]:
        name = shapes.short(revision)
        return [one for one in self._replicas if one.revision == name and not one.is_over]

    def _revisions(self) -> list[Body]:
        return shapes.revisions_of(self._sub, self.app_id)

    def _latest_ready(self) -> str:
        app = self.app or {"properties": {}}
        return str(app["properties"].get("latestReadyRevisionName") or "")


def _active(revision: Body) -> bool:
    return bool(revision["properties"].get("active"))


def _single(app: Body) -> bool:
    mode = (app["properties"].get("configuration") or {}).get("activeRevisionsMode")
    return mode in {None, "Single"}


def _stop(replicas: list[Running]) -> None:
    for replica in replicas:
        replica.stop()
