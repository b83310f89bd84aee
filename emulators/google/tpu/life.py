"""The life of a queued resource: from the queue to its node, and what becomes of both."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from google.cloud.tpu_v2.types import Node, QueuedResource, QueuedResourceState
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status

from emulators.google.refusing import Refused
from emulators.google.state import Project, Tpu, TpuLife, World
from emulators.google.tpu import capacity, machines, operating, queue_rules, wording
from emulators.google.tpu.paths import full, short_of, zone_of

State: Final[Any] = QueuedResourceState.State
Initiator: Final[Any] = QueuedResourceState.StateInitiator
RHYTHM_SECONDS: Final = 0.03
_ADMISSION_SECONDS: Final = 2.0
"""Simulated: until a request is in the queue."""
_REFUSAL_SECONDS: Final = 10.0
"""Simulated: until the operation says that flex-start is not supported. Source: public report of
2026-06."""
_QUEUED_SECONDS: Final = 1.0
"""Simulated: from ACCEPTED to WAITING_FOR_RESOURCES."""
WITH_NODE: Final = frozenset({State.PROVISIONING, State.ACTIVE, State.SUSPENDING})


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
        return State(self.resource.state.state)

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
        self.become(State.FAILED)
        status: Status = refused.as_status
        self.resource.state.failed_data = QueuedResourceState.FailedData(error=status)
        self.world.keep(self.project)

    def finish(self, answer: Any) -> None:
        """End whatever operations are open on it."""
        for name in self.life.operations:
            operating.finish(self.project, name, answer)
        self.life.operations = []


def watch(queued: Queued) -> None:
    """Let it live on, until nothing more happens to it by itself."""
    queued.world.tasks.start_soon(_live, queued)


async def _live(queued: Queued) -> None:
    while True:
        if not (queued.known and queued.state in _STEPS and _STEPS[queued.state](queued)):
            return
        await anyio.sleep(RHYTHM_SECONDS)


def suspend(queued: Queued, initiator: Any) -> None:
    """Take its node away: by preemption, by the end of its time, or by whoever deleted the node."""
    queued.become(State.SUSPENDING, initiator)
    node = queued.node
    if node:
        by_user = initiator == Initiator.USER
        node.state = machines.State.DELETING if by_user else machines.State.PREEMPTED
        machines.end(queued.world, queued.project, node.name)
    watch(queued)


def delete(queued: Queued) -> None:
    """Take everything away that is its own, and then itself."""
    if queued.state == State.CREATING:
        queued.finish(queued.resource)
    queued.become(State.DELETING, Initiator.USER)
    if queued.node:
        queued.node.state = machines.State.DELETING
        machines.end(queued.world, queued.project, queued.node_name)
    watch(queued)


def _creating(queued: Queued) -> bool:
    project, flex = queued.project, queued.row.provisioning == "flex-start"
    zone = zone_of(queued.name)
    known = capacity.zone_of(project, zone)
    if flex and known and "flex-start" not in known.accepts:
        if queued.elapsed < _REFUSAL_SECONDS:
            return True
        queued.finish(wording.no_flex(zone, queue_rules.accelerator_of(queued.asked)))
        _forget(queued)
        return False
    if queued.elapsed < _ADMISSION_SECONDS:
        return True
    queued.become(State.ACCEPTED)
    queued.finish(queued.resource)
    if queued.node_name in project.nodes:
        queued.fail(wording.node_exists(short_of(queued.node_name)))
    return True


def _accepted(queued: Queued) -> bool:
    earliest = queue_rules.after_seconds(queued.resource)
    if queued.elapsed >= _QUEUED_SECONDS and queued.age >= earliest:
        queued.become(State.WAITING_FOR_RESOURCES)
    return True


def _waiting(queued: Queued) -> bool:
    project, until = queued.project, queue_rules.until_seconds(queued.resource)
    known = capacity.zone_of(project, zone_of(queued.name))
    if until is not None and queued.age > until:
        queued.fail(wording.too_late())
    elif known and queued.row.provisioning in known.accepts and capacity.take(project, queued.row):
        _provision(queued)
    return True


def _provision(queued: Queued) -> None:
    if queued.node_name in queued.project.nodes:
        capacity.give_back(queued.row)
        queued.fail(wording.node_exists(short_of(queued.node_name)))
        return
    node = machines.make(
        queued.project,
        queued.node_name,
        queued.asked,
        version=queued.life.served_by,
        queued=queued.name,
    )
    node.scheduling_config.spot = queued.row.provisioning == "spot"
    queued.become(State.PROVISIONING)


def _provisioning(queued: Queued) -> bool:
    if queued.elapsed >= queued.project.knobs.tpu_provision_seconds:
        queued.become(State.ACTIVE)
        machines.ready(queued.world, queued.project, queued.node_name)
    return True


def _active(queued: Queued) -> bool:
    longest = queue_rules.run_seconds(queued.more)
    if longest is None:
        return False
    ran = (time.time() - queued.life.since) * queued.project.knobs.tpu_run_clock
    if ran > longest:
        suspend(queued, Initiator.SERVICE)
        return False
    return True


def _suspending(queued: Queued) -> bool:
    if not _is_away(queued):
        return True
    machines.remove(queued.project, queued.node_name)
    capacity.give_back(queued.row)
    initiator = Initiator(queued.resource.state.state_initiator)
    queued.become(State.SUSPENDED, initiator)
    queued.finish(Empty())
    return False


def _deleting(queued: Queued) -> bool:
    if not _is_away(queued):
        return True
    if queued.node:
        machines.remove(queued.project, queued.node_name)
    queued.finish(Empty())
    _forget(queued)
    return False


def _is_away(queued: Queued) -> bool:
    """Whether its time is over and its VM is gone."""
    over = queued.elapsed >= queued.project.knobs.tpu_delete_seconds
    gone = machines.is_down(queued.world, queued.project, queued.node_name)
    return over and (gone or queued.node is None)


def _forget(queued: Queued) -> None:
    project = queued.project
    capacity.gone(project, queued.row)
    for kept in (project.queued_resources, project.queued_more, project.tpu_lives):
        kept.pop(queued.name, None)
    queued.world.keep(project)


_STEPS: Final[Mapping[Any, Callable[[Queued], bool]]] = {
    State.CREATING: _creating,
    State.ACCEPTED: _accepted,
    State.WAITING_FOR_RESOURCES: _waiting,
    State.PROVISIONING: _provisioning,
    State.ACTIVE: _active,
    State.SUSPENDING: _suspending,
    State.DELETING: _deleting,
}
"""What to do with one in that state; each says whether to look again."""
