"""Queued resources of Cloud TPU: gRPC for what its SDK has words for, REST for the rest."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from math import prod
from typing import Any, Final, Literal

from google.cloud.tpu_v2.types import Node, QueuedResource

from backends.google.clients import MANAGED_BY, TARGET_LABEL, as_sent, when
from backends.google.errors import find, reading, strictly, writing
from backends.google.leftovers import NO_NODE, TAKEN
from backends.tpu import site as tpu
from core.errors import OpsError
from planner.places import places

TPU_API: Final = "https://tpu.googleapis.com"
_VERSION: Final = "v2alpha1"


def queued_resource(request: tpu.Request) -> QueuedResource:
    """Say it in the words of v2, which has none for how its chips are given."""
    made = request.made
    node = {
        "accelerator_type": made.accelerator,
        "runtime_version": made.runtime_version,
        "network_config": {
            "network": made.network,
            # Left out, Google takes one called "default", whatever the network.
            "subnetwork": made.subnetwork or made.network,
            # Without one it reaches neither Docker Hub nor the Hugging Face Hub.
            "enable_external_ips": made.external_ip,
        },
        "service_account": {"email": made.service_account, "scope": [tpu.ACCOUNT_SCOPE]},
        "labels": dict(request.labels),
        "metadata": request.metadata,
        "tags": [made.id],
    }
    spec = {"parent": _parent_of(request), "node_id": made.id, "node": node}
    wait = {"valid_until_duration": timedelta(seconds=made.wait_seconds)}
    return QueuedResource({"tpu": {"node_spec": [spec]}, "queueing_policy": wait})


def body_of(request: tpu.Request) -> dict[str, Any]:
    """Say all of it: with its provisioning model in the words of v2alpha1, but on demand.

    Spot as v2 says it was taken for a contradiction with some callers. Flex-start has an end, and
    a boot disk of a size.
    """
    made, body = request.made, as_sent(queued_resource(request))
    if made.provisioning != "on-demand":
        body["provisioningModel"] = made.provisioning.replace("-", "_").upper()
    if made.provisioning == "flex-start":
        # Numbers of 64 bits are strings in JSON.
        node = body["tpu"]["nodeSpec"][0]["node"]
        node["bootDiskConfig"] = {"diskSizeGb": str(made.disk_gb)}
        body["runDuration"] = {"maxRunDuration": f"{made.run_seconds}s"}
    return body


def _parent_of(request: tpu.Request) -> str:
    return f"projects/{request.made.project}/locations/{request.zone}"


_STATES: Final[Mapping[str, tpu.ChipState]] = {
    "CREATING": tpu.ChipState.WAITING,
    "ACCEPTED": tpu.ChipState.WAITING,
    "WAITING_FOR_RESOURCES": tpu.ChipState.WAITING,
    "PROVISIONING": tpu.ChipState.PROVISIONING,
    "SUSPENDING": tpu.ChipState.STOPPING,
    "SUSPENDED": tpu.ChipState.SUSPENDED,
    "FAILED": tpu.ChipState.FAILED,
    "DELETING": tpu.ChipState.DELETING,
}
_NODES: Final[Mapping[str, tpu.ChipState]] = {
    "CREATING": tpu.ChipState.PROVISIONING,
    "STARTING": tpu.ChipState.PROVISIONING,
    "READY": tpu.ChipState.RUNNING,
    "RESTARTING": tpu.ChipState.RUNNING,
    "REIMAGING": tpu.ChipState.RUNNING,
    "REPAIRING": tpu.ChipState.RUNNING,
    "STOPPING": tpu.ChipState.STOPPING,
    "STOPPED": tpu.ChipState.STOPPED,
    "DELETING": tpu.ChipState.DELETING,
    "PREEMPTED": tpu.ChipState.SUSPENDED,
    "TERMINATED": tpu.ChipState.SUSPENDED,
}
"""What a node's state says where its request is ACTIVE, or where it has none."""
_BY: Final[Mapping[str, Literal["user", "service"]]] = {"USER": "user", "SERVICE": "service"}


def _last_of(name: str) -> str:
    return name.rpartition("/")[2]


def _key(name: str) -> tuple[str, str]:
    """Return zone and id of a full name: projects/P/locations/ZONE/nodes/ID."""
    return name.split("/")[3], _last_of(name)


def said_of(resource: QueuedResource) -> str:
    return str(resource.state.state.name)


def _asked_node(resource: QueuedResource) -> tuple[str, Node | None]:
    """Return id and wishes of the node that is asked for, the first if there are several."""
    spec = next(iter(resource.tpu.node_spec), None)
    return (str(spec.node_id), spec.node) if spec else ("", None)


