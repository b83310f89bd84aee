"""google.cloud.tpu.v2: nodes and queued resources: what is refused, and how each lives."""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final, NamedTuple

import anyio
import grpc.aio
from google.cloud.tpu_v2.types import (
    AcceleratorConfig,
    AccessConfig,
    CreateNodeRequest,
    DeleteNodeRequest,
    GetNodeRequest,
    ListNodesRequest,
    ListNodesResponse,
    NetworkEndpoint,
    Node,
    QueuedResource,
    QueuedResourceState,
    StartNodeRequest,
    StopNodeRequest,
)
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from simulators.google import tpu_zones, vm
from simulators.google.serving import (
    Refused,
    add,
    invalid,
    not_found,
    not_permitted,
    page_of,
    unary,
)
from simulators.google.state import Project, Tpu, TpuLife, World
from simulators.google.tpu_zones import (
    API,
    SERVICE,
    TOPOLOGIES,
    VERSIONS,
    full,
    listed_zones,
    named,
    now,
    short_of,
    zone_in,
    zone_of,
)
from simulators.google.vm_programs import VmSpec

_ID: Final = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_KEY: Final = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_VALUE: Final = re.compile(r"^[a-z0-9_-]{0,63}$")
_NETWORK: Final = re.compile(r"^(?:.*global/networks/)?([a-z][-a-z0-9]*)$")
_MOST_LABELS: Final = 64
_MOST_METADATA: Final = 256 * 1024
"""Bytes of one value. Source: docs.cloud.google.com/compute/docs/metadata, read 2026-11."""
LONGEST_FLEX_SECONDS: Final = 7 * 86_400
"""Source: docs.cloud.google.com/tpu/docs/queued-resources, flex-start, read 2026-11."""
_ACT: Final = "iam.serviceAccounts.actAs"


def check(project: Project, zone: str, queued_id: str, asked: QueuedResource) -> None:
    """Refuse what a queued resource cannot be.

    Raises:
        Refused: As Google says it.
    """
    check_zone(project, zone)
    if not _ID.match(queued_id):
        raise tpu_zones.bad(f'Invalid resource id "{queued_id}".')
    if len(asked.tpu.node_spec) != 1:
        raise tpu_zones.bad("Exactly one node_spec must be specified.")
    [spec] = asked.tpu.node_spec
    parents = {f"projects/{one}/locations/{zone}" for one in (project.id, project.number)}
    if spec.parent not in parents:
        raise tpu_zones.bad(f'The parent "{spec.parent}" of node_spec is not that of the request.')
    if "multislice_params" in spec:
        raise tpu_zones.bad("Multislice is not available for this accelerator type.")
    check_node(project, zone, spec.node_id, spec.node)
    _check_policy(asked)


def check_node(project: Project, zone: str, node_id: str, node: Node) -> None:
    """Refuse what a node cannot be.

    Raises:
        Refused: As Google says it.
    """
    check_zone(project, zone)
    if not _ID.match(node_id):
        raise tpu_zones.bad(f'Invalid node id "{node_id}".')
    _check_hardware(project, zone, node)
    if node.scheduling_config.reserved:
        raise tpu_zones.no_reservation()
    _check_words(node)
    _check_network(project, node)
    _check_account(project, node.service_account.email)


def check_zone(project: Project, zone: str) -> None:
    """Refuse a zone that there is not.

    Raises:
        Refused: As Google says it.
    """
    if tpu_zones.capacity_zone(project, zone) is None:
        raise tpu_zones.no_zone(zone)


def check_quota(project: Project, zone: str, provisioning: str, chips: int) -> None:
    """Refuse what goes beyond a pool.

    Raises:
        Refused: RESOURCE_EXHAUSTED, naming the quota.
    """
    pool = tpu_zones.exceeded(project, "queued", provisioning, zone, chips)
    if pool:
        raise tpu_zones.over_quota(project, pool, zone)


