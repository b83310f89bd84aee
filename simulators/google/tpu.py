"""Cloud TPU: queued resources and nodes, how each lives, in gRPC v2 and in REST v2alpha1."""

import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import anyio
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
from google.rpc.error_details_pb2 import QuotaFailure
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from simulators.google import serving, tpu_zones, vm
from simulators.google.serving import Refused, invalid, not_found, not_permitted
from simulators.google.state import Project, Tpu, TpuLife, World
from simulators.google.store import Kind, serve
from simulators.google.vm import VmSpec

API: Final = "tpu.googleapis.com"
_V2: Final = "google.cloud.tpu.v2.Tpu"
VERSIONS: Final = (
    "tpu-ubuntu2204-base",
    "v2-alpha-tpuv5",
    "v2-alpha-tpuv5-lite",
    "v2-alpha-tpuv6e",
)
"""Some of the real ones. Source: docs.cloud.google.com/tpu/docs/runtimes, read 2026-11."""
_RHYTHM_SECONDS: Final = 0.03
_ADMISSION_SECONDS: Final = 2.0
"""Simulated: until a request is in the queue."""
_REFUSAL_SECONDS: Final = 10.0
"""Simulated: until the operation says that flex-start is not supported. Source: public report of
2026-06."""
_QUEUED_SECONDS: Final = 1.0
"""Simulated: from ACCEPTED to WAITING_FOR_RESOURCES."""
_PATIENCE_SECONDS: Final = 60.0
"""Simulated: how long a node looks for chips, where the zone makes it wait no longer."""
_PORT: Final = 8470
_USUAL_DISK_GB: Final = 100
"""Of a boot disk. Source: docs.cloud.google.com/tpu/docs, boot disk of TPU VMs, read 2026-11."""
_LONGEST_FLEX_SECONDS: Final = 7 * 86_400
"""Source: docs.cloud.google.com/tpu/docs/queued-resources, flex-start, read 2026-11."""
_VERSIONS: Final[Mapping[str, Any]] = {
    "v2": Node.ApiVersion.V2,
    "v2alpha1": Node.ApiVersion.V2_ALPHA1,
}
_States: Final[Any] = Node.State
_Queued: Final[Any] = QueuedResourceState.State
_By: Final[Any] = QueuedResourceState.StateInitiator
_DELETABLE: Final[frozenset[Any]] = frozenset(
    {
        *(_Queued.CREATING, _Queued.ACCEPTED, _Queued.WAITING_FOR_RESOURCES),
        *(_Queued.FAILED, _Queued.SUSPENDED),
    }
)
"""Without force."""


def _bad(told: str) -> Refused:
    """Refuse what a request asks for."""
    return invalid(f"Cloud TPU received a bad request. {told} {_eid()}")


def _eid() -> str:
    """Return the id of an error that Google can look up."""
    return f"[EID: 0x{uuid.uuid4().hex[:16]}]"


def _wrong_state(verb: str, state: str) -> Refused:
    words = f"Cloud TPU received a bad request. {verb} is not supported while in state {state}."
    return Refused("FAILED_PRECONDITION", words)


def _no_capacity(zone: str) -> Refused:
    """All chips are taken; told in the operation of a node, never of a queued resource."""
    return Refused(
        "RESOURCE_EXHAUSTED",
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud'
        " TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) " + _eid(),
    )


def _over_quota(project: Project, pool: str, zone: str) -> Refused:
    """More chips than a pool allows."""
    said, region = project.knobs.tpu_quotas, zone.rpartition("-")[0]
    by_region = f"{pool}@{region}" in said and f"{pool}@{zone}" not in said
    kind, where = ("Region", f"region {region}") if by_region else ("Zone", f"zone {zone}")
    begins = "TPUV6EPreemptible" if pool.endswith("preemptible") else "TPUV6E"
    limit = tpu_zones.limit_of(project, pool, zone)
    told = (
        f"Quota limit '{begins}PerProjectPer{kind}ForTPUAPI' has been exceeded. Limit: {limit} in"
        f" {where}."
    )
    violation = QuotaFailure.Violation(subject=f"project:{project.id}", description=told)
    return Refused("RESOURCE_EXHAUSTED", told, details=[QuotaFailure(violations=[violation])])


def _now() -> Any:
    """Return this moment as messages hold it."""
    return datetime.now(UTC)


