"""Queued resources of Cloud TPU: gRPC for what its SDK has words for, REST for what it has not."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from backends.common.concurrency import side_by_side
from backends.google.clients import as_sent, when
from backends.google.errors import reading, strictly, translated, writing
from backends.tpu import flex, queued_bodies, queued_ended
from backends.tpu import queued_reading as words
from backends.tpu.asking import Outcome, asked, refused_soon
from backends.tpu.chip import Chip, Ended, PlaneKind
from backends.tpu.clients import Clients
from backends.tpu.everywhere import everywhere, unreachable
from backends.tpu.planes import Offer, Request
from backends.tpu.refusals import is_contradiction, refusing, told
from core.cloud_errors import CloudError, ZoneRefused
from core.errors import OpsError

if TYPE_CHECKING:
    from google.cloud.tpu_v2.types import Node, QueuedResource

_PLAIN: Final = 1000
"""How many requests are remembered that v2alpha1 has nothing to say of."""
_AT_ONCE: Final = 8
"""A project may hold hundreds of requests: those that failed stay until somebody deletes them."""


class QueuedPlane:
    """The queue of Cloud TPU, of one project."""

    kind: ClassVar[PlaneKind] = "queued"
    stops: ClassVar[bool] = True

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._plain: dict[tuple[str, datetime], flex.Flex] = {}
        self._few = anyio.Semaphore(_AT_ONCE)

    async def create(self, request: Request) -> str:
        """Ask for a chip, once; see `ControlPlane`."""
        return await asked(self, request, partial(self._create, request))

    def bodies(self, request: Request) -> Mapping[str, object]:
        """Give what `create` sends as JSON."""
        if request.made.provisioning == "flex-start":
            return queued_bodies.flex_start(request)
        return as_sent(queued_bodies.queued_resource(request))

    async def refusal(self, zone: str, operation: str) -> OpsError | None:
        """Say why a request failed that Google had taken; None if it did not (yet)."""
        return (await self.outcome(zone, operation)).error if operation else None

    async def outcome(self, zone: str, operation: str) -> Outcome:
        """Say how far an operation is; one that Google has forgotten is over."""
        from google.api_core.exceptions import NotFound

        client = await self._clients.tpu()
        try:
            with translated("see what became of the request"):
                seen = await client.get_operation({"name": operation}, **reading())
        except NotFound:
            return Outcome(done=True)
        failed = seen.done and seen.HasField("error")
        return Outcome(bool(seen.done), told(seen.error.message, zone) if failed else None)

    async def get(self, zone: str, chip_id: str) -> Chip | None:
        """Look at a request and its node, or a node of ours that has lost its request."""
        resource = await self._resource(zone, chip_id)
        if resource is None:
            orphan = await self._orphan(zone, chip_id)
            return words.bare(orphan) if orphan is not None else None
        node_id, node = words.node_id_of(resource), None
        if node_id and words.said_of(resource) not in words.WITHOUT_NODE:
            node = await self._node(zone, node_id)
        mine = node if node is not None and words.belongs(node, resource) else None
        return words.chip_of(resource, mine, await self._flex(resource))

    async def list(self, zones: Sequence[str]) -> Sequence[Chip]:
        """Give every request, and every node that nobody queued for."""
        resources = await everywhere(self._resources, zones, "Queued resources")
        nodes = await everywhere(self._nodes, zones, "TPU nodes")
        extras = await side_by_side([partial(self._flex, resource) for resource in resources])
        left = {(words.zone_of(node.name), words.last_of(node.name)): node for node in nodes}
        found = []
        for resource, extra in zip(resources, extras, strict=True):
            place = (words.zone_of(resource.name), words.node_id_of(resource))
            node = left.get(place)
            mine = node is not None and words.belongs(node, resource)
            without = words.said_of(resource) in words.WITHOUT_NODE
            if node is not None and mine and (node.queued_resource or not without):
                left.pop(place)  # one that was made between the two lists is none of its own
            shown = node if mine and not without else None
            found.append(words.chip_of(resource, shown, extra))
        return [*found, *map(words.bare, left.values())]

    async def delete(self, zone: str, chip_id: str) -> None:
        """Ask to delete a request with its node; a node of others that nobody queued for stays."""
        from google.api_core.exceptions import NotFound

        client = await self._clients.tpu()
        asked_for: Any = {"name": self._name(zone, "queuedResources", chip_id), "force": True}
        try:
            with translated(f"delete the queued resource {chip_id}"):
                await client.delete_queued_resource(request=asked_for, **writing())
        except NotFound:
            await self._delete_orphan(zone, chip_id)
        except OpsError:
            there = await self._resource(zone, chip_id)
            if there is not None and words.said_of(there) != "DELETING":
                raise

    async def _orphan(self, zone: str, node_id: str) -> "Node | None":
        node = await self._node(zone, node_id)
        return node if node is not None and words.bare(node).deployment else None

    async def _delete_orphan(self, zone: str, node_id: str) -> None:
        """It bills on, and no request would be deleted with it."""
        from google.api_core.exceptions import NotFound

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
        with refusing(f"start the TPU {chip_id}", zone):
            under_way = await client.start_node(request=node, **writing())
        await refused_soon(self, zone, str(under_way.operation.name))

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> Ended | None:
        """Say why its VM is gone: a request outlives it, and itself goes only when deleted."""
        del since  # what it tells is how it is now
        return queued_ended.ended(await self.get(zone, chip_id), datetime.now(UTC))

    async def offer(self, zone: str, accelerator: str) -> Offer:
        """Say whether the zone has the accelerator, and with which images."""
        return await queued_ended.offer(self._clients, zone, accelerator)

    async def serial(self, zone: str, chip_id: str) -> Sequence[str]:
        """Give nothing: the serial port of a node is not shown to its owner."""
        del zone, chip_id
        return ()

    async def _create(self, request: Request) -> str:
        """Ask by v2 where it has the words, of spot by v2alpha1 where v2 sees a contradiction."""
        made, what = request.made, _what(request)
        if made.provisioning == "flex-start":
            return await self._by_rest(request, queued_bodies.flex_start(request))
        client = await self._clients.tpu()
        wanted: Any = {
            "parent": queued_bodies.parent_of(request),
            "queued_resource_id": made.id,
            "queued_resource": queued_bodies.queued_resource(request),
            "request_id": str(uuid.uuid4()),
        }
        try:
            with refusing(what, request.zone):
                under_way = await client.create_queued_resource(request=wanted, **writing())
        except CloudError as exc:
            if made.provisioning == "spot" and is_contradiction(exc.cause):
                return await self._spot_by_name(request)
            raise
        return str(under_way.operation.name)

    async def _spot_by_name(self, request: Request) -> str:
        try:
            return await self._by_rest(request, queued_bodies.spot(request))
        except CloudError as exc:
            if not is_contradiction(exc.cause):
                raise
            raise ZoneRefused(
                f"The queue of {request.zone} takes spot in neither of the two ways to say it.",
                cause=exc.cause,
                fix="Take control_plane=compute: Compute Engine gives spot as well.",
            ) from exc

    async def _by_rest(self, request: Request, body: Mapping[str, Any]) -> str:
        parent, once = queued_bodies.parent_of(request), str(uuid.uuid4())
        with refusing(_what(request), request.zone):
            return await flex.create(self._clients, parent, request.made.id, once, body)

    async def _resource(self, zone: str, chip_id: str) -> "QueuedResource | None":
        from google.api_core.exceptions import NotFound

        client = await self._clients.tpu()
        name = self._name(zone, "queuedResources", chip_id)
        try:
            with translated(f"look at the queued resource {chip_id}"):
                return await client.get_queued_resource(name=name, **reading())
        except NotFound:
            return None

    async def _node(self, zone: str, node_id: str) -> "Node | None":
        from google.api_core.exceptions import NotFound

        client = await self._clients.tpu()
        try:
            with translated(f"look at the TPU {node_id}"):
                return await client.get_node(name=self._name(zone, "nodes", node_id), **reading())
        except NotFound:
            return None

    async def _resources(self, zone: str) -> Sequence["QueuedResource"]:
        client = await self._clients.tpu()
        found: list[QueuedResource] = []
        parent = f"projects/{self._clients.project}/locations/{zone}"
        with strictly("list queued resources"):
            pager = await client.list_queued_resources(parent=parent, **reading())
            async for page in pager.pages:
                found += page.queued_resources
                unreachable(page.unreachable, "Queued resources")
        return found

    async def _nodes(self, zone: str) -> Sequence["Node"]:
        client = await self._clients.tpu()
        found: list[Node] = []
        parent = f"projects/{self._clients.project}/locations/{zone}"
        with strictly("list TPU nodes"):
            pager = await client.list_nodes(parent=parent, **reading())
            async for page in pager.pages:
                found += page.nodes
                unreachable(page.unreachable, "TPU nodes")
        return found

    async def _flex(self, resource: "QueuedResource") -> flex.Flex | None:
        """Ask v2alpha1 of a request that may be flex-start; None where it is not or none tells."""
        if "spot" in resource or words.target_provisioning(resource) in {"spot", "on-demand"}:
            return None
        known = (resource.name, when(resource.create_time))
        if known not in self._plain:
            try:
                async with self._few:
                    with strictly("look whether it is flex-start"):
                        seen = await flex.seen(self._clients, resource.name)
            except OpsError:
                return None
            if seen.model == "FLEX_START":
                return seen
            if len(self._plain) >= _PLAIN:
                self._plain.clear()
            self._plain[known] = seen
        return self._plain[known]

    def _name(self, zone: str, kind: str, last: str) -> str:
        return f"projects/{self._clients.project}/locations/{zone}/{kind}/{last}"


def _what(request: Request) -> str:
    return f"ask for {request.made.accelerator} in {request.zone}"