def own_node(resource: QueuedResource, node: Node | None) -> Node | None:
    """Return a node if it was made for a request; names may say the project by its number."""
    if node is None or said_of(resource) in NO_NODE:
        return None
    whose = _last_of(node.queued_resource)
    return node if whose in {"", _last_of(resource.name)} else None


def chip_of(resource: QueuedResource, node: Node | None) -> tpu.Chip:
    """Put together what is known of one; `node` only where it belongs to it."""
    node_id, asked = _asked_node(resource)
    zone, short = _key(resource.name)
    said, node_said = said_of(resource), node.state.name if node else ""
    state = _STATES.get(said, tpu.ChipState.UNKNOWN)
    if said == "ACTIVE":  # without a node its chip is being taken back
        state = _NODES.get(node_said, tpu.ChipState.UNKNOWN) if node else tpu.ChipState.STOPPING
    preempted = node_said in TAKEN
    by_node = f"Its node is {node_said}." if preempted else node.health_description if node else ""
    told: Any = node or asked
    return tpu.Chip(
        place=tpu.Place(zone, "queued"),
        id=short,
        path=str(resource.name),
        state=state,
        said=said,
        node=node_id,
        accelerator=_accelerator(told),
        chips=_chips(told) * max(1, len(resource.tpu.node_spec)),
        provisioning=_provisioning(resource),
        created_at=when(resource.create_time),
        given_at=when(node.create_time) if node and node.create_time else None,
        why=str(resource.state.failed_data.error.message or by_node),
        taken_by="service" if preempted else _BY.get(resource.state.state_initiator.name, ""),
        **_of_node(node, told),
    )


def bare(node: Node) -> tpu.Chip:
    """Return a node that nobody queued for: it is somebody else's, and is shown."""
    said, spot = str(node.state.name), node.scheduling_config
    zone, short = _key(node.name)
    return tpu.Chip(
        place=tpu.Place(zone, "queued"),
        id=short,
        path=str(node.name),
        state=_NODES.get(said, tpu.ChipState.UNKNOWN),
        said=said,
        node=short,
        accelerator=_accelerator(node),
        chips=_chips(node),
        provisioning="spot" if spot.spot or spot.preemptible else "on-demand",
        created_at=when(node.create_time),
        given_at=when(node.create_time),
        why=str(node.health_description),
        **_of_node(node, node),
    )