def _full(project: Project, zone: str, collection: str, short: str) -> str:
    return f"projects/{project.id}/locations/{zone}/{collection}/{short}"


def _begin(project: Project, verb: str, target: str, version: str = "v2") -> Operation:
    """Begin an operation on `target`, a full name."""
    drawn = uuid.uuid4().hex
    last = f"operation-{int(time.time() * 1000)}-{drawn[:13]}-{drawn[13:21]}-{drawn[21:29]}"
    told = OperationMetadata(
        create_time=_now(),
        target=target,
        verb=verb,
        api_version=version,
        cancel_requested=False,
    )
    return serving.opened(project, _full(project, target.split("/")[3], "operations", last), told)


def _metadata(operation: Operation) -> OperationMetadata:
    told = OperationMetadata()
    operation.metadata.Unpack(OperationMetadata.pb(told))
    return told


class _Resource(ABC):
    """A queued resource or a node, found by its full name; it lives by itself."""

    table: ClassVar[str]

    def __init__(self, world: World, project: Project, name: str) -> None:
        self.world, self.project, self.name = world, project, name
        self.zone, self.short = name.split("/")[3], name.rpartition("/")[2]

    @property
    def rows(self) -> dict[str, Any]:
        """All of its kind."""
        found: dict[str, Any] = getattr(self.project, self.table)
        return found

    @property
    def message(self) -> Any:
        """As it is kept."""
        return self.rows[self.name]

    @property
    def life(self) -> TpuLife:
        """How far it is."""
        return self.project.tpu_lives[self.name]

    def after(self, simulated: float) -> bool:
        """Say whether so many seconds have passed since its state began."""
        return (time.time() - self.life.since) * self.project.knobs.tpu_clock >= simulated

    def finish(self, answer: Any) -> None:
        """End the operations that are open on it, with a message or with Refused."""
        for name in self.life.operations:
            operation = self.project.operations.get(name)
            if operation is None or operation.done:
                continue
            told = _metadata(operation)
            told.end_time = _now()
            operation.metadata.Pack(OperationMetadata.pb(told))
            if isinstance(answer, Refused):
                serving.failed(operation, answer)
            else:
                serving.succeeded(operation, answer)
        self.life.operations = []
        self.world.keep(self.project)

    def forget(self) -> None:
        """Let it be there no more."""
        self.rows.pop(self.name, None)
        self.project.tpu_lives.pop(self.name, None)
        self.project.queued_more.pop(self.name, None)
        self.world.keep(self.project)

    def watch(self) -> None:
        """Let it live on, until nothing more happens to it by itself."""
        self.world.tasks.start_soon(self._live)

    async def _live(self) -> None:
        while True:
            known = self.world.projects.get(self.project.id) is self.project
            if not (known and self.name in self.rows and self.step()):
                return
            await anyio.sleep(_RHYTHM_SECONDS)

    @abstractmethod
    def step(self) -> bool:
        """Do what its state asks for; say whether to look again."""


