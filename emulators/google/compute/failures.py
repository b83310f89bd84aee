"""How an insert that was taken fails afterwards, in its operation.

Sources: public reports of 2024 to 2026 quote the stock-out and the quotas; what is said of a
provisioning model that a zone does not take is not known of Compute Engine: it is the sentence of
the TPU API here.
"""

from typing import Any, NamedTuple

from emulators.google.compute.machine import Resource, provisioning_of, zone_of
from emulators.google.compute.zones import region_of
from emulators.google.state import Project
from emulators.google.tpu.capacity import ZONES, limit_of, pool_of


class Failure(NamedTuple):
    """An operation's error."""

    status: int
    """Of HTTP."""
    code: str
    message: str
    details: dict[str, Any]


def stock_out(project: Project, vm: Resource) -> Failure:
    """Say that there are no chips left."""
    zone, machine = zone_of(vm), vm["machineType"].rpartition("/")[2]
    full = f"projects/{project.id}/zones/{zone}"
    words = (
        f"The zone '{full}' does not have enough resources available to fulfill the request."
        f"  '(resource type:compute)'. A {machine} VM instance is currently unavailable in the"
        f" {zone} zone (state:STOCKOUT, sub-state:STOCKOUT)."
    )
    others = ",".join(one for one in sorted(project.knobs.tpu_zones or ZONES) if one != zone)
    info = {
        "reason": "stockout",
        "domain": "compute.googleapis.com",
        "metadatas": {"vmType": machine, "zone": zone, "attachment": "", "zonesAvailable": others},
    }
    code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    return Failure(503, code, words, {"errorInfo": info})


def quota_exceeded(project: Project, vm: Resource) -> Failure:
    """Say that the project may not have so many."""
    zone, pool = zone_of(vm), pool_of("compute", provisioning_of(vm))
    metric = "PREEMPTIBLE_TPU_V6E" if pool.endswith("preemptible") else "TPUS_PER_TPU_FAMILY"
    limit, region = float(limit_of(project, pool, zone)), region_of(zone)
    family = {} if pool.endswith("preemptible") else {"tpu_family": "CT6E"}
    quota = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric.replace('_', '-')}-per-project-region",
        "dimensions": {"region": region, **family},
        "limit": limit,
    }
    words = f"Quota '{metric}' exceeded.  Limit: {limit} in region {region}."
    return Failure(403, "QUOTA_EXCEEDED", words, {"quotaInfo": quota})


def not_accepted(vm: Resource) -> Failure:
    """Say that the zone does not take the provisioning model."""
    model = vm["scheduling"]["provisioningModel"]
    machine = vm["machineType"].rpartition("/")[2]
    words = (
        f'{model} provisioning model is not supported for machine type "{machine}" in location'
        f' "{zone_of(vm)}"'
    )
    return Failure(400, "UNSUPPORTED_OPERATION", words, {})


def preempted_early(vm: Resource) -> Failure:
    """Say that it was taken back before it ran."""
    words = f"Instance '{vm['name']}' creation failed: it was preempted while it was created."
    return Failure(400, "UNSUPPORTED_OPERATION", words, {})


def deleted_early(vm: Resource) -> Failure:
    """Say that it was deleted before it ran; Google's own words are not known."""
    words = f"Instance '{vm['name']}' was deleted before it was running."
    return Failure(409, "RESOURCE_NOT_READY", words, {})
