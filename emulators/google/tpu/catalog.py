"""What the TPU API says of its zones: which there are, their accelerators and VM images."""

from collections.abc import Callable, Sequence
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
    RuntimeVersion,
)

from emulators.google import filters
from emulators.google.paging import page_of
from emulators.google.refusing import invalid, not_found
from emulators.google.serving import add, unary
from emulators.google.state import Project, World
from emulators.google.tpu import capacity
from emulators.google.tpu.paths import full, listed_zones, named, no_location, short_of, zone_of

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
    if capacity.zone_of(project, zone) is None:
        raise no_location(zone)
    return _told_location(project, zone)


def _accelerators(project: Project, zone: str) -> Sequence[str]:
    known = capacity.zone_of(project, zone)
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

    def judged(row: Any) -> bool:
        fields = {"type": kind(row), "version": kind(row), "name": row.name}

        def judge(one: filters.Comparison) -> bool:
            if one.field not in fields:
                raise filters.BadFilter(f"unknown field {one.field}")
            return filters.compared(one.operator, fields[one.field], one.value.strip('"'))

        return filters.holds(node, judge)

    try:
        node = filters.parse(asked)
        return [row for row in rows if judged(row)]
    except filters.BadFilter as exc:
        raise invalid(f"Invalid list filter: {exc}") from exc
