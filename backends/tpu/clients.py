"""Google's clients that TPUs need beside those of all its clouds.

Those of Compute Engine are synchronous and speak REST alone: they are made and called in threads.
"""

from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from backends.google.clients import GoogleClients, opened
from core.records import Target

if TYPE_CHECKING:
    from google.cloud.compute_v1 import (
        FirewallsClient,
        GlobalOperationsClient,
        InstancesClient,
        MachineTypesClient,
        NetworksClient,
        ZoneOperationsClient,
    )
    from google.cloud.tpu_v2 import TpuAsyncClient

TPU_API: Final = "https://tpu.googleapis.com"


class Clients(GoogleClients):
    """One project; its zones are chosen one by one."""

    def _region(self, target: Target) -> str:
        return self.settings.google_cloud_zone or target.region or "us-east5-b"

    async def tpu(self) -> "TpuAsyncClient":
        """Nodes and queued resources."""
        return cast(
            "TpuAsyncClient", await self.client("google.cloud.tpu_v2", "tpu", "TpuAsyncClient")
        )

    async def instances(self) -> "InstancesClient":
        """Instances of Compute Engine."""
        return cast("InstancesClient", await self._compute("instances", "Instances"))

    async def zone_operations(self) -> "ZoneOperationsClient":
        """What goes on in a zone of Compute Engine, and what went on."""
        return cast(
            "ZoneOperationsClient", await self._compute("zone_operations", "ZoneOperations")
        )

    async def global_operations(self) -> "GlobalOperationsClient":
        """What goes on that belongs to no zone, such as changes of firewall rules."""
        return cast(
            "GlobalOperationsClient", await self._compute("global_operations", "GlobalOperations")
        )

    async def firewalls(self) -> "FirewallsClient":
        """Firewall rules."""
        return cast("FirewallsClient", await self._compute("firewalls", "Firewalls"))

    async def machine_types(self) -> "MachineTypesClient":
        """Which machines a zone has."""
        return cast("MachineTypesClient", await self._compute("machine_types", "MachineTypes"))

    async def networks(self) -> "NetworksClient":
        """Networks of the project."""
        return cast("NetworksClient", await self._compute("networks", "Networks"))

    async def _compute(self, service: str, name: str) -> Any:
        if name not in self._open:
            plane, credentials = await self.plane(), await self.credentials()
            host = plane.http if plane else ""
            made = await anyio.to_thread.run_sync(_made, service, name, credentials, host)
            self._open.setdefault(name, made)
        return self._open[name]


def _made(service: str, name: str, credentials: Any, http: str) -> Any:
    import importlib

    opened("google.cloud.compute_v1")
    package = f"google.cloud.compute_v1.services.{service}"
    client = getattr(importlib.import_module(f"{package}.client"), f"{name}Client")
    rest = getattr(importlib.import_module(f"{package}.transports.rest"), f"{name}RestTransport")
    if not http:
        return client(transport=rest(credentials=credentials))
    host = http.removeprefix("http://")
    return client(transport=rest(host=host, credentials=credentials, url_scheme="http"))
