"""What runs for apps: their replicas and their front doors, begun when they are first needed."""

import time
from dataclasses import dataclass

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_scaling import Fleet
from emulators.azure.fleet_shapes import Body
from emulators.azure.frontdoor import open_app
from emulators.azure.state import Subscription, World
from emulators.common.doors import Door


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
