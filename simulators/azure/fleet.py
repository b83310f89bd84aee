"""What runs for apps: as many replicas as scaling asks for, and the ingress before them."""

import ipaddress
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from simulators.azure import replicas as shapes
from simulators.azure.replicas import Body, Running
from simulators.azure.state import Replica, Subscription, World
from simulators.common.doors import Answer, Door, TurnedAway, open_door, pass_on

_LATE: Final = "Deployment Progress Deadline Exceeded."
_ASSIGNING: Final = "AssigningReplica"


def tell(revision: Body, rows: list[Replica], *, proven: bool, given_up: bool, on: bool) -> bool:
    """Write what a revision's living replicas are doing into its body; whether that is news.

    Args:
        revision: Its body.
        rows: The replicas that are there.
        proven: Whether it was ready once.
        given_up: Whether it was scaled to none before that.
        on: Whether it is active, and its app not stopped.
    """
    told = {"replicas": len(rows), "runningStateDetails": ""}
    if not on:
        told |= {"runningState": "Stopped"}
    elif any(one.ready for one in rows):
        told |= _running(revision, rows)
    elif rows:
        told |= _coming(rows, proven=proven)
    elif given_up:
        told |= _late(0, 1)
    elif proven:
        told |= {"runningState": "ScaledToZero", "healthState": "Healthy"}
    else:
        told |= {"runningState": "Activating", "healthState": "None"}
    properties = revision["properties"]
    news = any(properties.get(key) != value for key, value in told.items())
    properties |= told
    return news


def _running(revision: Body, rows: list[Replica]) -> dict[str, Any]:
    ready = sum(one.ready for one in rows)
    if any(one.restarts and not one.ready for one in rows):
        details = f"{ready}/{len(rows)} replicas ready."
        return {
            "runningState": "Degraded",
            "healthState": "Unhealthy",
            "runningStateDetails": details,
        }
    full = ready >= shapes.scale_of(revision).most
    return {"runningState": "RunningAtMaxScale" if full else "Running", "healthState": "Healthy"}


def _coming(rows: list[Replica], *, proven: bool) -> dict[str, Any]:
    """Say what none of the replicas being ready means."""
    restarts = max(one.restarts for one in rows)
    if restarts > 1 and not proven:
        return _late(0, len(rows))
    if restarts:
        return {
            "runningState": "Degraded",
            "healthState": "Unhealthy",
            "runningStateDetails": "Container crashing.",
        }
    waiting = next((one.details for one in rows if one.assigned is None), "")
    return {
        "runningState": "Processing" if proven else "Activating",
        "healthState": "None",
        "runningStateDetails": "" if waiting == _ASSIGNING else waiting,
    }


def _late(ready: int, wanted: int) -> dict[str, Any]:
    return {
        "runningState": "ActivationFailed",
        "healthState": "Unhealthy",
        "runningStateDetails": f"{_LATE} {ready}/{wanted} replicas ready.",
    }


def replica_body(world: World, revision: Body, row: Replica) -> Body:
    """Give a replica as ARM does."""
    names = [str(one.get("name", "")) for one in shapes.template_of(revision)["containers"]]
    return {
        "id": f"{revision['id']}/replicas/{row.name}",
        "name": row.name,
        "type": "Microsoft.App/containerApps/revisions/replicas",
        "properties": {
            "createdTime": _moment(row.created),
            "runningState": row.state,
            "runningStateDetails": row.details,
            "containers": [_container(world, revision, row, name) for name in names],
            "initContainers": [],
        },
    }


def _container(world: World, revision: Body, row: Replica, name: str) -> dict[str, Any]:
    running = row.state == "Running"
    path = f"{revision['id']}/replicas/{row.name}/containers/{name}".replace(
        "/providers/Microsoft.App", ""
    )
    reason = row.details if row.details == "CrashLoopBackOff" else "ContainerCreating"
    return {
        "name": name,
        "containerId": f"containerd://{row.name}" if row.assigned else "",
        "ready": row.ready,
        "started": row.started,
        "restartCount": row.restarts,
        "runningState": "Running" if running else "Waiting",
        "runningStateDetails": "" if running else f"Container is waiting with reason: {reason}",
        "logStreamEndpoint": f"{world.urls.http}{path}/logstream",
        "execEndpoint": f"{world.urls.http}{path}/exec".replace("http://", "ws://"),
    }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


_FLEET_SCALING_RHYTHM_SECONDS: Final = 0.05
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
            await anyio.sleep(_FLEET_SCALING_RHYTHM_SECONDS)

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


_FRONTDOOR_RHYTHM_SECONDS: Final = 0.02
_TIMED_OUT: Final = "stream timeout"
_FORBIDDEN: Final = "RBAC: access denied"
_ALLOW: Final = "Allow"
_GONE: Final = """<!DOCTYPE html>
<html>
<head><title>Azure Container App - Unavailable</title></head>
<body bgcolor="#00abec">
<h1 id="unavailable">Error 404 - This Container App is stopped or does not exist.</h1>
</body>
</html>
"""
"""The title and the sentence are Azure's."""


def open_app(world: World, sub: Subscription, fleet: Fleet, port: int = 0) -> Door:
    """Listen for an app; where it did before, if that is still free."""
    return open_door(world.tasks, _Host(world, sub, fleet), port)


