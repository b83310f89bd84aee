"""Service Usage v1: which APIs a project has enabled."""

import re
import uuid
from collections.abc import Collection
from typing import Final

import anyio
import grpc.aio
from google.cloud.service_usage_v1.types import (
    BatchEnableServicesRequest,
    BatchEnableServicesResponse,
    BatchGetServicesRequest,
    BatchGetServicesResponse,
    EnableServiceRequest,
    EnableServiceResponse,
    GetServiceRequest,
    ListServicesRequest,
    ListServicesResponse,
    OperationMetadata,
    Service,
    ServiceConfig,
    State,
)
from google.longrunning.operations_pb2 import Operation

from emulators.google import operations
from emulators.google.faults import ALWAYS_ENABLED
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid
from emulators.google.serving import add, unary
from emulators.google.state import Project, World

MOST_AT_ONCE: Final = 20
"""Services that one call enables. Source: the documentation of BatchEnableServicesRequest."""
_MOST_READ: Final = 30
ENABLING_SECONDS: Final = 0.2
"""In reality about ten."""
KNOWN: Final = frozenset(
    f"{name}.googleapis.com"
    for name in (
        *("aiplatform", "artifactregistry", "cloudbuild", "cloudquotas", "cloudresourcemanager"),
        *("compute", "containerregistry", "container", "iam", "iamcredentials", "iap", "logging"),
        *("monitoring", "networkmanagement", "networkservices", "pubsub", "run", "secretmanager"),
        *("servicenetworking", "serviceusage", "storage", "storage-api", "storage-component"),
        *("sts", "tpu", "vpcaccess", "cloudbilling", "cloudapis", "cloudtrace", "dns"),
    )
)
"""Those that can be enabled here; another is refused as one that does not exist."""
_NAME: Final = re.compile(r"^projects/[^/]+/services/(?P<id>[^/]+)$")


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "BatchEnableServices": unary(
            BatchEnableServicesRequest, Operation, _batch_enable, _may("enable")
        ),
        "EnableService": unary(EnableServiceRequest, Operation, _enable, _may("enable")),
        "BatchGetServices": unary(
            BatchGetServicesRequest, BatchGetServicesResponse, _batch_get, _may("get")
        ),
        "GetService": unary(GetServiceRequest, Service, _get, _may("get")),
        "ListServices": unary(ListServicesRequest, ListServicesResponse, _list, _may("list")),
    }
    add(
        server,
        world,
        "google.api.serviceusage.v1.ServiceUsage",
        methods,
        api="serviceusage.googleapis.com",
    )


def _may(what: str) -> str:
    return f"serviceusage.services.{what}"


async def _batch_enable(
    world: World, project: Project, request: BatchEnableServicesRequest
) -> Operation:
    wanted = list(request.service_ids)
    if not 0 < len(wanted) <= MOST_AT_ONCE:
        raise invalid(f"Between 1 and {MOST_AT_ONCE} services can be enabled at once.")
    _all_known(wanted)
    missing = set(wanted) - project.apis

    async def work() -> BatchEnableServicesResponse:
        if missing:
            await anyio.sleep(ENABLING_SECONDS)
        project.apis |= missing
        return BatchEnableServicesResponse(services=[_told(project, one) for one in wanted])

    return operations.begun(
        world, project, _operation_name(project), work, metadata=_metadata(project, wanted)
    )


async def _enable(world: World, project: Project, request: EnableServiceRequest) -> Operation:
    wanted = _id(request.name)
    _all_known([wanted])

    async def work() -> EnableServiceResponse:
        await anyio.sleep(ENABLING_SECONDS)
        project.apis.add(wanted)
        return EnableServiceResponse(service=_told(project, wanted))

    return operations.begun(
        world, project, _operation_name(project), work, metadata=_metadata(project, [wanted])
    )


async def _batch_get(
    _world: World, project: Project, request: BatchGetServicesRequest
) -> BatchGetServicesResponse:
    if not 0 < len(request.names) <= _MOST_READ:
        raise invalid(f"Between 1 and {_MOST_READ} services can be read at once.")
    wanted = [_id(name) for name in request.names]
    _all_known(wanted)
    return BatchGetServicesResponse(services=[_told(project, one) for one in wanted])


async def _get(_world: World, project: Project, request: GetServiceRequest) -> Service:
    wanted = _id(request.name)
    _all_known([wanted])
    return _told(project, wanted)


async def _list(
    _world: World, project: Project, request: ListServicesRequest
) -> ListServicesResponse:
    if request.filter not in {"", "state:ENABLED", "state:DISABLED"}:
        raise invalid(f"Invalid filter: {request.filter}")
    told = [_told(project, one) for one in sorted(KNOWN)]
    state = request.filter.rpartition(":")[2]
    rows = [one for one in told if state in {"", one.state.name}]
    page, token = page_of(rows, request.page_size, request.page_token, most=200, usual=50)
    return ListServicesResponse(services=page, next_page_token=token)


def _id(name: str) -> str:
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"The service name {name} is not valid.")
    return found["id"]


def _all_known(wanted: Collection[str]) -> None:
    unknown = sorted(set(wanted) - KNOWN)
    if unknown:
        raise Refused(
            "PERMISSION_DENIED",
            f"Not found or permission denied for service(s): {', '.join(unknown)}.",
            reason="SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED",
            domain="serviceusage.googleapis.com",
            metadata={"services": ",".join(unknown)},
        )


def _told(project: Project, api: str) -> Service:
    on = api in project.apis | ALWAYS_ENABLED
    return Service(
        name=f"projects/{project.number}/services/{api}",
        parent=f"projects/{project.number}",
        config=ServiceConfig(name=api),
        state=State.ENABLED if on else State.DISABLED,
    )


def _operation_name(project: Project) -> str:
    return f"operations/acf.{uuid.uuid4().hex}-{project.number}"


def _metadata(project: Project, wanted: Collection[str]) -> OperationMetadata:
    names = [f"projects/{project.number}/services/{one}" for one in wanted]
    return OperationMetadata(resource_names=names)
