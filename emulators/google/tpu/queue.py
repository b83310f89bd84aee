"""google.cloud.tpu.v2: queued resources."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

import grpc.aio
from google.cloud.tpu_v2.types import (
    CreateQueuedResourceRequest,
    DeleteQueuedResourceRequest,
    GetQueuedResourceRequest,
    ListQueuedResourcesRequest,
    ListQueuedResourcesResponse,
    QueuedResource,
    QueuedResourceState,
    ResetQueuedResourceRequest,
)
from google.longrunning.operations_pb2 import Operation

from emulators.google.paging import page_of
from emulators.google.refusing import Refused, not_found
from emulators.google.serving import add, unary
from emulators.google.state import Project, TpuLife, World
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
from emulators.google.tpu.life import Initiator, Queued, State
from emulators.google.tpu.paths import full, listed_zones, named, zone_in, zone_of
from emulators.google.tpu.vm import Vm

MOST: Final = 1000
"""Of a page. Google's is not documented."""
_DELETABLE: Final = frozenset(
    {
        State.CREATING,
        State.ACCEPTED,
        State.WAITING_FOR_RESOURCES,
        State.FAILED,
        State.SUSPENDED,
    }
)
"""Without force."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them; there are no permissions of their own, those of nodes count."""
    many = ListQueuedResourcesResponse
    methods = {
        "CreateQueuedResource": unary(
            CreateQueuedResourceRequest, Operation, _create, "tpu.nodes.create"
        ),
        "GetQueuedResource": unary(GetQueuedResourceRequest, QueuedResource, _get, "tpu.nodes.get"),
        "ListQueuedResources": unary(ListQueuedResourcesRequest, many, _list, "tpu.nodes.list"),
        "DeleteQueuedResource": unary(
            DeleteQueuedResourceRequest, Operation, _delete, "tpu.nodes.delete"
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
            life.watch(Queued(world, project, name))
        for name, node in project.nodes.items():
            if node.state == machines.State.READY:
                machines.boot(world, project, name)
            node_life.watch(world, project, name)


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
        if queued.state in {State.PROVISIONING, State.ACTIVE}:
            life.suspend(queued, Initiator.SERVICE)
            return True
        return False
    return node is not None and node_life.preempt(world, project, node.name)


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
    queue_rules.check(project, zone, queued_id, resource)
    queue_rules.check_more(project, resource, more)
    if name in project.queued_resources:
        raise wording.exists(name)
    provisioning = queue_rules.provisioning_of(resource, more)
    accelerator = queue_rules.accelerator_of(resource.tpu.node_spec[0].node)
    queue_rules.check_quota(project, zone, provisioning, capacity.chips_of(accelerator))
    row = capacity.asked(project, "queued", zone, queued_id, accelerator, provisioning)
    operation = operating.begin(project, "create", name, version)
    project.queued_resources[name] = resource
    project.queued_more[name] = dict(more)
    project.tpu_lives[name] = _begun(row.asked, operation, request.request_id, version)
    life.watch(Queued(world, project, name))
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
    if state == State.DELETING:
        raise wording.wrong_state("delete", state.name)
    if not request.force and state not in _DELETABLE:
        raise Refused(
            "FAILED_PRECONDITION",
            f"Queued resource in state {state.name} cannot be deleted: delete its nodes first, or"
            f" set force. {wording.eid()}",
        )
    life.delete(queued)
    operation = operating.begin(project, "delete", queued.name, version)
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
    resource.name, resource.create_time = name, operating.now()
    resource.state = QueuedResourceState(state=State.CREATING)
    return resource


async def _create(
    world: World, project: Project, request: CreateQueuedResourceRequest
) -> Operation:
    return create(world, project, request)


async def _get(
    _world: World, project: Project, request: GetQueuedResourceRequest
) -> QueuedResource:
    return found(project, request.name)


async def _list(
    _world: World, project: Project, request: ListQueuedResourcesRequest
) -> ListQueuedResourcesResponse:
    rows = listed(project, request.parent)
    page, token = page_of(rows, request.page_size, request.page_token, most=MOST)
    return ListQueuedResourcesResponse(queued_resources=page, next_page_token=token)


async def _delete(
    world: World, project: Project, request: DeleteQueuedResourceRequest
) -> Operation:
    return delete(world, project, request)


async def _reset(world: World, project: Project, request: ResetQueuedResourceRequest) -> Operation:
    """Boot its VM again; nothing but ACTIVE can be reset. Source: public reports of 2026."""
    queued = Queued(world, project, found(project, request.name).name)
    if queued.state != State.ACTIVE:
        raise wording.wrong_state("reset", queued.state.name)
    operation = operating.begin(project, "reset", queued.name)
    node_life.turn(world, project, queued.node_name, machines.State.RESTARTING, operation)
    return operation
