"""Revisions of a service: made from its template, looked at, deleted."""

import secrets
import string
import uuid
from typing import Final

import grpc.aio
from google.cloud.run_v2.types import (
    DeleteRevisionRequest,
    GetRevisionRequest,
    ListRevisionsRequest,
    ListRevisionsResponse,
    Revision,
    Service,
)
from google.longrunning.operations_pb2 import Operation

from emulators.google import conditions
from emulators.google.operations import new_name, opened, succeeded
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid
from emulators.google.run_shapes import moment
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

_LETTERS: Final = string.ascii_lowercase + string.digits
_COPIED: Final = (
    "labels",
    "annotations",
    "scaling",
    "vpc_access",
    "timeout",
    "service_account",
    "containers",
    "volumes",
    "execution_environment",
    "max_instance_request_concurrency",
    "session_affinity",
    "node_selector",
    "gpu_zonal_redundancy_disabled",
)
"""Fields that a revision has of its template."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve google.cloud.run.v2.Revisions."""
    methods = {
        "GetRevision": unary(GetRevisionRequest, Revision, _get, "run.revisions.get"),
        "ListRevisions": unary(
            ListRevisionsRequest, ListRevisionsResponse, _list, "run.revisions.list"
        ),
        "DeleteRevision": unary(DeleteRevisionRequest, Operation, _delete, "run.revisions.delete"),
    }
    add(server, world, "google.cloud.run.v2.Revisions", methods, api="run.googleapis.com")


def made(project: Project, service: Service) -> Revision:
    """Make the revision of a service's template as it is now.

    Raises:
        Refused: The template names a revision that there is already.
    """
    short = service.template.revision or _fresh_name(service)
    name = f"{service.name}/revisions/{short}"
    if name in project.revisions:
        raise Refused("ALREADY_EXISTS", f"Revision named '{short}' already exists.")
    now = moment()
    revision = Revision(
        name=name,
        uid=str(uuid.uuid4()),
        generation=1,
        service=service.name.rpartition("/")[2],
        create_time=now,
        update_time=now,
        creator=service.last_modifier,
    )
    for field in _COPIED:
        setattr(revision, field, getattr(service.template, field))
    conditions.deploy(revision)
    project.revisions[name] = revision
    return revision


def _fresh_name(service: Service) -> str:
    ending = "".join(secrets.choice(_LETTERS) for _ in range(3))
    return f"{service.name.rpartition('/')[2]}-{service.generation:05d}-{ending}"


async def _get(_world: World, project: Project, request: GetRevisionRequest) -> Revision:
    return _found(project, request.name)


async def _list(
    _world: World, project: Project, request: ListRevisionsRequest
) -> ListRevisionsResponse:
    prefix = f"{_by_id(project, request.parent)}/"
    if request.parent.endswith("/services/-"):
        prefix = prefix.removesuffix("-/")
    rows = [one for name, one in project.revisions.items() if name.startswith(prefix)]
    page, token = page_of(rows[::-1], request.page_size, request.page_token, most=100)
    return ListRevisionsResponse(revisions=page, next_page_token=token)


async def _delete(_world: World, project: Project, request: DeleteRevisionRequest) -> Operation:
    revision = _found(project, request.name)
    service_name = revision.name.partition("/revisions/")[0]
    service: Service = project.services[service_name]
    if revision.name in {service.latest_ready_revision, service.latest_created_revision}:
        raise Refused("FAILED_PRECONDITION", "Cannot delete the latest revision of a service.")
    operation = opened(project, new_name(project, request.name.split("/")[3]), revision)
    if not request.validate_only:
        project.revisions.pop(revision.name)
    return succeeded(operation, revision)


def _found(project: Project, name: str) -> Revision:
    parts = name.split("/")
    if len(parts) != 8:
        raise invalid(f"Invalid resource name '{name}'.")
    revision: Revision | None = project.revisions.get(_by_id(project, name))
    if revision is None:
        raise Refused(
            "NOT_FOUND",
            f"Resource '{parts[7]}' of kind 'REVISION' in region '{parts[3]}' in project"
            f" '{project.id}' does not exist.",
        )
    return revision


def _by_id(project: Project, name: str) -> str:
    """Let a name that has the project's number have its id."""
    rest = name.split("/", 2)
    return f"projects/{project.id}/{rest[2]}" if len(rest) == 3 else name
