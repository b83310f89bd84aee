"""Queued resources: in gRPC v2, and in REST v2alpha1 for what v2 cannot express."""

import functools
import json
import re
import tomllib
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import grpc.aio
from google.cloud.tpu_v2.types import (
    CreateQueuedResourceRequest,
    DeleteQueuedResourceRequest,
    GetQueuedResourceRequest,
    ListQueuedResourcesRequest,
    ListQueuedResourcesResponse,
    OperationMetadata,
    QueuedResource,
    QueuedResourceState,
    ResetQueuedResourceRequest,
)
from google.longrunning.operations_pb2 import Operation
from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.google import serving, tpu_nodes, tpu_zones
from simulators.google.serving import (
    Injected,
    Refused,
    add,
    disabled,
    invalid,
    not_found,
    not_permitted,
    page_of,
    take_fault,
    unary,
)
from simulators.google.state import Project, TpuLife, World
from simulators.google.tpu_nodes import Initiator, Queued, QueuedState
from simulators.google.tpu_zones import API, SERVICE, full, listed_zones, named, zone_in, zone_of
from simulators.google.vm import Vm

MOST: Final = 1000
"""Of a page. Google's is not documented."""
_DELETABLE: Final = frozenset(
    {
        QueuedState.CREATING,
        QueuedState.ACCEPTED,
        QueuedState.WAITING_FOR_RESOURCES,
        QueuedState.FAILED,
        QueuedState.SUSPENDED,
    }
)
"""Without force."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them; there are no permissions of their own, those of nodes count."""
    many = ListQueuedResourcesResponse
    methods = {
        "CreateQueuedResource": unary(
            CreateQueuedResourceRequest, Operation, _create_queue, "tpu.nodes.create"
        ),
        "GetQueuedResource": unary(
            GetQueuedResourceRequest, QueuedResource, _get_queue, "tpu.nodes.get"
        ),
        "ListQueuedResources": unary(
            ListQueuedResourcesRequest, many, _list_queue, "tpu.nodes.list"
        ),
        "DeleteQueuedResource": unary(
            DeleteQueuedResourceRequest, Operation, _delete_queue, "tpu.nodes.delete"
        ),
        "ResetQueuedResource": unary(
            ResetQueuedResourceRequest, Operation, _reset, "tpu.nodes.reset"
        ),
    }
    add(server, world, SERVICE, methods, api=API)


def resume(world: World) -> None:
    """Go on with what an earlier process began; VMs that were up boot again."""
    for project in world:
        for name in tuple(project.queued_resources):
            tpu_nodes.queued_watch(Queued(world, project, name))
        for name, node in project.nodes.items():
            if node.state == tpu_nodes.NodeState.READY:
                tpu_nodes.boot(world, project, name)
            tpu_nodes.node_watch(world, project, name)


async def forget(world: World, project: Project) -> None:
    """End the VMs of a project that is known no more, of either control plane."""
    mine = [one for key, one in world.live.items() if key.startswith(f"{project.id}/")]
    vms = [one for one in mine if isinstance(one, Vm)]
    for one in vms:
        one.end(at_once=True)
    for one in vms:
        await one.ended.wait()


def preempt(world: World, project: Project, zone: str, tpu_id: str) -> bool:
    """Take the chips of a queued resource, or of a node, back; False if it has none.

    `tpu_id` is the id of either.
    """
    name = full(project, zone, "queuedResources", tpu_id)
    node = project.nodes.get(full(project, zone, "nodes", tpu_id))
    if node and node.queued_resource:
        name = node.queued_resource
    if name in project.queued_resources:
        queued = Queued(world, project, name)
        if queued.state in {QueuedState.PROVISIONING, QueuedState.ACTIVE}:
            tpu_nodes.suspend(queued, Initiator.SERVICE)
            return True
        return False
    return node is not None and tpu_nodes.preempt(world, project, node.name)


