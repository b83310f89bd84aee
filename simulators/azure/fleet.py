"""What runs for apps: as many replicas as scaling asks for, and the ingress before them."""

import ipaddress
import math
import time
from collections.abc import Sequence
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

from simulators.azure.ground import APP, environment_of
from simulators.azure.replicas import Running, ingress_of, is_stopped, revisions_of, scale_of
from simulators.azure.state import Body, Replica, Subscription, World
from simulators.common.doors import Host, TurnedAway, open_door

_RHYTHM_SECONDS: Final = 0.05
_GONE: Final = """<!DOCTYPE html>
<html>
<head><title>Azure Container App - Unavailable</title></head>
<body bgcolor="#00abec">
<h1 id="unavailable">Error 404 - This Container App is stopped or does not exist.</h1>
</body>
</html>
"""
"""The title and the sentence are Azure's."""


def _running_state(revision: Body, rows: list[Replica], *, on: bool) -> dict[str, Any]:
    """Return what a revision says of its living replicas; `on` is that it may have some."""

    def told(state: str, health: str, details: str = "") -> dict[str, Any]:
        return {"runningState": state, "healthState": health, "runningStateDetails": details}

    proven, given_up = revision.get("proven"), revision.get("given_up")
    ready, restarts = sum(one.ready for one in rows), max((one.restarts for one in rows), default=0)
    if not on:
        return {"runningState": "Stopped", "runningStateDetails": ""}
    if ready and any(one.restarts and not one.ready for one in rows):
        return told("Degraded", "Unhealthy", f"{ready}/{len(rows)} replicas ready.")
    if ready:
        full = ready >= scale_of(revision).most
        return told("RunningAtMaxScale" if full else "Running", "Healthy")
    if (restarts > 1 and not proven) or (not rows and given_up):
        words = f"Deployment Progress Deadline Exceeded. 0/{len(rows) or 1} replicas ready."
        return told("ActivationFailed", "Unhealthy", words)
    if restarts:
        return told("Degraded", "Unhealthy", "Container crashing.")
    if proven and not rows:
        return told("ScaledToZero", "Healthy")
    waiting = next((one.details for one in rows if one.assigned is None), "")
    waiting = "" if waiting == "AssigningReplica" else waiting
    return told("Processing" if proven else "Activating", "None", waiting)