class _Node(_Resource):
    table = "nodes"

    @property
    def row(self) -> Tpu:
        """Its place in the quota: its own, or that of who asked for it."""
        queued = self.message.queued_resource
        short = queued.rpartition("/")[2] if queued else f"nodes/{self.short}"
        return self.project.tpus[f"queued/{self.zone}/{short}"]

    @property
    def vm(self) -> vm.Vm | None:
        """Its VM, if there is one."""
        return vm.vm_of(self.world, self.project, "queued", self.zone, self.short)

    def become(self, state: Any) -> None:
        """Change its state."""
        self.message.state = state
        self.life.since = time.time()
        self.world.keep(self.project)

    def turn(self, state: Any, operation: Operation) -> None:
        """Begin to make or delete it; the operation ends with that."""
        self.life.operations.append(operation.name)
        self.become(state)
        if state != _States.CREATING:
            self.end_vm()
        self.watch()

    def make(self, asked: Node, *, version: str, queued: str = "") -> None:
        """Let it be created; `queued` is the full name of who asked for it."""
        project, node = self.project, Node(asked)
        node.name, node.queued_resource = self.name, queued
        node.state, node.create_time = _States.CREATING, _now()
        node.id = uuid.uuid4().int >> 65
        node.api_version = _VERSIONS[version]
        node.network_config.network = f"projects/{project.id}/global/networks/default"
        usual = f"{project.number}-compute@developer.gserviceaccount.com"
        node.service_account.email = asked.service_account.email or usual
        node.service_account.scope = list(asked.service_account.scope) or [
            "https://www.googleapis.com/auth/cloud-platform"
        ]
        project.nodes[self.name] = node
        project.tpu_lives[self.name] = TpuLife(since=time.time(), served_by=version)

    def boot(self) -> None:
        """Start the VM of a node that is up."""
        node = self.message
        disk = self.project.queued_more.get(node.queued_resource, {}).get("bootDiskConfig", {})
        spec = VmSpec(
            plane="queued",
            zone=self.zone,
            id=self.short,
            accelerator=node.accelerator_type,
            metadata=dict(node.metadata),
            tags=tuple(node.tags),
            network=_network_of(node),
            service_account=node.service_account.email,
            scopes=tuple(node.service_account.scope),
            external=node.network_config.enable_external_ips,
            disk_gb=int(disk.get("diskSizeGb") or _USUAL_DISK_GB),
            has_docker=True,
        )
        vm.start(self.world, self.project, spec)

    def end_vm(self) -> None:
        """Tell its VM to be gone, if there is one."""
        running = self.vm
        if running:
            running.end(at_once=True)

    def ready(self) -> None:
        """Let it be up."""
        self.become(_States.READY)
        self.message.health = Node.Health.HEALTHY
        self.boot()
        self.finish(self.message)

    def is_away(self) -> bool:
        """Say whether its time is over and its VM is gone."""
        return self.after(self.project.knobs.tpu_delete_seconds) and self.vm is None

    def step(self) -> bool:
        """Do what its state asks for; the queued resource does it for one that is its own."""
        state, owned = self.message.state, bool(self.message.queued_resource)
        if state == _States.CREATING and not owned:
            return self._get_chips()
        if state != _States.DELETING or owned:
            return False
        if not self.is_away():
            return True
        self.finish(Empty())
        tpu_zones.gone(self.project, self.row)
        self.forget()
        return False

    def _get_chips(self) -> bool:
        known = tpu_zones.capacity_zone(self.project, self.zone)
        if self.row.given:
            if not self.after(self.project.knobs.tpu_provision_seconds):
                return True
            self.ready()
            return False
        if tpu_zones.take(self.project, self.row):
            self.life.since = time.time()
        elif self.after(_PATIENCE_SECONDS + (known.wait_seconds if known else 0)):
            self.finish(_no_capacity(self.zone))
            tpu_zones.gone(self.project, self.row)
            self.forget()
            return False
        return True


