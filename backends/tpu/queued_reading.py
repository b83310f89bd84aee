"""A queued resource with its node, read into the words of both control planes."""

from collections.abc import Mapping
from datetime import datetime
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal

from backends.google.clients import MANAGED_BY, TARGET_LABEL, when
from backends.tpu.chip import Chip, ChipState, Place, Provisioning
from backends.tpu.flex import Flex
from backends.tpu.names import SPEC_METADATA
from planner.places import places

if TYPE_CHECKING:
    from google.cloud.tpu_v2.types import Node, QueuedResource

WITHOUT_NODE: Final = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED"})
"""A request in these states never has one; another's may have its id."""
_STATES: Final[Mapping[str, ChipState]] = {
    "CREATING": ChipState.WAITING,
    "ACCEPTED": ChipState.WAITING,
    "WAITING_FOR_RESOURCES": ChipState.WAITING,
    "PROVISIONING": ChipState.PROVISIONING,
    "ACTIVE": ChipState.RUNNING,
    "SUSPENDING": ChipState.STOPPING,
    "SUSPENDED": ChipState.SUSPENDED,
    "FAILED": ChipState.FAILED,
    "DELETING": ChipState.DELETING,
}
_NODES: Final[Mapping[str, ChipState]] = {
    "CREATING": ChipState.PROVISIONING,
    "STARTING": ChipState.PROVISIONING,
    "READY": ChipState.RUNNING,
    "RESTARTING": ChipState.RUNNING,
    "REIMAGING": ChipState.RUNNING,
    "REPAIRING": ChipState.RUNNING,
    "STOPPING": ChipState.STOPPING,
    "STOPPED": ChipState.STOPPED,
    "DELETING": ChipState.DELETING,
    "PREEMPTED": ChipState.SUSPENDED,
    "TERMINATED": ChipState.SUSPENDED,
}
"""What a node's state says where its request is ACTIVE, or where it has none."""
_BY: Final[Mapping[str, Literal["user", "service"]]] = {"USER": "user", "SERVICE": "service"}
_MODELS: Final[Mapping[str, Provisioning]] = {"FLEX_START": "flex-start", "SPOT": "spot"}
_PREEMPTED: Final = frozenset({"PREEMPTED", "TERMINATED"})


def last_of(name: str) -> str:
    """Give the last part of a full name."""
    return name.rpartition("/")[2]


def zone_of(name: str) -> str:
    """Give the zone of a full name.

    >>> zone_of("projects/p/locations/us-east5-b/nodes/n")
    'us-east5-b'
    """
    return name.split("/")[3]


def node_id_of(resource: "QueuedResource") -> str:
    """Give the id of its node, the first if there are several; empty if it names none."""
    return next((str(spec.node_id) for spec in resource.tpu.node_spec), "")


def belongs(node: "Node", resource: "QueuedResource") -> bool:
    """Whether a node was made for a request; names may say the project by its number."""
    return not node.queued_resource or last_of(node.queued_resource) == last_of(resource.name)


def said_of(resource: "QueuedResource") -> str:
    """Give its state in Google's word."""
    return str(resource.state.state.name)


def chip_of(resource: "QueuedResource", node: "Node | None", flex: Flex | None) -> Chip:
    """Put together what is known of one; `node` only where it belongs to it."""
    asked = next((spec.node for spec in resource.tpu.node_spec), None)
    told: Any = node if node is not None else asked
    said, state = said_of(resource), _state(said_of(resource), node)
    preempted = node is not None and node.state.name in _PREEMPTED
    given = when(node.create_time) if node is not None and node.create_time else None
    return Chip(
        place=Place(zone_of(resource.name), "queued"),
        id=last_of(resource.name),
        state=state,
        said=said,
        node=node_id_of(resource),
        accelerator=_accelerator(told),
        chips=_chips(told) * max(1, len(resource.tpu.node_spec)),
        provisioning=_provisioning(resource, flex),
        created_at=when(resource.create_time),
        given_at=given,
        ends_at=_end(given, flex),
        why=_why(resource, node),
        taken_by="service" if preempted else _BY.get(resource.state.state_initiator.name, ""),
        **_of_node(node, told),
    )