def check_more(project: Project, asked: QueuedResource, more: Mapping[str, Any]) -> None:
    """Refuse what v2alpha1 alone can say, where it contradicts itself.

    A run duration without flex-start is refused: whether Google takes it is not known.

    Raises:
        Refused: As Google says it.
    """
    model, duration = more.get("provisioningModel", ""), more.get("runDuration")
    usual = "STANDARD" if project.knobs.tpu_spot_by_name else ""
    if (model or usual) in {"STANDARD", "FLEX_START"} and is_spot(asked):
        raise tpu_zones.spot_by_another_name(model or usual)
    if model == "RESERVATION_BOUND" or asked.reservation_name:
        raise tpu_zones.no_reservation()
    if model != "FLEX_START":
        if duration:
            raise tpu_zones.bad("run_duration is only supported for FLEX_START.")
        return
    seconds = run_seconds(more)
    if seconds is None:
        raise tpu_zones.bad("FLEX_START requires run_duration.max_run_duration.")
    if not 0 < seconds <= LONGEST_FLEX_SECONDS:
        raise tpu_zones.bad("max_run_duration must be positive and at most 7 days.")


def is_spot(asked: QueuedResource) -> bool:
    """Whether one of the ways to say so was used."""
    scheduling = [one.node.scheduling_config for one in asked.tpu.node_spec]
    return "spot" in asked or any(one.spot or one.preemptible for one in scheduling)


def provisioning_of(asked: QueuedResource, more: Mapping[str, Any]) -> str:
    """Give on-demand, spot or flex-start."""
    model = more.get("provisioningModel", "")
    if model == "FLEX_START":
        return "flex-start"
    return "spot" if model == "SPOT" or is_spot(asked) else "on-demand"


def run_seconds(more: Mapping[str, Any]) -> float | None:
    """Give the time that a VM may run; None is for ever."""
    said = more.get("runDuration", {}).get("maxRunDuration")
    return float(said.removesuffix("s")) if said else None


def accelerator_of(node: Node) -> str:
    """Give v6e-4 or the like, said in either way."""
    if node.accelerator_type:
        return node.accelerator_type
    config = node.accelerator_config
    by_topology = {topology: name for name, topology in TOPOLOGIES.items()}
    known = config.type_ == AcceleratorConfig.Type.V6E
    return by_topology.get(config.topology, "") if known else ""


def network_of(node: Node) -> str:
    """Give the name of a node's network."""
    configs = [*node.network_configs, node.network_config]
    found = _NETWORK.match(configs[0].network or "default")
    return found.group(1) if found else ""


def _check_hardware(project: Project, zone: str, node: Node) -> None:
    if node.accelerator_type and "accelerator_config" in node:
        raise tpu_zones.bad("Only one of accelerator_type and accelerator_config can be specified.")
    known, accelerator = tpu_zones.capacity_zone(project, zone), accelerator_of(node)
    if known is None or accelerator not in known.accelerators:
        raise tpu_zones.no_hardware(zone, accelerator or "unspecified")
    if node.runtime_version not in VERSIONS:
        raise tpu_zones.bad(f'The requested runtime version "{node.runtime_version}" is not found.')


def _check_words(node: Node) -> None:
    if len(node.labels) > _MOST_LABELS:
        raise invalid("Too many labels.")
    for key, value in node.labels.items():
        if not _KEY.match(key) or not _VALUE.match(value):
            raise tpu_zones.bad(f'Invalid label "{key}": "{value}".')
    for tag in node.tags:
        if not _ID.match(tag):
            raise tpu_zones.bad(f'Invalid tag "{tag}".')
    for key, value in node.metadata.items():
        if len(value.encode()) > _MOST_METADATA:
            raise tpu_zones.bad(f'The value of metadata "{key}" is larger than 262144 bytes.')


def _check_network(project: Project, node: Node) -> None:
    if "network_config" in node and node.network_configs:
        raise tpu_zones.bad("network_config and network_configs are mutually exclusive.")
    name = network_of(node)
    if name != "default":
        path = f"projects/{project.id}/global/networks/{name}"
        raise tpu_zones.bad(f"The resource '{path}' was not found")


def _check_account(project: Project, email: str) -> None:
    ours = email.endswith(f"@{project.id}.iam.gserviceaccount.com")
    if project.denies(_ACT) or (ours and email not in project.accounts):
        raise not_permitted(_ACT, f"projects/-/serviceAccounts/{email or 'default'}")


def _check_policy(asked: QueuedResource) -> None:
    until = until_seconds(asked)
    if until is not None and until <= 0:
        raise tpu_zones.bad("valid_until must be in the future.")


def until_seconds(asked: QueuedResource) -> float | None:
    """Give how long after its creation a request may still be fulfilled; None is for ever."""
    return _bound(asked, "valid_until_duration", "valid_until_time", "end_time")


