"""Cloud TPU: queued resources and nodes, in gRPC v2 and in REST v2alpha1."""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio
from google.cloud.tpu_v2.types import (
    AcceleratorType,
    AccessConfig,
    CreateQueuedResourceRequest,
    DeleteQueuedResourceRequest,
    NetworkEndpoint,
    Node,
    OperationMetadata,
    QueuedResource,
    QueuedResourceState,
)
from google.longrunning.operations_pb2 import Operation
from google.protobuf import json_format
from google.protobuf.empty_pb2 import Empty
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google import chips, serving, vm
from simulators.google.chips import Machine, zones_of
from simulators.google.serving import Refused, check_acting, refusal
from simulators.google.state import Life, Project, Tpu, World
from simulators.google.store import Kind, serve

API: Final = "tpu.googleapis.com"
_VERSIONS: Final = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e")
"""Some of the real ones. Source: docs.cloud.google.com/tpu/docs/runtimes, read 2026-11."""
_ADMISSION_SECONDS: Final = 2.0
"""Simulated: until a request is in the queue."""
_REFUSAL_SECONDS: Final = 10.0
"""Simulated: until the operation says that flex-start is not supported. Source: public report of
2026-06."""
_PORT: Final = 8470
_LONGEST_FLEX_SECONDS: Final = 7 * 86_400
"""Source: docs.cloud.google.com/tpu/docs/queued-resources, flex-start, read 2026-11."""
_States: Final[Any] = Node.State
_Queued: Final[Any] = QueuedResourceState.State
_By: Final[Any] = QueuedResourceState.StateInitiator
_NEEDS_FORCE: Final[frozenset[Any]] = frozenset(
    {_Queued.PROVISIONING, _Queued.ACTIVE, _Queued.SUSPENDING}
)


def _now() -> Any:
    return datetime.now(UTC)


def _full(project: Project, zone: str, collection: str, short: str) -> str:
    return f"projects/{project.id}/locations/{zone}/{collection}/{short}"


def _begin(machine: Machine, verb: str) -> Operation:
    """Begin an operation on something; it ends with what goes on."""
    drawn = uuid.uuid4().hex
    last = f"operation-{int(time.time() * 1000)}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    told = OperationMetadata(create_time=_now(), target=machine.name, verb=verb)
    name = _full(machine.project, machine.zone, "operations", last)
    machine.life.operations.append(name)
    return serving.opened(machine.project, name, told)


class _Queue(Machine):
    """What a node and a queued resource are alike in."""

    plane = "queued"

    def finish(self, answer: Any) -> None:
        for name in self.life.operations:
            serving.finished(self.project.operations[name], answer)
        self.life.operations = []
        self.world.keep(self.project)


class _Node(_Queue):
    table = "nodes"

    @property
    def row(self) -> Tpu | None:
        """Its place in the quota, if nobody queued for it."""
        return self.project.tpus.get(f"queued/{self.zone}/nodes/{self.short}")

    def become(self, state: Any) -> None:
        self.kept.state = state
        self.turned()

    def make(self, asked: Node, *, queued: str = "") -> None:
        """Let it be created; `queued` is the full name of who asked for it."""
        project, node = self.project, Node(asked)
        node.name, node.queued_resource = self.name, queued
        node.state, node.create_time = _States.CREATING, _now()
        node.id = uuid.uuid4().int >> 65
        node.network_config.network = f"projects/{project.id}/global/networks/default"
        usual = f"{project.number}-compute@developer.gserviceaccount.com"
        node.service_account.email = asked.service_account.email or usual
        node.service_account.scope = list(asked.service_account.scope) or [
            "https://www.googleapis.com/auth/cloud-platform"
        ]
        project.nodes[self.name] = node
        project.lives[self.name] = Life(since=time.time())

    def boot(self) -> None:
        node = self.kept
        spec = vm.VmSpec(
            plane="queued",
            zone=self.zone,
            id=self.short,
            chips=_chips(node),
            metadata=dict(node.metadata),
            tags=tuple(node.tags),
            network=_network_of(node),
            service_account=node.service_account.email,
            scopes=tuple(node.service_account.scope),
            external=node.network_config.enable_external_ips,
        )
        vm.start(self.world, self.project, spec)

    def ready(self) -> None:
        self.become(_States.READY)
        self.kept.health = Node.Health.HEALTHY
        self.boot()
        self.finish(self.kept)

    def step(self) -> bool:
        if self.kept.queued_resource:
            return False
        if self.kept.state == _States.DELETING and self.is_away():
            self.finish(Empty())
            self.forget()
        elif self.kept.state == _States.CREATING:
            row = self.row
            if row and (row.given or chips.take(self.project, row)):
                self.ready()
        return True


