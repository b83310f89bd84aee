"""TPUs that are there before a test begins: ours, others', and leftovers of either."""

from typing import Any, Final

from google.cloud.tpu_v2 import Node, QueuedResource

from backends.tpu.compute import call
from backends.tpu.site import ChipState, PlaneKind, Request, Site, vm_id
from tests.backends.tpu.planned import drawn
from tests.soon import soon

ZONE: Final = "us-east5-b"
NO_CHIP: Final = {"free": 0}
"""A zone in which every request waits in vain, and is a leftover in the end."""


async def ours(
    site: Site,
    name: str = "gemma",
    *,
    zone: str = ZONE,
    plane: PlaneKind = "queued",
    seconds: int = 90,
    expires: int = 0,
) -> None:
    """Ask for a chip as a deployment does, waiting for so many seconds at most."""
    made = drawn(site, zones=(zone,), control_plane=plane).model_copy(
        update={"id": vm_id(name), "wait_seconds": seconds}
    )
    labels = {**made.labels, "vllm-devops-deployment": name, "vllm-devops-expires": str(expires)}
    await site.planes[plane].create(Request(made, zone, "", labels))


async def foreign(site: Site, chip_id: str, *, zone: str = ZONE) -> None:
    """Queue for a chip as somebody else would."""
    parent = f"projects/{site.clients.project}/locations/{zone}"
    node = Node(accelerator_type=site.accelerator, runtime_version="v2-alpha-tpuv6e")
    spec = QueuedResource.Tpu.NodeSpec(parent=parent, node_id=chip_id, node=node)
    wanted: Any = {
        "parent": parent,
        "queued_resource_id": chip_id,
        "queued_resource": QueuedResource(
            tpu=QueuedResource.Tpu(node_spec=[spec]),
            queueing_policy=QueuedResource.QueueingPolicy(valid_until_duration={"seconds": 90}),
        ),
    }
    client = await site.clients.tpu()
    await client.create_queued_resource(request=wanted)


async def rule_of_others(site: Site, name: str = "theirs", **said: Any) -> None:
    """Make a firewall rule as somebody else would."""
    rule = {
        "name": name,
        "description": "Of somebody else.",
        "network": f"projects/{site.clients.project}/global/networks/default",
        "direction": "INGRESS",
        "allowed": [{"IPProtocol": "tcp", "ports": ["8000"]}],
        "sourceRanges": ["10.0.0.0/8"],
        **said,
    }
    await call(site.clients, "make their rule", "POST", "global/firewalls", json=rule)


async def until(site: Site, chip_id: str, state: ChipState, *, zone: str = ZONE) -> None:
    """Wait until a request of the queue is in a state."""

    async def look() -> ChipState | None:
        chip = await site.planes["queued"].get(zone, chip_id)
        return chip.state if chip else None

    await soon(look, lambda seen: seen is state, waiting_for=f"{chip_id}")
    site.inventory.forget()
