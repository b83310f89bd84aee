"""What every part of the backend is handed: whose cloud, which target, both control planes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backends.google.clients import GoogleSite
from backends.tpu.chip import PlaneKind, Provisioning
from backends.tpu.clients import Clients
from backends.tpu.inventory import Inventory
from backends.tpu.names import key_secret
from backends.tpu.planes import ControlPlane
from planner.places import Place as Offered
from planner.places import places


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    planes: Mapping[PlaneKind, ControlPlane]
    folder: Path
    """What this machine remembers of the target's deployments."""
    shared: Path
    """What it remembers of zones, for every TPU target."""
    inventory: Inventory
    """What there is in every zone, shared by every TPU target."""
    certificates: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Those of VMs, with the moment at which they were read: a project has 60 reads a minute."""
    answered: set[str] = field(default_factory=set)
    """Addresses whose model has answered."""

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