class _QueuedResource(_Queue):
    table = "queued_resources"

    @property
    def state(self) -> Any:
        return _Queued(self.kept.state.state)

    @property
    def asked(self) -> Any:
        return self.kept.tpu.node_spec[0]

    @property
    def held(self) -> Tpu:
        row = self.row
        assert row
        return row

    @property
    def node(self) -> _Node:
        name = _full(self.project, self.zone, "nodes", self.asked.node_id)
        return _Node(self.world, self.project, name)

    @property
    def has_node(self) -> bool:
        found = self.project.nodes.get(self.node.name)
        return found is not None and found.queued_resource == self.name

    @property
    def vm(self) -> vm.Vm | None:
        """Its node's VM, if it has one."""
        return self.node.vm if self.has_node else None

    def become(self, state: Any, initiator: Any = None, error: Refused | None = None) -> None:
        told = QueuedResourceState(state=state)
        if initiator is not None:
            told.state_initiator = initiator
        if error:
            told.failed_data = QueuedResourceState.FailedData(error=error.as_status)
        self.kept.state = told
        self.turned()

    def leave(self, state: Any, initiator: Any) -> None:
        self.become(state, initiator)
        if self.has_node:
            by_user = initiator == _By.USER
            self.node.kept.state = _States.DELETING if by_user else _States.PREEMPTED
            self.node.end_vm()
        self.watch()

    def step(self) -> bool:
        steps: Mapping[Any, Callable[[], bool | None]] = {
            _Queued.CREATING: self._be_admitted,
            _Queued.WAITING_FOR_RESOURCES: self._wait,
            _Queued.PROVISIONING: self._provision,
            _Queued.ACTIVE: self._run,
            _Queued.SUSPENDING: self._go,
            _Queued.DELETING: self._go,
        }
        return self.state in steps and steps[self.state]() is not False

    def _be_admitted(self) -> None:
        zone = zones_of(self.project).get(self.zone)
        if self.held.provisioning == "flex-start" and zone and "flex-start" not in zone.accepts:
            if self.after(_REFUSAL_SECONDS):
                wanted = self.asked.node.accelerator_type
                self.finish(refusal("tpu-flex", kind=wanted, zone=self.zone))
                self.forget()
        elif self.after(_ADMISSION_SECONDS):
            self.become(_Queued.WAITING_FOR_RESOURCES)
            self.finish(self.kept)

    def _wait(self) -> None:
        policy = self.kept.queueing_policy
        age = (time.time() - self.held.asked) * self.project.knobs.tpu_clock
        failure = None
        if chips.take(self.project, self.held) and self.node.name in self.project.nodes:
            self.held.given = None
            failure = refusal("tpu-node-taken", node=self.node.short)
        elif self.held.given:
            self.node.make(self.asked.node, queued=self.name)
            self.node.kept.scheduling_config.spot = self.held.provisioning == "spot"
            self.become(_Queued.PROVISIONING)
        elif "valid_until_duration" in policy and (
            age > policy.valid_until_duration.total_seconds()
        ):
            failure = refusal("tpu-expired")
        if failure:
            self.become(_Queued.FAILED, error=failure)

    def _provision(self) -> None:
        if self.after(self.project.knobs.tpu_provision_seconds):
            self.become(_Queued.ACTIVE)
            self.node.ready()

    def _run(self) -> bool:
        longest = self.held.run_seconds
        ran = (time.time() - self.life.since) * self.project.knobs.tpu_run_clock
        if longest and ran > longest:
            self.leave(_Queued.SUSPENDING, _By.SERVICE)
        return bool(longest)

    def _go(self) -> None:
        if not self.is_away():
            return
        if self.has_node:
            self.node.forget()
        self.finish(Empty())
        if self.state == _Queued.SUSPENDING:
            self.held.given = None
            self.become(_Queued.SUSPENDED, _By(self.kept.state.state_initiator))
        else:
            self.forget()


def _network_of(node: Node) -> str:
    return str(node.network_config.network or "default").rpartition("/")[2]


def _chips(node: Node) -> int:
    return int(node.accelerator_type.rpartition("-")[2])


_ID: Final = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"


def _check_node(project: Project, zone: str, node_id: str, node: Node) -> None:
    """Refuse what a node cannot be."""
    known, accelerator = zones_of(project).get(zone), node.accelerator_type
    if known is None:
        raise refusal("tpu-zone", zone=zone)
    if not re.fullmatch(_ID, node_id):
        raise refusal("tpu-node-id", id=node_id)
    if accelerator not in known.accelerators:
        raise refusal("tpu-accelerator", kind=accelerator or "unspecified", zone=zone)
    if node.runtime_version not in _VERSIONS:
        raise refusal("tpu-version", version=node.runtime_version)
    if (network := _network_of(node)) != "default":
        raise refusal("tpu-network", project=project.id, network=network)
    check_acting(project, node.service_account.email)