class _QueuedResource(_Resource):
    table = "queued_resources"

    @property
    def state(self) -> Any:
        """Of it."""
        return _Queued(self.message.state.state)

    @property
    def row(self) -> Tpu:
        """Its place in the quota."""
        return self.project.tpus[f"queued/{self.zone}/{self.short}"]

    @property
    def asked(self) -> Any:
        """What it asks for: a node, and its id."""
        return self.message.tpu.node_spec[0]

    @property
    def node(self) -> _Node:
        """Its node, whether it is there or not."""
        name = _full(self.project, self.zone, "nodes", self.asked.node_id)
        return _Node(self.world, self.project, name)

    @property
    def has_node(self) -> bool:
        """Whether there is a node that is its own."""
        found = self.project.nodes.get(self.node.name)
        return found is not None and found.queued_resource == self.name

    def become(self, state: Any, initiator: Any = None, error: Refused | None = None) -> None:
        """Change its state; of a failure its error is told."""
        told = QueuedResourceState(state=state)
        if initiator is not None:
            told.state_initiator = initiator
        if error:
            told.failed_data = QueuedResourceState.FailedData(error=error.as_status)
        self.message.state = told
        self.life.since = time.time()
        self.world.keep(self.project)

    def leave(self, state: Any, initiator: Any) -> None:
        """Begin to be SUSPENDED, or deleted, and take its node away."""
        self.become(state, initiator)
        if self.has_node:
            by_user = initiator == _By.USER
            self.node.message.state = _States.DELETING if by_user else _States.PREEMPTED
            self.node.end_vm()
        self.watch()

    def step(self) -> bool:
        """Do what its state asks for."""
        steps: Mapping[Any, Callable[[], bool]] = {
            _Queued.CREATING: self._be_admitted,
            _Queued.ACCEPTED: self._be_queued,
            _Queued.WAITING_FOR_RESOURCES: self._wait,
            _Queued.PROVISIONING: self._provision,
            _Queued.ACTIVE: self._run,
            _Queued.SUSPENDING: self._go,
            _Queued.DELETING: self._go,
        }
        return self.state in steps and steps[self.state]()

    def _be_admitted(self) -> bool:
        known = tpu_zones.capacity_zone(self.project, self.zone)
        flex = self.row.provisioning == "flex-start"
        if flex and known and "flex-start" not in known.accepts:
            if not self.after(_REFUSAL_SECONDS):
                return True
            self.finish(
                invalid(
                    "FLEX_START provisioning model is not supported for accelerator type"
                    f' "{self.asked.node.accelerator_type}" in location "{self.zone}"'
                )
            )
            tpu_zones.gone(self.project, self.row)
            self.forget()
            return False
        if self.after(_ADMISSION_SECONDS):
            self.become(_Queued.ACCEPTED)
            self.finish(self.message)
            if self.node.name in self.project.nodes:
                self._fail_for_node()
        return True

    def _fail_for_node(self) -> None:
        words = f"already_exists: node '{self.node.short}' already exists"
        self.become(_Queued.FAILED, error=Refused("ALREADY_EXISTS", words))

    def _be_queued(self) -> bool:
        if self.after(_QUEUED_SECONDS):
            self.become(_Queued.WAITING_FOR_RESOURCES)
        return True

    def _age(self) -> float:
        return (time.time() - self.row.asked) * self.project.knobs.tpu_clock

    def _wait(self) -> bool:
        until = _bound(self.message)
        known = tpu_zones.capacity_zone(self.project, self.zone)
        if until is not None and self._age() > until:  # Google's wording is not known
            words = (
                "The queued resource could not be provisioned within its valid until constraint."
            )
            self.become(_Queued.FAILED, error=Refused("DEADLINE_EXCEEDED", words))
        elif (
            known
            and self.row.provisioning in known.accepts
            and tpu_zones.take(self.project, self.row)
        ):
            self._make_node()
        return True

    def _make_node(self) -> None:
        if self.node.name in self.project.nodes:
            tpu_zones.give_back(self.row)
            self._fail_for_node()
            return
        self.node.make(self.asked.node, version=self.life.served_by, queued=self.name)
        self.node.message.scheduling_config.spot = self.row.provisioning == "spot"
        self.become(_Queued.PROVISIONING)

    def _provision(self) -> bool:
        if self.after(self.project.knobs.tpu_provision_seconds):
            self.become(_Queued.ACTIVE)
            self.node.ready()
        return True

    def _run(self) -> bool:
        longest = _run_seconds(self.project.queued_more.get(self.name, {}))
        if longest is None:
            return False
        if (time.time() - self.life.since) * self.project.knobs.tpu_run_clock > longest:
            self.leave(_Queued.SUSPENDING, _By.SERVICE)
            return False
        return True

    def _go(self) -> bool:
        away = self.after(self.project.knobs.tpu_delete_seconds)
        if not away or (self.has_node and self.node.vm):
            return True
        if self.has_node:
            self.node.forget()
        if self.state == _Queued.SUSPENDING:
            tpu_zones.give_back(self.row)
            self.become(_Queued.SUSPENDED, _By(self.message.state.state_initiator))
            self.finish(Empty())
        else:
            self.finish(Empty())
            tpu_zones.gone(self.project, self.row)
            self.forget()
        return False


def _bound(asked: QueuedResource) -> float | None:
    """Return how long after its creation a request may still be fulfilled."""
    policy: Any = asked.queueing_policy
    if "valid_until_duration" not in policy:
        return None
    return float(policy.valid_until_duration.total_seconds())


def _run_seconds(more: Mapping[str, Any]) -> float | None:
    """Return the time that a VM may run; None is for ever."""
    said = more.get("runDuration", {}).get("maxRunDuration")
    return float(said.removesuffix("s")) if said else None


def _is_spot(asked: QueuedResource) -> bool:
    scheduling = [one.node.scheduling_config for one in asked.tpu.node_spec]
    return "spot" in asked or any(one.spot or one.preemptible for one in scheduling)


def _network_of(node: Node) -> str:
    return str(node.network_config.network or "default").rpartition("/")[2]


_ID: Final = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_ACT: Final = "iam.serviceAccounts.actAs"


