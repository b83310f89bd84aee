"""Names of what is in a zone: projects/P/locations/ZONE/nodes/ID and their like."""

import re
from typing import Final

from emulators.google.refusing import Refused, invalid
from emulators.google.state import Project
from emulators.google.tpu import capacity

EVERYWHERE: Final = "-"
"""In place of a zone: all of them."""
_PARENT: Final = re.compile(r"^projects/[^/]+/locations/(?P<zone>[a-z0-9-]+)$")
_NAME: Final = re.compile(r"^projects/[^/]+/locations/([a-z0-9-]+)/([A-Za-z]+)/([^/]+)$")


def full(project: Project, zone: str, collection: str, short: str) -> str:
    """Give a full name.

    >>> full(Project(id="p", number="1"), "us-east5-b", "nodes", "n")
    'projects/p/locations/us-east5-b/nodes/n'
    """
    return f"projects/{project.id}/locations/{zone}/{collection}/{short}"


def zone_in(parent: str) -> str:
    """Give the zone of a parent, whether there is such a zone or not.

    Raises:
        Refused: It is no parent.
    """
    found = _PARENT.match(parent)
    if found is None:
        raise invalid(f"Invalid parent '{parent}': projects/*/locations/* is expected.")
    return found["zone"]


def listed_zones(project: Project, parent: str) -> tuple[str, ...]:
    """Give the zones that a list is asked of.

    Raises:
        Refused: There is no such zone.
    """
    zone = zone_in(parent)
    if zone == EVERYWHERE:
        return tuple(sorted(project.knobs.tpu_zones or capacity.ZONES))
    if capacity.zone_of(project, zone) is None:
        raise no_location(zone)
    return (zone,)


def named(project: Project, name: str, collection: str) -> str:
    """Give a full name with the project's id in place of its number.

    Raises:
        Refused: It is no such name, or there is no such zone.
    """
    found = _NAME.match(name)
    if found is None or found.group(2) != collection:
        raise invalid(f"Invalid resource name '{name}'.")
    zone, _, short = found.groups()
    if capacity.zone_of(project, zone) is None:
        raise no_location(zone)
    return full(project, zone, collection, short)


def zone_of(name: str) -> str:
    """Give the zone of a full name.

    >>> zone_of("projects/p/locations/us-east5-b/nodes/n")
    'us-east5-b'
    """
    return name.split("/")[3]


def short_of(name: str) -> str:
    """Give the id of a full name."""
    return name.rpartition("/")[2]


def no_location(zone: str) -> Refused:
    """Say that a project has nothing to do with a zone."""
    return Refused("PERMISSION_DENIED", f"Location {zone} is not found or access is unauthorized.")