def _provisioning(asked: QueuedResource, model: str, run_seconds: float) -> str:
    """Return on-demand, spot or flex-start.

    A run duration without flex-start is refused: whether Google takes it is not known.
    """
    spot = "spot" in asked
    if spot and model in {"STANDARD", "FLEX_START"}:
        raise refusal("tpu-spot", model=model)
    if model == "FLEX_START":
        if not 0 < run_seconds <= _LONGEST_FLEX_SECONDS:
            raise refusal("tpu-flex-run")
        return "flex-start"
    if run_seconds:
        raise refusal("tpu-run")
    return "spot" if spot or model == "SPOT" else "on-demand"


def _ask(project: Project, zone: str, row_id: str, node: Node, provisioning: str) -> Tpu:
    """Count a request against its quota."""
    row = chips.ask(project, "queued", zone, row_id, _chips(node), provisioning)
    if row is None:
        pool = chips.pool_of("queued", provisioning)
        quota = "TPUV6EPreemptible" if pool.endswith("preemptible") else "TPUV6E"
        limit = chips.limit_of(project, pool, zone)
        raise refusal("tpu-quota", quota=quota, limit=limit, zone=zone)
    return row


class _Kind(Kind):
    """Whatever lies in a zone that has, or may have, TPUs."""

    types = "google.cloud.tpu_v2.types"
    pages = (1000, 1000)

    def __init__(self, world: World) -> None:
        self.world = world

    def normal(self, project: Project, pattern: str, name: str) -> str:
        """Return a name with the project's id; its zone must be one with TPUs, or `-` for all."""
        found = super().normal(project, pattern, name)
        zone = found.split("/")[3]
        if zone != "-" and zone not in zones_of(project):
            raise refusal("tpu-location", zone=zone)
        return found


class _AcceleratorTypes(_Kind):
    noun, collection, permission = "AcceleratorType", "acceleratorTypes", "tpu.acceleratortypes"
    verbs = ("Get",)

    def rows(self, project: Project) -> MutableMapping[str, Any]:
        return {
            name: AcceleratorType(name=name, type_=one)
            for zone, known in zones_of(project).items()
            for one in known.accelerators
            for name in [_full(project, zone, self.collection, one)]
        }


class _Nodes(_Kind):
    noun, collection, permission, table = "Node", "nodes", "tpu.nodes", "nodes"

    def as_message(self, project: Project, row: Node) -> Node:
        shown, running = Node(row), _Node(self.world, project, row.name).vm
        if running:
            endpoint = NetworkEndpoint(ip_address=running.internal_ip, port=_PORT)
            if running.external_ip:
                endpoint.access_config = AccessConfig(external_ip=running.external_ip)
            shown.network_endpoints = [endpoint]
        return shown

    async def create(self, world: World, project: Project, request: Any) -> Operation:
        zone, short = request.parent.rpartition("/")[2], request.node_id
        _check_node(project, zone, short, request.node)
        made = _Node(world, project, _full(project, zone, "nodes", short))
        if made.name in project.nodes:
            raise refusal("taken", name=made.name)
        _ask(project, zone, f"nodes/{short}", request.node, "on-demand")
        made.make(request.node)
        made.watch()
        return _begin(made, "create")

    async def delete(self, world: World, project: Project, request: Any) -> Operation:
        """Delete a node; who queued it is SUSPENDED then."""
        node = _Node(world, project, self.find(project, request.name).name)
        if node.kept.state == _States.DELETING:
            raise refusal("tpu-deleting")
        if not node.kept.queued_resource:
            node.become(_States.DELETING)
            node.end_vm()
            return _begin(node, "delete")
        queued = _QueuedResource(world, project, node.kept.queued_resource)
        if queued.state != _Queued.SUSPENDING:
            queued.leave(_Queued.SUSPENDING, _By.USER)
        return _begin(queued, "delete")