def _of_node(node: Node | None, told: Any) -> dict[str, Any]:
    """Return what only the node knows, and what its order knows as well."""
    known: dict[str, Any] = {
        "labels": dict(told.labels) if told else {},
        "spec_json": str(told.metadata.get(tpu.SPEC_METADATA, "")) if told else "",
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


def _provisioning(resource: QueuedResource) -> tpu.Provisioning | None:
    """Return how its chips are given: by the target that its label names, else by v2's own words.

    Those have none for flex-start: of what others asked for, it is not told.
    """
    _id, asked = _asked_node(resource)
    if "spot" in resource or (asked and asked.scheduling_config.spot):
        return "spot"
    labels = asked.labels if asked else {}
    place = places().get(labels.get(TARGET_LABEL, ""))
    ours = labels.get("managed-by") == MANAGED_BY
    return (place.provisioning or "on-demand") if place and ours else None


def _accelerator(node: Any) -> str:
    """Return its type, or the generation and topology that it was asked for with."""
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


def why_ended(chip: tpu.Chip | None) -> tpu.Ended | None:
    """Say why a request has no VM any more; None while it has one or may get one.

    A request that was not deleted stays in the queue, so one that is gone was deleted.
    """
    if chip is None:
        return tpu.Ended("DELETED_ELSEWHERE", None, "The queued resource is there no more.")
    words = f"{chip.said}. {chip.why}".strip()
    if not (chip.state.leftover or chip.taken_by):
        return None
    if chip.taken_by != "service":
        return tpu.Ended("DELETED_ELSEWHERE" if chip.taken_by else "NOT_KNOWN", None, words)
    # One of flex-start is never preempted.
    return tpu.Ended("EXPIRED" if chip.provisioning == "flex-start" else "PREEMPTED", None, words)


class QueuedPlane:
    """The queue of Cloud TPU, of one project; see `ControlPlane`."""

    def __init__(self, clients: tpu.Clients) -> None:
        self._clients = clients

    async def create(self, request: tpu.Request) -> str:
        """Ask by v2 on demand, else by v2alpha1."""
        made, once = request.made, str(uuid.uuid4())
        with tpu.translated_refusal(f"ask for {made.accelerator} in {request.zone}", request.zone):
            if made.provisioning != "on-demand":
                # v2alpha1 has words for flex-start, and no SDK knows it.
                answer = await self._clients.ask(
                    "POST",
                    f"{TPU_API}/{_VERSION}/{_parent_of(request)}/queuedResources",
                    params={"queuedResourceId": made.id, "requestId": once},
                    json=body_of(request),
                )
                return str(answer.get("name", ""))
            client = await self._clients.tpu()
            wanted: Any = {
                "parent": _parent_of(request),
                "queued_resource_id": made.id,
                "queued_resource": queued_resource(request),
                "request_id": once,
            }
            under_way = await client.create_queued_resource(request=wanted, **writing())
        return str(under_way.operation.name)

    def bodies(self, request: tpu.Request) -> Mapping[str, object]:
        return body_of(request)

    def address(self, request: tpu.Request) -> str:
        version = "v2" if request.made.provisioning == "on-demand" else _VERSION
        path = f"{version}/{_parent_of(request)}/queuedResources"
        return f"{TPU_API}/{path}?queuedResourceId={request.made.id}"

    async def outcome(self, zone: str, operation: str) -> tpu.Outcome:
        client = await self._clients.tpu()
        looked = client.get_operation({"name": operation}, **reading())
        seen = await find("see what became of the request", looked)
        failed = seen is not None and seen.done and seen.HasField("error")
        error = tpu.refusal_error(seen.error.message, zone) if seen and failed else None
        return tpu.Outcome(seen is None or bool(seen.done), error)

    async def get(self, zone: str, chip_id: str) -> tpu.Chip | None:
        """Look at a request and its node, or a node of ours that has lost its request."""
        client, name = await self._clients.tpu(), self._name(zone, "queuedResources", chip_id)
        looked = client.get_queued_resource(name=name, **reading())
        resource = await find(f"look at the queued resource {chip_id}", looked)
        if resource is None:
            orphan = await self._orphan(zone, chip_id)
            return bare(orphan) if orphan is not None else None
        (node_id, _asked), node = _asked_node(resource), None
        if node_id and said_of(resource) not in NO_NODE:
            node = await self._node(zone, node_id)
        return chip_of(resource, own_node(resource, node))

    async def list(self) -> Sequence[tpu.Chip]:
        """Return every request, and every node that nobody queued for."""
        client, found = await self._clients.tpu(), []
        resources = await self._listed("queued_resources", client.list_queued_resources)
        left = {_key(node.name): node for node in await self._listed("nodes", client.list_nodes)}
        for resource in resources:
            zone, short = _key(resource.name)
            place = (zone, _asked_node(resource)[0])
            node = left.get(place)
            mine = own_node(resource, node)
            if mine is not None or (node is not None and _last_of(node.queued_resource) == short):
                left.pop(place)  # one that was made between the two lists is none of its own
            found.append(chip_of(resource, mine))
        return [*found, *map(bare, left.values())]

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete a request with its node; a node of others that nobody queued for stays."""
        client = await self._clients.tpu()
        wanted: Any = {"name": self._name(zone, "queuedResources", chip_id), "force": True}
        asked = client.delete_queued_resource(request=wanted, **writing())
        try:
            if await find(f"delete the queued resource {chip_id}", asked) is not None:
                return
        except OpsError:  # also one that is being deleted is refused
            there = await self.get(zone, chip_id)
            if there is not None and there.state is not tpu.ChipState.DELETING:
                raise
            return
        if await self._orphan(zone, chip_id) is not None:  # it bills on by itself
            node = client.delete_node(name=self._name(zone, "nodes", chip_id), **writing())
            await find(f"delete the TPU {chip_id}", node)

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> tpu.Ended | None:
        """Say why its VM is gone: a request outlives it, and itself goes only when deleted."""
        del since  # what it tells is how it is now
        return why_ended(await self.get(zone, chip_id))

    async def offer(self, zone: str, accelerator: str) -> tpu.Offer:
        client = await self._clients.tpu()
        name = self._name(zone, "acceleratorTypes", accelerator)
        looked = client.get_accelerator_type(name=name, **reading())
        return await tpu.offered(f"see whether {zone} has {accelerator}", looked)

    async def _orphan(self, zone: str, node_id: str) -> Node | None:
        node = await self._node(zone, node_id)
        return node if node is not None and bare(node).deployment else None

    async def _node(self, zone: str, node_id: str) -> Node | None:
        client = await self._clients.tpu()
        looked = client.get_node(name=self._name(zone, "nodes", node_id), **reading())
        return await find(f"look at the TPU {node_id}", looked)

    async def _listed(self, field: str, ask: Callable[..., Any]) -> Sequence[Any]:
        """Return every one of all zones; `field` holds them on a page."""
        found: list[Any] = []
        parent, what = f"projects/{self._clients.project}/locations/-", field.replace("_", " ")
        with strictly(f"list {what}"):
            async for page in (await ask(parent=parent, **reading())).pages:
                found += getattr(page, field)
                tpu.unreachable(page.unreachable, what.capitalize())
        return found

    def _name(self, zone: str, kind: str, last: str) -> str:
        return f"projects/{self._clients.project}/locations/{zone}/{kind}/{last}"