def create(
    world: World,
    project: Project,
    request: CreateQueuedResourceRequest,
    *,
    more: Mapping[str, Any] | None = None,
    version: str = "v2",
) -> Operation:
    """Queue a request; `more` is what v2alpha1 alone can say.

    Raises:
        Refused: As Google says it.
    """
    zone = zone_in(request.parent)
    queued_id = request.queued_resource_id or f"qr-{uuid.uuid4().hex[:12]}"
    name = full(project, zone, "queuedResources", queued_id)
    again = _same_call(project, name, request.request_id)
    if again:
        return again
    resource, more = _fresh(name, request.queued_resource), more or {}
    tpu_nodes.check(project, zone, queued_id, resource)
    tpu_nodes.check_more(project, resource, more)
    if name in project.queued_resources:
        raise tpu_zones.exists(name)
    provisioning = tpu_nodes.provisioning_of(resource, more)
    accelerator = tpu_nodes.accelerator_of(resource.tpu.node_spec[0].node)
    tpu_nodes.check_quota(project, zone, provisioning, tpu_zones.chips_of(accelerator))
    row = tpu_zones.asked(project, "queued", zone, queued_id, accelerator, provisioning)
    operation = tpu_zones.begin(project, "create", name, version)
    project.queued_resources[name] = resource
    project.queued_more[name] = dict(more)
    project.tpu_lives[name] = _begun(row.asked, operation, request.request_id, version)
    tpu_nodes.queued_watch(Queued(world, project, name))
    return operation


def _begun(since: float, operation: Operation, request_id: str, version: str) -> TpuLife:
    return TpuLife(
        since=since,
        operations=[operation.name],
        request_id=request_id,
        created_by=operation.name,
        served_by=version,
    )


def delete(
    world: World, project: Project, request: DeleteQueuedResourceRequest, *, version: str = "v2"
) -> Operation:
    """Delete one, with its node by force.

    Raises:
        Refused: There is none, it is being deleted, or it has a node and is not forced.
    """
    queued = Queued(world, project, found(project, request.name).name)
    state = queued.state
    if state == QueuedState.DELETING:
        raise tpu_zones.wrong_state("delete", state.name)
    if not request.force and state not in _DELETABLE:
        raise Refused(
            "FAILED_PRECONDITION",
            f"Queued resource in state {state.name} cannot be deleted: delete its nodes first, or"
            f" set force. {tpu_zones.eid()}",
        )
    tpu_nodes.delete(queued)
    operation = tpu_zones.begin(project, "delete", queued.name, version)
    queued.life.operations.append(operation.name)
    return operation


def found(project: Project, name: str) -> QueuedResource:
    """Find one by its name.

    Raises:
        Refused: There is none.
    """
    known: QueuedResource | None = project.queued_resources.get(
        named(project, name, "queuedResources")
    )
    if known is None:
        raise not_found("Resource", name)
    return known


def listed(project: Project, parent: str) -> list[QueuedResource]:
    """Give those of a zone, or of all.

    Raises:
        Refused: There is no such zone.
    """
    zones = listed_zones(project, parent)
    return [one for name, one in sorted(project.queued_resources.items()) if zone_of(name) in zones]


def _same_call(project: Project, name: str, request_id: str) -> Operation | None:
    """Give what an earlier call with the same id began."""
    known = project.tpu_lives.get(name)
    if not request_id or known is None or known.request_id != request_id:
        return None
    operation: Operation | None = project.operations.get(known.created_by)
    return operation


def _fresh(name: str, asked: QueuedResource) -> QueuedResource:
    """Give it without what only Google sets."""
    resource = QueuedResource(asked)
    resource.name, resource.create_time = name, tpu_zones.now()
    resource.state = QueuedResourceState(state=QueuedState.CREATING)
    return resource


async def _create_queue(
    world: World, project: Project, request: CreateQueuedResourceRequest
) -> Operation:
    return create(world, project, request)


async def _get_queue(
    _world: World, project: Project, request: GetQueuedResourceRequest
) -> QueuedResource:
    return found(project, request.name)


async def _list_queue(
    _world: World, project: Project, request: ListQueuedResourcesRequest
) -> ListQueuedResourcesResponse:
    rows = listed(project, request.parent)
    page, token = page_of(rows, request.page_size, request.page_token, most=MOST)
    return ListQueuedResourcesResponse(queued_resources=page, next_page_token=token)


async def _delete_queue(
    world: World, project: Project, request: DeleteQueuedResourceRequest
) -> Operation:
    return delete(world, project, request)