def bare(node: "Node") -> Chip:
    """Give a node that nobody queued for: it is somebody else's, and is shown."""
    said, spot = str(node.state.name), node.scheduling_config
    return Chip(
        place=Place(zone_of(node.name), "queued"),
        id=last_of(node.name),
        state=_NODES.get(said, ChipState.UNKNOWN),
        said=said,
        node=last_of(node.name),
        accelerator=_accelerator(node),
        chips=_chips(node),
        provisioning="spot" if spot.spot or spot.preemptible else "on-demand",
        created_at=when(node.create_time),
        given_at=when(node.create_time),
        why=str(node.health_description),
        **_of_node(node, node),
    )


def _of_node(node: "Node | None", told: Any) -> dict[str, Any]:
    """Give what only the node knows, and what its order knows as well."""
    known: dict[str, Any] = {
        "labels": dict(told.labels) if told else {},
        "spec_json": str(told.metadata.get(SPEC_METADATA, "")) if told else "",
    }
    if node is None:
        return known
    ends = next(iter(node.network_endpoints), None)
    return {
        **known,
        "node_said": str(node.state.name),
        "node_number": str(node.id or ""),
        "health": str(node.health.name) if node.health else "",
        "internal_ip": str(ends.ip_address) if ends else "",
        "external_ip": str(ends.access_config.external_ip) if ends else "",
    }


def _state(said: str, node: "Node | None") -> ChipState:
    """Say it by the node while it is ACTIVE; without one its chip is being taken back."""
    if said != "ACTIVE":
        return _STATES.get(said, ChipState.UNKNOWN)
    return ChipState.STOPPING if node is None else _NODES.get(node.state.name, ChipState.UNKNOWN)


def _provisioning(resource: "QueuedResource", flex: Flex | None) -> Provisioning:
    asked = next((spec.node for spec in resource.tpu.node_spec), None)
    if "spot" in resource or (asked and asked.scheduling_config.spot):
        return "spot"
    if flex:
        return _MODELS.get(flex.model, "on-demand")
    return target_provisioning(resource) or "on-demand"


def target_provisioning(resource: "QueuedResource") -> Provisioning | None:
    """Give how chips are given to the target that its label names; None if it names none."""
    labels = next((spec.node.labels for spec in resource.tpu.node_spec), {})
    place = places().get(labels.get(TARGET_LABEL, ""))
    ours = labels.get("managed-by") == MANAGED_BY
    return place.provisioning if ours and place else None


def _end(given: datetime | None, flex: Flex | None) -> datetime | None:
    """Say when Google ends it: only flex-start has such a time on the queue."""
    if flex is None or flex.model != "FLEX_START":
        return None
    return flex.ends_at or (given + flex.run if given and flex.run else None)


def _why(resource: "QueuedResource", node: "Node | None") -> str:
    if resource.state.failed_data.error.message:
        return str(resource.state.failed_data.error.message)
    if node is not None and node.state.name in _PREEMPTED:
        return f"Its node is {node.state.name}."
    return str(node.health_description) if node is not None else ""


def _accelerator(node: Any) -> str:
    """Give its type, or the generation and topology that it was asked for with."""
    if not node:
        return ""
    config = node.accelerator_config
    generation = config.type_.name if config.type_ else ""
    return str(node.accelerator_type) or f"{generation} {config.topology}".strip()


def _chips(node: Any) -> int:
    """Read it from the type's last part, or from the topology; 0 if neither tells."""
    if not node:
        return 0
    last = str(node.accelerator_type).rpartition("-")[2]
    if last.isdecimal():
        return int(last)
    sides = str(node.accelerator_config.topology).split("x")
    return prod(int(side) for side in sides) if all(map(str.isdecimal, sides)) else 0
