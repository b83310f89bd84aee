"""What zones have of TPUs, what they are called, and how the TPU API says no."""

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.types import (
    AcceleratorConfig,
    AcceleratorType,
    GetAcceleratorTypeRequest,
    GetRuntimeVersionRequest,
    ListAcceleratorTypesRequest,
    ListAcceleratorTypesResponse,
    ListRuntimeVersionsRequest,
    ListRuntimeVersionsResponse,
    OperationMetadata,
    RuntimeVersion,
)
from google.longrunning.operations_pb2 import Operation
from google.rpc.error_details_pb2 import QuotaFailure

from simulators.google import logging, serving
from simulators.google.serving import Refused, add, invalid, not_found, page_of, unary
from simulators.google.state import Project, Tpu, TpuZone, World

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
ALL_REGIONS: Final = "gpus-all-regions"
"""The quota of all accelerators together: at 0 a request may wait as in a stock-out. Only source: a
guide of Google's TPU Builders, 2026-07."""
_USUAL: Final[Mapping[str, int]] = {
    ALL_REGIONS: 16,
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
    if project.knobs.tpu_waits_for_gpu_quota and not limit_of(project, ALL_REGIONS, row.zone):
        return False
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
        return tuple(sorted(project.knobs.tpu_zones or ZONES))
    if capacity_zone(project, zone) is None:
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
    if capacity_zone(project, zone) is None:
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
    limit = limit_of(project, pool, zone)
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


def now() -> Any:
    """Give this moment as messages hold it."""
    return datetime.now(UTC)


def begin(project: Project, verb: str, target: str, version: str = "v2") -> Operation:
    """Begin an operation on `target`, a full name."""
    drawn = uuid.uuid4().hex
    last = f"operation-{int(time.time() * 1000)}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    name = f"projects/{project.id}/locations/{zone_of(target)}/operations/{last}"
    told = OperationMetadata(
        create_time=now(), target=target, verb=verb, api_version=version, cancel_requested=False
    )
    return serving.opened(project, name, told)


def finish(project: Project, name: str, answer: Any) -> None:
    """End an operation with a message, or with Refused."""
    operation = project.operations.get(name)
    if operation is None or operation.done:
        return
    told = metadata_of(operation)
    told.end_time = now()
    operation.metadata.Pack(OperationMetadata.pb(told))
    if isinstance(answer, Refused):
        serving.failed(operation, answer)
    else:
        serving.succeeded(operation, answer)


def metadata_of(operation: Operation) -> OperationMetadata:
    """Give what an operation tells of itself."""
    told = OperationMetadata()
    operation.metadata.Unpack(OperationMetadata.pb(told))
    return told


API: Final = "tpu.googleapis.com"
SERVICE: Final = "google.cloud.tpu.v2.Tpu"
VERSIONS: Final = (
    "tpu-ubuntu2204-base",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
)
"""Some of the real ones. Source: docs.cloud.google.com/tpu/docs/runtimes, read 2026-11."""
TOPOLOGIES: Final = {"v6e-1": "1x1", "v6e-4": "2x2", "v6e-8": "2x4"}
_MOST: Final = 1000


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them, and google.cloud.location.Locations, which no other API here has."""
    types, versions = "tpu.acceleratortypes", "tpu.runtimeversions"
    methods = {
        "ListAcceleratorTypes": unary(
            ListAcceleratorTypesRequest, ListAcceleratorTypesResponse, _types, f"{types}.list"
        ),
        "GetAcceleratorType": unary(
            GetAcceleratorTypeRequest, AcceleratorType, _type, f"{types}.get"
        ),
        "ListRuntimeVersions": unary(
            ListRuntimeVersionsRequest, ListRuntimeVersionsResponse, _versions, f"{versions}.list"
        ),
        "GetRuntimeVersion": unary(
            GetRuntimeVersionRequest, RuntimeVersion, _version, f"{versions}.get"
        ),
    }
    add(server, world, SERVICE, methods, api=API)
    listed, location = locations_pb2.ListLocationsResponse, locations_pb2.Location
    places = {
        "ListLocations": unary(
            locations_pb2.ListLocationsRequest, listed, _locations, "tpu.locations.list"
        ),
        "GetLocation": unary(
            locations_pb2.GetLocationRequest, location, _location, "tpu.locations.get"
        ),
    }
    add(server, world, "google.cloud.location.Locations", places, api=API)


async def _types(
    _world: World, project: Project, request: ListAcceleratorTypesRequest
) -> ListAcceleratorTypesResponse:
    rows = [
        _told_type(project, zone, accelerator)
        for zone in listed_zones(project, request.parent)
        for accelerator in _accelerators(project, zone)
    ]
    kept = _filtered(rows, request.filter, lambda one: one.type_)
    page, token = page_of(kept, request.page_size, request.page_token, most=_MOST)
    return ListAcceleratorTypesResponse(accelerator_types=page, next_page_token=token)


async def _type(
    _world: World, project: Project, request: GetAcceleratorTypeRequest
) -> AcceleratorType:
    name = named(project, request.name, "acceleratorTypes")
    zone, short = zone_of(name), short_of(name)
    if short not in _accelerators(project, zone):
        raise not_found("Resource", request.name)
    return _told_type(project, zone, short)


async def _versions(
    _world: World, project: Project, request: ListRuntimeVersionsRequest
) -> ListRuntimeVersionsResponse:
    rows = [
        _told_version(project, zone, version)
        for zone in listed_zones(project, request.parent)
        for version in VERSIONS
    ]
    kept = _filtered(rows, request.filter, lambda one: one.version)
    page, token = page_of(kept, request.page_size, request.page_token, most=_MOST)
    return ListRuntimeVersionsResponse(runtime_versions=page, next_page_token=token)


async def _version(
    _world: World, project: Project, request: GetRuntimeVersionRequest
) -> RuntimeVersion:
    name = named(project, request.name, "runtimeVersions")
    if short_of(name) not in VERSIONS:
        raise not_found("Resource", request.name)
    return _told_version(project, zone_of(name), short_of(name))


async def _locations(
    _world: World, project: Project, request: locations_pb2.ListLocationsRequest
) -> locations_pb2.ListLocationsResponse:
    rows = [
        _told_location(project, zone)
        for zone in listed_zones(project, f"projects/{project.id}/locations/-")
    ]
    page, token = page_of(rows, request.page_size, request.page_token, most=_MOST)
    return locations_pb2.ListLocationsResponse(locations=page, next_page_token=token)


async def _location(
    _world: World, project: Project, request: locations_pb2.GetLocationRequest
) -> locations_pb2.Location:
    zone = short_of(request.name)
    if capacity_zone(project, zone) is None:
        raise no_location(zone)
    return _told_location(project, zone)


def _accelerators(project: Project, zone: str) -> Sequence[str]:
    known = capacity_zone(project, zone)
    return known.accelerators if known else ()


def _told_type(project: Project, zone: str, accelerator: str) -> AcceleratorType:
    topology = TOPOLOGIES.get(accelerator, "")
    return AcceleratorType(
        name=full(project, zone, "acceleratorTypes", accelerator),
        type_=accelerator,
        accelerator_configs=[
            AcceleratorConfig(type_=AcceleratorConfig.Type.V6E, topology=topology)
        ],
    )


def _told_version(project: Project, zone: str, version: str) -> RuntimeVersion:
    return RuntimeVersion(name=full(project, zone, "runtimeVersions", version), version=version)


def _told_location(project: Project, zone: str) -> locations_pb2.Location:
    name = f"projects/{project.id}/locations/{zone}"
    return locations_pb2.Location(name=name, location_id=zone)


def _filtered(rows: Sequence[Any], asked: str, kind: Callable[[Any], str]) -> list[Any]:
    """Keep those that a filter such as `type="v6e-1"` means."""

    def test(field: str, how: str, values: tuple[str, ...]) -> logging.Fits[Any]:
        if field not in {"type", "version", "name"}:
            raise logging.BadFilter(f"unknown field {field}")
        return lambda row: any(
            logging.compared(how, row.name if field == "name" else kind(row), one.strip('"'))
            for one in values
        )

    try:
        return list(filter(logging.matcher(asked, test), rows))
    except logging.BadFilter as exc:
        raise invalid(f"Invalid list filter: {exc}") from exc