def _check_node(project: Project, zone: str, node_id: str, node: Node) -> None:
    """Refuse what a node cannot be."""
    known, accelerator = tpu_zones.capacity_zone(project, zone), node.accelerator_type
    if known is None:
        raise _bad(f'The requested zone "{zone}" is not supported.')
    if not re.fullmatch(_ID, node_id):
        raise _bad(f'Invalid node id "{node_id}".')
    if accelerator not in known.accelerators:
        said = accelerator or "unspecified"
        raise _bad(
            f'The requested accelerator configuration for accelerator type, "{said}", could not be'
            f' found in the zonal accelerator configurations for "{zone}".; the accelerator {said}'
            f" was not found in zone {zone}"
        )
    if node.runtime_version not in VERSIONS:
        raise _bad(f'The requested runtime version "{node.runtime_version}" is not found.')
    network = _network_of(node)
    if network != "default":
        path = f"projects/{project.id}/global/networks/{network}"
        raise _bad(f"The resource '{path}' was not found")
    email = node.service_account.email
    ours = email.endswith(f"@{project.id}.iam.gserviceaccount.com")
    if project.denies(_ACT) or (ours and email not in project.accounts):
        raise not_permitted(_ACT, f"projects/-/serviceAccounts/{email or 'default'}")


def _provisioning(asked: QueuedResource, more: Mapping[str, Any]) -> str:
    """Return on-demand, spot or flex-start.

    A run duration without flex-start is refused: whether Google takes it is not known.

    Raises:
        Refused: What was said contradicts itself.
    """
    model, spot = more.get("provisioningModel", ""), _is_spot(asked)
    if spot and model in {"STANDARD", "FLEX_START"}:  # public reports of 2026-02 to 2026-08
        raise invalid(f"{model} provisioning model is incompatible with spot requests")
    if model != "FLEX_START":
        if more.get("runDuration"):
            raise _bad("run_duration is only supported for FLEX_START.")
        return "spot" if spot or model == "SPOT" else "on-demand"
    seconds = _run_seconds(more)
    if seconds is None:
        raise _bad("FLEX_START requires run_duration.max_run_duration.")
    if not 0 < seconds <= _LONGEST_FLEX_SECONDS:
        raise _bad("max_run_duration must be positive and at most 7 days.")
    return "flex-start"


def _ask(project: Project, zone: str, row_id: str, node: Node, provisioning: str) -> Tpu:
    """Count a request against its quota.

    Raises:
        Refused: It goes beyond that.
    """
    accelerator = node.accelerator_type
    chips = tpu_zones.chips_of(accelerator)
    pool = tpu_zones.exceeded(project, "queued", provisioning, zone, chips)
    if pool:
        raise _over_quota(project, pool, zone)
    return tpu_zones.asked(project, "queued", zone, row_id, accelerator, provisioning)


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
        if zone != "-" and tpu_zones.capacity_zone(project, zone) is None:
            words = f"Location {zone} is not found or access is unauthorized."
            raise Refused("PERMISSION_DENIED", words)
        return found

    def missing(self, _project: Project, name: str) -> Refused:
        """Refuse to find one that is not there."""
        return not_found("Resource", name)


class _AcceleratorTypes(_Kind):
    noun, collection, permission = "AcceleratorType", "acceleratorTypes", "tpu.acceleratortypes"
    verbs = ("Get",)

    def rows(self, project: Project) -> MutableMapping[str, Any]:
        """Return what each zone has."""
        zones = project.knobs.tpu_zones or tpu_zones.ZONES
        names = [
            (_full(project, zone, self.collection, one), one)
            for zone, known in sorted(zones.items())
            for one in known.accelerators
        ]
        return {name: AcceleratorType(name=name, type_=one) for name, one in names}