def after_seconds(asked: QueuedResource) -> float:
    """Give how long after its creation a request may first be fulfilled."""
    return _bound(asked, "valid_after_duration", "valid_after_time", "start_time") or 0


def _bound(asked: QueuedResource, duration: str, moment: str, end: str) -> float | None:
    """Read a bound; moments count from when the request was created."""
    policy = asked.queueing_policy
    if duration in policy:
        return float(getattr(policy, duration).total_seconds())
    at: Any = getattr(policy, moment) if moment in policy else None
    if at is None and "valid_interval" in policy:
        interval = policy.valid_interval
        at = getattr(interval, end) if interval.HasField(end) else None
        at = at and at.ToDatetime(tzinfo=UTC)
    created: Any = asked.create_time
    return float((at - created).total_seconds()) if at else None


NodeState: Final[Any] = Node.State
_ALL_APIS: Final = "https://www.googleapis.com/auth/cloud-platform"
_PORT: Final = 8470
USUAL_DISK_GB: Final = 100
"""Of a boot disk. Source: docs.cloud.google.com/tpu/docs, boot disk of TPU VMs, read 2026-11."""
_VERSIONS: Final[Mapping[str, Any]] = {
    "v2": Node.ApiVersion.V2,
    "v2alpha1": Node.ApiVersion.V2_ALPHA1,
}
_STOPPED: Final[frozenset[Any]] = frozenset(
    {NodeState.STOPPING, NodeState.STOPPED, NodeState.STARTING}
)


def make(project: Project, name: str, asked: Node, *, version: str, queued: str = "") -> Node:
    """Make a node that is being created; `queued` is the full name of who asked for it."""
    node = Node(asked)
    node.name = name
    node.accelerator_type = accelerator_of(asked)
    node.state = NodeState.CREATING
    node.create_time = now()
    node.id = uuid.uuid4().int >> 65
    node.api_version = _VERSIONS[version]
    node.queued_resource = queued
    if not node.network_configs:
        node.network_config.network = f"projects/{project.id}/global/networks/default"
    node.service_account.email = asked.service_account.email or _usual_account(project)
    node.service_account.scope = list(asked.service_account.scope) or [_ALL_APIS]
    project.nodes[name] = node
    project.tpu_lives[name] = TpuLife(since=time.time(), served_by=version)
    return node


def ready(world: World, project: Project, name: str) -> None:
    """Let it be up: its VM boots."""
    node = project.nodes[name]
    node.state, node.health = NodeState.READY, Node.Health.HEALTHY
    boot(world, project, name)


def boot(world: World, project: Project, name: str) -> None:
    """Start the VM of a node that is up."""
    node = project.nodes[name]
    configs = [*node.network_configs, node.network_config]
    disk = project.queued_more.get(node.queued_resource, {}).get("bootDiskConfig", {})
    spec = VmSpec(
        plane="queued",
        zone=zone_of(name),
        id=short_of(name),
        accelerator=node.accelerator_type,
        metadata=dict(node.metadata),
        tags=tuple(node.tags),
        network=network_of(node),
        service_account=node.service_account.email,
        scopes=tuple(node.service_account.scope),
        external=any(one.enable_external_ips for one in configs),
        disk_gb=int(disk.get("diskSizeGb") or USUAL_DISK_GB),
        has_docker=True,
    )
    vm.start(world, project, spec)


def end(world: World, project: Project, name: str) -> None:
    """Tell its VM to be gone, if there is one."""
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    if found:
        found.end(at_once=True)


def is_down(world: World, project: Project, name: str) -> bool:
    """Whether its VM is gone."""
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    return found is None or found.ended.is_set()


def remove(project: Project, name: str) -> None:
    """Forget a node."""
    project.nodes.pop(name, None)
    project.tpu_lives.pop(name, None)


def told(world: World, project: Project, node: Node) -> Node:
    """Give a node as it is shown: with the addresses that its VM has now."""
    shown = Node(node)
    name = node.name
    found = vm.vm_of(world, project, "queued", zone_of(name), short_of(name))
    if found and found.internal_ip and node.state not in _STOPPED:
        endpoint = NetworkEndpoint(ip_address=found.internal_ip, port=_PORT)
        if found.external_ip:
            endpoint.access_config = AccessConfig(external_ip=found.external_ip)
        shown.network_endpoints = [endpoint]
    return shown