class Fleet(Host):
    """All replicas of one app; what it asks for is looked up whenever it is needed.

    A revision is `proven` once it was ready, `given_up` when it was scaled to none before that,
    and `activated` when somebody asked for it, so that no newer one replaces it.
    """

    late = "stream timeout"

    def __init__(self, world: World, sub: Subscription, app_id: str) -> None:
        self._world = world
        self._sub = sub
        self.app_id: Final = app_id.lower()
        self._replicas: list[Running] = []
        self.waiting = 0
        """Requests that are held until a replica has room."""
        self.closed = False
        self.door: Final = open_door(world.tasks, self, sub.doors.get(self.app_id, 0))
        sub.doors[self.app_id] = self.door.port

    @property
    def app(self) -> Body | None:
        """The app as it is now."""
        return self._sub.get(self.app_id)

    @property
    def serving(self) -> Body | None:
        """The revision that requests are for: the newest that was ready, else the newest."""
        app = self.app or {"properties": {}}
        active = [one for one in self._revisions() if one["properties"]["active"]]
        proven = [one for one in active if one.get("proven")]
        latest = app["properties"].get("latestReadyRevisionName")
        found = [one for one in proven if one["name"] == latest] or proven or active
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
        revision["properties"]["active"] = True
        revision["given_up"] = False
        revision["activated"] = asked_for or revision.get("activated", False)
        self.start(revision, max(1, scale_of(revision).least) - len(self._of(revision)))

    def revive(self, lost: set[str]) -> None:
        """Start what ought to be there: what is always there, was lost, or was never ready."""
        app = self.app
        if app is None or is_stopped(app):
            return
        for revision in self._revisions():
            coming = not revision.get("proven") and not revision.get("given_up")
            if revision["properties"]["active"]:
                least = scale_of(revision).least
                self.start(revision, max(least, int(coming or revision["name"] in lost)))

    async def cease(self, revision: Body) -> None:
        """End a revision's replicas; it has none until it is active again."""
        self._deactivate(revision)
        await self.end(revision)

    def free(self) -> Running | None:
        """Return the replica that has most room for a request."""
        revision = self.serving
        ready = [one for one in self._of(revision) if one.row.ready] if revision else []
        return min(ready, key=lambda one: one.requests, default=None)

    async def keep(self) -> None:
        """Go on until the app is gone."""
        while not self.closed:
            self._replicas = [one for one in self._replicas if not one.ended.is_set()]
            self._settle()
            await anyio.sleep(_RHYTHM_SECONDS)

    async def end(self, revision: Body | None = None, *, at_once: bool = False) -> None:
        """End the replicas of a revision, or all."""
        chosen = list(self._replicas if revision is None else self._of(revision))
        for replica in chosen:
            replica.stop(at_once=at_once)
        for replica in chosen:
            await replica.ended.wait()
        self._settle()

    async def close(self, *, at_once: bool = False) -> None:
        """End everything for good: replicas, and then the door."""
        self.closed = True
        await self.end(at_once=at_once)
        self.door.close()

    def admit(self, request: Request) -> float:
        name = self.app_id.rpartition("/")[2]
        self._sub.called(f"{request.method} app/{name}{request.url.path}")
        self._check()
        return self._sub.knobs.gateway_seconds

    def _check(self) -> None:
        app = self.app
        ingress = ingress_of(app) if app else None
        open_to_all = ingress and ingress.get("external") and not self.closed
        if not (app and ingress and open_to_all) or is_stopped(app) or not self.serving:
            raise TurnedAway(HTMLResponse(_GONE, status_code=404))
        rules = ingress.get("ipSecurityRestrictions") or []
        if not _lets_in(rules, self._sub.knobs.caller_address):
            raise TurnedAway(PlainTextResponse("RBAC: access denied", status_code=403))

    async def instance(self) -> Running:
        """Wait for a replica with room; the fleet sees that somebody waits."""
        self.waiting += 1
        try:
            while True:
                self._check()
                if found := self.free():
                    found.begin_request()
                    return found
                await anyio.sleep(0.02)
        finally:
            self.waiting -= 1

    def say(self, reason: str, words: str, revision: str = "") -> None:
        """Write an event of the system about the app."""
        if app := self.app:
            more = {"revision": revision, "environment": environment_of(app)}
            self._sub.write("system", words, app=app["name"], reason=reason, **more)

    def _settle(self) -> None:
        app, news = self.app, False
        if app is None:
            return
        for revision in self._revisions():
            properties = revision["properties"]
            if properties["active"] and not is_stopped(app) and not self.closed:
                self._prove(app, revision)
                self._scale(revision)
            on = properties["active"] and not is_stopped(app)
            told = _running_state(revision, self._sub.living(self.app_id, revision["name"]), on=on)
            news |= any(properties.get(key) != value for key, value in told.items())
            properties |= told
        if news:
            self._world.keep(self._sub)

    def _prove(self, app: Body, revision: Body) -> None:
        """See whether a revision is ready for the first time: it then replaces the one before."""
        name = revision["name"]
        if revision.get("proven") or not any(one.row.ready for one in self._of(revision)):
            return
        revision["proven"] = True
        self.say("RevisionReady", f"Successfully provisioned revision '{name}'", name)
        if name != app["properties"].get("latestRevisionName"):
            return
        app["properties"]["latestReadyRevisionName"] = name
        single = app["properties"]["configuration"]["activeRevisionsMode"] == "Single"
        for other in self._revisions():
            replaced = other["properties"]["active"] and not other.get("activated")
            if replaced and single and other["name"] != name:
                self._deactivate(other)
                _stop(self._of(other))
        self.say("ContainerAppReady", "Running state reached for the latest revision")

    def _deactivate(self, revision: Body) -> None:
        revision["properties"]["active"] = revision["activated"] = False

    def _scale(self, revision: Body) -> None:
        """Do as KEDA does, whose clock begins when a replica is scheduled, not when it is ready."""
        mine, scale, name = self._of(revision), scale_of(revision), revision["name"]
        wanted = self._wanted(revision, mine)
        target = max(scale.least, wanted)
        allowed = scale.cooldown_seconds * self._sub.knobs.cooldown_scale
        idle = [one for one in mine if time.monotonic() - one.active_since >= allowed]
        words = f"apps/v1.Deployment k8se-apps/{name} from"
        if len(mine) < target:
            if not mine and wanted:
                self.say("KEDAScaleTargetActivated", f"Scaled {words} 0 to 1", name)
            self.start(revision, target - len(mine))
        elif not target and mine and len(idle) == len(mine):
            told = f"Deactivated {words} {len(mine)} to 0"
            self.say("KEDAScaleTargetDeactivated", told, name)
            revision["given_up"] = not revision.get("proven")
            _stop(mine)
        elif len(mine) > max(target, 1):
            _stop(idle[:1])

    def _wanted(self, revision: Body, mine: list[Running]) -> int:
        """Return how many replicas the requests of this moment need."""
        scale, serving = scale_of(revision), self.serving
        held = self.waiting if serving and serving["name"] == revision["name"] else 0
        timed = scale.timed(self._sub.now)
        for replica in mine if held or timed else ():
            replica.active_since = time.monotonic()
        asked = sum(one.requests for one in mine) + held
        return min(scale.most, max(timed, math.ceil(asked / scale.concurrent)))

    def _of(self, revision: Body) -> list[Running]:
        name = revision["name"]
        return [one for one in self._replicas if one.revision == name and not one.is_over]

    def _revisions(self) -> list[Body]:
        return revisions_of(self._sub, self.app_id)