class _Nodes(_Kind):
    noun, collection, permission, table = "Node", "nodes", "tpu.nodes", "nodes"

    def told(self, project: Project, row: Node) -> Node:
        """Return a node with the addresses that its VM has now."""
        shown, running = Node(row), _Node(self.world, project, row.name).vm
        if running:
            endpoint = NetworkEndpoint(ip_address=running.internal_ip, port=_PORT)
            if running.external_ip:
                endpoint.access_config = AccessConfig(external_ip=running.external_ip)
            shown.network_endpoints = [endpoint]
        return shown

    async def create(self, world: World, project: Project, request: Any) -> Operation:
        """Make a node that nobody queued."""
        zone = request.parent.rpartition("/")[2]
        node_id = request.node_id or f"tpu-{uuid.uuid4().hex[:12]}"
        _check_node(project, zone, node_id, request.node)
        made = _Node(world, project, _full(project, zone, "nodes", node_id))
        if made.name in project.nodes:
            raise self.taken(project, made.name)
        scheduling = request.node.scheduling_config
        provisioning = "spot" if scheduling.spot or scheduling.preemptible else "on-demand"
        _ask(project, zone, f"nodes/{node_id}", request.node, provisioning)
        made.make(request.node, version="v2")
        operation = _begin(project, "create", made.name)
        made.turn(_States.CREATING, operation)
        return operation

    async def delete(self, world: World, project: Project, request: Any) -> Operation:
        """Delete a node; who queued it is SUSPENDED then."""
        node = self.find(project, request.name)
        if node.state == _States.DELETING:
            raise _wrong_state("delete", node.state.name)
        operation = _begin(project, "delete", node.name)
        if not node.queued_resource:
            _Node(world, project, node.name).turn(_States.DELETING, operation)
            return operation
        queued = _QueuedResource(world, project, node.queued_resource)
        queued.life.operations.append(operation.name)
        if queued.state != _Queued.SUSPENDING:
            queued.leave(_Queued.SUSPENDING, _By.USER)
        return operation