def _usual_account(project: Project) -> str:
    return f"{project.number}-compute@developer.gserviceaccount.com"


_RHYTHM_SECONDS: Final = 0.03
_PATIENCE_SECONDS: Final = 60.0
"""Simulated: how long a node looks for chips, where the zone makes it wait no longer."""


class Held(NamedTuple):
    """One node, found by its full name."""

    world: World
    project: Project
    name: str

    @property
    def node(self) -> Node:
        """As it is kept."""
        found: Node = self.project.nodes[self.name]
        return found

    @property
    def life(self) -> TpuLife:
        """How far it is."""
        return self.project.tpu_lives[self.name]

    @property
    def row(self) -> Tpu:
        """Its place in the quota: its own, or that of who asked for it."""
        asked = self.node.queued_resource
        short = short_of(asked) if asked else node_row_id(short_of(self.name))
        return self.project.tpus[f"queued/{zone_of(self.name)}/{short}"]

    @property
    def elapsed(self) -> float:
        """Simulated seconds since its state began."""
        return (time.time() - self.life.since) * self.project.knobs.tpu_clock

    @property
    def known(self) -> bool:
        """Whether it is there still."""
        here = self.world.projects.get(self.project.id) is self.project
        return here and self.name in self.project.nodes

    def become(self, state: Any) -> None:
        """Change its state."""
        self.node.state = state
        self.life.since = time.time()
        self.world.keep(self.project)

    def finish(self, answer: object) -> None:
        """End the operations that are open on it."""
        for name in self.life.operations:
            tpu_zones.finish(self.project, name, answer)
        self.life.operations = []
        self.world.keep(self.project)


def node_row_id(node_id: str) -> str:
    """Give the place in the quota of a node that nobody queued."""
    return f"nodes/{node_id}"


def node_watch(world: World, project: Project, name: str) -> None:
    """Let it live on, until nothing more happens to it by itself."""
    world.tasks.start_soon(_live_node, Held(world, project, name))


def turn(world: World, project: Project, name: str, state: Any, operation: Operation) -> None:
    """Begin to stop, start, restart or delete it; the operation ends with that."""
    held = Held(world, project, name)
    held.life.operations.append(operation.name)
    held.become(state)
    if state not in {NodeState.CREATING, NodeState.STARTING}:
        end(world, project, name)
    node_watch(world, project, name)


def preempt(world: World, project: Project, name: str) -> bool:
    """Take the chips of a node back that nobody queued: it stays as PREEMPTED."""
    held = Held(world, project, name)
    if held.node.state != NodeState.READY:
        return False
    held.become(NodeState.PREEMPTED)
    tpu_zones.give_back(held.row)
    end(world, project, name)
    return True


async def _live_node(held: Held) -> None:
    while True:
        if not (
            held.known and held.node.state in _NODE_STEPS and _NODE_STEPS[held.node.state](held)
        ):
            return
        await anyio.sleep(_RHYTHM_SECONDS)


def _creating_node(held: Held) -> bool:
    if held.node.queued_resource:
        return False
    return _getting(held, _give_up_creation)


def _starting(held: Held) -> bool:
    return _getting(held, _give_up_start)


def _getting(held: Held, give_up: Callable[[Held], None]) -> bool:
    row, project = held.row, held.project
    known = tpu_zones.capacity_zone(project, row.zone)
    if row.given is None:
        if tpu_zones.take(project, row):
            held.life.since = time.time()
        elif held.elapsed > _PATIENCE_SECONDS + (known.wait_seconds if known else 0):
            give_up(held)
            return False
    elif held.elapsed >= project.knobs.tpu_provision_seconds:
        _up(held)
        return False
    return True


def _up(held: Held) -> None:
    held.become(NodeState.READY)
    ready(held.world, held.project, held.name)
    held.finish(held.node)


def _give_up_creation(held: Held) -> None:
    held.finish(tpu_zones.no_capacity(zone_of(held.name)))
    _forget_node(held)


def _give_up_start(held: Held) -> None:
    held.finish(tpu_zones.no_capacity(zone_of(held.name)))
    held.become(NodeState.STOPPED)


def _restarting(held: Held) -> bool:
    if not _is_away_node(held):
        return True
    _up(held)
    return False


