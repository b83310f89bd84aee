"""Which zones and regions a project sees."""

from emulators.google.state import Project
from emulators.google.tpu.capacity import ZONES


def zone_names(project: Project) -> tuple[str, ...]:
    """Name every zone that there is, in their order."""
    return tuple(sorted(project.knobs.tpu_zones or ZONES))


def region_of(zone: str) -> str:
    """Give a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]
