"""Cloud Build v1: builds begun, found again, cancelled."""

import base64
import uuid
from typing import Any, Final

import grpc.aio
from google.cloud.devtools.cloudbuild_v1.types import (
    Build,
    BuildOperationMetadata,
    CancelBuildRequest,
    CreateBuildRequest,
    GetBuildRequest,
    ListBuildsRequest,
    ListBuildsResponse,
)
from google.longrunning.operations_pb2 import Operation

from emulators.google import building, filters, operations
from emulators.google.build_rules import checked
from emulators.google.filters import BadFilter, Comparison
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid
from emulators.google.secret_names import created_now
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_GLOBAL: Final = "global"


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "CreateBuild": unary(CreateBuildRequest, Operation, _create, _may("create")),
        "GetBuild": unary(GetBuildRequest, Build, _get, _may("get")),
        "ListBuilds": unary(ListBuildsRequest, ListBuildsResponse, _list, _may("list")),
        "CancelBuild": unary(CancelBuildRequest, Build, _cancel, _may("update")),
    }
    api = "cloudbuild.googleapis.com"
    add(server, world, "google.devtools.cloudbuild.v1.CloudBuild", methods, api=api)


def resume(world: World) -> None:
    """Go on with what an earlier process did not finish."""
    for project in world:
        for build in building.unfinished(list(project.builds.values())):
            operation = _operation(project, build)
            world.tasks.start_soon(building.run, world, project, build, operation)


def _may(what: str) -> str:
    return f"cloudbuild.builds.{what}"


async def _create(world: World, project: Project, request: CreateBuildRequest) -> Operation:
    build_id = str(uuid.uuid4())
    location = _location(request.parent)
    build = checked(project, request.build, build_id, location)
    build.id, build.project_id = build_id, project.id
    build.name = f"projects/{project.number}/locations/{location}/builds/{build_id}"
    queued: Any = Build.Status.QUEUED
    build.status, build.create_time = queued, created_now()
    build.log_url = f"https://console.cloud.google.com/cloud-build/builds/{build_id}"
    project.builds[build_id] = build
    metadata = BuildOperationMetadata(build=build)
    operation = operations.opened(project, _operation_name(project, build), metadata)
    begun = Operation()
    begun.CopyFrom(operation)
    world.tasks.start_soon(building.run, world, project, build, operation)
    return begun


async def _get(_world: World, project: Project, request: GetBuildRequest) -> Build:
    return _found(project, request.name or request.id)


async def _list(_world: World, project: Project, request: ListBuildsRequest) -> ListBuildsResponse:
    location = _location(request.parent)
    try:
        node = filters.parse(request.filter)
        for one in filters.comparisons(node):
            _judge(one, Build())
        rows = [
            build
            for build in reversed(project.builds.values())
            if f"/locations/{location}/" in build.name
            and filters.holds(node, lambda one, build=build: _judge(one, build))  # type: ignore[misc]  # bound for the loop
        ]
    except BadFilter as exc:
        raise invalid(str(exc)) from exc
    page, token = page_of(rows, request.page_size, request.page_token, most=1000, usual=50)
    return ListBuildsResponse(builds=page, next_page_token=token)


async def _cancel(_world: World, project: Project, request: CancelBuildRequest) -> Build:
    build = _found(project, request.name or request.id)
    if not building.unfinished([build]):
        raise Refused("FAILED_PRECONDITION", f"build {build.id} has already finished")
    building.cancel(project, build, _operation(project, build))
    return build


def _judge(one: Comparison, build: Build) -> bool:
    if one.field == "tags":
        return (one.value in build.tags) == (one.operator in {"=", ":"})
    if one.field in {"id", "build_id"}:
        return filters.ordered(one.operator, build.id, one.value)
    if one.field == "status":
        return filters.ordered(one.operator, build.status.name, one.value)
    raise BadFilter(f"invalid list filter: {one.field!r} is not supported")


def _found(project: Project, name: str) -> Build:
    build_id = name.rpartition("/")[2]
    found: Build | None = project.builds.get(build_id)
    if found is None:
        raise Refused("NOT_FOUND", f"build {build_id} not found")
    return found


def _location(parent: str) -> str:
    parts = parent.split("/")
    return parts[3] if len(parts) == 4 and parts[2] == "locations" else _GLOBAL


def _operation(project: Project, build: Build) -> Operation:
    found: Operation = project.operations[_operation_name(project, build)]
    return found


def _operation_name(project: Project, build: Build) -> str:
    told = base64.urlsafe_b64encode(build.id.encode()).decode().rstrip("=")
    return f"operations/build/{project.id}/{told}"