def _stopping(held: Held) -> bool:
    if not _is_away_node(held):
        return True
    tpu_zones.give_back(held.row)
    held.become(NodeState.STOPPED)
    held.finish(held.node)
    return False


def _deleting_node(held: Held) -> bool:
    if held.node.queued_resource:
        return False
    if not _is_away_node(held):
        return True
    held.finish(Empty())
    _forget_node(held)
    return False


def _is_away_node(held: Held) -> bool:
    over = held.elapsed >= held.project.knobs.tpu_delete_seconds
    return over and is_down(held.world, held.project, held.name)


def _forget_node(held: Held) -> None:
    tpu_zones.gone(held.project, held.row)
    remove(held.project, held.name)
    held.world.keep(held.project)


_NODE_STEPS: Final[Mapping[Any, Callable[[Held], bool]]] = {
    NodeState.CREATING: _creating_node,
    NodeState.STARTING: _starting,
    NodeState.RESTARTING: _restarting,
    NodeState.STOPPING: _stopping,
    NodeState.DELETING: _deleting_node,
}
"""What to do with one in that state; each says whether to look again."""


QueuedState: Final[Any] = QueuedResourceState.State
Initiator: Final[Any] = QueuedResourceState.StateInitiator
RHYTHM_SECONDS: Final = 0.03
_ADMISSION_SECONDS: Final = 2.0
"""Simulated: until a request is in the queue."""
_REFUSAL_SECONDS: Final = 10.0
"""Simulated: until the operation says that flex-start is not supported. Source: public report of
2026-06."""
_QUEUED_SECONDS: Final = 1.0
"""Simulated: from ACCEPTED to WAITING_FOR_RESOURCES."""
WITH_NODE: Final = frozenset({QueuedState.PROVISIONING, QueuedState.ACTIVE, QueuedState.SUSPENDING})


@dataclass(frozen=True, slots=True)
class Queued:
    """One queued resource, found by its full name."""

    world: World
    project: Project
    name: str

    @property
    def resource(self) -> QueuedResource:
        """As it is kept."""
        found: QueuedResource = self.project.queued_resources[self.name]
        return found

    @property
    def state(self) -> Any:
        """Of it."""
        return QueuedState(self.resource.state.state)

    @property
    def life(self) -> TpuLife:
        """How far it is."""
        return self.project.tpu_lives[self.name]

    @property
    def more(self) -> Mapping[str, Any]:
        """What v2alpha1 alone said."""
        return self.project.queued_more.get(self.name, {})

    @property
    def row(self) -> Tpu:
        """Its place in the quota."""
        return self.project.tpus[f"queued/{zone_of(self.name)}/{short_of(self.name)}"]

    @property
    def asked(self) -> Node:
        """The node that it asks for."""
        return self.resource.tpu.node_spec[0].node

    @property
    def node_name(self) -> str:
        """Full name of its node."""
        [spec] = self.resource.tpu.node_spec
        return full(self.project, zone_of(self.name), "nodes", spec.node_id)

    @property
    def node(self) -> Node | None:
        """Its node, if there is one now that is its own."""
        found: Node | None = self.project.nodes.get(self.node_name)
        return found if found and found.queued_resource == self.name else None

    @property
    def elapsed(self) -> float:
        """Simulated seconds since its state began."""
        return (time.time() - self.life.since) * self.project.knobs.tpu_clock

    @property
    def age(self) -> float:
        """Simulated seconds since it was asked for."""
        return (time.time() - self.row.asked) * self.project.knobs.tpu_clock

    @property
    def known(self) -> bool:
        """Whether it is there still."""
        here = self.world.projects.get(self.project.id) is self.project
        return here and self.name in self.project.queued_resources

    def become(self, state: Any, initiator: Any = None) -> None:
        """Change its state."""
        told = QueuedResourceState(state=state)
        if initiator is not None:
            told.state_initiator = initiator
        self.resource.state = told
        self.life.since = time.time()
        self.world.keep(self.project)

    def fail(self, refused: Refused) -> None:
        """Leave a leftover that says why."""
        self.become(QueuedState.FAILED)
        status: Status = refused.as_status
        self.resource.state.failed_data = QueuedResourceState.FailedData(error=status)
        self.world.keep(self.project)

    def finish(self, answer: Any) -> None:
        """End whatever operations are open on it."""
        for name in self.life.operations:
            tpu_zones.finish(self.project, name, answer)
        self.life.operations = []


