"""Everything of Compute Engine that the plane serves."""

from collections.abc import Sequence

from starlette.routing import BaseRoute

from emulators.google.compute import catalog, firewalls, instances, lives, operations, reading
from emulators.google.compute.lives import forget as forget  # noqa: PLC0414  said here too
from emulators.google.compute.lives import preempt as preempt  # noqa: PLC0414  said here too
from emulators.google.state import World


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve compute/v1."""
    parts = (instances, reading, operations, firewalls, catalog)
    return [route for part in parts for route in part.routes(world)]


def resume(world: World) -> None:
    """Go on with what an earlier process began."""
    lives.resume(world)
    firewalls.resume(world)