class _QueuedResources(_Kind):
    """There are no permissions of their own; those of nodes count."""

    noun, collection, permission = "QueuedResource", "queuedResources", "tpu.nodes"
    table = "queued_resources"

    async def create(self, world: World, project: Project, request: Any) -> Operation:
        """Queue a request."""
        return self.queue(world, project, request, {}, "v2")

    def queue(
        self,
        world: World,
        project: Project,
        request: CreateQueuedResourceRequest,
        more: dict[str, Any],
        version: str,
    ) -> Operation:
        """Queue a request; `more` is what v2alpha1 alone can say.

        Raises:
            Refused: As Google says it.
        """
        zone = request.parent.rpartition("/")[2]
        queued_id = request.queued_resource_id or f"qr-{uuid.uuid4().hex[:12]}"
        name = _full(project, zone, self.collection, queued_id)
        known = project.tpu_lives.get(name)
        if known and request.request_id and known.request_id == request.request_id:
            begun: Operation = project.operations[known.created_by]
            return begun
        asked = QueuedResource(request.queued_resource)
        asked.name, asked.create_time = name, _now()
        asked.state = QueuedResourceState(state=_Queued.CREATING)
        self._check(project, zone, queued_id, asked)
        provisioning = _provisioning(asked, more)
        if name in project.queued_resources:
            raise self.taken(project, name)
        row = _ask(project, zone, queued_id, asked.tpu.node_spec[0].node, provisioning)
        operation = _begin(project, "create", name, version)
        project.queued_resources[name], project.queued_more[name] = asked, more
        project.tpu_lives[name] = TpuLife(
            since=row.asked,
            operations=[operation.name],
            request_id=request.request_id,
            created_by=operation.name,
            served_by=version,
        )
        _QueuedResource(world, project, name).watch()
        return operation

    def _check(self, project: Project, zone: str, queued_id: str, asked: QueuedResource) -> None:
        if not re.fullmatch(_ID, queued_id):
            raise _bad(f'Invalid resource id "{queued_id}".')
        if len(asked.tpu.node_spec) != 1:
            raise _bad("Exactly one node_spec must be specified.")
        [spec] = asked.tpu.node_spec
        if spec.parent not in {
            f"projects/{p}/locations/{zone}" for p in (project.id, project.number)
        }:
            raise _bad(f'The parent "{spec.parent}" of node_spec is not that of the request.')
        _check_node(project, zone, spec.node_id, spec.node)
        until = _bound(asked)
        if until is not None and until <= 0:
            raise _bad("valid_until must be in the future.")

    async def delete(self, world: World, project: Project, request: Any) -> Operation:
        """Delete one, with its node by force."""
        return self.remove(world, project, request, "v2")

    def remove(
        self, world: World, project: Project, request: DeleteQueuedResourceRequest, version: str
    ) -> Operation:
        """Delete one, with its node by force.

        Raises:
            Refused: There is none, it is being deleted, or it has a node and is not forced.
        """
        queued = _QueuedResource(world, project, self.find(project, request.name).name)
        if queued.state == _Queued.DELETING:
            raise _wrong_state("delete", queued.state.name)
        if not request.force and queued.state not in _DELETABLE:
            raise Refused(
                "FAILED_PRECONDITION",
                f"Queued resource in state {queued.state.name} cannot be deleted: delete its nodes"
                f" first, or set force. {_eid()}",
            )
        if queued.state == _Queued.CREATING:
            queued.finish(queued.message)
        queued.leave(_Queued.DELETING, _By.USER)
        operation = _begin(project, "delete", queued.name, version)
        queued.life.operations.append(operation.name)
        return operation


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve v2."""
    kinds = (_AcceleratorTypes, _Nodes, _QueuedResources)
    serve(server, world, _V2, "tpu", *(kind(world) for kind in kinds))


def resume(world: World) -> None:
    """Go on with what an earlier process began; VMs that were up boot again."""
    for project in world:
        for name in tuple(project.queued_resources):
            _QueuedResource(world, project, name).watch()
        for name, node in tuple(project.nodes.items()):
            if node.state == _States.READY:
                _Node(world, project, name).boot()
            _Node(world, project, name).watch()


async def forget(world: World, project: Project) -> None:
    """End the VMs of a project that is known no more, of either control plane."""
    mine = [one for key, one in world.live.items() if key.startswith(f"{project.id}/")]
    vms = [one for one in mine if isinstance(one, vm.Vm)]
    for one in vms:
        one.end(at_once=True)
    for one in vms:
        await one.ended.wait()


def preempt(world: World, project: Project, zone: str, tpu_id: str) -> bool:
    """Take the chips of a queued resource back; False if it has none."""
    name = _full(project, zone, "queuedResources", tpu_id)
    if name not in project.queued_resources:
        return False
    queued = _QueuedResource(world, project, name)
    if queued.state not in {_Queued.PROVISIONING, _Queued.ACTIVE}:
        return False
    queued.leave(_Queued.SUSPENDING, _By.SERVICE)
    return True


_OWN: Final = ("provisioningModel", "runDuration")
"""Fields of a queued resource that v2 does not have. Source: discovery document tpu.v2alpha1."""
_DISK: Final = "bootDiskConfig"
"""The same of a node."""
_MODELS: Final = ("STANDARD", "SPOT", "FLEX_START")
_DURATION: Final = re.compile(r"[0-9]+(\.[0-9]{1,9})?s")


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve the one method of v2alpha1 that is asked."""
    kind, permission = _QueuedResources(world), "tpu.nodes.create"
    name = "google.cloud.tpu.v2alpha1.Tpu/CreateQueuedResource"

    async def admitted(project: Project, request: Request) -> Response:
        here = request.url.path.removeprefix("/v2alpha1/")
        try:
            if API not in project.apis:
                raise serving.disabled(project, API)
            if project.denies(permission):
                raise not_permitted(permission, here)
            asked, more = _read(await request.body())
            query = request.query_params
            made = CreateQueuedResourceRequest(
                parent=here.rpartition("/")[0],
                queued_resource_id=query.get("queuedResourceId", ""),
                queued_resource=asked,
                request_id=query.get("requestId", ""),
            )
            return JSONResponse({"name": kind.queue(world, project, made, more, "v2alpha1").name})
        except Refused as refused:
            return serving.of(refused)

    path = "/v2alpha1/projects/{project}/locations/{zone}/queuedResources"
    return [serving.rest(world, "POST", path, name, admitted, serving.of)]


def _read(sent: bytes) -> tuple[QueuedResource, dict[str, Any]]:
    """Return what v2 knows of a body, and what it does not.

    Raises:
        Refused: A field is unknown, or a value is of another type.
    """
    resource, more = QueuedResource(), dict[str, Any]()
    try:
        body = json.loads(sent or b"{}")
        for holder, name in [(body, name) for name in _OWN] + [
            (spec["node"], _DISK) for spec in body.get("tpu", {}).get("nodeSpec", [])
        ]:
            if name in holder:
                more[name] = holder.pop(name)
        json_format.ParseDict(body, QueuedResource.pb(resource))
        duration = more.get("runDuration", {}).get("maxRunDuration", "0s")
        if more.get("provisioningModel") not in {None, *_MODELS} or not _DURATION.match(duration):
            raise invalid(f"Invalid value at 'queued_resource' (TYPE_ENUM), {more!r:.80}")
    except (ValueError, json_format.ParseError, KeyError, TypeError, AttributeError) as exc:
        raise invalid(f"Invalid JSON payload received. {exc}") from exc
    return resource, more