def queued_watch(queued: Queued) -> None:
    """Let it live on, until nothing more happens to it by itself."""
    queued.world.tasks.start_soon(_live_queued, queued)


async def _live_queued(queued: Queued) -> None:
    while True:
        if not (
            queued.known and queued.state in _QUEUED_STEPS and _QUEUED_STEPS[queued.state](queued)
        ):
            return
        await anyio.sleep(RHYTHM_SECONDS)


def suspend(queued: Queued, initiator: Any) -> None:
    """Take its node away: by preemption, by the end of its time, or by whoever deleted the node."""
    queued.become(QueuedState.SUSPENDING, initiator)
    node = queued.node
    if node:
        by_user = initiator == Initiator.USER
        node.state = NodeState.DELETING if by_user else NodeState.PREEMPTED
        end(queued.world, queued.project, node.name)
    queued_watch(queued)


def delete(queued: Queued) -> None:
    """Take everything away that is its own, and then itself."""
    if queued.state == QueuedState.CREATING:
        queued.finish(queued.resource)
    queued.become(QueuedState.DELETING, Initiator.USER)
    if queued.node:
        queued.node.state = NodeState.DELETING
        end(queued.world, queued.project, queued.node_name)
    queued_watch(queued)


def _creating_queued(queued: Queued) -> bool:
    project, flex = queued.project, queued.row.provisioning == "flex-start"
    zone = zone_of(queued.name)
    known = tpu_zones.capacity_zone(project, zone)
    if flex and known and "flex-start" not in known.accepts:
        if queued.elapsed < _REFUSAL_SECONDS:
            return True
        queued.finish(tpu_zones.no_flex(zone, accelerator_of(queued.asked)))
        _forget_queued(queued)
        return False
    if queued.elapsed < _ADMISSION_SECONDS:
        return True
    queued.become(QueuedState.ACCEPTED)
    queued.finish(queued.resource)
    if queued.node_name in project.nodes:
        queued.fail(tpu_zones.node_exists(short_of(queued.node_name)))
    return True


def _accepted(queued: Queued) -> bool:
    earliest = after_seconds(queued.resource)
    if queued.elapsed >= _QUEUED_SECONDS and queued.age >= earliest:
        queued.become(QueuedState.WAITING_FOR_RESOURCES)
    return True


def _waiting(queued: Queued) -> bool:
    project, until = queued.project, until_seconds(queued.resource)
    known = tpu_zones.capacity_zone(project, zone_of(queued.name))
    if until is not None and queued.age > until:
        queued.fail(tpu_zones.too_late())
    elif known and queued.row.provisioning in known.accepts and tpu_zones.take(project, queued.row):
        _provision(queued)
    return True


def _provision(queued: Queued) -> None:
    if queued.node_name in queued.project.nodes:
        tpu_zones.give_back(queued.row)
        queued.fail(tpu_zones.node_exists(short_of(queued.node_name)))
        return
    node = make(
        queued.project,
        queued.node_name,
        queued.asked,
        version=queued.life.served_by,
        queued=queued.name,
    )
    node.scheduling_config.spot = queued.row.provisioning == "spot"
    queued.become(QueuedState.PROVISIONING)


def _provisioning(queued: Queued) -> bool:
    if queued.elapsed >= queued.project.knobs.tpu_provision_seconds:
        queued.become(QueuedState.ACTIVE)
        ready(queued.world, queued.project, queued.node_name)
    return True


def _active(queued: Queued) -> bool:
    longest = run_seconds(queued.more)
    if longest is None:
        return False
    ran = (time.time() - queued.life.since) * queued.project.knobs.tpu_run_clock
    if ran > longest:
        suspend(queued, Initiator.SERVICE)
        return False
    return True


def _suspending(queued: Queued) -> bool:
    if not _is_away_queued(queued):
        return True
    remove(queued.project, queued.node_name)
    tpu_zones.give_back(queued.row)
    initiator = Initiator(queued.resource.state.state_initiator)
    queued.become(QueuedState.SUSPENDED, initiator)
    queued.finish(Empty())
    return False


