"""google.cloud.tpu.v2: nodes, those of queued resources and those that nobody queued."""

import uuid
from typing import Final

import grpc.aio
from google.cloud.tpu_v2.types import (
    CreateNodeRequest,
    DeleteNodeRequest,
    GetNodeRequest,
    ListNodesRequest,
    ListNodesResponse,
    Node,
    StartNodeRequest,
    StopNodeRequest,
)
from google.longrunning.operations_pb2 import Operation

from emulators.google.paging import page_of
from emulators.google.refusing import not_found
from emulators.google.serving import add, unary
from emulators.google.state import Project, World
from emulators.google.tpu import (
    capacity,
    life,
    machines,
    node_life,
    operating,
    queue_rules,
    wording,
)
from emulators.google.tpu.catalog import API, SERVICE
from emulators.google.tpu.life import Initiator, Queued
from emulators.google.tpu.machines import State
from emulators.google.tpu.paths import full, listed_zones, named, zone_in, zone_of

_MOST: Final = 1000


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them."""
    methods = {
        "CreateNode": unary(CreateNodeRequest, Operation, _create, "tpu.nodes.create"),
        "GetNode": unary(GetNodeRequest, Node, _get, "tpu.nodes.get"),
        "ListNodes": unary(ListNodesRequest, ListNodesResponse, _list, "tpu.nodes.list"),
        "DeleteNode": unary(DeleteNodeRequest, Operation, _delete, "tpu.nodes.delete"),
        "StopNode": unary(StopNodeRequest, Operation, _stop, "tpu.nodes.stop"),
        "StartNode": unary(StartNodeRequest, Operation, _start, "tpu.nodes.start"),
    }
    add(server, world, SERVICE, methods, api=API)


async def _create(world: World, project: Project, request: CreateNodeRequest) -> Operation:
    zone = zone_in(request.parent)
    node_id = request.node_id or f"tpu-{uuid.uuid4().hex[:12]}"
    queue_rules.check_node(project, zone, node_id, request.node)
    name = full(project, zone, "nodes", node_id)
    if name in project.nodes:
        raise wording.exists(name)
    scheduling = request.node.scheduling_config
    provisioning = "spot" if scheduling.spot or scheduling.preemptible else "on-demand"
    accelerator = queue_rules.accelerator_of(request.node)
    queue_rules.check_quota(project, zone, provisioning, capacity.chips_of(accelerator))
    row_id = node_life.row_id(node_id)
    capacity.asked(project, "queued", zone, row_id, accelerator, provisioning)
    machines.make(project, name, request.node, version="v2")
    operation = operating.begin(project, "create", name)
    node_life.turn(world, project, name, State.CREATING, operation)
    return operation


async def _get(world: World, project: Project, request: GetNodeRequest) -> Node:
    return machines.told(world, project, _found(project, request.name))


async def _list(world: World, project: Project, request: ListNodesRequest) -> ListNodesResponse:
    zones = listed_zones(project, request.parent)
    rows = [one for name, one in sorted(project.nodes.items()) if zone_of(name) in zones]
    page, token = page_of(rows, request.page_size, request.page_token, most=_MOST)
    shown = [machines.told(world, project, one) for one in page]
    return ListNodesResponse(nodes=shown, next_page_token=token)


async def _delete(world: World, project: Project, request: DeleteNodeRequest) -> Operation:
    node = _found(project, request.name)
    if node.state == State.DELETING:
        raise wording.wrong_state("delete", node.state.name)
    operation = operating.begin(project, "delete", node.name)
    if node.queued_resource:
        queued = Queued(world, project, node.queued_resource)
        queued.life.operations.append(operation.name)
        if queued.state != life.State.SUSPENDING:
            life.suspend(queued, Initiator.USER)
    else:
        node_life.turn(world, project, node.name, State.DELETING, operation)
    return operation


async def _stop(world: World, project: Project, request: StopNodeRequest) -> Operation:
    """Stop one; spot and flex-start nodes cannot be. Source: Google's guides, read 2026-11."""
    node = _found(project, request.name)
    row = node_life.Held(world, project, node.name).row
    if row.provisioning != "on-demand":
        raise wording.wrong_state("stop", f"{node.state.name} ({row.provisioning})")
    if node.state != State.READY:
        raise wording.wrong_state("stop", node.state.name)
    operation = operating.begin(project, "stop", node.name)
    node_life.turn(world, project, node.name, State.STOPPING, operation)
    return operation


async def _start(world: World, project: Project, request: StartNodeRequest) -> Operation:
    node = _found(project, request.name)
    if node.state != State.STOPPED:
        raise wording.wrong_state("start", node.state.name)
    operation = operating.begin(project, "start", node.name)
    node_life.turn(world, project, node.name, State.STARTING, operation)
    return operation


def _found(project: Project, name: str) -> Node:
    known: Node | None = project.nodes.get(named(project, name, "nodes"))
    if known is None:
        raise not_found("Resource", name)
    return known