def _stop(replicas: list[Running]) -> None:
    for replica in replicas:
        replica.stop()


def _lets_in(rules: Sequence[Body], address: str) -> bool:
    """Return whether the ingress lets an address in; its rules are all of one action."""
    caller = ipaddress.ip_address(address)
    within = any(
        caller in ipaddress.ip_network(rule["ipAddressRange"], strict=False) for rule in rules
    )
    return not rules or within == (rules[0]["action"] == "Allow")


def fleet_of(world: World, sub: Subscription, app: Body) -> Fleet:
    """Return what runs for an app, which listens where it did before if that is still free."""
    app_id = str(app["id"]).lower()
    found: Fleet | None = world.live.get(app_id)
    if found is None:
        found = world.live[app_id] = Fleet(world, sub, app_id)
        world.tasks.start_soon(found.keep)
    return found


def address(world: World, sub: Subscription, app: Body) -> str:
    """Return an app's name in the network: `127.0.0.1:PORT`, the same as long as it is there."""
    return f"127.0.0.1:{fleet_of(world, sub, app).door.port}"


async def remove(world: World, sub: Subscription, app: Body) -> None:
    """End whatever runs for an app that is deleted; whoever looks meanwhile begins nothing anew."""
    app_id = str(app["id"]).lower()
    found: Fleet | None = world.live.get(app_id)
    if found:
        await found.close()
        world.live.pop(app_id)
    sub.doors.pop(app_id, None)


async def forget(world: World, sub: Subscription) -> None:
    """End whatever runs in a subscription, at once."""
    for app_id in [one for one in world.live if one.startswith(f"/subscriptions/{sub.id}/")]:
        await world.live.pop(app_id).close(at_once=True)


def resume(world: World) -> None:
    """Bring back what ran when the process before this one ended."""
    for sub in world:
        lost = sub.living()
        for row in lost:
            row.ended, row.ready, row.state = time.time(), False, "NotRunning"
        for app in sub.of_type(APP):
            fleet = fleet_of(world, sub, app)
            fleet.revive({row.revision for row in lost if row.app == fleet.app_id})
