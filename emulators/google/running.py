"""What runs for a service: its instances and its URL; both begin when they are first needed."""

from dataclasses import dataclass

from google.cloud.run_v2.types import Service

from emulators.common.doors import Door
from emulators.google.fleet import Fleet
from emulators.google.frontdoor import open_service
from emulators.google.state import Project, World


@dataclass(slots=True)
class Running:
    """One service that is there."""

    fleet: Fleet
    door: Door

    async def close(self, *, at_once: bool = False) -> None:
        """End instances and URL."""
        await self.fleet.close(at_once=at_once)
        self.door.close()


def running(world: World, project: Project, service: Service) -> Running:
    """Give what runs for a service that is there."""
    found: Running | None = world.live.get(service.name)
    if found is None:
        fleet = Fleet(world, project, service)
        door = open_service(world, project, fleet, service.uri)
        service.uri = door.url
        service.urls = [door.url]
        found = world.live[service.name] = Running(fleet, door)
        world.tasks.start_soon(fleet.keep)
    return found
