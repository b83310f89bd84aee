"""Queued resources and nodes as the simulated TPU API is asked for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import grpc.aio
from google.api_core import exceptions
from google.cloud.tpu_v2.services.tpu.async_client import TpuAsyncClient
from google.cloud.tpu_v2.services.tpu.transports.grpc_asyncio import TpuGrpcAsyncIOTransport
from google.cloud.tpu_v2.types import (
    CreateQueuedResourceRequest,
    DeleteQueuedResourceRequest,
    Node,
    QueuedResource,
)

from core.settings import GooglePlane
from tests.google_plane import Controls

ZONE: Final = "us-east5-b"
FAST: Final = 3000
"""Simulated seconds in a real one."""


def parent_of(project: str, zone: str = ZONE) -> str:
    return f"projects/{project}/locations/{zone}"


def wanted_node(accelerator: str = "v6e-1", **changes: Any) -> Node:
    """A node that the API takes."""
    fields = {
        "accelerator_type": accelerator,
        "runtime_version": "v2-alpha-tpuv6e",
        "network_config": {"enable_external_ips": True},
    }
    return Node({**fields, **changes})


def wanted_body(project: str, zone: str = ZONE, **changes: Any) -> dict[str, Any]:
    """A flex-start request that v2alpha1 takes."""
    node = {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "networkConfig": {"enableExternalIps": True},
        "bootDiskConfig": {"diskSizeGb": "300"},
        "labels": {"managed-by": "a-test"},
    }
    spec = {"parent": parent_of(project, zone), "nodeId": "one", "node": node}
    return {
        "tpu": {"nodeSpec": [spec]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "14400s"},
        "queueingPolicy": {"validUntilDuration": "7200s"},
        **changes,
    }


class Tpus:
    """The TPU API of one project, by Google's own client and by plain HTTP."""

    def __init__(self, client: TpuAsyncClient, controls: Controls, project: str) -> None:
        self.client = client
        self.controls = controls
        self.project = project
        self.parent = parent_of(project)

    def name(self, short: str = "one", zone: str = ZONE) -> str:
        return f"{parent_of(self.project, zone)}/queuedResources/{short}"

    def node_name(self, short: str = "one") -> str:
        return f"{self.parent}/nodes/{short}"

    async def create(self, short: str = "one", *, zone: str = ZONE, **changes: Any) -> Any:
        """Queue one; `node` and `node_id` replace its own, the rest is of the resource."""
        node = changes.pop("node", None) or wanted_node()
        parent, node_id = parent_of(self.project, zone), changes.pop("node_id", short)
        request_id = changes.pop("request_id", "")
        spec = {"parent": parent, "node_id": node_id, "node": node, **changes.pop("spec", {})}
        resource = QueuedResource({"tpu": {"node_spec": [spec]}, **changes})
        return await self.client.create_queued_resource(
            CreateQueuedResourceRequest(
                parent=parent,
                queued_resource_id=short,
                queued_resource=resource,
                request_id=request_id,
            )
        )

    async def active(self, short: str = "one", **changes: Any) -> None:
        """Queue one and see it get its chips."""
        await self.create(short, **changes)
        await self.reaches("ACTIVE", short)

    async def delete(self, short: str = "one", *, force: bool = True) -> Any:
        request = DeleteQueuedResourceRequest(name=self.name(short), force=force)
        return await self.client.delete_queued_resource(request)

    async def get(self, short: str = "one", zone: str = ZONE) -> QueuedResource:
        return await self.client.get_queued_resource(name=self.name(short, zone))

    async def node(self, short: str = "one") -> Node:
        return await self.client.get_node(name=self.node_name(short))

    async def reaches(self, state: str, short: str = "one", zone: str = ZONE) -> list[str]:
        """Wait for a state, and give those on the way to it."""
        seen: list[str] = []
        with anyio.fail_after(20):
            while True:
                now = (await self.get(short, zone)).state.state.name
                seen += [now] if now not in seen[-1:] else []
                if now == state:
                    return seen
                await anyio.sleep(0.005)

    async def node_reaches(self, state: str, short: str = "one") -> None:
        with anyio.fail_after(20):
            while True:
                if (await self.node(short)).state.name == state:
                    return
                await anyio.sleep(0.01)

    async def gone(self, short: str = "one", zone: str = ZONE) -> None:
        with anyio.fail_after(20):
            while True:
                try:
                    await self.get(short, zone)
                except exceptions.NotFound:
                    return
                await anyio.sleep(0.01)

    async def ended(self, begun: Any) -> Any:
        """Wait for an operation's end; the SDK's own waiting looks once in a second."""
        with anyio.fail_after(20):
            while True:
                kept = await self.client.get_operation({"name": begun.operation.name})
                if kept.done:
                    return kept
                await anyio.sleep(0.02)

    def preempt(self, short: str = "one") -> None:
        """Take its chips back, as Google does."""
        self.controls.preempt(self.project, "queued", ZONE, short)

    def seen(self, what: str) -> Any:
        """What the controls tell of the project."""
        return self.controls.get(self.project)[what]

    def set(self, **knobs: Any) -> None:
        self.controls.set(self.project, **knobs)


@asynccontextmanager
async def tpus_of(plane: GooglePlane, project: str, **knobs: Any) -> AsyncIterator[Tpus]:
    """Prepare a project whose simulated time is fast, and speak to its TPU API."""
    async with grpc.aio.insecure_channel(plane.grpc) as channel:
        controls = Controls(plane)
        controls.set(project, **{"prepared": True, "tpu_clock": FAST, **knobs})
        client = TpuAsyncClient(transport=TpuGrpcAsyncIOTransport(channel=channel))
        yield Tpus(client, controls, project)
