"""What every part of the backend is handed: the target, its clients, planes and memory."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import anyio
from google.cloud.tpu_v2 import TpuAsyncClient

from backends.google.clients import GoogleClients, GoogleSite
from backends.lifecycle import PendingStore
from backends.tpu import compute_client
from backends.tpu.planes import ControlPlane, PlaneKind, Provisioning
from core.records import Target
from planner.places import Place as Offered
from planner.places import places


def vm_id(name: str) -> str:
    """Name queued resource, node or instance, and network tag of a deployment.

    >>> vm_id("gemma")
    'vllm-devops-gemma'
    """
    return f"vllm-devops-{name}"


def key_secret(name: str) -> str:
    """Name the secret with a deployment's key: Cloud Run may serve another of that name."""
    return f"vllm-devops-tpu-{name}-api-key"


def region_of(zone: str) -> str:
    """Return a zone's region.

    >>> region_of("us-east5-b")
    'us-east5'
    """
    return zone.rpartition("-")[0]


class Clients(GoogleClients):
    """One project; its zones are chosen one by one."""

    def _region(self, target: Target) -> str:
        return self.settings.google_cloud_zone or target.region or "us-east5-b"

    async def tpu(self) -> TpuAsyncClient:
        """Nodes and queued resources."""
        return await self.client(TpuAsyncClient)

    async def compute(self, name: str) -> Any:
        """Return a client of Compute Engine, such as `Instances`, opened when first asked for."""
        if name not in self._open:
            plane, credentials = await self.plane(), await self.credentials()
            host = plane.http if plane else ""
            made = await anyio.to_thread.run_sync(compute_client.client, name, credentials, host)
            self._open.setdefault(name, made)
        return self._open[name]


class Inventory:
    """What was seen lately of a project: nine targets that are asked together look once."""

    def __init__(self) -> None:
        self._locks: defaultdict[Hashable, anyio.Lock] = defaultdict(anyio.Lock)
        self._seen: dict[Hashable, tuple[float, Any]] = {}

    async def read(self, what: Hashable, seconds: float, look: Callable[[], Awaitable[Any]]) -> Any:
        """Return what was seen within so many seconds, or look. Raises what `look` does."""
        async with self._locks[what]:
            at, seen = self._seen.get(what, (-inf, None))
            if anyio.current_time() - at > seconds:
                seen = await look()
                self._seen[what] = (anyio.current_time(), seen)
            return seen

    def forget(self, what: Hashable = "chips") -> None:
        """Look anew: something was changed."""
        self._seen.pop(what, None)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    planes: Mapping[PlaneKind, ControlPlane]
    records: PendingStore[Any]
    """What this machine remembers of the target's deployments."""
    folder: Path
    """Where it remembers that."""
    shared: Path
    """What it remembers of zones, and its locks: for every TPU target."""
    inventory: Inventory
    """What there is in every zone, shared by every TPU target."""
    certificates: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Those of VMs, with the moment at which they were read: a project has 60 reads a minute."""
    answered: dict[str, datetime | None] = field(default_factory=dict)
    """By VM, which start of its engine has answered."""
    now: Callable[[], datetime] = utc_now

    @property
    def home(self) -> str:
        """Say of every zone the same: a deployment is in whichever has a chip."""
        return "tpu"

    def key_secret(self, name: str) -> str:
        """Name the secret with a deployment's key."""
        return key_secret(name)

    @property
    def offered(self) -> Offered:
        """What is known of the target as data."""
        return places()[self.target.name]

    @property
    def accelerator(self) -> str:
        """Such as v6e-4."""
        return f"{self.offered.accelerator}-{self.offered.count}"

    @property
    def provisioning(self) -> Provisioning:
        """How its chips are given."""
        return self.offered.provisioning