class _Host:
    """Answers for one app."""

    def __init__(self, world: World, sub: Subscription, fleet: Fleet) -> None:
        self._world = world
        self._sub = sub
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._world.touch()
        request, answer = Request(scope, receive), Answer(send)
        name = self._fleet.app_id.rpartition("/")[2]
        self._sub.called(f"{request.method} app/{name}{request.url.path}")
        try:
            self._admit()
            with anyio.fail_after(self._sub.knobs.gateway_seconds):
                body = await request.body()
                replica = await self._replica()
                try:
                    path = (
                        await replica.guard.admit(request, replica.url) if replica.guard else None
                    )
                    await pass_on(request, body, replica.url, answer, path=path)
                finally:
                    replica.gave()
                    self._world.touch()
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
        except TimeoutError:
            if not answer.begun:  # else it is cut short
                await PlainTextResponse(_TIMED_OUT, status_code=504)(scope, receive, send)
        except ClientDisconnect:
            return

    def _admit(self) -> None:
        app = self._fleet.app
        ingress = shapes.ingress_of(app) if app else None
        if app is None or ingress is None or not ingress.get("external") or self._fleet.closed:
            raise TurnedAway(HTMLResponse(_GONE, status_code=404))
        if shapes.is_stopped(app) or self._fleet.serving is None:
            raise TurnedAway(HTMLResponse(_GONE, status_code=404))
        if not allowed(ingress.get("ipSecurityRestrictions") or [], self._sub.knobs.caller_address):
            raise TurnedAway(PlainTextResponse(_FORBIDDEN, status_code=403))

    async def _replica(self) -> Running:
        """Wait for a replica with room; the fleet sees that somebody waits."""
        self._fleet.waiting += 1
        try:
            while True:
                self._admit()
                found = self._fleet.free()
                if found:
                    found.took()
                    return found
                await anyio.sleep(_FRONTDOOR_RHYTHM_SECONDS)
        finally:
            self._fleet.waiting -= 1


def allowed(rules: Sequence[dict[str, Any]], address: str) -> bool:
    """Whether the ingress lets an address in; its rules are all of one action."""
    if not rules:
        return True
    caller = ipaddress.ip_address(address)
    within = any(
        caller in ipaddress.ip_network(rule["ipAddressRange"], strict=False) for rule in rules
    )
    allows: bool = rules[0]["action"] == _ALLOW
    return within == allows


@dataclass(slots=True)
class Live:
    """What runs for one app that is there."""

    fleet: Fleet
    door: Door

    async def close(self, *, at_once: bool = False) -> None:
        """End replicas and door."""
        await self.fleet.close(at_once=at_once)
        self.door.close()


def running(world: World, sub: Subscription, app: Body) -> Live:
    """Give what runs for an app; `app` needs no more than its id."""
    app_id = str(app["id"]).lower()
    found: Live | None = world.live.get(app_id)
    if found is None:
        fleet = Fleet(world, sub, app_id)
        door = open_app(world, sub, fleet, sub.doors.get(app_id, 0))
        sub.doors[app_id] = door.port
        found = world.live[app_id] = Live(fleet, door)
        world.tasks.start_soon(fleet.keep)
    return found


def address(world: World, sub: Subscription, app: Body) -> str:
    """Give an app's name in the network: `127.0.0.1:PORT`, the same as long as it is there."""
    return f"127.0.0.1:{running(world, sub, app).door.port}"


async def stop(world: World, sub: Subscription, app: Body) -> None:
    """End every replica of an app; its `runningStatus` says already that it is stopped."""
    live = running(world, sub, app)
    name, environment = shapes.short(app), shapes.environment_of(app)
    words = f"Stopping container app '{name}'"
    sub.append("system", name, "", "", words, "ContainerAppStopping", environment=environment)
    await live.fleet.end()


async def start(world: World, sub: Subscription, app: Body) -> None:
    """Let an app that is no longer stopped scale by itself; what was never ready boots."""
    fleet = running(world, sub, app).fleet
    name, environment = shapes.short(app), shapes.environment_of(app)
    words = f"Starting container app '{name}'"
    sub.append("system", name, "", "", words, "ContainerAppStarting", environment=environment)
    fleet.revive()


async def remove(world: World, sub: Subscription, app: Body) -> None:
    """End whatever runs for an app that is deleted; whoever looks meanwhile begins nothing anew."""
    app_id = str(app["id"]).lower()
    found: Live | None = world.live.get(app_id)
    if found:
        await found.close()
        world.live.pop(app_id)
    sub.doors.pop(app_id, None)


async def forget(world: World, sub: Subscription) -> None:
    """End whatever runs in a subscription, at once."""
    for app_id in [one for one in world.live if one.startswith(f"/subscriptions/{sub.id}/")]:
        await world.live.pop(app_id).close(at_once=True)


async def activate(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """Let a revision be there: it boots once, and stays as long as its scaling wants it to."""
    running(world, sub, app).fleet.begin(revision, asked_for=True)


async def deactivate(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """End a revision's replicas; it starts none until it is active again."""
    await running(world, sub, app).fleet.cease(revision)


async def restart(world: World, sub: Subscription, app: Body, revision: Body) -> None:
    """Put new replicas in place of a revision's."""
    await running(world, sub, app).fleet.renew(revision)


def resume(world: World) -> None:
    """Bring back what ran when the process before this one ended."""
    for sub in world:
        lost = sub.living()
        for row in lost:
            row.ended, row.ready, row.state = time.time(), False, "NotRunning"
        for app in sub.of_type("Microsoft.App/containerApps"):
            fleet = running(world, sub, app).fleet
            fleet.revive({row.revision for row in lost if row.app == fleet.app_id})
