"""Which zones and regions a project sees."""

from typing import Final

from emulators.google.state import Project
from emulators.google.tpu.capacity import ZONES

_OTHERS: Final = {
    "abc": (
        *("africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2"),
        *("asia-northeast3", "asia-south1", "asia-south2", "asia-southeast1", "asia-southeast2"),
        *("australia-southeast1", "australia-southeast2", "europe-central2", "europe-north1"),
        *("europe-north2", "europe-southwest1", "europe-west2", "europe-west3", "europe-west4"),
        *("europe-west6", "europe-west8", "europe-west9", "europe-west10", "europe-west12"),
        *("me-central1", "me-central2", "me-west1", "northamerica-northeast1"),
        *("northamerica-northeast2", "northamerica-south1", "southamerica-east1"),
        *("southamerica-west1", "us-east4", "us-east5", "us-south1", "us-west1", "us-west2"),
        *("us-west3", "us-west4"),
    ),
    "bcd": ("europe-west1", "us-east1"),
    "abcf": ("us-central1",),
}
"""Zones by letter, whatever they have; source: cloud.google.com/compute/docs/regions-zones (2026).
Which of them have TPUs is said in `tpu.capacity.ZONES` alone."""


def zone_names(project: Project) -> tuple[str, ...]:
    """Name every zone that there is, in their order."""
    others = {
        f"{region}-{letter}"
        for letters, regions in _OTHERS.items()
        for region in regions
        for letter in letters
    }
    return tuple(sorted({*others, *(project.knobs.tpu_zones or ZONES)}))


def region_of(zone: str) -> str:
    """Give a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]
