"""What zones have of TPUs, and who holds which of their chips and quotas."""

import time
from collections.abc import Mapping
from typing import Final

from simulators.google.state import Project, Tpu, TpuZone

ZONES: Final[Mapping[str, TpuZone]] = {
    "us-east5-b": TpuZone(),
    "us-east5-a": TpuZone(),
    "europe-west4-a": TpuZone(),
    "us-east1-d": TpuZone(accepts=("on-demand", "spot")),
    "us-central1-b": TpuZone(accepts=("on-demand", "spot")),
    "southamerica-west1-a": TpuZone(),
    "us-south1-a": TpuZone(accelerators=()),
}
"""Where no knob says otherwise; flex-start where it was accepted by public reports of 2026-08. One
has chips that Google's documentation of TPU zones does not name; Google's API does."""
_USUAL: Final[Mapping[str, int]] = {
    "tpu": 16,
    "tpu-preemptible": 16,
    "compute": 32,
    "compute-preemptible": 1536,
}
"""Chips that a project may have, by pool; source: readings of Cloud Quotas in public reports."""


def capacity_zone(project: Project, zone: str) -> TpuZone | None:
    """Give what a zone is like; None for one that there is not."""
    return (project.knobs.tpu_zones or ZONES).get(zone)


def chips_of(accelerator: str) -> int:
    """Give the number of chips of v6e-4 or ct6e-standard-4t.

    >>> chips_of("v6e-4"), chips_of("ct6e-standard-8t")
    (4, 8)
    """
    return int(accelerator.rpartition("-")[2].removesuffix("t"))


def pool_of(plane: str, provisioning: str) -> str:
    """Name the pool of quota that a chip is counted in: spot and flex-start are preemptible."""
    base = "tpu" if plane == "queued" else "compute"
    return base if provisioning == "on-demand" else f"{base}-preemptible"


def limit_of(project: Project, pool: str, zone: str) -> int:
    """Give how many chips a pool allows in a zone or its region."""
    said, region = project.knobs.tpu_quotas, zone.rpartition("-")[0]
    for key in (f"{pool}@{zone}", f"{pool}@{region}", pool):
        if key in said:
            return said[key]
    return _USUAL[pool]


def in_use(project: Project, pool: str, zone: str) -> int:
    """Count the chips of a pool: leftovers hold theirs until they are deleted.

    The TPU API counts by zone, Compute Engine by region.
    """
    wide = pool.startswith("compute")
    where = zone.rpartition("-")[0] if wide else zone
    return sum(
        one.chips
        for one in project.tpus.values()
        if pool_of(one.plane, one.provisioning) == pool
        and (one.zone.rpartition("-")[0] if wide else one.zone) == where
    )


def exceeded(project: Project, plane: str, provisioning: str, zone: str, chips: int) -> str:
    """Give the pool that does not allow so many more chips; empty if it does."""
    pool = pool_of(plane, provisioning)
    enough = in_use(project, pool, zone) + chips <= limit_of(project, pool, zone)
    return "" if enough else pool


def free(project: Project, zone: str) -> int:
    """Count the chips that are free in a zone now."""
    known = capacity_zone(project, zone)
    given = sum(one.chips for one in project.tpus.values() if one.zone == zone and one.given)
    return (known.free if known else 0) - given


def asked(
    project: Project, plane: str, zone: str, tpu_id: str, accelerator: str, provisioning: str
) -> Tpu:
    """Count a request against its quota, from now until `gone`."""
    row = Tpu(
        plane=plane,
        zone=zone,
        id=tpu_id,
        chips=chips_of(accelerator),
        provisioning=provisioning,
        asked=time.time(),
    )
    project.tpus[row.key] = row
    return row


def take(project: Project, row: Tpu) -> bool:
    """Give it its chips, if so many are free and it has waited as long as the zone says."""
    known = capacity_zone(project, row.zone)
    wait = known.wait_seconds if known else 0
    waited = (time.time() - row.asked) * project.knobs.tpu_clock
    if waited < wait or free(project, row.zone) < row.chips:
        return False
    row.given = time.time()
    return True


def give_back(row: Tpu) -> None:
    """Take its chips away; its quota is held on."""
    row.given = None


def gone(project: Project, row: Tpu) -> None:
    """Count it no more."""
    project.tpus.pop(row.key, None)
