"""What goes on with a node by itself: it is created, stopped, started, restarted or deleted."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import anyio
from google.cloud.tpu_v2.types import Node
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty

from emulators.google.state import Project, Tpu, TpuLife, World
from emulators.google.tpu import capacity, machines, operating, wording
from emulators.google.tpu.machines import State
from emulators.google.tpu.paths import short_of, zone_of

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
        short = short_of(asked) if asked else row_id(short_of(self.name))
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
            operating.finish(self.project, name, answer)
        self.life.operations = []
        self.world.keep(self.project)


def row_id(node_id: str) -> str:
    """Give the place in the quota of a node that nobody queued."""
    return f"nodes/{node_id}"


def watch(world: World, project: Project, name: str) -> None:
    """Let it live on, until nothing more happens to it by itself."""
    world.tasks.start_soon(_live, Held(world, project, name))


def turn(world: World, project: Project, name: str, state: Any, operation: Operation) -> None:
    """Begin to stop, start, restart or delete it; the operation ends with that."""
    held = Held(world, project, name)
    held.life.operations.append(operation.name)
    held.become(state)
    if state not in {State.CREATING, State.STARTING}:
        machines.end(world, project, name)
    watch(world, project, name)


def preempt(world: World, project: Project, name: str) -> bool:
    """Take the chips of a node back that nobody queued: it stays as PREEMPTED."""
    held = Held(world, project, name)
    if held.node.state != State.READY:
        return False
    held.become(State.PREEMPTED)
    capacity.give_back(held.row)
    machines.end(world, project, name)
    return True


async def _live(held: Held) -> None:
    while True:
        if not (held.known and held.node.state in _STEPS and _STEPS[held.node.state](held)):
            return
        await anyio.sleep(_RHYTHM_SECONDS)


def _creating(held: Held) -> bool:
    if held.node.queued_resource:
        return False
    return _getting(held, _give_up_creation)


def _starting(held: Held) -> bool:
    return _getting(held, _give_up_start)


def _getting(held: Held, give_up: Callable[[Held], None]) -> bool:
    row, project = held.row, held.project
    known = capacity.zone_of(project, row.zone)
    if row.given is None:
        if capacity.take(project, row):
            held.life.since = time.time()
        elif held.elapsed > _PATIENCE_SECONDS + (known.wait_seconds if known else 0):
            give_up(held)
            return False
    elif held.elapsed >= project.knobs.tpu_provision_seconds:
        _up(held)
        return False
    return True


def _up(held: Held) -> None:
    held.become(State.READY)
    machines.ready(held.world, held.project, held.name)
    held.finish(held.node)


def _give_up_creation(held: Held) -> None:
    held.finish(wording.no_capacity(zone_of(held.name)))
    _forget(held)


def _give_up_start(held: Held) -> None:
    held.finish(wording.no_capacity(zone_of(held.name)))
    held.become(State.STOPPED)


def _restarting(held: Held) -> bool:
    if not _is_away(held):
        return True
    _up(held)
    return False


def _stopping(held: Held) -> bool:
    if not _is_away(held):
        return True
    capacity.give_back(held.row)
    held.become(State.STOPPED)
    held.finish(held.node)
    return False


def _deleting(held: Held) -> bool:
    if held.node.queued_resource:
        return False
    if not _is_away(held):
        return True
    held.finish(Empty())
    _forget(held)
    return False


def _is_away(held: Held) -> bool:
    over = held.elapsed >= held.project.knobs.tpu_delete_seconds
    return over and machines.is_down(held.world, held.project, held.name)


def _forget(held: Held) -> None:
    capacity.gone(held.project, held.row)
    machines.remove(held.project, held.name)
    held.world.keep(held.project)


_STEPS: Final[Mapping[Any, Callable[[Held], bool]]] = {
    State.CREATING: _creating,
    State.STARTING: _starting,
    State.RESTARTING: _restarting,
    State.STOPPING: _stopping,
    State.DELETING: _deleting,
}
"""What to do with one in that state; each says whether to look again."""