async def _reset(world: World, project: Project, request: ResetQueuedResourceRequest) -> Operation:
    """Boot its VM again; nothing but ACTIVE can be reset. Source: public reports of 2026."""
    queued = Queued(world, project, found(project, request.name).name)
    if queued.state != QueuedState.ACTIVE:
        raise tpu_zones.wrong_state("reset", queued.state.name)
    operation = tpu_zones.begin(project, "reset", queued.name)
    tpu_nodes.turn(world, project, queued.node_name, tpu_nodes.NodeState.RESTARTING, operation)
    return operation


_FILE: Final = Path(__file__).with_name("v2alpha1.toml")
_KINDS: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int}
_WORDS: Final[Mapping[str, re.Pattern[str]]] = {
    "int64": re.compile(r"^-?[0-9]+$"),
    "duration": re.compile(r"^-?[0-9]+(\.[0-9]{1,9})?s$"),
    "datetime": re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"),
}
_OUT: Final = "out"
_TIERS: Final = ("bestEffort", "guaranteed", "spot")
_ROOT: Final = "queued_resource"


@functools.cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Give the fields of every schema with their types."""
    return tomllib.loads(_FILE.read_text("utf-8"))


def check(body: Any) -> None:
    """Judge the body of a queued resource.

    Stricter than Google, which overlooks what only it sets: such a field is refused.

    Raises:
        Refused: A field is unknown, a value is of another type, or none of its words.
    """
    _object("QueuedResource", body, _ROOT)
    if len([tier for tier in _TIERS if tier in body]) > 1:
        raise _invalid_payload(f"Only one of {', '.join(_TIERS)} can be set at '{_ROOT}'.")


def _object(schema: str, body: Any, at: str) -> None:
    if not isinstance(body, dict):
        raise _mistyped(at, schema, body)
    known = shapes()[schema]
    for name, value in body.items():
        if name not in known:
            raise _invalid_payload(f"Unknown name \"{name}\" at '{at}': Cannot find field.")
        if known[name] == _OUT:
            raise invalid(f"The field '{at}.{_snake(name)}' is output only.")
        _value(known[name], value, f"{at}.{_snake(name)}")


def _value(kind: Any, value: Any, at: str) -> None:
    if isinstance(kind, list):
        if value not in kind:
            raise _mistyped(at, "TYPE_ENUM", value)
    elif kind.startswith(("[", "{")):
        _several(kind, value, at)
    elif kind in _WORDS:
        if not _WORDS[kind].match(_a(str, value, at)):
            raise _mistyped(at, kind, value)
    elif kind in _KINDS:
        _a(_KINDS[kind], value, at)
    else:
        _object(kind, value, at)


def _several(kind: str, value: Any, at: str) -> None:
    if kind.startswith("["):
        items = list(enumerate(_a(list, value, at)))
    else:
        items = list(_a(dict, value, at).items())
    for key, one in items:
        _value(kind[1:-1], one, f"{at}[{key}]")


def _a(kind: type, value: Any, at: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _mistyped(at, kind.__name__, value)
    return value


def _mistyped(at: str, kind: str, value: Any) -> Refused:
    return invalid(f"Invalid value at '{at}' ({kind}), {value!r:.80}")


def _invalid_payload(told: str) -> Refused:
    return invalid(f"Invalid JSON payload received. {told}")


def _snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name).lower()


_TYPES: Final = "type.googleapis.com/google.cloud.tpu.v2alpha1"
_OWN: Final = ("provisioningModel", "runDuration")
"""Fields of a queued resource that v2 does not have."""
_DISK: Final = "bootDiskConfig"
"""The same of a node."""


def read(body: dict[str, Any]) -> tuple[QueuedResource, dict[str, Any]]:
    """Give what v2 knows of a body that was judged, and what it does not.

    Raises:
        Refused: It holds what the simulated API does not serve, or what cannot be read.
    """
    specs = body.get("tpu", {}).get("nodeSpec", [])
    if "bestEffort" in body or any("multiNodeParams" in one for one in specs):
        raise invalid("Neither the best effort tier nor multi-node requests are available.")
    resource = QueuedResource()
    try:
        json_format.ParseDict(body, QueuedResource.pb(resource), ignore_unknown_fields=True)
    except json_format.ParseError as exc:
        raise invalid(f"Invalid JSON payload received. {exc}") from exc
    more: dict[str, Any] = {name: body[name] for name in _OWN if name in body}
    for one in specs:
        if _DISK in one.get("node", {}):
            more[_DISK] = one["node"][_DISK]
    return resource, more


def resource(project: Project, kept: QueuedResource) -> dict[str, Any]:
    """Give a queued resource."""
    told = _plain(QueuedResource, kept)
    more = project.queued_more.get(kept.name, {})
    told |= {name: more[name] for name in _OWN if name in more}
    if _DISK in more:
        told["tpu"]["nodeSpec"][0]["node"][_DISK] = more[_DISK]
    return told


def operation(project: Project, kept: Operation) -> dict[str, Any]:
    """Give an operation."""
    about = tpu_zones.metadata_of(kept)
    metadata = {"@type": f"{_TYPES}.OperationMetadata", **_plain(OperationMetadata, about)}
    told: dict[str, Any] = {"name": kept.name, "metadata": metadata}
    if not kept.done:
        return told
    told["done"] = True
    if kept.HasField("error"):
        told["error"] = json_format.MessageToDict(kept.error)
        return told
    known = project.queued_resources.get(about.target)
    answer = resource(project, known) if known else {"name": about.target}
    told["response"] = {"@type": f"{_TYPES}.QueuedResource", **answer}
    return told


def _plain(kind: Any, message: Any) -> dict[str, Any]:
    told: dict[str, Any] = json_format.MessageToDict(kind.pb(message))
    return told


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
        Served("POST", _MANY, "CreateQueuedResource", "tpu.nodes.create", create, _create_alpha),
        Served("GET", _MANY, "ListQueuedResources", "tpu.nodes.list", pages, _list_alpha),
        Served("GET", _ONE, "GetQueuedResource", "tpu.nodes.get", frozenset(), _get_alpha),
        Served(
            "DELETE",
            _ONE,
            "DeleteQueuedResource",
            "tpu.nodes.delete",
            frozenset({"force", "requestId"}),
            _delete_alpha,
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
            return serving.of(refused)
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
    return serving.of(fault.refusal)


async def _create_alpha(call: Call) -> dict[str, Any]:
    body = _body(call.sent)
    check(body)
    resource, more = read(body)
    request = CreateQueuedResourceRequest(
        parent=call.path.rpartition("/")[0],
        queued_resource_id=call.query.get("queuedResourceId", ""),
        queued_resource=resource,
        request_id=call.query.get("requestId", ""),
    )
    begun = create(call.world, call.project, request, more=more, version="v2alpha1")
    return operation(call.project, begun)


async def _list_alpha(call: Call) -> dict[str, Any]:
    rows = listed(call.project, call.path.rpartition("/")[0])
    size, token = _number(call.query.get("pageSize", "0")), call.query.get("pageToken", "")
    page, following = page_of(rows, size, token, most=MOST)
    told: dict[str, Any] = {}
    if page:
        told["queuedResources"] = [resource(call.project, one) for one in page]
    return told | ({"nextPageToken": following} if following else {})


async def _get_alpha(call: Call) -> dict[str, Any]:
    return resource(call.project, found(call.project, call.path))


async def _delete_alpha(call: Call) -> dict[str, Any]:
    force = call.query.get("force", "false")
    if force not in {"true", "false"}:
        raise invalid(f"Invalid value at 'force' (TYPE_BOOL), \"{force}\"")
    request = DeleteQueuedResourceRequest(name=call.path, force=force == "true")
    begun = delete(call.world, call.project, request, version="v2alpha1")
    return operation(call.project, begun)


async def _operation(call: Call) -> dict[str, Any]:
    _projects, _number, rest = call.path.split("/", 2)
    found = call.project.operations.get(f"projects/{call.project.id}/{rest}")
    if found is None:
        raise not_found("Operation", call.path)
    return operation(call.project, found)


def _body(sent: bytes) -> Any:
    try:
        return json.loads(sent or b"{}")
    except ValueError as exc:
        raise invalid(f"Invalid JSON payload received. {exc}") from exc


def _number(text: str) -> int:
    if not text.isdecimal():
        raise invalid(f"Invalid value at 'page_size' (TYPE_INT32), \"{text}\"")
    return int(text)
