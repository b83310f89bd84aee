"""A target opened without any I/O."""

from functools import cache
from pathlib import Path

from backends.base import World
from backends.tpu.clients import Clients
from backends.tpu.compute import ComputePlane
from backends.tpu.inventory import Inventory
from backends.tpu.queued import QueuedPlane
from backends.tpu.site import Site
from core.records import Target


def opened(target: Target, world: World) -> Site:
    """Give the site of a target."""
    clients = Clients(target, world)
    return Site(
        target=target,
        settings=world.settings,
        clients=clients,
        planes={"queued": QueuedPlane(clients), "compute": ComputePlane(clients)},
        folder=world.folder / "tpu" / target.name,
        shared=world.folder / "tpu",
        inventory=_inventory(world.folder, world.settings.google_cloud_project),
    )


@cache
def _inventory(_folder: Path, _project: str | None) -> Inventory:
    return Inventory()