class _QueuedResources(_Kind):
    """There are no permissions of their own; those of nodes count."""

    noun, collection, permission = "QueuedResource", "queuedResources", "tpu.nodes"
    table = "queued_resources"

    async def create(self, world: World, project: Project, request: Any) -> Operation:
        return self.queue(world, project, request)

    def queue(
        self,
        world: World,
        project: Project,
        request: CreateQueuedResourceRequest,
        model: str = "",
        run_seconds: float = 0,
    ) -> Operation:
        """Queue a request; model and time of run are what v2alpha1 alone can say."""
        zone, short = request.parent.rpartition("/")[2], request.queued_resource_id
        name = _full(project, zone, self.collection, short)
        asked = QueuedResource(request.queued_resource)
        asked.name, asked.create_time = name, _now()
        asked.state = QueuedResourceState(state=_Queued.CREATING)
        if len(asked.tpu.node_spec) != 1:
            raise refusal("tpu-specs")
        (spec,) = asked.tpu.node_spec
        _check_node(project, zone, spec.node_id, spec.node)
        provisioning = _provisioning(asked, model, run_seconds)
        if name in project.queued_resources:
            raise refusal("taken", name=name)
        _ask(project, zone, short, spec.node, provisioning).run_seconds = run_seconds
        project.queued_resources[name] = asked
        project.lives[name] = Life(since=time.time())
        queued = _QueuedResource(world, project, name)
        queued.watch()
        return _begin(queued, "create")

    async def delete(self, world: World, project: Project, request: Any) -> Operation:
        """Delete one; one that has chips takes force, and its node goes with it."""
        queued = _QueuedResource(world, project, self.find(project, request.name).name)
        state = queued.state
        if state == _Queued.DELETING:
            raise refusal("tpu-deleting")
        if state in _NEEDS_FORCE and not request.force:
            raise refusal("tpu-force", state=state.name)
        if state == _Queued.CREATING:
            queued.finish(queued.kept)
        queued.leave(_Queued.DELETING, _By.USER)
        return _begin(queued, "delete")


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve v2."""
    kinds = (_AcceleratorTypes, _Nodes, _QueuedResources)
    serve(server, world, "google.cloud.tpu.v2.Tpu", "tpu", *(kind(world) for kind in kinds))


def resume(world: World) -> None:
    """Go on with what an earlier process began; VMs that were up boot again."""
    for project in world:
        for name in project.queued_resources:
            _QueuedResource(world, project, name).watch()
        for name, node in project.nodes.items():
            if node.state == _States.READY:
                _Node(world, project, name).boot()
            _Node(world, project, name).watch()


def preempt(world: World, project: Project, zone: str, tpu_id: str) -> bool:
    """Take the chips of a queued resource back; False if it has none."""
    queued = _QueuedResource(world, project, _full(project, zone, "queuedResources", tpu_id))
    there = queued.name in project.queued_resources
    if not there or queued.state not in {_Queued.PROVISIONING, _Queued.ACTIVE}:
        return False
    queued.leave(_Queued.SUSPENDING, _By.SERVICE)
    return True


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the one method of v2alpha1 that is asked, and the one of v2 that jobs call."""
    kind = _QueuedResources(world)

    async def admitted(project: Project, request: Request) -> Response:
        here = request.url.path.removeprefix("/v2alpha1/")
        serving.admit(project, API, "tpu.nodes.create", here)
        asked, model, run_seconds = _read(await request.body())
        made = CreateQueuedResourceRequest(
            parent=here.rpartition("/")[0],
            queued_resource_id=request.query_params.get("queuedResourceId", ""),
            queued_resource=asked,
        )
        operation = kind.queue(world, project, made, model, run_seconds)
        return JSONResponse({"name": operation.name})

    async def deleted(project: Project, request: Request) -> Response:
        here = request.url.path.removeprefix("/v2/")
        serving.admit(project, API, "tpu.nodes.delete", here)
        force = request.query_params.get("force") == "true"
        wanted = DeleteQueuedResourceRequest(name=here, force=force)
        operation = await kind.delete(world, project, wanted)
        return JSONResponse({"name": operation.name})

    path = "projects/{project}/locations/{zone}/queuedResources"
    name = "google.cloud.tpu.v2alpha1.Tpu/CreateQueuedResource"
    gone = "tpu.projects.locations.queuedResources.delete"
    return [
        serving.rest(world, "POST", f"/v2alpha1/{path}", name, admitted),
        serving.rest(world, "DELETE", f"/v2/{path}/{{id}}", gone, deleted),
    ]


def _read(sent: bytes) -> tuple[QueuedResource, str, float]:
    """Return what v2 knows of a body, and what it does not: model and seconds of its run.

    Source: discovery document tpu.v2alpha1.
    """
    resource, body = QueuedResource(), json.loads(sent)
    model, runs = body.pop("provisioningModel", ""), body.pop("runDuration", {})
    for spec in body["tpu"]["nodeSpec"]:
        spec["node"].pop("bootDiskConfig", None)
    try:
        json_format.ParseDict(body, QueuedResource.pb(resource))
    except json_format.ParseError as exc:
        raise refusal("payload", why=exc) from exc
    return resource, model, float(runs.get("maxRunDuration", "0s").removesuffix("s"))
