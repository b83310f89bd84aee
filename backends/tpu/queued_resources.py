"""Queued resources of Cloud TPU: gRPC for what its SDK has words for, REST for the rest."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import prod
from typing import Any, ClassVar, Final, Literal, NamedTuple

import anyio
import httpx2
from google.api_core.exceptions import (
    GoogleAPICallError,
    NotFound,
    from_grpc_status,
    from_http_status,
)
from google.auth.transport import requests
from google.cloud.tpu_v2.types import Node, QueuedResource
from grpc import StatusCode

from backends.google.clients import MANAGED_BY, TARGET_LABEL, as_sent, when
from backends.google.errors import (
    READ_SECONDS,
    WRITE_SECONDS,
    reading,
    strictly,
    translated,
    writing,
)
from backends.tpu.planes import (
    ACCOUNT_SCOPE,
    SPEC_METADATA,
    Chip,
    ChipState,
    Ended,
    Offer,
    Outcome,
    Place,
    PlaneKind,
    Provisioning,
    Request,
    early_refusal,
    meaning,
    refusal_error,
    translated_refusal,
    unreachable,
)
from backends.tpu.site import Clients
from core.endpoint import trusted
from core.errors import CloudTimeout, CloudUnavailable, OpsError
from planner.places import places

TPU_API: Final = "https://tpu.googleapis.com"


def parent_of(request: Request) -> str:
    """Name the zone in which it is asked for."""
    return f"projects/{request.made.project}/locations/{request.zone}"


def metadata_of(request: Request) -> dict[str, str]:
    """Return what the VM finds in its metadata; holds no secret: whoever is on it can read it."""
    spec = request.made.spec.model_dump_json(exclude_defaults=True)
    return {"startup-script": request.script, SPEC_METADATA: spec}


def queued_resource(request: Request) -> QueuedResource:
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
        "service_account": {"email": made.service_account, "scope": [ACCOUNT_SCOPE]},
        "labels": dict(request.labels),
        "metadata": metadata_of(request),
        "tags": [made.id],
    }
    spec = {"parent": parent_of(request), "node_id": made.id, "node": node}
    wait = {"valid_until_duration": timedelta(seconds=made.wait_seconds)}
    return QueuedResource({"tpu": {"node_spec": [spec]}, "queueing_policy": wait})


def body_of(request: Request) -> dict[str, Any]:
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


_VERSION: Final = "v2alpha1"
_AGAIN: Final = "Look with status_vllm whether it happened; the same call again is harmless."


class Flex(NamedTuple):
    """What v2alpha1 knows of a request beyond v2."""

    model: str
    """STANDARD, SPOT, RESERVATION_BOUND or FLEX_START; empty if nobody said."""
    run: timedelta | None
    """How long it may run."""
    ends_at: datetime | None


def parse_flex(answer: Mapping[str, Any]) -> Flex:
    """Read what v2alpha1 says of a request."""
    run = answer.get("runDuration", {})
    most, end = run.get("maxRunDuration"), run.get("terminationTime")
    return Flex(
        model=str(answer.get("provisioningModel", "")),
        run=timedelta(seconds=float(most.removesuffix("s"))) if most else None,
        ends_at=datetime.fromisoformat(end).astimezone(UTC) if end else None,
    )


async def _call(clients: Clients, method: str, path: str, **more: Any) -> Mapping[str, Any]:
    """Ask v2alpha1, which has words for flex-start, and which no SDK knows."""
    plane = await clients.plane()
    url = f"{plane.http if plane else TPU_API}/{_VERSION}/{path}"
    what, headers = f"{method} {url}", dict[str, str]()
    who: Any = await clients.credentials()

    def say_who() -> None:
        who.before_request(requests.Request(), "GET", TPU_API, headers)

    await anyio.to_thread.run_sync(say_who, abandon_on_cancel=True)
    try:
        async with httpx2.AsyncClient(trust_env=plane is None, verify=trusted()) as client:
            reply = await client.request(method, url, headers=headers, **more)
    except httpx2.TimeoutException as exc:
        raise CloudTimeout(f"Google did not answer in time: {what}.", fix=_AGAIN) from exc
    except httpx2.HTTPError as exc:
        raise CloudUnavailable(
            f"Google is not to be reached: {what}.", cause=str(exc), fix=_AGAIN
        ) from exc
    if not reply.is_success:
        raise flex_error(reply)
    answer: Mapping[str, Any] = reply.json()
    return answer


def flex_error(reply: httpx2.Response) -> GoogleAPICallError:
    """Return Google's JSON as its SDK would raise it."""
    try:
        error = reply.json()["error"]
        status, words = StatusCode[error["status"]], str(error["message"])
    except (ValueError, KeyError, TypeError):
        found: GoogleAPICallError = from_http_status(reply.status_code, reply.text[:500])
    else:
        found = from_grpc_status(status, words)
    return found