def _deleting_queued(queued: Queued) -> bool:
    if not _is_away_queued(queued):
        return True
    if queued.node:
        remove(queued.project, queued.node_name)
    queued.finish(Empty())
    _forget_queued(queued)
    return False


def _is_away_queued(queued: Queued) -> bool:
    """Whether its time is over and its VM is gone."""
    over = queued.elapsed >= queued.project.knobs.tpu_delete_seconds
    gone = is_down(queued.world, queued.project, queued.node_name)
    return over and (gone or queued.node is None)


def _forget_queued(queued: Queued) -> None:
    project = queued.project
    tpu_zones.gone(project, queued.row)
    for kept in (project.queued_resources, project.queued_more, project.tpu_lives):
        kept.pop(queued.name, None)
    queued.world.keep(project)


_QUEUED_STEPS: Final[Mapping[Any, Callable[[Queued], bool]]] = {
    QueuedState.CREATING: _creating_queued,
    QueuedState.ACCEPTED: _accepted,
    QueuedState.WAITING_FOR_RESOURCES: _waiting,
    QueuedState.PROVISIONING: _provisioning,
    QueuedState.ACTIVE: _active,
    QueuedState.SUSPENDING: _suspending,
    QueuedState.DELETING: _deleting_queued,
}
"""What to do with one in that state; each says whether to look again."""


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
    check_node(project, zone, node_id, request.node)
    name = full(project, zone, "nodes", node_id)
    if name in project.nodes:
        raise tpu_zones.exists(name)
    scheduling = request.node.scheduling_config
    provisioning = "spot" if scheduling.spot or scheduling.preemptible else "on-demand"
    accelerator = accelerator_of(request.node)
    check_quota(project, zone, provisioning, tpu_zones.chips_of(accelerator))
    row_id = node_row_id(node_id)
    tpu_zones.asked(project, "queued", zone, row_id, accelerator, provisioning)
    make(project, name, request.node, version="v2")
    operation = tpu_zones.begin(project, "create", name)
    turn(world, project, name, NodeState.CREATING, operation)
    return operation


async def _get(world: World, project: Project, request: GetNodeRequest) -> Node:
    return told(world, project, _found(project, request.name))


async def _list(world: World, project: Project, request: ListNodesRequest) -> ListNodesResponse:
    zones = listed_zones(project, request.parent)
    rows = [one for name, one in sorted(project.nodes.items()) if zone_of(name) in zones]
    page, token = page_of(rows, request.page_size, request.page_token, most=_MOST)
    shown = [told(world, project, one) for one in page]
    return ListNodesResponse(nodes=shown, next_page_token=token)


async def _delete(world: World, project: Project, request: DeleteNodeRequest) -> Operation:
    node = _found(project, request.name)
    if node.state == NodeState.DELETING:
        raise tpu_zones.wrong_state("delete", node.state.name)
    operation = tpu_zones.begin(project, "delete", node.name)
    if node.queued_resource:
        queued = Queued(world, project, node.queued_resource)
        queued.life.operations.append(operation.name)
        if queued.state != QueuedState.SUSPENDING:
            suspend(queued, Initiator.USER)
    else:
        turn(world, project, node.name, NodeState.DELETING, operation)
    return operation


async def _stop(world: World, project: Project, request: StopNodeRequest) -> Operation:
    """Stop one; spot and flex-start nodes cannot be. Source: Google's guides, read 2026-11."""
    node = _found(project, request.name)
    row = Held(world, project, node.name).row
    if row.provisioning != "on-demand":
        raise tpu_zones.wrong_state("stop", f"{node.state.name} ({row.provisioning})")
    if node.state != NodeState.READY:
        raise tpu_zones.wrong_state("stop", node.state.name)
    operation = tpu_zones.begin(project, "stop", node.name)
    turn(world, project, node.name, NodeState.STOPPING, operation)
    return operation


async def _start(world: World, project: Project, request: StartNodeRequest) -> Operation:
    node = _found(project, request.name)
    if node.state != NodeState.STOPPED:
        raise tpu_zones.wrong_state("start", node.state.name)
    operation = tpu_zones.begin(project, "start", node.name)
    turn(world, project, node.name, NodeState.STARTING, operation)
    return operation


def _found(project: Project, name: str) -> Node:
    known: Node | None = project.nodes.get(named(project, name, "nodes"))
    if known is None:
        raise not_found("Resource", name)
    return known
