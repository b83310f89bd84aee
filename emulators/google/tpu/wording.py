"""How the TPU API says no; source: public reports of 2026, word by word where they are quoted."""

import uuid
from typing import Final

from google.rpc.error_details_pb2 import QuotaFailure

from emulators.google.refusing import Refused, invalid
from emulators.google.state import Project
from emulators.google.tpu import capacity

_BAD: Final = "Cloud TPU received a bad request."
QUOTA_IDS: Final = {"tpu": "TPUV6E", "tpu-preemptible": "TPUV6EPreemptible"}
"""How a pool's quotas begin."""


def eid() -> str:
    """Give the id of an error that Google can look up."""
    return f"[EID: 0x{uuid.uuid4().hex[:16]}]"


def bad(told: str) -> Refused:
    """Refuse what a request asks for."""
    return invalid(f"{_BAD} {told} {eid()}")


def no_zone(zone: str) -> Refused:
    """The API does not serve that zone."""
    return bad(f'The requested zone "{zone}" is not supported.')


def spot_by_another_name(model: str) -> Refused:
    """Spot was asked for beside another provisioning model; public reports, 2026-02 to 2026-08."""
    return invalid(f"{model} provisioning model is incompatible with spot requests")


def no_hardware(zone: str, accelerator: str) -> Refused:
    """The zone has no such chips."""
    return bad(
        f'The requested accelerator configuration for accelerator type, "{accelerator}", could not'
        f' be found in the zonal accelerator configurations for "{zone}".; the accelerator'
        f" {accelerator} was not found in zone {zone}"
    )


def over_quota(project: Project, pool: str, zone: str) -> Refused:
    """More chips than a pool allows."""
    said, region = project.knobs.tpu_quotas, zone.rpartition("-")[0]
    by_region = f"{pool}@{region}" in said and f"{pool}@{zone}" not in said
    kind, where = ("Region", f"region {region}") if by_region else ("Zone", f"zone {zone}")
    quota = f"{QUOTA_IDS[pool]}PerProjectPer{kind}ForTPUAPI"
    limit = capacity.limit_of(project, pool, zone)
    told = f"Quota limit '{quota}' has been exceeded. Limit: {limit} in {where}."
    violation = QuotaFailure.Violation(subject=f"project:{project.id}", description=told)
    return Refused("RESOURCE_EXHAUSTED", told, details=[QuotaFailure(violations=[violation])])


def no_flex(zone: str, accelerator: str) -> Refused:
    """The zone does not give such chips by flex-start; told in the operation."""
    return invalid(
        f'FLEX_START provisioning model is not supported for accelerator type "{accelerator}" in'
        f' location "{zone}"'
    )


def no_capacity(zone: str) -> Refused:
    """All chips are taken; told in the operation of a node, never of a queued resource."""
    return Refused(
        "RESOURCE_EXHAUSTED",
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud'
        " TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) " + eid(),
    )


def no_reservation() -> Refused:
    """Nothing is reserved here."""
    return Refused(
        "FAILED_PRECONDITION",
        "Insufficient reserved capacity. Contact customer support to increase your reservation. "
        + eid(),
    )


def exists(name: str) -> Refused:
    """The id is taken."""
    return Refused("ALREADY_EXISTS", f"Resource '{name}' already exists")


def node_exists(node_id: str) -> Refused:
    """The id of the node is taken: a queued resource fails of it."""
    return Refused("ALREADY_EXISTS", f"already_exists: node '{node_id}' already exists")


def too_late() -> Refused:
    """Its time in the queue is over; Google's wording is not known."""
    return Refused(
        "DEADLINE_EXCEEDED",
        "The queued resource could not be provisioned within its valid until constraint.",
    )


def wrong_state(verb: str, state: str) -> Refused:
    """Not now."""
    return Refused("FAILED_PRECONDITION", f"{_BAD} {verb} is not supported while in state {state}.")
