"""REST v2alpha1 of the TPU API: the queued resources that v2 cannot express."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
from google.cloud.tpu_v2.types import CreateQueuedResourceRequest, DeleteQueuedResourceRequest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google import answering
from emulators.google.faults import Injected, disabled, take_fault
from emulators.google.paging import page_of
from emulators.google.refusing import Refused, invalid, not_found, not_permitted
from emulators.google.state import Project, World
from emulators.google.tpu import alpha_shapes, alpha_told, queue
from emulators.google.tpu.catalog import API

_SERVICE: Final = "google.cloud.tpu.v2alpha1.Tpu"
_PARENT: Final = "/v2alpha1/projects/{project}/locations/{zone}"
_MANY: Final = f"{_PARENT}/queuedResources"
_ONE: Final = f"{_MANY}/{{id}}"
_ANY_QUERY: Final = frozenset({"alt", "$alt", "prettyPrint", "fields", "key", "quotaUser"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was admitted."""

    world: World
    project: Project
    path: str
    """Of the resource: projects/P/locations/Z and what follows."""
    query: dict[str, str]
    sent: bytes


Answer = Callable[[Call], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Served:
    """One method."""

    verb: str
    path: str
    name: str
    permission: str
    query: frozenset[str]
    """Parameters that it knows."""
    answer: Answer


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve queued resources and their operations."""
    create = frozenset({"queuedResourceId", "requestId"})
    pages = frozenset({"pageSize", "pageToken"})
    served = (
        Served("POST", _MANY, "CreateQueuedResource", "tpu.nodes.create", create, _create),
        Served("GET", _MANY, "ListQueuedResources", "tpu.nodes.list", pages, _list),
        Served("GET", _ONE, "GetQueuedResource", "tpu.nodes.get", frozenset(), _get),
        Served(
            "DELETE",
            _ONE,
            "DeleteQueuedResource",
            "tpu.nodes.delete",
            frozenset({"force", "requestId"}),
            _delete,
        ),
        Served(
            "GET",
            f"{_PARENT}/operations/{{id}}",
            "GetOperation",
            "tpu.operations.get",
            frozenset(),
            _operation,
        ),
    )
    return [Route(one.path, _handler(world, one), methods=[one.verb]) for one in served]


def _handler(world: World, served: Served) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params["project"])
        name = f"{_SERVICE}/{served.name}"
        project.called(name)
        fault = take_fault(project, name)
        if fault and fault.when in {"before", "hang"}:
            return await _failed(fault)
        try:
            reply = await _answered(world, project, served, request)
        except Refused as refused:
            return answering.of(refused)
        return await _failed(fault) if fault else reply

    return handle


async def _answered(world: World, project: Project, served: Served, request: Request) -> Response:
    if API not in project.apis:
        raise disabled(project, API)
    path = request.url.path.removeprefix("/v2alpha1/")
    if project.denies(served.permission):
        raise not_permitted(served.permission, path)
    for name in request.query_params:
        if name not in served.query | _ANY_QUERY:
            raise invalid(
                f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query'
                " parameter. Field 'x' could not be found in request message."
            )
    call = Call(world, project, path, dict(request.query_params), await request.body())
    told = await served.answer(call)
    if served.verb != "GET":
        world.keep(project)
    return JSONResponse(told)


async def _failed(fault: Injected) -> Response:
    if fault.when.startswith("hang"):
        await anyio.sleep_forever()
    return answering.of(fault.refusal)


async def _create(call: Call) -> dict[str, Any]:
    body = _body(call.sent)
    alpha_shapes.check(body)
    resource, more = alpha_told.read(body)
    request = CreateQueuedResourceRequest(
        parent=call.path.rpartition("/")[0],
        queued_resource_id=call.query.get("queuedResourceId", ""),
        queued_resource=resource,
        request_id=call.query.get("requestId", ""),
    )
    begun = queue.create(call.world, call.project, request, more=more, version="v2alpha1")
    return alpha_told.operation(call.project, begun)


async def _list(call: Call) -> dict[str, Any]:
    rows = queue.listed(call.project, call.path.rpartition("/")[0])
    size, token = _number(call.query.get("pageSize", "0")), call.query.get("pageToken", "")
    page, following = page_of(rows, size, token, most=queue.MOST)
    told: dict[str, Any] = {}
    if page:
        told["queuedResources"] = [alpha_told.resource(call.project, one) for one in page]
    return told | ({"nextPageToken": following} if following else {})


async def _get(call: Call) -> dict[str, Any]:
    return alpha_told.resource(call.project, queue.found(call.project, call.path))


async def _delete(call: Call) -> dict[str, Any]:
    force = call.query.get("force", "false")
    if force not in {"true", "false"}:
        raise invalid(f"Invalid value at 'force' (TYPE_BOOL), \"{force}\"")
    request = DeleteQueuedResourceRequest(name=call.path, force=force == "true")
    begun = queue.delete(call.world, call.project, request, version="v2alpha1")
    return alpha_told.operation(call.project, begun)


async def _operation(call: Call) -> dict[str, Any]:
    _projects, _number, rest = call.path.split("/", 2)
    found = call.project.operations.get(f"projects/{call.project.id}/{rest}")
    if found is None:
        raise not_found("Operation", call.path)
    return alpha_told.operation(call.project, found)


def _body(sent: bytes) -> Any:
    try:
        return json.loads(sent or b"{}")
    except ValueError as exc:
        raise invalid(f"Invalid JSON payload received. {exc}") from exc


def _number(text: str) -> int:
    if not text.isdecimal():
        raise invalid(f"Invalid value at 'page_size' (TYPE_INT32), \"{text}\"")
    return int(text)