WITHOUT_NODE: Final = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED"})
"""A request in these states never has one; another's may have its id."""
_STATES: Final[Mapping[str, ChipState]] = {
    "CREATING": ChipState.WAITING,
    "ACCEPTED": ChipState.WAITING,
    "WAITING_FOR_RESOURCES": ChipState.WAITING,
    "PROVISIONING": ChipState.PROVISIONING,
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
    """Return the last part of a full name."""
    return name.rpartition("/")[2]


def zone_of(name: str) -> str:
    """Return the zone of a full name.

    >>> zone_of("projects/p/locations/us-east5-b/nodes/n")
    'us-east5-b'
    """
    return name.split("/")[3]


def node_id_of(resource: QueuedResource) -> str:
    """Return the id of its node, the first if there are several; empty if it names none."""
    return next((str(spec.node_id) for spec in resource.tpu.node_spec), "")


def belongs(node: Node, resource: QueuedResource) -> bool:
    """Whether a node was made for a request; names may say the project by its number."""
    return not node.queued_resource or last_of(node.queued_resource) == last_of(resource.name)


def said_of(resource: QueuedResource) -> str:
    """Return its state in Google's word."""
    return str(resource.state.state.name)


def chip_of(resource: QueuedResource, node: Node | None, flex: Flex | None) -> Chip:
    """Put together what is known of one; `node` only where it belongs to it."""
    asked = next((spec.node for spec in resource.tpu.node_spec), None)
    told: Any = node if node is not None else asked
    said = said_of(resource)
    state = _STATES.get(said, ChipState.UNKNOWN)
    if said == "ACTIVE":  # without a node its chip is being taken back
        by_node = _NODES.get(node.state.name, ChipState.UNKNOWN) if node is not None else None
        state = by_node or ChipState.STOPPING
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


def bare(node: Node) -> Chip:
    """Return a node that nobody queued for: it is somebody else's, and is shown."""
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


def _of_node(node: Node | None, told: Any) -> dict[str, Any]:
    """Return what only the node knows, and what its order knows as well."""
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


def _provisioning(resource: QueuedResource, flex: Flex | None) -> Provisioning:
    asked = next((spec.node for spec in resource.tpu.node_spec), None)
    if "spot" in resource or (asked and asked.scheduling_config.spot):
        return "spot"
    if flex:
        return _MODELS.get(flex.model, "on-demand")
    return target_provisioning(resource) or "on-demand"


def target_provisioning(resource: QueuedResource) -> Provisioning | None:
    """Return how chips are given to the target that its label names; None if it names none."""
    labels = next((spec.node.labels for spec in resource.tpu.node_spec), {})
    place = places().get(labels.get(TARGET_LABEL, ""))
    ours = labels.get("managed-by") == MANAGED_BY
    return place.provisioning if ours and place else None


def _end(given: datetime | None, flex: Flex | None) -> datetime | None:
    """Say when Google ends it: only flex-start has such a time on the queue."""
    if flex is None or flex.model != "FLEX_START":
        return None
    return flex.ends_at or (given + flex.run if given and flex.run else None)


def _why(resource: QueuedResource, node: Node | None) -> str:
    if resource.state.failed_data.error.message:
        return str(resource.state.failed_data.error.message)
    if node is not None and node.state.name in _PREEMPTED:
        return f"Its node is {node.state.name}."
    return str(node.health_description) if node is not None else ""


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


def why_ended(chip: Chip | None, now: datetime) -> Ended | None:
    """Say why a request has no VM any more; None while it has one or may get one.

    A request that was not deleted stays in the queue, so one that is gone was deleted.
    """
    if chip is None:
        return Ended("DELETED_ELSEWHERE", None, "The queued resource is there no more.")
    words = f"{chip.said}. {chip.why}".strip()
    if not (chip.state.leftover or chip.taken_by):
        return None
    if chip.taken_by != "service":
        return Ended("DELETED_ELSEWHERE" if chip.taken_by else "NOT_KNOWN", None, words)
    if chip.provisioning == "flex-start":  # it is never preempted
        over = chip.ends_at if chip.ends_at and chip.ends_at <= now else None
        return Ended("EXPIRED", over, words)
    return Ended("PREEMPTED", None, words)


class QueuedPlane:
    """The queue of Cloud TPU, of one project."""

    kind: ClassVar[PlaneKind] = "queued"

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, request: Request) -> str:
        """Ask by v2 on demand, else by v2alpha1."""
        made, what = request.made, f"ask for {request.made.accelerator} in {request.zone}"
        if made.provisioning != "on-demand":
            asked = {"queuedResourceId": made.id, "requestId": str(uuid.uuid4())}
            path, body = f"{parent_of(request)}/queuedResources", body_of(request)
            with translated_refusal(what, request.zone):
                answer = await _call(
                    self._clients, "POST", path, params=asked, json=body, timeout=WRITE_SECONDS
                )
            return str(answer.get("name", ""))
        client = await self._clients.tpu()
        wanted: Any = {
            "parent": parent_of(request),
            "queued_resource_id": made.id,
            "queued_resource": queued_resource(request),
            "request_id": str(uuid.uuid4()),
        }
        with translated_refusal(what, request.zone):
            under_way = await client.create_queued_resource(request=wanted, **writing())
        return str(under_way.operation.name)

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Return what `create` sends as JSON."""
        return body_of(request)

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is; one that Google has forgotten is over."""
        client = await self._clients.tpu()
        try:
            with translated("see what became of the request"):
                seen = await client.get_operation({"name": operation}, **reading())
        except NotFound:
            return Outcome(done=True)
        failed = seen.done and seen.HasField("error")
        return Outcome(bool(seen.done), refusal_error(seen.error.message, zone) if failed else None)

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at a request and its node, or a node of ours that has lost its request."""
        resource = await self._resource(zone, chip_id)
        if resource is None:
            orphan = await self._orphan(zone, chip_id)
            return bare(orphan) if orphan is not None else None
        node_id, node = node_id_of(resource), None
        if node_id and said_of(resource) not in WITHOUT_NODE:
            node = await self._node(zone, node_id)
        mine = node if node is not None and belongs(node, resource) else None
        return chip_of(resource, mine, await self._flex(resource))

    async def list(self) -> Sequence[Chip]:
        """Return every request, and every node that nobody queued for."""
        resources, flexes = await self._resources(), await self._flexes()
        left = {(zone_of(node.name), last_of(node.name)): node for node in await self._nodes()}
        found = []
        for resource in resources:
            place = (zone_of(resource.name), node_id_of(resource))
            node = left.get(place)
            mine = node is not None and belongs(node, resource)
            without = said_of(resource) in WITHOUT_NODE
            if node is not None and mine and (node.queued_resource or not without):
                left.pop(place)  # one that was made between the two lists is none of its own
            shown = node if mine and not without else None
            extra = flexes.get((zone_of(resource.name), last_of(resource.name)))
            found.append(chip_of(resource, shown, extra))
        return [*found, *map(bare, left.values())]

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete a request with its node; a node of others that nobody queued for stays."""
        client = await self._clients.tpu()
        asked_for: Any = {"name": self._name(zone, "queuedResources", chip_id), "force": True}
        try:
            with translated(f"delete the queued resource {chip_id}"):
                await client.delete_queued_resource(request=asked_for, **writing())
        except NotFound:
            await self._delete_orphan(zone, chip_id)
        except OpsError:
            there = await self._resource(zone, chip_id)
            if there is not None and said_of(there) != "DELETING":
                raise

    async def _orphan(self, zone: str, node_id: str) -> Node | None:
        node = await self._node(zone, node_id)
        return node if node is not None and bare(node).deployment else None

    async def _delete_orphan(self, zone: str, node_id: str) -> None:
        """It bills on, and no request would be deleted with it."""
        if await self._orphan(zone, node_id) is None:
            return
        client = await self._clients.tpu()
        try:
            with translated(f"delete the TPU {node_id}"):
                node: Any = {"name": self._name(zone, "nodes", node_id)}
                await client.delete_node(request=node, **writing())
        except NotFound:
            return

    async def stop(self, zone: str, chip_id: str) -> None:
        """Ask to stop the node."""
        client = await self._clients.tpu()
        node: Any = {"name": self._name(zone, "nodes", chip_id)}
        with strictly(f"stop the TPU {chip_id}"):
            await client.stop_node(request=node, **writing())

    async def start(self, zone: str, chip_id: str) -> None:
        """Ask to start the node again; it needs a chip again."""
        client = await self._clients.tpu()
        node: Any = {"name": self._name(zone, "nodes", chip_id)}
        with translated_refusal(f"start the TPU {chip_id}", zone):
            under_way = await client.start_node(request=node, **writing())
        refusal = await early_refusal(self.outcome, zone, str(under_way.operation.name))
        if refusal:
            raise refusal

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why its VM is gone: a request outlives it, and itself goes only when deleted."""
        del since  # what it tells is how it is now
        return why_ended(await self.get(zone, chip_id), datetime.now(UTC))

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the accelerator."""
        client = await self._clients.tpu()
        try:
            with translated(f"see whether {zone} has {accelerator}"):
                name = self._name(zone, "acceleratorTypes", accelerator)
                await client.get_accelerator_type(name=name, **reading())
        except NotFound:
            return Offer(hardware=False, detail=f"The zone has no {accelerator}.")
        except OpsError as exc:
            if meaning(exc.cause) != "ZONE_REFUSED":
                raise
            return Offer(hardware=False, detail=exc.cause)
        return Offer(hardware=True)

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Return nothing: the serial port of a node is not shown to its owner."""
        del zone, chip_id
        return ()

    async def _resource(self, zone: str, chip_id: str) -> QueuedResource | None:
        client = await self._clients.tpu()
        name = self._name(zone, "queuedResources", chip_id)
        try:
            with translated(f"look at the queued resource {chip_id}"):
                return await client.get_queued_resource(name=name, **reading())
        except NotFound:
            return None

    async def _node(self, zone: str, node_id: str) -> Node | None:
        client = await self._clients.tpu()
        try:
            with translated(f"look at the TPU {node_id}"):
                return await client.get_node(name=self._name(zone, "nodes", node_id), **reading())
        except NotFound:
            return None

    async def _resources(self) -> Sequence[QueuedResource]:
        client = await self._clients.tpu()
        found: list[QueuedResource] = []
        parent = f"projects/{self._clients.project}/locations/-"
        with strictly("list queued resources"):
            pager = await client.list_queued_resources(parent=parent, **reading())
            async for page in pager.pages:
                found += page.queued_resources
                unreachable(page.unreachable, "Queued resources")
        return found

    async def _nodes(self) -> Sequence[Node]:
        client = await self._clients.tpu()
        found: list[Node] = []
        parent = f"projects/{self._clients.project}/locations/-"
        with strictly("list TPU nodes"):
            pager = await client.list_nodes(parent=parent, **reading())
            async for page in pager.pages:
                found += page.nodes
                unreachable(page.unreachable, "TPU nodes")
        return found

    async def _flex(self, resource: QueuedResource) -> Flex | None:
        """Ask v2alpha1 of a request that may be flex-start; None where it is not or none tells."""
        if "spot" in resource or target_provisioning(resource) in {"spot", "on-demand"}:
            return None
        try:
            with strictly("look whether it is flex-start"):
                path = resource.name
                return parse_flex(await _call(self._clients, "GET", path, timeout=READ_SECONDS))
        except OpsError:
            return None

    async def _flexes(self) -> Mapping[tuple[str, str], Flex]:
        """Ask v2alpha1 of all requests, by zone and id; nothing where it does not tell."""
        found: dict[tuple[str, str], Flex] = {}
        path, token = f"projects/{self._clients.project}/locations/-/queuedResources", ""
        with suppress(OpsError):
            while True:
                with strictly("look which are flex-start"):
                    page = await _call(
                        self._clients,
                        "GET",
                        path,
                        params={"pageToken": token} if token else {},
                        timeout=READ_SECONDS,
                    )
                for one in page.get("queuedResources", ()):
                    found[zone_of(one["name"]), last_of(one["name"])] = parse_flex(one)
                token = str(page.get("nextPageToken", ""))
                if not token:
                    break
        return found

    def _name(self, zone: str, kind: str, last: str) -> str:
        return f"projects/{self._clients.project}/locations/{zone}/{kind}/{last}"
