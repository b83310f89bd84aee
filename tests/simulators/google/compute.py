"""Google's own clients of Compute Engine on a simulated Google Cloud, called in threads."""

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from google.auth.credentials import AnonymousCredentials

from backends.tpu import compute_client
from core.settings import GooglePlane

ZONE: Final = "us-east5-b"
OTHER_ZONE: Final = "us-east1-d"
"""Takes no flex-start."""
IMAGE: Final = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
)
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_KINDS: Final = {
    "instances": "Instances",
    "zone_operations": "ZoneOperations",
    "global_operations": "GlobalOperations",
    "firewalls": "Firewalls",
    "machine_types": "MachineTypes",
    "networks": "Networks",
    "subnetworks": "Subnetworks",
    "zones": "Zones",
}
_SCHEDULING: Final[dict[str, dict[str, Any]]] = {
    "STANDARD": {},
    "SPOT": {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"},
    "FLEX_START": {
        "provisioning_model": "FLEX_START",
        "instance_termination_action": "DELETE",
        "max_run_duration": {"seconds": 14_400},
    },
}
SECONDS: Final = 20.0
"""The longest that something simulated may take here."""


def instance(
    name: str = "one", *, zone: str = ZONE, model: str = "STANDARD", kind: str = "1t", **more: Any
) -> dict[str, Any]:
    """An instance as it is asked for; `more` replaces parts of it."""
    scheduling = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    flex = {
        "reservation_affinity": {"consume_reservation_type": "NO_RESERVATION"},
        "params": {"request_valid_for_duration": {"seconds": 7200}},
    }
    params = {
        "source_image": IMAGE,
        "disk_size_gb": 200,
        "disk_type": f"zones/{zone}/diskTypes/hyperdisk-balanced",
    }
    return {
        "name": name,
        "machine_type": f"zones/{zone}/machineTypes/ct6e-standard-{kind}",
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": params}],
        "network_interfaces": [
            {"network": "global/networks/default", "access_configs": [{"type_": "ONE_TO_ONE_NAT"}]}
        ],
        "scheduling": {**scheduling, **_SCHEDULING[model]},
        **(flex if model == "FLEX_START" else {}),
        **more,
    }


class Compute:
    """Compute Engine of one project."""

    def __init__(self, plane: GooglePlane, project: str) -> None:
        self.project = project
        self._plane = plane
        self._open: dict[str, Any] = {}

    async def call(self, service: str, method: str, **request: Any) -> Any:
        """Call a method of a client once, such as get of instances."""
        client = self._client(service)
        kind = getattr(client, method)
        asked = {"project": self.project, **request}
        call = functools.partial(kind, request=asked, timeout=SECONDS, retry=None)
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def rows(self, service: str, method: str = "list", **request: Any) -> list[Any]:
        """Everything that a method lists, over all pages."""
        pages = await self.call(service, method, **request)
        return await anyio.to_thread.run_sync(list, pages)

    async def insert(self, asked: dict[str, Any], zone: str = ZONE, **more: Any) -> Any:
        """Ask for an instance; gives the operation."""
        return await self.call(
            "instances", "insert_unary", zone=zone, instance_resource=asked, **more
        )

    async def inserted(self, asked: dict[str, Any], zone: str = ZONE) -> Any:
        """Ask for an instance and wait for the operation's end."""
        return await self.waited(await self.insert(asked, zone), zone)

    async def get(self, name: str = "one", zone: str = ZONE) -> Any:
        """Look at an instance."""
        return await self.call("instances", "get", zone=zone, instance=name)

    async def act(self, method: str, name: str = "one", zone: str = ZONE, **more: Any) -> Any:
        """Do something with an instance, such as delete_unary; gives the operation."""
        return await self.call("instances", method, zone=zone, instance=name, **more)

    async def waited(self, operation: Any, zone: str = ZONE) -> Any:
        """Wait for an operation of a zone."""
        return await self.call("zone_operations", "wait", zone=zone, operation=operation.name)

    async def operations(self, zone: str = ZONE, **more: Any) -> list[Any]:
        """Every operation of a zone."""
        return await self.rows("zone_operations", zone=zone, **more)

    async def until(self, seen: Callable[[Any], bool], name: str = "one", zone: str = ZONE) -> Any:
        """Look until an instance is as it is to be."""
        with anyio.fail_after(SECONDS):
            while True:
                found = await self.get(name, zone)
                if seen(found):
                    return found
                await anyio.sleep(0.01)

    async def until_gone(self, name: str = "one", zone: str = ZONE) -> None:
        """Look until there is no such instance."""
        with anyio.fail_after(SECONDS):
            while True:
                if name not in [one.name for one in await self.rows("instances", zone=zone)]:
                    return
                await anyio.sleep(0.01)

    def close(self) -> None:
        for client in self._open.values():
            client.transport.close()

    def _client(self, service: str) -> Any:
        if service not in self._open:
            credentials, http = AnonymousCredentials(), self._plane.http
            self._open[service] = compute_client.client(service, _KINDS[service], credentials, http)
        return self._open[service]


@asynccontextmanager
async def compute_of(plane: GooglePlane, project: str) -> AsyncIterator[Compute]:
    """Open a project's Compute Engine."""
    compute = Compute(plane, project)
    yield compute
    compute.close()


def errors_of(operation: Any) -> list[tuple[int, str]]:
    """Give status and code of each error of an operation."""
    return [(operation.http_error_status_code, one.code) for one in operation.error.errors]
